"""Runs of one configuration but for the seed as a row: its name, means and their confidence intervals."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dpfl_plugin.core.rounding import digits, places
from dpfl_plugin.core.text import counted
from dpfl_plugin.errors import ConfigError, nearest
from dpfl_plugin.experiments.reports.runs import STATUSES, VARIANT, Run

# Where several keys tell groups apart, these name them first.
FIRST_IN_NAMES: Final = (
    VARIANT,
    "algorithm.name",
    "privacy.noise_multiplier",
    "privacy.epsilon",
    "model.name",
    "data.partition.name",
)

ASKED: Final = "privacy.epsilon"
NOISE: Final = ("privacy.noise_multiplier", ASKED)


@dataclass(frozen=True, slots=True)
class Summary:
    """A number over runs.

    Attributes:
        mean, std, half_width: over ``n`` runs: std with n - 1, and half the width of the mean's 95 % confidence
            interval (Student's t). None where there are too few, or a run's number is not finite.
        not_finite: how many runs have none.
    """

    n: int
    mean: float | None
    std: float | None
    half_width: float | None
    not_finite: int

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Summary:
        """Of runs; None is a number that is not finite."""
        finite = [value for value in values if value is not None]
        missing = len(values) - len(finite)
        if missing or not finite:
            return cls(len(values), None, None, None, missing)
        std = statistics.stdev(finite) if len(finite) > 1 else None
        half = None if std is None else half_width(std, len(finite))
        return cls(len(finite), statistics.fmean(finite), std, half, 0)

    def text(self, sign: str = "") -> str:
        """Mean and half width, to two digits of the latter; ``sign="+"`` shows that of a difference."""
        if self.not_finite:
            return f"not finite in {self.not_finite} of {self.n}"
        if self.mean is None:
            return "-"
        if not self.half_width or self.half_width < 1e-9 * abs(self.mean):
            return f"{self.mean:{sign}.4g}" + ("" if self.half_width is None else " ± 0")
        count = min(8, max(0, 1 - math.floor(math.log10(self.half_width))))
        return f"{self.mean:{sign}.{count}f} ± {self.half_width:.{count}f}"

    def __str__(self) -> str:
        return self.text()


def half_width(std: float, n: int) -> float:
    """Half the width of the 95 % confidence interval of a mean of ``n`` normal numbers."""
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, 0.975)) * std / math.sqrt(n)


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that differ in nothing but their seed, or in nothing that the user groups by.

    Attributes:
        keys: values of the keys in which groups differ, of those that this one has.
        series: what it is called but for its noise: groups of one series are points of one line against epsilon.
        noise: what of its label says its noise or epsilon.
        distinguishing: as few keys as tell groups apart.
        words: of the label, before users name them.
    """

    label: str
    keys: dict[str, Any]
    runs: tuple[Run, ...]
    series: str = ""
    noise: str = ""
    distinguishing: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    @property
    def complete(self) -> list[Run]:
        return [run for run in self.runs if run.complete]

    @property
    def state(self) -> str:
        """How many runs are averaged, and what became of the others: "5", "3 of 5 (1 failed, 1 running)"."""
        others = Counter(run.status for run in self.runs if not run.complete)
        others["missing"] = self.count - len(self.runs)
        words = ", ".join(f"{others[status]} {status}" for status in (*STATUSES, "missing") if others[status])
        done = len(self.complete)
        return f"{done} of {self.count} ({words})" if words else str(done)

    @property
    def count(self) -> int:
        """Of its runs, with those of their sweeps that have no folder."""
        return len(self.runs) + len(frozenset().union(*(run.missing for run in self.runs)))

    def summary(self, metric: str) -> Summary:
        """Of a metric of evaluations, or of a measure of the final models."""
        if metric in self.measures:
            return self.measure(metric, "model")
        return Summary.of([run.numbers.get(metric) for run in self.complete])

    def measure(self, name: str, who: str) -> Summary:
        """A measure of the final models, of ``who``: "model" or "baseline"; of the runs in which it is defined."""
        values = [run.measures[name][who] for run in self.complete if name in run.measures]
        return Summary.of([value for value in values if value is not None])

    def difference(self, other: Group, metric: str) -> Difference:
        """By how much a metric is larger than another group's, seed by seed."""
        own, others = self.by_seed, other.by_seed
        pairs = [(own[seed], others[seed]) for seed in own if seed in others]
        numbers = [(_mean(first, metric), _mean(second, metric)) for first, second in pairs]
        if metric in self.measures:  # of final models: not defined in every run
            numbers = [pair for pair in numbers if None not in pair]
        return Difference(
            Summary.of([a - b if a is not None and b is not None else None for a, b in numbers]),
            sum(len({run.test_part for run in (*first, *second)}) > 1 for first, second in pairs),
            tuple(sorted({*own} ^ {*others})),
        )

    @property
    def by_seed(self) -> dict[int, list[Run]]:
        """Its complete runs; several of a seed only where rows were chosen that join configurations."""
        found: dict[int, list[Run]] = {}
        for run in self.complete:
            found.setdefault(run.seed, []).append(run)
        return found

    def baseline(self, metric: str) -> float | None:
        """What a model without features would reach, where it is known."""
        name = metric.removeprefix("test_")
        return self.measure(name, "baseline").mean if name in self.measures else None

    @property
    def measures(self) -> list[str]:
        """Names of the measures of its runs."""
        return list(dict.fromkeys(name for run in self.complete for name in run.measures))

    def epsilon(self, view: str) -> float | None:
        """The largest of its complete runs: it bounds each of them. Infinite: no guarantee; None: no complete run."""
        spent = [getattr(run.guarantee, view) for run in self.complete if run.guarantee is not None]
        return max((value for value in spent if value is not None), default=None)

    @property
    def asked(self) -> float | None:
        """privacy.epsilon, where all of its runs have the same."""
        asked = {run.config.get(ASKED) for run in self.runs}
        return next(iter(asked)) if len(asked) == 1 else None

    def meaning(self, what: str) -> str:
        """Unit, neighbouring, accountant or delta of its complete runs, in words."""
        if self.epsilon("server") in (None, math.inf):
            return "-"
        values = {getattr(run.guarantee, what) for run in self.complete if run.guarantee is not None}
        words = sorted(digits(value, 6) if isinstance(value, float) else str(value or "-") for value in values)
        return ", ".join(words).replace("_", "-")

    @property
    def rounds(self) -> str:
        """That its complete runs made; where a callback stopped some of them, of how many: "14-19 of 40"."""
        return rounds_text(self.complete)

    @property
    def stopped(self) -> list[Run]:
        return [run for run in self.complete if run.stopped]

    @property
    def stops(self) -> str:
        """How many of its complete runs were stopped by a callback, and when; "" for none."""
        count = f"{len(self.stopped)} of {counted(len(self.complete), 'run')}"
        return f"{count} stopped by a callback after {rounds_text(self.stopped)} rounds" if self.stopped else ""


@dataclass(frozen=True, slots=True)
class Difference:
    """Of two groups over the seeds that both have.

    Attributes:
        other_tests: pairs of runs whose test records differ. unpaired: seeds that one of them has alone.
    """

    summary: Summary
    other_tests: int
    unpaired: tuple[int, ...]

    @property
    def verdict(self) -> str:
        """Whether it is significant at 95 %, if there are enough seeds to say so."""
        mean, half = self.summary.mean, self.summary.half_width
        if mean is None or half is None:
            if self.summary.not_finite:
                return "not finite"
            return "too few seeds" if self.summary.n else "no equal seeds"
        return "significant" if abs(mean) > half else "not significant"

    def __str__(self) -> str:
        return self.summary.text("+")


def _mean(runs: Sequence[Run], metric: str) -> float | None:
    """Of a metric over runs; None where one has none."""
    numbers = [number for run in runs if (number := run.number(metric)) is not None]
    return statistics.fmean(numbers) if len(numbers) == len(runs) else None


def rounds_text(runs: Sequence[Run]) -> str:
    """The rounds that they made, and were to make if a callback stopped some of them."""
    planned = [run.config["rounds"] for run in runs if run.stopped and run.config.get("rounds")]
    made = _span([run.rounds for run in runs])
    return f"{made} of {_span(planned)}" if planned else made


def _span(counts: Sequence[int]) -> str:
    ends = sorted({min(counts), max(counts)}) if counts else ["-"]
    return "-".join(map(str, ends))


def epsilon_text(value: float | None) -> str:
    """Rounded up, so that what is printed is an upper bound, too."""
    if value is None:
        return "-"
    return "no guarantee" if math.isinf(value) else places(value, 3)


def value_text(value: Any) -> str:
    """A configuration's value in short."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return "+".join(str(item.get("name") or item.get("module")) for item in value) or "none"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def select(runs: Sequence[Run], where: Mapping[str, Any]) -> list[Run]:
    """The runs whose configuration has these values; "seed" and "name" are keys, too.

    Raises:
        ConfigError: no run has such a key.
    """
    wanted = dict(zip(whole_keys(runs, where, "where"), where.values(), strict=True))
    return [run for run in runs if all(values_of(run).get(key) == value for key, value in wanted.items())]


def whole_keys(runs: Sequence[Run], keys: Iterable[str], argument: str) -> list[str]:
    """Keys that runs have, for these or for their beginning or end: "algorithm" is "algorithm.name".

    Raises:
        ConfigError: no run has such a key, or the end is that of several.
    """
    known = sorted({key for run in runs for key in values_of(run)})
    whole = []
    for key in keys:
        meant = [key] if key in known else [name for name in known if name == f"{key}.name" or name.endswith(f".{key}")]
        if len(meant) > 1:
            raise ConfigError(f"{argument} {key}: may be {' or '.join(meant)}. Write the whole key.")
        if not meant:
            raise ConfigError(f"{argument} {key}: no run has this key{nearest(key, known)}.")
        whole += meant
    return whole


def values_of(run: Run) -> dict[str, Any]:
    """By all keys that a user may name."""
    return {**run.config, "seed": run.seed, "name": run.name}


def grouped(
    runs: Sequence[Run], by: Sequence[str] | None = None, labels: Mapping[str, str] | None = None
) -> list[Group]:
    """Groups by the whole configuration but its seed, or ``by`` certain keys, with labels of what tells them apart.

    Args:
        labels: other names, by the whole label or by one of its words.
    """
    by_values: dict[str, list[Run]] = {}
    for run in runs:
        values = _without_variant(run.config) if by is None else {key: values_of(run).get(key) for key in by}
        by_values.setdefault(_canonical(values), []).append(run)
    configs = [members[0].config if by is None else _pick(members[0], by) for members in by_values.values()]
    keys = differing(configs)
    compared = any(run.compared_with for members in by_values.values() for run in members)
    distinguishing = _distinguishing(configs, keys, {VARIANT} if compared else set())
    groups = []
    for config, members in zip(configs, by_values.values(), strict=True):
        alone = [key for key in (VARIANT, "algorithm.name", *config) if key in config][:1]
        words = _words(config, distinguishing) or _words(config, alone)
        series = _words(config, [key for key in distinguishing if key not in NOISE]) or _words(config, alone)
        groups.append(
            Group(
                _named(words, labels or {}),
                {key: config[key] for key in keys if key in config},
                tuple(sorted(members, key=_seed)),
                _named(series, labels or {}),
                _named(_words(config, [key for key in distinguishing if key in NOISE]), labels or {}),
                tuple(distinguishing),
                tuple(words),
            )
        )
    return sorted(groups, key=lambda group: group.label)


def _without_variant(config: Mapping[str, Any]) -> dict[str, Any]:
    """One configuration may have different labels in different files."""
    return {key: value for key, value in config.items() if key != VARIANT}


def _seed(run: Run) -> int:
    return run.seed


def _pick(run: Run, by: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in values_of(run).items() if key in by}


def differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys that do not have the same value everywhere, in the order of the configuration."""
    keys = dict.fromkeys(key for config in configs for key in config)
    return [key for key in keys if len({_hashable(config, key) for config in configs}) > 1]


def _hashable(config: Mapping[str, Any], key: str) -> str:
    return _canonical(config[key]) if key in config else ""


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _distinguishing(configs: Sequence[Mapping[str, Any]], keys: Sequence[str], kept: Collection[str]) -> list[str]:
    """As few keys as tell all apart: one that others already imply is left out, but the ``kept``; the distinguishing
    ones last."""
    first = [key for key in FIRST_IN_NAMES if key in keys]
    keys_left = [*first, *(key for key in keys if key not in first)]
    for key in reversed(list(keys_left)):
        others = [other for other in keys_left if other != key]
        apart = len({tuple(_hashable(config, other) for other in others) for config in configs}) == len(configs)
        if apart and key not in kept:
            keys_left = others
    return keys_left or first[:1] or list(keys[:1])


def _named(words: Sequence[str], labels: Mapping[str, str]) -> str:
    """By the user's names for the whole, or for words of it."""
    return labels.get(", ".join(words)) or ", ".join(labels.get(word, word) for word in words)


def _words(config: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    last = [key.rsplit(".", 1)[-1] for key in keys]
    words = []
    for key, short in zip(keys, last, strict=True):
        if key not in config:
            continue
        if key in NOISE and not config[key]:
            words += _without_number(config, key, keys)
        elif short in ("name", VARIANT):
            words.append(value_text(config[key]))
        else:
            words.append(f"{short if last.count(short) == 1 else key}={value_text(config[key])}")
    return words


def _without_number(config: Mapping[str, Any], key: str, keys: Sequence[str]) -> list[str]:
    """How a label says that a run was given no noise, or a budget to solve it for, or noise and no budget."""
    noise, epsilon = (config.get(name) for name in NOISE)
    other = NOISE[1] if key == NOISE[0] else NOISE[0]
    if key == NOISE[0] and noise == 0:
        return ["no noise"]
    if other in keys and config.get(other) is not None:
        return []  # which says it
    if noise is None:
        return ["noise solved" + (f" for epsilon={value_text(epsilon)}" if epsilon is not None else "")]
    return [f"noise_multiplier={value_text(noise)}" if noise else "no noise"]


def key_text(key: str, value: Any) -> str:
    """A key's value in short, as filters and rows have it."""
    return "solved" if key == NOISE[0] and value is None else value_text(value)
