"""What the runs of a figure or table came to, kept as JSON, and how orderings and numbers are judged by it."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import yaml

import dpfl_plugin as dpfl
from dpfl_plugin.config.sweep import Expansion, Row
from papers.items import FOLDER, ROUND, Cell, Claim, Computed, Item, Part
from papers.paired import Difference

SCHEMA: Final = 1
MOST_POINTS: Final = 40  # of a curve that is kept
Values = Mapping[str, Any]


@dataclass(slots=True)
class Point:
    """Runs that differ in their seed only.

    Attributes:
        line: the variant, and what else tells it from others of its panel.
        at: {key: value} of panels and of the horizontal axis.
        scores: of the measure, over the last 10 % of rounds, by seed; None where it is not finite.
        server, third_party, worst_case: epsilon, the largest over seeds; worst_case: of a silo in every round. None:
            nothing is guaranteed.
        curve: {"round": [...], "mean": [...], "std": [...]}.
        seconds: of processors, all seeds.
    """

    part: str
    line: str
    at: dict[str, Any]
    seeds: list[int] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    scores: list[float | None] = field(default_factory=list)
    server: float | None = None
    third_party: float | None = None
    worst_case: float | None = None
    delta: float = 0.0
    curve: dict[str, list[Any]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def finite(self) -> list[float]:
        return [score for score in self.scores if score is not None]

    @property
    def mean(self) -> float | None:
        """None where a run of it diverged."""
        return statistics.fmean(self.finite) if self.finite and None not in self.scores else None

    @property
    def std(self) -> float:
        return statistics.stdev(self.finite) if len(self.finite) > 1 else 0.0


@dataclass(slots=True)
class Numbers:
    """All numbers of a figure or table.

    Attributes:
        quick: whether they are of quick runs. version, code: of the package that made the runs, and digests of its
            source.
        runs: digest of the runs' names: other numbers belong to another configuration.
        table: header and rows of what is computed without runs.
    """

    paper: str
    item: str
    quick: bool
    version: str
    code: list[str]
    runs: str = ""
    points: list[Point] = field(default_factory=list)
    table: Computed | None = None

    @property
    def seconds(self) -> float:
        return math.fsum(point.seconds for point in self.points)

    def write(self, folder: Path) -> Path:
        path = folder / file_of(self.paper, self.item, self.quick)
        path.parent.mkdir(parents=True, exist_ok=True)
        rounded = _rounded({"schema": SCHEMA, **asdict(self)})
        points = ",\n".join("  " + json.dumps(point) for point in rounded.pop("points"))
        head = ",\n".join(f' "{key}": {json.dumps(value)}' for key, value in rounded.items())
        path.write_text(f'{{\n{head},\n "points": [\n{points}\n ]\n}}\n', encoding="utf-8")
        return path

    def of(self, part: str, line: str, at: Values) -> list[Point]:
        """Return the points of a line at given values of keys; others may have any."""
        return [
            point
            for point in self.points
            if point.part == part and point.line == line and all(point.at.get(key) == at[key] for key in at)
        ]


def file_of(paper: str, item: str, quick: bool) -> str:
    return f"{paper}/{item}{'-quick' * quick}.json"


def read(path: Path) -> Numbers | None:
    """Return the numbers of a file; None where there is none."""
    if not path.is_file():
        return None
    values = json.loads(path.read_text(encoding="utf-8"))
    known = {one.name: values[one.name] for one in fields(Numbers)}
    return Numbers(**{**known, "points": [Point(**point) for point in values["points"]]})


def kept(paper: str, item: Item) -> Numbers | None:
    """Return what is kept here: of all runs, else of quick ones, else None."""
    return next(filter(None, (read(FOLDER / "kept" / file_of(paper, item.name, q)) for q in (False, True))), None)


def keep(numbers: Numbers, item: Item) -> bool:
    """Keep numbers, unless they are of quick runs where those of all runs are; returns whether they are kept."""
    before = kept(numbers.paper, item)
    if numbers.quick and before is not None and not before.quick:
        return False
    for quick in (False, True):
        (FOLDER / "kept" / file_of(numbers.paper, item.name, quick)).unlink(missing_ok=True)
    numbers.write(FOLDER / "kept")
    return True


def runs_digest(expansions: Iterable[Expansion]) -> str:
    """Digest the names of all runs, which are hashes of their configurations."""
    names = sorted(row.id for expansion in expansions for row in expansion.rows)
    return hashlib.sha256("\n".join(names).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run belongs: its line and the values at which it is drawn."""

    line: str
    at: dict[str, Any]
    seed: int


def places(item: Item, part: Part, expansion: Expansion) -> Iterator[tuple[Row, Place]]:
    """Each run of a part with its place: keys that vary and are no axis are in the label of the line."""
    variants = list(yaml.safe_load(part.path.read_text(encoding="utf-8")).get("variants") or {})
    keys = list(dict.fromkeys([*expansion.spec.grid, *(key for entry in expansion.spec.entries for key in entry)]))
    axes = [key for key in (part.rows, part.columns, item.against) if key not in (None, ROUND)]
    silent = {*axes, *part.hidden}
    for row in expansion.rows:
        values = (row.changes, expansion.base)
        words = [name for name in variants if row.label == name or row.label.startswith(f"{name} ")]
        label = [max(words, key=len)] if words else []
        varying = {key: first(values, key) for key in keys if key not in silent}
        label += [f"{short(key)} = {_shown(value)}" for key, value in varying.items() if value is not None]
        at = {key: first(values, key) for key in axes}
        yield row, Place(", ".join(label) or str(expansion.base.get("name")), at, int(first(values, "seed") or 0))


def first(places: Iterable[Any], key: str) -> Any:
    """Look a dotted key up in several mappings; the first that has it counts."""
    return next((value for values in places if (value := look_up(values, key)) is not None), None)


def look_up(values: Any, key: str) -> Any:
    """The value of a dotted key in nested mappings, and the name of a block; None where there is none."""
    for word in key.split("."):
        if not isinstance(values, Mapping) or word not in values:
            return None
        values = values[word]
    return values.get("name") if isinstance(values, Mapping) else values


SHORT: Final = {
    "algorithm.eta_0": "eta_0",
    "algorithm.local_lr": "eta_l",
    "algorithm.local_steps": "K",
    "data.dataset.alpha": "alpha",
    "data.dataset.beta": "beta",
    "data.partition.gamma": "gamma",
    "data.partition.labels": "labels a silo",
    "l2": "lambda",
    "privacy.noise_multiplier": "sigma_g",
    "privacy.record_rate": "s",
    "silo_rate": "l",
}
"""Letters of papers for keys."""


def short(key: str) -> str:
    return SHORT.get(key, key.rpartition(".")[2].replace("_", " "))


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def gather(part: Part, measure: str, made: Iterable[tuple[Place, dpfl.Run, Sequence[Values]]]) -> list[Point]:
    """Return the points of a part, in the order of its runs, which have the lines that are given."""
    groups: dict[str, list[tuple[Place, dpfl.Run, Sequence[Values]]]] = {}
    for one in made:
        groups.setdefault(json.dumps([one[0].line, one[0].at], sort_keys=True), []).append(one)
    return [_point(part, measure, group) for group in groups.values()]


def _point(part: Part, measure: str, group: Sequence[tuple[Place, dpfl.Run, Sequence[Values]]]) -> Point:
    first, results = group[0][0], [run.result for _, run, _ in group]
    epsilons = [result["epsilon"] for result in results]
    return Point(
        part=part.name,
        line=first.line,
        at=first.at,
        seeds=[place.seed for place, _, _ in group],
        rounds=[int(result["rounds"]) for result in results],
        scores=[score(lines, measure) for _, _, lines in group],
        server=_largest(epsilon["server"]["epsilon"] for epsilon in epsilons),
        third_party=_largest(epsilon["third_party"]["epsilon"] for epsilon in epsilons),
        worst_case=_largest(epsilon["server"].get("worst_case_epsilon") for epsilon in epsilons),
        delta=float(epsilons[0]["server"]["delta"]),
        curve=_curve([{line["round"]: _finite(line[measure]) for line in lines} for _, _, lines in group]),
        seconds=math.fsum(float(result["seconds"]) for result in results),
    )


def score(lines: Sequence[Values], measure: str) -> float | None:
    """Return the mean over evaluations in the last 10 % of rounds; None where it is not finite."""
    rounds = lines[-1]["round"]
    return _finite(statistics.fmean(line[measure] for line in lines if line["round"] > rounds - math.ceil(rounds / 10)))


def _curve(runs: Sequence[Mapping[int, float | None]]) -> dict[str, list[Any]]:
    """Mean and standard deviation at the rounds that all have, at most `MOST_POINTS` of them."""
    common = sorted(set.intersection(*(set(run) for run in runs)))
    stride = math.ceil(len(common) / MOST_POINTS) or 1
    rounds = common[::-1][::stride][::-1]  # with the last one
    found: dict[str, list[Any]] = {"round": rounds, "mean": [], "std": []}
    for at in rounds:
        values = [run[at] for run in runs]
        known = [value for value in values if value is not None]
        whole = len(known) == len(values)
        found["mean"].append(statistics.fmean(known) if whole else None)
        found["std"].append(statistics.stdev(known) if whole and len(known) > 1 else 0.0)
    return found


def _finite(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _largest(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if None in known else max(value for value in known if value is not None)


def _rounded(value: Any) -> Any:
    """Six significant digits: what is kept is text that people compare."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value


def chosen(numbers: Numbers, item: Item, part: str, line: str, at: Values) -> list[Point]:
    """The points of a line; of a method of ``item.tuned`` those of its best setting, wherever all of ``at`` holds."""
    if line not in item.tuned:
        return numbers.of(part, line, at)
    sign, best = 1 if item.higher_is_better else -1, dict[str, Point]()

    def score(point: Point) -> float:
        return -math.inf if point.mean is None else sign * point.mean

    for setting in dict.fromkeys(point.line for point in numbers.points if point.line.startswith(f"{line}, ")):
        for point in numbers.of(part, setting, at):
            place = json.dumps(point.at, sort_keys=True)
            best[place] = max(best.get(place, point), point, key=score)
    return list(best.values())


def pairs(numbers: Numbers, item: Item, claim: Claim) -> list[tuple[Point, Point | None]]:
    """Return each point of the line that is said to be better, with the other's there; None where one diverged."""
    found: list[tuple[Point, Point | None]] = []
    for good in chosen(numbers, item, claim.part, claim.better, claim.at):
        bad = chosen(numbers, item, claim.part, claim.worse, {**good.at, **(claim.worse_at or {})})
        there = bool(bad) and good.mean is not None and bad[0].mean is not None and good.seeds == bad[0].seeds
        found.append((good, bad[0] if there else None))
    return found


def differences(numbers: Numbers, item: Item, claim: Claim) -> list[tuple[dict[str, Any], Difference | None]]:
    """Return by how much a line is better at each place of a claim; None where one diverged or is missing."""
    sign = 1 if item.higher_is_better else -1
    return [
        (good.at, None if bad is None else Difference.of(*([sign * x for x in p.finite] for p in (good, bad))))
        for good, bad in pairs(numbers, item, claim)
    ]


def together(numbers: Numbers, item: Item, claim: Claim) -> Difference | None:
    """Return the mean of `differences` over all places, by seed; None of one place, or where one is missing.

    Its error is over seeds: runs of one seed have the same records everywhere, and count as one.
    """
    sign, found = 1 if item.higher_is_better else -1, pairs(numbers, item, claim)
    both = [(good.finite, bad.finite) for good, bad in found if bad is not None]
    if len(both) < max(2, len(found)) or len({len(good) for good, _ in both}) > 1:
        return None
    means = ([sign * statistics.fmean(seed) for seed in zip(*line, strict=True)] for line in zip(*both, strict=True))
    return Difference.of(*means)


def cell_verdict(numbers: Numbers, cell: Cell) -> tuple[Point | None, str]:
    """Our point for a published number, and whether they agree: within two standard deviations of both together."""
    points = numbers.of(cell.part, cell.line, cell.at)
    if not points or points[0].mean is None:
        return (points[0] if points else None), "not run" if not points else "diverged"
    gap = points[0].mean - cell.mean
    if abs(gap) <= 2 * math.hypot(points[0].std, cell.std or 0.0):
        return points[0], "agrees"
    return points[0], f"{'higher' if gap > 0 else 'lower'} by {abs(gap):.3f}"
