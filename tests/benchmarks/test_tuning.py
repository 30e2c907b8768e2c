"""The comparison of all algorithms tunes alike, runs everything once, and says what its numbers show."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import algorithms, personalised, tuning
from benchmarks.algorithms import TASKS, Measured, Task
from benchmarks.tuning import Contender, Found, Laboratory, Run, best_step, contenders, search
from dpfl_plugin import registry
from dpfl_plugin.algorithms.mr_mtl import MRMTL, Local
from dpfl_plugin.config.schema import Config
from dpfl_plugin.runs.setting import federate

TINY = """
name: tiny
rounds: 4
data: {dataset: digits, partition: {name: labels_per_silo, labels: 2}, num_silos: 5, preprocess: [unit_norm]}
algorithm: {name: fedavg, local_steps: 2, local_lr: 1}
privacy: {epsilon: 8, record_rate: 0.2}
variants: {a: {}, b: {algorithm: {name: multistage_mb_sgd, smoothness: 1, strong_convexity: 0.1, stage_rounds: [2, 2]}}}
"""


@pytest.fixture
def tiny(tmp_path: Path) -> list[Contender]:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return contenders(path)


def test_every_algorithm_is_compared() -> None:
    """Those without a model for all silos are by `benchmarks.personalised`."""
    names = {str(c.start.algorithm.name) for task in TASKS for c in task.contenders()}
    of_silos = {"mr_mtl", "local"}
    assert {type(one) for tried in personalised.candidates().values() for one in tried.values()} >= {MRMTL, Local}
    assert names == set(registry.names("algorithms")) - of_silos


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_contenders_differ_in_nothing_but_algorithm_batches_and_schedule(task: Task) -> None:
    first, *others = task.contenders()
    for other in others:
        same = {"algorithm": first.start.algorithm, "privacy": first.start.privacy}
        assert other.start.model_copy(update=same) == first.start, other.label
        varied = ("sampler", "record_rate", "schedule")
        as_first = {key: getattr(first.start.privacy, key) for key in varied}
        assert other.start.privacy.model_copy(update=as_first) == first.start.privacy, other.label
    labels = {contender.label for contender in (first, *others)}
    assert all(set(pair) <= labels for pair in task.compare)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_search_begins_at_the_files_values(task: Task) -> None:
    for contender in task.contenders():
        assert contender.dials() and contender.allowed(contender.origin), contender.label
        config = contender.config(contender.origin, 2.5, 7)
        assert (config.privacy.epsilon, config.seed) == (2.5, 7)
        changed = {"seed": 0, "privacy": contender.start.privacy, "evaluation": contender.start.evaluation}
        assert config.model_copy(update=changed) == contender.start, contender.label


def test_what_belongs_together_is_turned_together(tiny: list[Contender]) -> None:
    local, stages = tiny
    assert local.dials() == [("algorithm.local_lr",), ("rounds",), ("algorithm.local_steps",)]
    assert local.values((-1, 2, 1)) == {"algorithm.local_lr": 0.5, "rounds": 16, "algorithm.local_steps": 4}
    assert stages.values((1, 1)) == {"algorithm.smoothness": 2, "rounds": 8, "algorithm.stage_rounds": [4, 4]}
    assert stages.config((1, 1), 1.0, 0).algorithm.options["stage_rounds"] == [4, 4]
    assert replace(local, fixed=("rounds",)).dials() == [("algorithm.local_lr",), ("algorithm.local_steps",)]


def test_limits(tiny: list[Contender]) -> None:
    local, _ = tiny
    least, most = tuning.LIMITS["algorithm.local_steps"]
    assert local.values((0, 0, -1))["algorithm.local_steps"] == least and local.allowed((0, 0, -1))
    assert not local.allowed((0, 0, -2)) and not local.allowed((0, 0, most))
    assert local.allowed((0, 6, 0)) and tuning.MOST_STEPS < 4 * 2**6 * 2**2 and not local.allowed((0, 6, 1))
    assert not local.allowed((0, 7, -1))  # more rounds than any run may have, although few steps


def test_search_climbs_to_a_peak_that_no_single_turn_improves() -> None:
    peak = (3, -2, 1)
    found = search(lambda p: -sum((a - b) ** 2 for a, b in zip(p, peak, strict=True)), 3, lambda p: True, 60)
    assert found.point == peak and found.settled and not found.bounded


def test_search_goes_along_a_ridge_by_turning_two_dials() -> None:
    """Better only where one dial is turned up and the other down: no single turn would ever leave the origin."""
    found = search(lambda p: -abs(p[0] + p[1]) + p[0] / 100, 2, lambda p: max(map(abs, p)) <= 3, 100)
    assert found.point == (3, -3) and found.settled and found.bounded


@pytest.mark.parametrize("trials", [1, 2, 5, 12])
def test_search_tries_nothing_twice_and_no_more_than_it_may(trials: int) -> None:
    tried = []

    def score(point: tuple[int, ...]) -> float:
        tried.append(point)
        return -float(point[0] ** 2 + point[1])

    found = search(score, 2, lambda p: p[1] >= -1, trials)
    assert len(tried) == len(set(tried)) == found.trials == min(trials, 7) and all(p[1] >= -1 for p in tried)
    assert found.point == max(tried, key=lambda p: -(p[0] ** 2) - p[1])
    assert search(lambda p: 0.0, 1, lambda p: p == (0,), 9) == Found((0,), 1, settled=True, bounded=True)


def test_a_run_is_made_once(tiny: list[Contender], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    laboratory, base = Laboratory(tmp_path / "lab"), tmp_path
    config = tiny[0].config((0, 0, 0), 8.0, 1)
    run = laboratory.run(config, base)
    assert run.rounds == 4 and 0 < run.accuracy < 1 and run.curve[-1][0] == 4
    assert run.sent == 2 * 4 * 4 * (64 * 10 + 10)  # up and down, four rounds, floats of four bytes
    monkeypatch.setattr(tuning, "run_session", lambda *a, **b: pytest.fail("it ran again"))
    later = Laboratory(tmp_path / "lab")
    assert later.run(config, base) == run
    assert later.run(config.model_copy(update={"name": "other", "out": "elsewhere"}), base) == run
    for changes in ("seed", "epsilon", "dial"):
        other = {"seed": ((0, 0, 0), 8.0, 2), "epsilon": ((0, 0, 0), 4.0, 1), "dial": ((1, 0, 0), 8.0, 1)}[changes]
        with pytest.raises(pytest.fail.Exception):
            later.run(tiny[0].config(*other), base)


def test_training_without_noise_ends_at_the_accuracy_of_the_optimum(tiny: list[Contender], tmp_path: Path) -> None:
    """By full-batch gradient descent on a loss so curved by l2 = 1 that 200 steps end at its minimum."""
    laboratory, config = Laboratory(tmp_path / "lab"), tiny[0].config((0, 0, 0), 8.0, 1)
    free = {"noise_multiplier": 0.0, "clip_norm": math.inf, "epsilon": None, "sampler": "full", "record_rate": None}
    descent = {"algorithm": {"name": "mb_sgd", "lr": 0.5}, "rounds": 200, "privacy": free, "l2": 1.0}
    run = laboratory.run(Config.model_validate({**config.model_dump(), **descent}), tmp_path)
    assert run.accuracy == pytest.approx(
        laboratory.accuracy_at_optimum(config.model_copy(update={"l2": 1.0}), tmp_path)
    )
    assert run.accuracy != laboratory.accuracy_at_optimum(config, tmp_path)


def test_the_silos_from_files_are_those_of_the_configuration(tiny: list[Contender], tmp_path: Path) -> None:
    config = tiny[0].config((0, 0, 0), 8.0, 3)
    own = federate(config, tmp_path).silos
    data = Laboratory(tmp_path / "lab").data(config, tmp_path)
    files = federate(config.model_copy(update={"data": data}), tmp_path).silos
    assert len(own) == len(files) == 5
    for a, b in zip(own, files, strict=True):
        order = [np.lexsort((*x.T, y)) for x, y in ((a.train_x, a.train_y), (b.train_x, b.train_y))]
        assert np.array_equal(a.train_x[order[0]], b.train_x[order[1]])
        assert np.array_equal(a.train_y[order[0]], b.train_y[order[1]])
        assert len(a.test_y) == len(b.test_y)


def _measured(contender: Contender, *accuracies: float) -> Measured:
    runs = [Run(accuracy=a, rounds=4, sent=2000.0, seconds=1.5, curve=((4, a),)) for a in accuracies]
    return Measured(contender, Found((0,) * len(contender.dials()), 3, True, False), runs)


def test_differences_are_told_apart_by_their_standard_error() -> None:
    gap, error = algorithms.difference([0.5, 0.6, 0.7], [0.4, 0.4, 0.7])
    assert gap == pytest.approx(0.1) and error == pytest.approx(0.1 / math.sqrt(3))
    # Student's t with two degrees of freedom has its 97.5 % point at 4.303.
    assert algorithms.told_apart(-4.31, 1.0, 3) and not algorithms.told_apart(4.29, 1.0, 3)
    assert algorithms.told_apart(2.0, 1.0, 1000) and not algorithms.told_apart(1.95, 1.0, 1000)


def test_tables_say_who_wins(tiny: list[Contender]) -> None:
    task = Task("tiny", (1.0, 8.0), compare=(("a", "b"),))
    a, b = tiny
    results = {
        ("a", 1.0): _measured(a, 0.50, 0.51, 0.52),
        ("b", 1.0): _measured(b, 0.49, 0.52, 0.51),
        ("a", 8.0): _measured(a, 0.60, 0.61, 0.62),
        ("b", 8.0): _measured(b, 0.701, 0.711, 0.721),
    }
    assert algorithms.winners(task, results).splitlines() == [
        "* epsilon 1: a, 0.510; not told apart from it: b.",
        "* epsilon 8: b, 0.711.",
    ]
    rows = {line.split("|")[1].strip(): line.split("|") for line in algorithms.main_table(task, results).splitlines()}
    assert [cell.strip() for cell in rows["a"][2:-1]] == [
        "0.510 ± 0.010",
        "0.610 ± 0.010",
        "4 / 4",
        "2 / 2",
        "1.5 / 1.5",
    ]
    assert "-10.1 ± 0.0 *" in algorithms.comparisons(task, results)
    assert "4 searches, of 3 trials in the mean, 4 ended" in algorithms.endings(results.values())
    found = algorithms.settings(task, results)
    assert all(text in found for text in ("a: local_lr, rounds, local_steps", "1, 4, 2"))


def test_all_labels_in_the_picture_of_families_are_contenders() -> None:
    labels = {contender.label for contender in TASKS[0].contenders()}
    assert set(itertools.chain(*algorithms.SHOWN.values())) <= labels
    missing = labels - set(itertools.chain(*algorithms.SHOWN.values()))
    assert missing <= {"subgradient", "convolution", "localized convolution", "SCAFFOLD, noise falls by step"}


@pytest.mark.parametrize("peak", [0.02, 1 / 9, 1.0, 2.9, 20.0])
def test_a_grid_goes_on_to_the_step_nearest_to_the_peak(peak: float) -> None:
    found = best_step(lambda rate: -abs(math.log(rate / peak)), (1 / 3, 1.0, 3.0), 3.0, (0.01, 30.0))
    assert abs(math.log(found / peak)) <= math.log(3.0) / 2 + 1e-9


def test_a_grid_goes_up_from_a_plateau() -> None:
    assert best_step(lambda rate: max(0.0, rate - 5.0) * (rate < 30), (1 / 3, 1.0, 3.0), 3.0, (0.01, 100.0)) == 27.0


def test_a_grid_ends_within_its_limits() -> None:
    found = [best_step(lambda rate, sign=sign: sign * rate, (1 / 3, 1.0, 3.0), 3.0, (0.01, 30.0)) for sign in (-1, 1)]
    assert found == pytest.approx([1 / 81, 27])
