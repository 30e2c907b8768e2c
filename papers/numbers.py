"""What runs of a figure or table came to, as JSON: with the digest of the package and the names of the runs."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from scipy.special import stdtrit

from dpfl_plugin.config.load import merged, read_yaml
from dpfl_plugin.config.sweep import Expansion, Row
from dpfl_plugin.errors import DataError
from dpfl_plugin.federation.summaries import last
from papers.items import ALL, QUICK, ROUND, Cell, Claim, Extent, Item, Part, files
from dpfl_plugin.runs.environment import module_sha256, modules, package_sha256
from dpfl_plugin.runs.folder import RunFolder

SCHEMA: Final = 1
WHOLE: Final = "the package"
UNKNOWN: Final = "unknown"
MOST_POINTS: Final = 40  # of a curve that is kept
Values = Mapping[str, Any]
Table = tuple[Sequence[str], Sequence[Sequence[str]]]


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
        code: digests of the package's source that the runs were made by. version: of the package.
        modules: digests of the source of each module that the runs imported, see `environment.modules`: several where
            runs of several versions are together. Empty: the runs did not say.
        runs: digest of the runs' names: other numbers belong to another configuration. Of all runs, where the numbers
            are of some seeds.
        table: header and rows of what is computed without runs.
        quick, seeds: how much was run, see `Extent`. devices: that runs were asked to compute on.
    """

    paper: str
    item: str
    quick: bool
    version: str
    code: list[str]
    runs: str
    points: list[Point] = field(default_factory=list)
    table: Table | None = None
    modules: dict[str, list[str]] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)

    @property
    def extent(self) -> Extent:
        return Extent(self.quick, tuple(self.seeds))

    def changed(self) -> list[str]:
        """The modules that made the numbers and are not what they were, or were not the same for all runs."""
        modules = {name: frozenset(found) for name, found in self.modules.items()}
        return Code(frozenset(self.code), modules or None).changed()

    @property
    def seconds(self) -> float:
        return math.fsum(point.seconds for point in self.points)

    @property
    def file(self) -> str:
        return file_of(self.paper, self.item, self.extent)

    def write(self, folder: Path) -> Path:
        path = folder / self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        rounded = _rounded({"schema": SCHEMA, **asdict(self)})
        points = ",\n".join("  " + json.dumps(point) for point in rounded.pop("points"))
        head = ",\n".join(f' "{key}": {json.dumps(value)}' for key, value in rounded.items())
        path.write_text(f'{{\n{head},\n "points": [\n{points}\n ]\n}}\n', encoding="utf-8")
        return path

    def of(self, part: str, line: str, at: Values) -> list[Point]:
        """The points of a line at given values of keys; others may have any."""
        return [
            point
            for point in self.points
            if point.part == part and point.line == line and all(point.at.get(key) == at[key] for key in at)
        ]


def file_of(paper: str, item: str, extent: Extent) -> str:
    return f"{paper}/{item}{extent.suffix}.json"


def read(path: Path) -> Numbers | None:
    """The numbers of a file; None where there is none.

    Raises:
        DataError: it cannot be read.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values.pop("schema") != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        return Numbers(**{**values, "points": [Point(**point) for point in values["points"]]})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} cannot be read: {error}. Remove it, and run dpfl papers again.") from error


def kept(paper: str, item: Item) -> Numbers | None:
    """What is kept in the package: of all runs, else of some seeds, else of quick ones, else None."""
    for extent in dict.fromkeys((ALL, Extent(seeds=item.seeds), QUICK)):
        found = read(files() / "kept" / file_of(paper, item.name, extent))
        if found is not None:
            return found
    return None


def of_seeds(item: Item, numbers: Numbers) -> str:
    """How many of the seeds there are numbers of, where they are not of all."""
    return f"{len(numbers.seeds)} of {len(item.seeds)} seeds"


def runs_digest(expansions: Iterable[Expansion]) -> str:
    """Of the names of all runs, which are hashes of their configurations."""
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
    variants = list(read_yaml(part.path).get("variants") or {})
    keys = list(dict.fromkeys([*expansion.spec.grid, *(key for entry in expansion.spec.entries for key in entry)]))
    axes = [key for key in (part.rows, part.columns, item.against) if key not in (None, ROUND)]
    silent = {*axes, *part.hidden}
    for row in expansion.rows:
        values = merged(expansion.base, row.changes)
        words = [name for name in variants if row.label == name or row.label.startswith(f"{name} ")]
        label = [max(words, key=len)] if words else []
        varying = {key: look_up(values, key) for key in keys if key not in silent}
        label += [f"{short(key)} = {_shown(value)}" for key, value in varying.items() if value is not None]
        at = {key: look_up(values, key) for key in axes}
        yield row, Place(", ".join(label) or str(values.get("name")), at, int(values.get("seed", 0)))


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


@dataclass(slots=True)
class Made:
    """A run that ended: its result, its lines, and the seconds of processors that it took."""

    place: Place
    result: Values
    lines: Sequence[Values]
    seconds: float


def gather(part: Part, measure: str, made: Iterable[Made]) -> list[Point]:
    """The points of a part, in the order of its runs."""
    groups: dict[str, list[Made]] = {}
    for one in made:
        groups.setdefault(json.dumps([one.place.line, one.place.at], sort_keys=True), []).append(one)
    return [_point(part, measure, group) for group in groups.values()]


def _point(part: Part, measure: str, group: Sequence[Made]) -> Point:
    first = group[0]
    return Point(
        part=part.name,
        line=first.place.line,
        at=first.place.at,
        seeds=[one.place.seed for one in group],
        rounds=[int(one.result["rounds"]) for one in group],
        scores=[_finite(last(one.lines, measure)["mean_last_10_percent"]) for one in group],
        server=_largest(one.result["epsilon"]["server"]["epsilon"] for one in group),
        third_party=_largest(one.result["epsilon"]["third_party"]["epsilon"] for one in group),
        worst_case=_largest(one.result["epsilon"]["server"].get("worst_case_epsilon") for one in group),
        delta=float(first.result["epsilon"]["server"]["delta"]),
        curve=_curve([{line["round"]: _finite(line[measure]) for line in one.lines} for one in group]),
        seconds=math.fsum(one.seconds for one in group),
    )


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


@dataclass(frozen=True, slots=True)
class Code:
    """What made runs: digests of the package, and of each module that they imported; None where a run does not say."""

    packages: frozenset[str]
    modules: Mapping[str, frozenset[str]] | None

    def __or__(self, other: Code) -> Code:
        """Of the runs of both."""
        modules = None
        if self.modules is not None and other.modules is not None:
            empty, names = frozenset[str](), {**self.modules, **other.modules}
            modules = {name: self.modules.get(name, empty) | other.modules.get(name, empty) for name in names}
        return Code(self.packages | other.packages, modules)

    def changed(self) -> list[str]:
        """The modules that are not what they were, or were not the same for all runs."""
        if self.modules is None:
            return [] if self.packages == {package_sha256()} else [WHOLE]
        return [name for name, found in self.modules.items() if found != {module_sha256(name)}]

    def listed(self) -> dict[str, list[str]]:
        """The modules, as `Numbers` has them."""
        return {name: sorted(found) for name, found in sorted((self.modules or {}).items())}


def code_here(*names: str, imported: bool) -> Code:
    """This package: some of its modules, and all that this process has ``imported`` which may compute."""
    found = {name: module_sha256(name) for name in names} | (modules() if imported else {})
    return Code(frozenset({package_sha256()}), {name: frozenset({digest}) for name, digest in found.items()})


def code_of(folder: RunFolder) -> Code:
    """What a run that has begun was made by; sessions of several versions together are a run of all of them."""
    try:
        found = json.loads(folder.environment.read_text())
        before = frozenset(map(str, found.get("packages_before", ())))
        package, imported = str(found.get("package_sha256", UNKNOWN)), found.get("modules")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{folder.path}: its files cannot be read: {error}. Remove it, and run it again.") from error
    if imported is None or before:  # what an earlier session imported, nobody says
        return Code(before | {package}, None)
    return Code(frozenset({package}), {str(name): frozenset({str(one)}) for name, one in imported.items()})


def read_run(folder: RunFolder) -> tuple[Values, list[dict[str, Any]], Code] | None:
    """(result, lines, what made it) of a run that ended for good, else None."""
    try:
        result = json.loads(folder.result.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"{folder.path}: its files cannot be read: {error}. Remove it, and run it again.") from error
    ended = result["status"] in ("done", "budget_exhausted")
    return (result, folder.read_metrics(), code_of(folder)) if ended else None


@dataclass(frozen=True, slots=True)
class Difference:
    """How much better one line is than another where they meet, over seeds.

    It is told apart from none where a two-sided 95 % interval of Student's t has no 0: with three seeds, 4.3 errors.
    """

    mean: float
    error: float
    seeds: int

    @property
    def verdict(self) -> str:
        return self.verdict_of(0.0)

    def verdict_of(self, least: float) -> str:
        """Whether it is above what is asked for."""
        beyond = self.mean - least
        if self.seeds == 1:
            words = ("agrees", "does not agree") if least else ("same sign", "opposite sign")
            return f"{words[beyond <= 0]}, one seed"
        reach = float(stdtrit(self.seeds - 1, 0.975)) * self.error
        if abs(beyond) <= reach:
            return "not told apart"
        return "agrees" if beyond > 0 else "does not agree" if least else "the other way"


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


def differences(numbers: Numbers, item: Item, claim: Claim) -> list[tuple[dict[str, Any], Difference | None]]:
    """Of each pair of points of a claim: where it is, and by how much; None where one diverged or is missing."""
    found: list[tuple[dict[str, Any], Difference | None]] = []
    sign = 1 if item.higher_is_better else -1
    for good in chosen(numbers, item, claim.part, claim.better, claim.at):
        bad = chosen(numbers, item, claim.part, claim.worse, {**good.at, **(claim.worse_at or {})})
        if not bad or good.mean is None or bad[0].mean is None:
            found.append((good.at, None))
            continue
        pairs = zip(good.finite, bad[0].finite, strict=False)
        each = [sign * (a - b) for a, b in pairs]
        error = statistics.stdev(each) / math.sqrt(len(each)) if len(each) > 1 else 0.0
        found.append((good.at, Difference(statistics.fmean(each), error, len(each))))
    return found


def together(numbers: Numbers, item: Item, claim: Claim) -> Difference | None:
    """The mean of `differences` over all places where both lines are, by seed; None of one place, or of unequal seeds.

    Its error is over seeds: runs of one seed have the same records everywhere, and count as one.
    """
    sign = 1 if item.higher_is_better else -1
    each: list[list[float]] = []
    for good in chosen(numbers, item, claim.part, claim.better, claim.at):
        bad = chosen(numbers, item, claim.part, claim.worse, {**good.at, **(claim.worse_at or {})})
        if not bad or good.mean is None or bad[0].mean is None or good.seeds != bad[0].seeds:
            return None
        each.append([sign * (a - b) for a, b in zip(good.finite, bad[0].finite, strict=True)])
    if len(each) < 2 or len({len(place) for place in each}) > 1:
        return None
    seeds = [statistics.fmean(of_seed) for of_seed in zip(*each, strict=True)]
    error = statistics.stdev(seeds) / math.sqrt(len(seeds)) if len(seeds) > 1 else 0.0
    return Difference(statistics.fmean(seeds), error, len(seeds))


def cell_verdict(numbers: Numbers, cell: Cell) -> tuple[Point | None, str]:
    """Our point for a published number, and whether they agree: within two standard deviations of both together."""
    points = numbers.of(cell.part, cell.line, cell.at)
    if not points or points[0].mean is None:
        return (points[0] if points else None), "not run" if not points else "diverged"
    gap = points[0].mean - cell.mean
    if abs(gap) <= 2 * math.hypot(points[0].std, cell.std or 0.0):
        return points[0], "agrees"
    return points[0], f"{'higher' if gap > 0 else 'lower'} by {abs(gap):.3f}"
