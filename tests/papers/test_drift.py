"""What the sweep of drift control says of other runs: from the configuration alone, by what was measured nearest."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import dpfl_plugin as dpfl
from benchmarks import drift as benchmark
from dpfl_plugin.errors import ConfigError
from papers.drift import (
    MEASURED_ROUNDS,
    SKEWS,
    Advice,
    Cell,
    Method,
    Numbers,
    Place,
    advice,
    advised,
    gap,
    main,
    numbers,
    place,
    ranked,
)

CONFIG: dict[str, Any] = {
    "rounds": 40,
    "silo_rate": 0.2,
    "data": {"dataset": "mnist", "num_silos": 10, "folder": "/there/are/no/records"},
    "algorithm": {"name": "fedavg", "local_steps": 5, "local_lr": 1.0},
    "privacy": {"epsilon": 8.0},
}
TWO_LABELS = {"name": "labels_per_silo", "labels": 2}


def config(folder: Path, partition: Any, **changes: Any) -> Path:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, "data": {**CONFIG["data"], "partition": partition}, **changes}))
    return path


def asked(path: Path, *settings: str, skew: str | None = None) -> Advice:
    return advised(dpfl.Experiment(path, settings), skew)[0]


def printed(path: Path, *words: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([str(path), *words]) == 0
    return out.getvalue()


def test_few_labels_and_few_silos_call_for_drift_control(tmp_path: Path) -> None:
    path = config(tmp_path, TWO_LABELS)
    found = asked(path)
    assert found.method.startswith("SCAFFOLD") and numbers().methods[found.method]["name"] == "scaffold"
    (here,) = found.cells
    assert (here.skew, here.silo_rate, here.local_steps, here.epsilon) == ("labels", 0.2, 5, 8.0)
    accuracy = {name: statistics.fmean(of.accuracies) for name, of in here.methods.items()}
    assert found.best == max(accuracy, key=lambda name: accuracy[name])
    assert found.gain.mean == pytest.approx(accuracy[found.method] - accuracy["FedAvg"])
    assert found.gain.mean > 0.05 and found.gain.significant and not found.outside
    (line,) = [line for line in printed(path).splitlines() if "begin with" in line]
    settings = [word for word in line.split() if "=" in word]
    with_it = dpfl.Experiment(path, tuple(settings)).config  # the words that are printed are a run's
    assert (with_it.algorithm.name, with_it.data.partition.name) == ("scaffold", "labels_per_silo")


def test_silos_that_are_alike_do_not(tmp_path: Path) -> None:
    """Nor do values between those that were measured, which take the mean of the cells around them."""
    found = asked(config(tmp_path, "iid", silo_rate=0.5), "privacy.epsilon=3")
    assert found.method.startswith("FedAvg")
    assert {(c.skew, c.silo_rate, c.epsilon) for c in found.cells} == {
        ("alike", rate, epsilon) for rate in (0.2, 1.0) for epsilon in (1.0, 8.0)
    }
    assert len(found.remarks) == 2 and not found.outside


def test_silos_of_the_data_are_not_counted_but_asked_for(tmp_path: Path) -> None:
    path = config(tmp_path, "natural", algorithm={"name": "scaffold", "local_steps": 200, "local_lr": 1.0})
    with pytest.raises(ConfigError, match=r"--skew is missing.*private"):
        asked(path)
    found = asked(path, "model=mlp", "data.num_silos=1000", skew="source")
    assert [c.skew for c in found.cells] == ["source"]
    assert found.cells[0].local_steps == max(c.local_steps for c in numbers().cells if c.skew == "source")
    assert [text.split()[0] for text in found.outside] == ["local_steps", "data", "1000", "model"]


def test_what_was_measured_is_said_before_any_accuracy(tmp_path: Path) -> None:
    """Of tables at their sites: on which data, that it predicts nothing for these, and what was not measured."""
    table = {"dataset": {"name": "csv", "files": "silos/*.csv", "label_column": "ill"}, "partition": "natural"}
    path = tmp_path / "tables.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, "data": table, "rounds": 30}))
    for skew, data in (("shares", "MNIST"), ("source", "FEMNIST")):
        before, after = printed(path, "--skew", skew).split("begin with", 1)
        assert before.startswith(f"Measured on {data}, ") and "not a prediction for your data" in before
        for unlike in ("data set csv, with its columns, classes and records", "the number of silos", "30 rounds:"):
            assert f"not measured: {unlike}" in before
        assert f"accuracy on {data}" in after


def test_rounds_are_those_of_the_benchmark() -> None:
    for rate, rounds in MEASURED_ROUNDS.items():
        cell = benchmark.Cell("labels", rate, 5, 8.0)
        assert {cell.config(path, 1.0, 0).rounds for path in benchmark.PATHS} == {rounds}
    assert set(numbers().levels("silo_rate")) == set(MEASURED_ROUNDS)


def test_drift_control_is_advised_where_it_pays_with_such_silos_whatever_steps_and_epsilon() -> None:
    """In every cell that was measured: the rule that docs/drift.md states, of the silos and not of the one cell."""
    found = numbers()
    for cell in found.cells:
        like = [c for c in found.cells if (c.skew, c.silo_rate) == (cell.skew, cell.silo_rate)]
        ahead = behind = 0
        for one in like:
            best = sorted(one.methods, key=lambda name: one.methods[name].mean, reverse=True)
            plain, controlled = (next(n for n in best if n.startswith("FedAvg") == kind) for kind in (True, False))
            g = gap([one], controlled, plain)
            ahead += g.significant and g.mean >= 0.005
            behind += g.significant and g.mean <= -0.005
        axes = ("skew", "silo_rate", "local_steps", "epsilon")
        said = advice([Place(axis, (getattr(cell, axis),)) for axis in axes], found)
        assert said.method.startswith("SCAFFOLD") == (2 * ahead >= len(like) and not behind)


@pytest.mark.parametrize(
    ("partition", "skews"),
    [
        ({"name": "dirichlet", "alpha": 0.5}, {"shares"}),
        ({"name": "dirichlet", "alpha": 0.1}, {"labels", "shares"}),
        ({"name": "dirichlet", "alpha": 1.0}, {"shares", "alike"}),
        ({"name": "dirichlet", "alpha": 100.0}, {"alike"}),
        ({"name": "similarity", "gamma": 0}, {"labels"}),
        ({"name": "similarity", "gamma": 10}, {"labels", "shares"}),
    ],
)
def test_how_a_simulation_deals_records_out_is_known(tmp_path: Path, partition: Any, skews: set[str]) -> None:
    assert {c.skew for c in asked(config(tmp_path, partition)).cells} == skews


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"privacy": {"noise_multiplier": 2.0}}, "--epsilon is missing"),
        ({"privacy": {"epsilon": 8.0, "unit": "silo"}}, "scaffold is refused"),
        ({"algorithm": {"name": "mb_sgd", "lr": 1.0}}, "nothing drifts"),
    ],
)
def test_what_has_no_answer_is_refused(tmp_path: Path, changes: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        asked(config(tmp_path, TWO_LABELS, **changes))


def test_the_step_is_said_beside_fedavgs(tmp_path: Path) -> None:
    """Whoever has a step size for FedAvg is told how the recommended method's was beside it."""
    for silo_rate in (0.2, 1.0):
        path = config(tmp_path, TWO_LABELS, silo_rate=silo_rate, privacy={"epsilon": 3.0})
        found, said = asked(path), printed(path)
        ratios = [c.methods[found.method].local_lr / c.methods["FedAvg"].local_lr for c in found.cells]
        assert ("FedAvg's)" in said) == (found.method != "FedAvg")
        assert ("was as large as FedAvg's" in said) == (min(ratios) == max(ratios) == 1 and found.method != "FedAvg")


# The rule


def cell(accuracies: Mapping[str, Sequence[float]], epsilon: float = 1.0) -> Cell:
    return Cell("labels", 0.2, 5, epsilon, {name: Method(1.0, tuple(of)) for name, of in accuracies.items()})


def made(*cells: Cell) -> Numbers:
    return dataclasses.replace(numbers(), methods={name: {} for name in cells[0].methods}, cells=cells)


@pytest.mark.parametrize(
    ("value", "levels", "outside"),
    [
        (1.0, (1.0,), False),
        (3.0, (1.0, 8.0), False),
        (8.0, (8.0,), False),
        (0.5, (1.0,), True),
        (100.0, (30.0,), True),
        (9.0, (8.0, 30.0), False),
    ],
)
def test_the_nearest_levels_are_those_around_a_value(value: float, levels: tuple[float, ...], outside: bool) -> None:
    found = place("epsilon", value, [1.0, 8.0, 30.0])
    assert (found.levels, found.outside, bool(found.remark)) == (levels, outside, value not in (1.0, 8.0))


def test_gaps_are_paired_by_seed() -> None:
    """Seeds that shift all methods alike hide no difference; differences that change their sign are none."""
    shifts = [0.0, 0.3, -0.2, 0.1, 0.05]
    here = cell({"a": [0.5 + s for s in shifts], "b": [0.49 + s for s in shifts]})
    found = gap([here], "a", "b")
    assert found.mean == pytest.approx(0.01) and found.error == pytest.approx(0.0, abs=1e-12) and found.significant
    mixed = gap([cell({"a": [0.5, 0.6, 0.4, 0.5], "b": [0.6, 0.5, 0.5, 0.41]})], "a", "b")
    assert not mixed.significant
    # By hand: differences -.1, .1, -.1, .09; mean -.0025, standard deviation .11266, and half of it.
    assert mixed.mean == pytest.approx(-0.0025) and mixed.error == pytest.approx(0.05633, abs=1e-5)


@pytest.mark.parametrize("spread", [0.0, 0.01])
def test_the_cheapest_of_what_is_level_with_the_best_is_advised(spread: float) -> None:
    """What is not told apart from it, and what is, by less than is worth it: 0.4 points that all seeds show."""
    noise = [spread, -spread, 2 * spread, -2 * spread, 0.0]
    cheap, dear, best = [0.80] * 5, [0.803] * 5, [0.804 + n for n in noise]
    for behind, method in ((0.0, "cheap"), (0.05, "dear")):
        here = cell({"FedAvg": [0.5] * 5, "cheap": [c - behind for c in cheap], "dear": dear, "best": best})
        found = advice([Place("epsilon", (1.0,))], made(here))
        assert (found.method, found.best) == (method, "best")
        assert found.gain.mean == pytest.approx(statistics.fmean(here.methods[method].accuracies) - 0.5)


def test_between_two_cells_their_mean_decides() -> None:
    low = cell({"FedAvg": [0.6] * 5, "FedAvg, averaged": [0.5] * 5})
    high = cell({"FedAvg": [0.5] * 5, "FedAvg, averaged": [0.9] * 5}, epsilon=8.0)
    assert [advice([place("epsilon", e, [1.0, 8.0])], made(low, high)).method for e in (1.0, 3.0, 8.0)] == [
        "FedAvg",
        "FedAvg, averaged",
        "FedAvg, averaged",
    ]
    assert ranked([low, high], ["FedAvg", "FedAvg, averaged"]) == ("FedAvg, averaged", [])


def test_drift_control_that_loses_somewhere_is_advised_nowhere() -> None:
    """Ahead at one epsilon, behind at the other: with such silos it does not pay, and how far it is ahead is said."""
    low, high = cell({"FedAvg": [0.6] * 5, "S": [0.5] * 5}), cell({"FedAvg": [0.5] * 5, "S": [0.9] * 5}, epsilon=8.0)
    said = advice([Place("epsilon", (8.0,))], made(low, high))
    assert (said.method, said.best, said.level) == ("FedAvg", "S", ()) and said.behind.mean == pytest.approx(0.4)
    assert advice([Place("epsilon", (8.0,))], made(high)).method == "S"


def test_the_kept_numbers_are_whole_cells() -> None:
    """At all levels of all axes, each once, and each with all methods at all of its seeds."""
    found = numbers()
    places = {(c.skew, c.silo_rate, c.local_steps, c.epsilon) for c in found.cells}
    axes = [found.levels(axis) for axis in ("skew", "silo_rate", "local_steps", "epsilon")]
    assert places == set(itertools.product(*axes)) and len(places) == len(found.cells) and axes[0] == sorted(SKEWS)
    for c in found.cells:
        assert list(c.methods) == list(found.methods)
        assert {len(m.accuracies) for m in c.methods.values()} == {c.seeds} and c.seeds >= 5
        assert all(0 < a < 1 for m in c.methods.values() for a in m.accuracies)
