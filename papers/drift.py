"""Where drift control won, as `python -m benchmarks.drift` measured it, and what that says of other runs.

The numbers are in drift_control.json, which the benchmark writes: accuracies of each method, at its own best step size,
by how silos differ, the share of silos in a round, local steps and epsilon, seed by seed. `python -m papers advice
CONFIG` names the method to begin with, by what was measured nearest. No record is looked at.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import re
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

import dpfl_plugin as dpfl
from dpfl_plugin.errors import ConfigError
from papers.paired import Difference

FILE: Final = Path(__file__).parent / "drift_control.json"
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
PLAIN: Final = "FedAvg"
MEASURED_LABELS, MEASURED_ALPHA, ALIKE_ALPHA = 2, 0.5, 10.0
MEASURED_ROUNDS: Final = {0.2: 40, 1.0: 20}
"""By silo_rate."""


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
class Numbers:
    """All that was measured.

    Attributes:
        version, sources: of the package that measured it; digests of its source files.
        methods: options of the algorithm by method, the cheapest first.
        setting: what was the same everywhere, in words. data: of each skew, in words.
    """

    version: str
    sources: tuple[str, ...]
    methods: Mapping[str, Mapping[str, Any]]
    setting: str
    data: Mapping[str, str]
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
        return cls(**facts, sources=tuple(plain["sources"]), cells=tuple(cells))

    def levels(self, axis: str) -> list[Any]:
        """Return the values of an axis that were measured, ascending."""
        return sorted({getattr(cell, axis) for cell in self.cells})


@functools.cache
def numbers() -> Numbers:
    """What comes with the package."""
    return Numbers.of(json.loads(FILE.read_text()))


def gap(cells: Sequence[Cell], first: str, second: str) -> Difference:
    """Return how far ``first`` is ahead of ``second`` in the mean of some cells, by seed."""
    seeds = range(min(cell.seeds for cell in cells))
    means = (
        [statistics.fmean(cell.methods[name].accuracies[seed] for cell in cells) for seed in seeds]
        for name in (first, second)
    )
    return Difference.of(*means)


def ranked(cells: Sequence[Cell], methods: Sequence[str]) -> tuple[str, list[str]]:
    """(the best in the mean of some cells, what is level with it): not told apart from it, or less than `WORTH` behind.

    Both in the order of ``methods``.
    """
    best = best_of(cells, methods)
    gaps = {name: gap(cells, best, name) for name in methods if name != best}
    return best, [name for name, g in gaps.items() if not g.significant or g.mean < WORTH]


def best_of(cells: Sequence[Cell], names: Sequence[str]) -> str:
    """The most accurate in the mean of some cells."""
    return max(names, key=lambda name: statistics.fmean(cell.methods[name].mean for cell in cells))


def families(methods: Iterable[str]) -> tuple[list[str], list[str]]:
    """(FedAvg and its variants, those with drift control)."""
    names = list(methods)
    return [n for n in names if n.startswith(PLAIN)], [n for n in names if not n.startswith(PLAIN)]


def count(gaps: Sequence[Difference], sign: int) -> int:
    """How many are told apart from 0, and `WORTH` or more in the direction of ``sign``."""
    return sum(g.significant and sign * g.mean >= WORTH for g in gaps)


def pays(best_against_best: Sequence[Difference]) -> bool:
    """The rule by which drift control is advised: its best variant is told apart from FedAvg's best, and ahead by
    `WORTH` or more, in half of the places or more, and behind by as much in none."""
    return 2 * count(best_against_best, 1) >= len(best_against_best) > 0 and not count(best_against_best, -1)


def best_against_best(cells: Sequence[Cell], methods: Iterable[str]) -> list[Difference]:
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
    gain: Difference
    behind: Difference
    cells: tuple[Cell, ...]
    remarks: tuple[str, ...]
    outside: tuple[str, ...]


def advice(places: Sequence[Place], found: Numbers, outside: Sequence[str] = ()) -> Advice:
    """Say what the cells at all levels of ``places`` favour; ``outside``: what else was not measured."""
    levels = {one.axis: one.levels for one in places}
    cells = tuple(c for c in found.cells if all(getattr(c, axis) in within for axis, within in levels.items()))
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


def advised(experiment: dpfl.Experiment, skew: str | None = None) -> tuple[Advice, Place]:
    """Return what the nearest measurements favour for one run, and how its silos differ.

    Args:
        skew: how silos differ, one of `SKEWS`, as it is known publicly; None for what ``data.partition`` says where a
            simulation deals records out. Label counts of real silos are private: nothing is counted here.

    Raises:
        ConfigError: ``skew`` is not given, and the configuration does not tell it; or it has no budget.
    """
    config, found = experiment.config, numbers()
    at = {"silo_rate": config.silo_rate, "local_steps": _local_steps(config), "epsilon": _epsilon(config)}
    differ = skew_of(config, skew)
    places = [differ, *(place(axis, value, found.levels(axis)) for axis, value in at.items())]
    return advice(places, found, _not_measured(config, differ, places[1], found)), differ


def skew_of(config: Any, skew: str | None) -> Place:
    """How silos differ: as said, or by how a simulation deals records out, which is a fact of the configuration.

    Raises:
        ConfigError: it is not said, and silos are those of the data.
    """
    if skew is not None:
        return Place("skew", (skew,))
    partition = config.data.partition
    match partition.name:
        case "iid":
            return Place("skew", ("alike",))
        case "labels_per_silo":
            count = partition.options.get("labels")
            same = count == MEASURED_LABELS
            remark = "" if same else f"labels_per_silo with labels: {count}; measured with {MEASURED_LABELS} of 10"
            return Place("skew", ("labels",), remark, outside=not same)
        case "dirichlet":
            return _of_dirichlet(float(partition.options["alpha"]))
        case "similarity":
            return _of_similarity(float(partition.options["gamma"]))
    known = "; ".join(f"{name}, {what}" for name, what in SKEWS.items())
    raise ConfigError(
        "--skew is missing: silos are those of the data, and how these differ is not looked at, since label counts of "
        f"silos are private. Say what is known publicly: {known}."
    )


def _of_dirichlet(alpha: float) -> Place:
    said = f"Dirichlet({alpha:g})"
    if alpha == MEASURED_ALPHA:
        return Place("skew", ("shares",))
    if alpha >= ALIKE_ALPHA:
        return Place("skew", ("alike",), f"{said} is taken for alike")
    return between("labels", "shares", said) if alpha < MEASURED_ALPHA else between("shares", "alike", said)


def _of_similarity(gamma: float) -> Place:
    said = f"similarity with gamma: {gamma:g}"
    if gamma in (0, 100):
        return Place("skew", ("labels" if gamma == 0 else "alike",), f"{said} is taken for this")
    return between("labels", "shares", said) if gamma < 50 else between("shares", "alike", said)


def _local_steps(config: Any) -> float:
    options = config.algorithm.options
    if options.get("local_steps") is not None:
        return float(options["local_steps"])
    if options.get("p") is not None:  # drawn: 1 / p in the mean
        return 1 / float(options["p"])
    raise ConfigError(
        f"algorithm: {config.algorithm.name or config.algorithm.module} has no local_steps, and without several local "
        "steps nothing drifts. To ask about some: --set algorithm.name=fedavg --set algorithm.local_steps=5 "
        "--set algorithm.local_lr=1."
    )


def _epsilon(config: Any) -> float:
    if config.privacy.unit == "silo":
        raise ConfigError(
            "privacy.unit: silo: what was measured is private for records. For whole silos scaffold is refused: "
            "see docs/algorithms.md, Whole silos."
        )
    if config.privacy.epsilon is None:
        raise ConfigError("--epsilon is missing, and the configuration has no privacy.epsilon.")
    return float(config.privacy.epsilon)


def _data_sets(differ: Place, found: Numbers) -> list[str]:
    return list(dict.fromkeys(found.data[str(one)].split(",")[0] for one in differ.levels))


def _not_measured(config: Any, differ: Place, rate: Place, found: Numbers) -> list[str]:
    """What of a configuration is unlike what was measured, beside the axes of the sweep."""
    names = _data_sets(differ, found)
    block, silos, rounds = config.data.dataset, config.data.num_silos, config.rounds
    measured_silos = {count for one in differ.levels for count in re.findall(r"(\d+) silos", found.data[str(one)])}
    measured_rounds = {MEASURED_ROUNDS[float(one)] for one in rate.levels}
    said = []
    if block.name not in {name.lower() for name in names}:
        said.append(
            f"data set {block.name or block.module}, with its columns, classes and records: "
            f"measured on {' and '.join(names)}"
        )
    if str(silos) not in measured_silos:
        yours = "the number of silos, which is that of the data" if silos is None else f"{silos} silos"
        said.append(f"{yours}: measured with {' and '.join(sorted(measured_silos))}")
    if rounds not in measured_rounds:
        yours = "the number of rounds" if rounds is None else f"{rounds} rounds"
        said.append(f"{yours}: measured with {' and '.join(map(str, sorted(measured_rounds)))}")
    if config.model.name != "softmax":
        said.append(f"model {config.model.name or config.model.module}: measured with softmax on fixed features")
    if config.privacy.unit == "person":
        said.append("privacy.unit person: measured with unit: record")
    if config.augmentation is not None:
        said.append("augmentation: measured without")
    return said


def show(console: Console, label: str, said: Advice, differ: Place) -> None:
    """Print the method for a run, what favours it, and what of the run was not measured."""
    found, name = numbers(), said.method

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, markup=False)

    measured = "; and on ".join(found.data[str(one)] for one in differ.levels)
    say(f"Measured on {measured}; not a prediction for your data.")
    say(f"Setting: {found.setting}")
    for remark in said.outside:
        say(f"not measured: {remark}.")
    for remark in said.remarks:
        say(f"between measurements: {remark}.")
    options = " ".join(f"--set algorithm.{key}={value}" for key, value in found.methods[name].items())
    say(f"{label}: begin with {name}: {options}")
    say(_why(said))
    table = Table(box=None, pad_edge=False)
    table.add_column("method", no_wrap=True)
    for column in (f"accuracy on {' and '.join(_data_sets(differ, found))}", "points ahead of FedAvg"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("")
    for other in found.methods:
        ahead = gap(said.cells, other, PLAIN)
        verdict = "" if ahead.significant else "no significant difference"
        accuracy = statistics.fmean(cell.methods[other].mean for cell in said.cells)
        table.add_row(other, f"{accuracy:.3f}", *(["", ""] if other == PLAIN else [ahead.points(), verdict]))
    console.print(table)
    for cell in said.cells:
        at = f"skew {cell.skew}, silo_rate {cell.silo_rate}, local_steps {cell.local_steps}"
        each = "; ".join(
            f"{one} {cell.methods[one].mean:.3f} with local_lr {cell.methods[one].local_lr:.2g}"
            for one in found.methods
            if one in (name, PLAIN)
        )
        say(f"  {at}, epsilon {cell.epsilon:g} ({cell.seeds} seeds): {each}")
    say(f"Each method had its own best step size, which is not yours{_step(said)}: tune it. All numbers: {PAGE}.")


def _why(said: Advice) -> str:
    level = [name for name in said.level if name != said.method]
    if said.method == said.best:
        simpler = f", and is simpler than what was level with it: {'; '.join(level)}" if level else ""
        return f"It was the most accurate{simpler}."
    if said.method in said.level:
        others = f"; so were: {'; '.join(level)}" if level else ""
        return f"It is the simplest that was level with the most accurate, {said.best}{others}."
    ahead = said.behind.points().removeprefix("+")
    return (
        f"The most accurate here, {said.best}, was {ahead} points ahead of it; with silos like these drift control "
        "gained too little, or not often enough, to be advised."
    )


def _step(said: Advice) -> str:
    """How the recommended method's step size compares with FedAvg's, which a user may have."""
    if said.method == PLAIN:
        return ""
    ratios = [cell.methods[said.method].local_lr / cell.methods[PLAIN].local_lr for cell in said.cells]
    least, most = (f"{one:.2g}" for one in (min(ratios), max(ratios)))
    times = "as large as" if least == most == "1" else f"{least if least == most else f'{least} to {most}'} times"
    return f" (that of {said.method} was {times} FedAvg's)"


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("python -m papers advice", description="The method to begin with; see " + PAGE)
    parser.add_argument("config", type=Path, metavar="CONFIG")
    parser.add_argument("--variant", help="one variant of the file (default: all)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a value of the file")
    parser.add_argument("--epsilon", type=float, help="the budget (default: the configuration's)")
    parser.add_argument("--skew", choices=SKEWS, help="how silos differ, if data.partition does not say it")
    asked = parser.parse_args(words)
    budget = [] if asked.epsilon is None else [f"privacy.epsilon={asked.epsilon}"]
    experiment = dpfl.Experiment(asked.config, (*asked.set, *budget), asked.variant)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)
    for label, variant in experiment.variants.items():
        show(console, label, *advised(variant, asked.skew))
    return 0
