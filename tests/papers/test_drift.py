"""What the sweep of drift control says of other runs."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from unittest import mock

import pytest

import dpfl_plugin
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.runs.environment import package_sha256
from papers import drift_control
from papers.drift_control import Cell, Method, Numbers, Place, advice, gap, numbers, place, ranked


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
    assert found.mean == pytest.approx(0.01) and found.error == pytest.approx(0.0, abs=1e-12) and found.told_apart
    mixed = gap([cell({"a": [0.5, 0.6, 0.4, 0.5], "b": [0.6, 0.5, 0.5, 0.41]})], "a", "b")
    assert not mixed.told_apart
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


def test_numbers_of_another_package_say_so() -> None:
    here = dataclasses.replace(numbers(), version=dpfl_plugin.__version__, sources=(package_sha256(),))
    assert "earlier" not in here.origin() and here.sources_and_this()["sources"] == [package_sha256()]
    for other in ({"version": "0.0.9"}, {"sources": ("f" * 64,)}, {"sources": (package_sha256(), "f" * 64)}):
        changed = dataclasses.replace(here, **other)
        assert "an earlier source of this package" in changed.origin()
        said = changed.sources_and_this()
        assert said["this_package"] == {"version": dpfl_plugin.__version__, "source": package_sha256()}
        assert (said["version"], said["command"]) == (changed.version, drift_control.COMMAND)
    with mock.patch.object(drift_control, "package_sha256", return_value="e" * 64):
        assert "earlier" in here.origin()


def test_the_shipped_numbers_are_whole_cells() -> None:
    """Of each skew some, each once, and each with all methods at all of its seeds."""
    found = numbers()
    places = {(c.skew, c.silo_rate, c.local_steps, c.epsilon) for c in found.cells}
    assert {c.skew for c in found.cells} == set(drift_control.SKEWS) and len(places) == len(found.cells)
    for c in found.cells:
        assert list(c.methods) == list(found.methods)
        assert {len(m.accuracies) for m in c.methods.values()} == {c.seeds} and c.seeds >= 5
        assert all(0 < a < 1 for m in c.methods.values() for a in m.accuracies)


def test_where_cells_are_missing_the_others_are_taken_and_it_is_said() -> None:
    """Levels are those of the skew that is asked for: a sweep may have fewer with one than with another."""
    rest = [cell({"FedAvg": [0.5] * 5}, epsilon) for epsilon in (1.0, 8.0)]
    other = dataclasses.replace(rest[0], skew="alike")
    found = made(*rest, other)
    assert found.levels("epsilon", ["labels"]) == [1.0, 8.0] and found.levels("epsilon", ["labels", "alike"]) == [1.0]
    both = advice([Place("skew", ("labels", "alike")), Place("epsilon", (1.0, 8.0))], found)
    assert both.cells == (*rest, other) and "some of the cells" in both.outside[0]
    with pytest.raises(ConfigError, match=r"nothing near was measured: .* skew alike, epsilon 8\.0"):
        advice([Place("skew", ("alike",)), Place("epsilon", (8.0,))], found)
