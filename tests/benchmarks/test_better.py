"""The comparison at equal epsilon changes one thing at a time, tunes all alike, and says what its numbers show."""

import dataclasses
import math

import pytest

from benchmarks import better
from benchmarks.better import (
    DATA,
    EPSILONS,
    IMAGES,
    OPTIONS,
    SEEDS,
    TUNING,
    Cell,
    configuration,
    measured,
    options_of,
    page,
)


@pytest.mark.parametrize("data", [*DATA, *IMAGES])
def test_an_option_changes_what_it_names_and_nothing_else(data):
    plain = {"augmentation": None, **configuration(data, "", 3.0, 0.5, 7).model_dump()}
    assert plain["seed"] == 7 and plain["privacy"]["epsilon"] == 3.0
    for option, changes in options_of(data).items():
        changed = {"augmentation": None, **configuration(data, option, 3.0, 0.5, 7).model_dump()}
        tops = {key for key in plain if changed[key] != plain[key]}
        assert tops == {key.partition(".")[0] for key in changes}, option


class Peaked:
    """Runs whose accuracy is best at one step size; counts what tuning has looked at."""

    def __init__(self, best):
        self.best, self.tuned = best, []

    def run(self, config, base):
        factor = config.algorithm.options["local_lr"] / 2.0
        if config.seed in TUNING:
            self.tuned.append((factor, config.seed))
        return dataclasses.make_dataclass("Run", ["accuracy"])(1.0 - 0.01 * abs(math.log2(factor / self.best)))


@pytest.mark.parametrize("best", [1 / 16, 1.0, 2.0, 16.0])
def test_each_has_its_own_best_step_size_by_seeds_of_its_own(best):
    laboratory = Peaked(best)
    found = measured(laboratory, "digits", "", 1.0, 3)
    assert found == Cell(best, (1.0, 1.0, 1.0))
    assert {seed for _, seed in laboratory.tuned} == set(TUNING) and not set(TUNING) & set(range(SEEDS))
    factors = {factor for factor, _ in laboratory.tuned}
    assert len(laboratory.tuned) == len(factors) * len(TUNING) and min(factors) < best < max(factors)


def test_what_helps_harms_and_does_not_show_is_told_from_the_numbers():
    cells = {("digits", "", epsilon): Cell(1.0, (0.50, 0.52, 0.48)) for epsilon in EPSILONS}
    gains = dict.fromkeys(OPTIONS, (0.0, 0.02, -0.02))
    gains["average: tail"], gains["l2: 0.01"] = (0.1, 0.11, 0.12), (-0.1, -0.11, -0.12)
    for option, gain in gains.items():
        found = Cell(1.0, tuple(a + b for a, b in zip((0.50, 0.52, 0.48), gain, strict=True)))
        cells |= {("digits", option, epsilon): found for epsilon in EPSILONS}
    cells["digits", "l2: 0.01", 8.0] = dataclasses.replace(cells["digits", "l2: 0.01", 8.0], factor=64.0)
    said = page(cells, 3)
    assert "1 to 64 times the yardstick's" in said and "1 of 36 are the least or the largest that was tried" in said
    assert "+11.0 ± 0.6 *" in said and "-11.0 ± 0.6 *" in said
    assert "`average: tail`: helps, +11.0 ± 0.6 points in the mean of 3 cells." in said
    assert "`l2: 0.01`: harms, -11.0 ± 0.6 points" in said
    assert "`average: ema`: not told apart from 0, +0.0 ± 1.2 points" in said


def test_two_seeds_are_needed(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["better", "--seeds", "1"])
    with pytest.raises(SystemExit):
        better.main()
    assert "a standard error needs 2 or more" in capsys.readouterr().err
