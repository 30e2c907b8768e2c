"""Runs on one data set: the rows of a table, ranked, and the result in a sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dpfl_plugin.core.outcomes import shortfall
from dpfl_plugin.core.text import counted
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.experiments.reports import tables
from dpfl_plugin.experiments.reports.groups import NOISE, Group, epsilon_text, grouped, value_text
from dpfl_plugin.experiments.reports.privacy_notes import privacy_notes
from dpfl_plugin.experiments.reports.runs import Run
from dpfl_plugin.experiments.reports.tables import Table, title

MOST_LEVELS: Final = 4  # of noise that have a sentence of their own
DATA_KEYS: Final = ("data.dataset.name", "data.dataset.module", "data.dataset.files", "data.dataset.label_column")


@dataclass(frozen=True, slots=True)
class Section:
    """Runs on one data set: a row for each configuration, the best first.

    Attributes:
        name: of the data set; "" where all runs have one.
        metrics: of the rows, the first of which ranks them. baseline: the row that each is compared with, by label.
        table: of the rows. comparisons: of pairs of variants. pivot: by two keys, if that was asked for.
        notes: sentences on what their epsilons leave open.
    """

    name: str
    groups: tuple[Group, ...]
    metrics: tuple[str, ...]
    baseline: dict[str, Group]
    table: Table
    comparisons: Table
    pivot: Table | None
    notes: tuple[str, ...]

    @property
    def result(self) -> str:
        """In a sentence or two: what is best, and whether the next one is significantly worse; at each epsilon, if
        they are few and all rows have one."""
        metric = self.metrics[0]
        ranked = [group for group in self.groups if group.summary(metric).mean is not None]
        if not ranked:
            return "No run is complete."
        private = [group for group in ranked if group.epsilon("server") not in (None, math.inf)]
        levels: dict[str, list[Group]] = {}
        for group in ranked:
            levels.setdefault(group.noise, []).append(group)
        if 1 < len(levels) <= MOST_LEVELS and len(private) == len(ranked):
            named = {noise: [replace(row, label=row.series) for row in rows] for noise, rows in levels.items()}
            return " ".join(f"Best at {noise}: {_lead(rows, metric)}" for noise, rows in named.items())
        best = "Best: " * (len(self.groups) > 1)
        if private and private[0] is not ranked[0]:
            return f"{best}{_described(ranked[0], metric)} Best with a guarantee: {_lead(private, metric)}"
        return f"{best}{_lead(private or ranked, metric)}"


def _lead(rows: Sequence[Group], metric: str) -> str:
    """The first row, and by how much it is better than the second."""
    described = _described(rows[0], metric)
    if len(rows) == 1:
        return described
    difference = rows[0].difference(rows[1], metric)
    following = rows[1].label + (f" ({rows[1].stops})" if rows[1].stops else "")
    if difference.summary.half_width is None:
        return f"{described} Too few seeds to compare it with the next, {following}."
    count = difference.summary.n
    seeds = f"the {count} seeds that both have" if difference.unpaired else f"{count} equal seeds"
    return (
        f"{described} Its difference to the next, {following}, is {difference} over {seeds}: {difference.verdict} "
        "at 95 %."
    )


def _described(group: Group, metric: str) -> str:
    spent = group.epsilon("server")
    guarantee = f", epsilon {epsilon_text(spent)}" if spent not in (None, math.inf) else ""
    count = group.stops or counted(len(group.complete), "run")
    return f"{group.label} ({title(metric)} {group.summary(metric)}{guarantee}, {count})."


def by_data(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by their data set, under as short a name as tells these apart; "" where there is one only."""
    by_dataset: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        by_dataset.setdefault(tuple(value_text(run.config.get(key, "")) for key in DATA_KEYS), []).append(run)
    if len(by_dataset) == 1:
        return {"": list(runs)}
    varying = [place for place in range(len(DATA_KEYS)) if len({values[place] for values in by_dataset}) > 1]
    return {", ".join(filter(None, (values[p] for p in varying))): members for values, members in by_dataset.items()}


def section_of(
    name: str,
    runs: Sequence[Run],
    by: Sequence[str] | None,
    metrics: Sequence[str],
    baseline: str | None,
    pivot: Sequence[str] | None,
    labels: Mapping[str, str] | None,
) -> Section:
    measured = list(dict.fromkeys(metric for run in runs for metric in (*run.numbers, *run.measures)))
    if not measured:
        raise ConfigError(f"{name or 'these runs'}: nothing was measured in any of them.")
    unranked = grouped(runs, by, labels)
    chosen = tuple([metric for metric in metrics if metric in measured] or _in_common(unranked) or measured)
    groups = tuple(_best_first(unranked, chosen[0]))
    over = "seeds" if by is None else f"all runs with the same {', '.join(by)}"
    references = {} if baseline is None else _references(groups, baseline)
    return Section(
        name,
        groups,
        chosen,
        references,
        tables.summary(groups, chosen, over, references, baseline or ""),
        tables.comparisons(groups, chosen[0]),
        None if pivot is None else tables.pivot(groups, chosen[0], pivot, labels or {}),
        privacy_notes(groups),
    )


def _references(groups: Sequence[Group], baseline: str) -> dict[str, Group]:
    """The row that each other is compared with: the one of this label, or the one of this series with its noise."""
    named = [group for group in groups if group.label == baseline]
    line, keys = (named, ()) if named else ([group for group in groups if group.series == baseline], NOISE)
    labels = {group.label for group in line}
    return {
        group.label: other
        for group in groups
        for other in line
        if group.label not in labels and all(group.keys.get(key) == other.keys.get(key) for key in keys)
    }


def _in_common(groups: Sequence[Group]) -> list[str]:
    """What all of these groups are judged by, of those that have a complete run.

    Raises:
        ConfigError: there is nothing.
    """
    own = {
        group.label: dict.fromkeys(metric for run in group.complete for metric in run.own_measures)
        for group in groups
        if any(run.own_measures for run in group.complete)
    }
    common = [metric for metric in next(iter(own.values()), ()) if all(metric in metrics for metrics in own.values())]
    if own and not common:
        each = "; ".join(f"{label}: {', '.join(metrics)}" for label, metrics in own.items())
        raise ConfigError(f"these rows have no metric in common: {each}. Choose rows by --where, or a --metric.")
    return common


def _best_first(groups: Sequence[Group], metric: str) -> list[Group]:
    """The largest first, or the smallest of an error; what has no number comes last."""

    def order(group: Group) -> float:
        mean = group.summary(metric).mean
        return math.inf if mean is None else shortfall(metric, mean)

    return sorted(groups, key=order)
