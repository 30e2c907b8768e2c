"""Where drift control won, as `python -m benchmarks.drift` measured it, and what that says of other runs.

The numbers are in drift_control.json, which the benchmark writes: accuracies of each method, at its own best step size,
by how silos differ, the share of silos in a round, local steps and epsilon, seed by seed.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from scipy.stats import t as student

import dpfl_plugin
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.runs.environment import package_sha256

FILE: Final = "drift_control.json"
COMMAND: Final = "python -m benchmarks.drift"
PAGE: Final = "docs/drift.md"
SKEWS: Final[Mapping[str, str]] = {
    "labels": "each silo has few of the classes",
    "shares": "silos have the classes in unequal shares",
    "alike": "silos are like random parts of one data set",
    "source": "silos have the same classes, and records of a source of their own (writers, scanners, sites)",
}
"""How silos differ, and what is meant."""
ORDERED: Final = ("labels", "shares", "alike")
"""From more skew of labels to less; between two of these there may be others."""
WORTH: Final = 0.005
"""Accuracy that more bytes, or another option, are worth."""
LEVEL: Final = 0.95
PLAIN: Final = "FedAvg"


@dataclass(frozen=True, slots=True)
class Method:
    """A method in a cell: its best step size, and test accuracy by seed."""

    local_lr: float
    accuracies: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracies)


@dataclass(frozen=True, slots=True)
class Cell:
    """Methods at one place of the sweep."""

    skew: str
    silo_rate: float
    local_steps: int
    epsilon: float
    methods: Mapping[str, Method]

    @property
    def seeds(self) -> int:
        return len(next(iter(self.methods.values())).accuracies)


@dataclass(frozen=True, slots=True)
class Gap:
    """Mean difference in accuracy of two methods, seed by seed, and its standard error."""

    mean: float
    error: float
    seeds: int

    @property
    def told_apart(self) -> bool:
        """Whether 0 is outside the 95 % confidence interval (Student's t over seeds)."""
        return abs(self.mean) > float(student.ppf((1 + LEVEL) / 2, self.seeds - 1)) * self.error


@dataclass(frozen=True, slots=True)
class Numbers:
    """All that was measured.

    Attributes:
        version, sources: of the package that measured it; digests of its source files.
        methods: options of the algorithm by method, the cheapest first.
        setting: what was the same everywhere, in words. data: of each skew, in words.
        silos: numbers of silos.
    """

    version: str
    sources: tuple[str, ...]
    methods: Mapping[str, Mapping[str, Any]]
    setting: str
    data: Mapping[str, str]
    silos: tuple[int, ...]
    cells: tuple[Cell, ...]

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Numbers:
        """From what `drift_control.json` holds."""
        cells = (
            Cell(**{**one, "methods": {m: Method(f["local_lr"], tuple(f["accuracies"])) for m, f in found.items()}})
            for one in plain["cells"]
            for found in [one["methods"]]
        )
        facts = {key: plain[key] for key in ("version", "methods", "setting", "data")}
        return cls(**facts, sources=tuple(plain["sources"]), silos=tuple(plain["silos"]), cells=tuple(cells))

    def levels(self, axis: str, skews: Sequence[float | str]) -> list[float]:
        """Values of an axis that were measured with all of these skews, ascending."""
        each = [{getattr(cell, axis) for cell in self.cells if cell.skew == skew} for skew in skews]
        return sorted(set.intersection(*each))

    def origin(self) -> str:
        """Which package measured this, in a few words."""
        here = self.version == dpfl_plugin.__version__ and self.sources == (package_sha256(),)
        return f"measured by {'' if here else 'an earlier source of '}this package ({self.version})"

    def sources_and_this(self) -> dict[str, Any]:
        """Version and digest of the sources that measured it and of this package, and the command that repeats it."""
        this = {"version": dpfl_plugin.__version__, "source": package_sha256()}
        return {"version": self.version, "sources": list(self.sources), "this_package": this, "command": COMMAND}


@functools.cache
def numbers() -> Numbers:
    """What comes with the package."""
    return Numbers.of(json.loads(resources.files(__package__).joinpath(FILE).read_text()))


def gap(cells: Sequence[Cell], first: str, second: str) -> Gap:
    """How far ``first`` is ahead of ``second`` in the mean of some cells."""
    seeds = min(cell.seeds for cell in cells)
    by_seed = [
        statistics.fmean(c.methods[first].accuracies[i] - c.methods[second].accuracies[i] for c in cells)
        for i in range(seeds)
    ]
    return Gap(statistics.fmean(by_seed), statistics.stdev(by_seed) / math.sqrt(seeds), seeds)


def ranked(cells: Sequence[Cell], methods: Sequence[str]) -> tuple[str, list[str]]:
    """(the best in the mean of some cells, what is level with it): not told apart from it, or less than `WORTH` behind.

    Both in the order of ``methods``.
    """
    best = best_of(cells, methods)
    gaps = {name: gap(cells, best, name) for name in methods if name != best}
    return best, [name for name, g in gaps.items() if not g.told_apart or g.mean < WORTH]


def best_of(cells: Sequence[Cell], names: Sequence[str]) -> str:
    """The most accurate in the mean of some cells."""
    return max(names, key=lambda name: statistics.fmean(cell.methods[name].mean for cell in cells))


def families(methods: Iterable[str]) -> tuple[list[str], list[str]]:
    """(FedAvg and its variants, those with drift control)."""
    names = list(methods)
    return [n for n in names if n.startswith(PLAIN)], [n for n in names if not n.startswith(PLAIN)]


def count(gaps: Sequence[Gap], sign: int) -> int:
    """How many are told apart from 0, and `WORTH` or more in the direction of ``sign``."""
    return sum(g.told_apart and sign * g.mean >= WORTH for g in gaps)


def pays(best_against_best: Sequence[Gap]) -> bool:
    """The rule by which drift control is advised: its best variant is told apart from FedAvg's best, and ahead by
    `WORTH` or more, in half of the places or more, and behind by as much in none."""
    return 2 * count(best_against_best, 1) >= len(best_against_best) > 0 and not count(best_against_best, -1)


def best_against_best(cells: Sequence[Cell], methods: Iterable[str]) -> list[Gap]:
    """The best variant with drift control against the best of FedAvg, for each number of local steps and epsilon."""
    plain, controlled = families(methods)
    if not controlled:
        return []
    places = dict.fromkeys((cell.local_steps, cell.epsilon) for cell in cells)
    groups = [[cell for cell in cells if (cell.local_steps, cell.epsilon) == place] for place in places]
    return [gap(group, best_of(group, controlled), best_of(group, plain)) for group in groups]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run is on one axis of the sweep.

    Attributes:
        levels: the nearest that were measured: one, or two around it.
        remark: what is to be said of that; "" where it was measured.
    """

    axis: str
    levels: tuple[float | str, ...]
    remark: str = ""
    outside: bool = False


def place(axis: str, value: float, levels: Sequence[float]) -> Place:
    """The nearest of ``levels``, ascending."""
    if value in levels:
        return Place(axis, (value,))
    said = f"{axis} {value:g}"
    if not levels[0] < value < levels[-1]:
        nearest = levels[0] if value < levels[0] else levels[-1]
        what = "below" if value < levels[0] else "above"
        return Place(axis, (nearest,), f"{said} is {what} all that were measured: {_list(levels)}", outside=True)
    around = next((low, high) for low, high in itertools.pairwise(levels) if low < value < high)
    return Place(axis, around, f"{said} is between {around[0]:g} and {around[1]:g}: the mean of both is taken")


def _list(levels: Sequence[float]) -> str:
    return ", ".join(f"{level:g}" for level in levels)


def between(first: str, second: str, said: str) -> Place:
    """Between two skews."""
    return Place("skew", (first, second), f"{said} is between {first} and {second}: the mean of both is taken")


@dataclass(frozen=True, slots=True)
class Advice:
    """What the cells around a run favour.

    Attributes:
        method: the simplest that is level with the best of its family; SCAFFOLD's where that `pays` with such silos,
            whatever local steps and epsilon, else FedAvg's.
        best: the most accurate of all in the mean; level: what is level with that.
        gain: of the method over plain FedAvg. behind: how far ``best`` is ahead of the method.
    """

    method: str
    best: str
    level: tuple[str, ...]
    gain: Gap
    behind: Gap
    cells: tuple[Cell, ...]
    remarks: tuple[str, ...]
    outside: tuple[str, ...]


def advice(places: Sequence[Place], found: Numbers, outside: Sequence[str] = ()) -> Advice:
    """Of the cells at all levels of ``places``; ``outside``: what else was not measured.

    Raises:
        ConfigError: there is none.
    """
    levels = {one.axis: one.levels for one in places}
    cells = tuple(c for c in found.cells if all(getattr(c, axis) in within for axis, within in levels.items()))
    if not cells:
        near = ", ".join(f"{axis} {' or '.join(map(str, within))}" for axis, within in levels.items())
        raise ConfigError(f"nothing near was measured: there are no numbers of {near} ({COMMAND} measures).")
    if len(cells) < math.prod(map(len, levels.values())):  # the sweep is not done
        outside = [*outside, "some of the cells around it, of which there are fewer below"]
    best, level = ranked(cells, tuple(found.methods))
    method = _simplest(cells, _family(levels, found))
    return Advice(
        method=method,
        best=best,
        level=tuple(level),
        gain=gap(cells, method, PLAIN),
        behind=gap(cells, best, method),
        cells=cells,
        remarks=tuple(one.remark for one in places if one.remark and not one.outside),
        outside=(*(one.remark for one in places if one.outside), *outside),
    )


def _family(levels: Mapping[str, Sequence[float | str]], found: Numbers) -> list[str]:
    """The variants to choose from, by how silos differ and how many take part."""
    silos = {axis: within for axis, within in levels.items() if axis in ("skew", "silo_rate")}
    like = [c for c in found.cells if all(getattr(c, axis) in within for axis, within in silos.items())]
    plain, controlled = families(found.methods)
    return controlled if pays(best_against_best(like, found.methods)) else plain


def _simplest(cells: Sequence[Cell], names: Sequence[str]) -> str:
    best, level = ranked(cells, names)
    return next(name for name in names if name == best or name in level)
