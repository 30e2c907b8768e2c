"""Tables of groups and of runs, for programs (CSV), papers (LaTeX) and pages (Markdown)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from dpfl_plugin.core.outcomes import ACCURACY, OF_SILOS, higher_is_better
from dpfl_plugin.core.text import counted
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.experiments.reports.groups import (
    Difference,
    Group,
    differing,
    epsilon_text,
    key_text,
    rounds_text,
    value_text,
    values_of,
)
from dpfl_plugin.experiments.reports.runs import VARIANT, Run
from dpfl_plugin.runs.csv_cells import csv_text

MEANINGS: Final = {"delta": "delta", "unit": "protects", "neighbouring": "neighbours", "accountant": "accountant"}
TITLES: Final = {"auc": "AUC", "pr_auc": "PR AUC", "mae": "MAE", "rmse": "RMSE", "test_mae": "test MAE"}
NO_REFERENCES: Final[Mapping[str, Group]] = MappingProxyType({})
_TEX: Final = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "±": r"$\pm$",
    }
)


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text under headings.

    Attributes:
        numeric: columns that are aligned to the right.
        caption: one line for a paper. note: what the numbers mean. data: rows with all digits, for CSV.
    """

    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str
    note: str = ""
    data: tuple[dict[str, Any], ...] = ()


def title(metric: str) -> str:
    """A metric's name for people."""
    base = metric.removesuffix(OF_SILOS)
    return TITLES.get(base, base.replace("_", " ")) + metric[len(base) :]


def summary(
    groups: Sequence[Group],
    metrics: Sequence[str],
    over: str,
    references: Mapping[str, Group] = NO_REFERENCES,
    baseline: str = "",
) -> Table:
    """A row for each group; what epsilon means is in the caption if it is the same for all, else in columns.

    Args:
        over: what is averaged over, in words.
        references: by label, the group that each is compared with, seed by seed, by the first metric.
        baseline: what these are called.
    """
    same, varied = meanings(groups)
    asked = any(group.asked is not None for group in groups)
    columns = ["configuration", "runs", "rounds", *map(title, metrics)]
    columns += [f"{title(metrics[0])}, less that of {baseline}"] if references else []
    columns += ["epsilon asked"] * asked + ["epsilon, server", "epsilon, third party"]
    columns += [MEANINGS[what] for what in varied]
    rows = []
    pairs = [(group, references[group.label]) for group in groups if group.label in references]
    differences = {group.label: group.difference(other, metrics[0]) for group, other in pairs}
    for group in groups:
        cells = [group.label, group.state, group.rounds, *(_cell(group, metric) for metric in metrics)]
        if references:
            cells.append(str(differences[group.label]) if group.label in differences else "-")
        if asked:
            cells.append("-" if group.asked is None else f"{group.asked:g}")
        cells += [epsilon_text(group.epsilon(view)) for view in ("server", "third_party")]
        rows.append((*cells, *(group.meaning(what) for what in varied)))
    note = explanation(over, metrics, same) + stops(groups) + no_better(groups)
    if references:
        note += f" Differences to {baseline} are of runs with equal seeds: their mean ± its 95 % CI."
    note += _of_pairs(differences)
    numeric = (False, False, *[True] * (len(columns) - 2))
    return Table(tuple(columns), numeric, tuple(rows), caption(groups, same), note)


def _cell(group: Group, metric: str) -> str:
    """A measure that is not defined in every run says over how many it is."""
    value = group.summary(metric)
    partial = value.mean is not None and value.n < len(group.complete)
    return f"{value} (n = {value.n})" if partial else str(value)


def _of_pairs(differences: Mapping[str, Difference]) -> str:
    """Which differences include that of other test records, and which seeds they leave out."""
    moved = [label for label, difference in differences.items() if difference.other_tests]
    text = f" Differences include that of other test records: {'; '.join(moved)}." if moved else ""
    apart = [
        f"{label} (seed{'s' * (len(difference.unpaired) > 1)} {', '.join(map(str, difference.unpaired))})"
        for label, difference in differences.items()
        if difference.unpaired
    ]
    return text + (f" Seeds that only one of the two rows has are left out: {'; '.join(apart)}." if apart else "")


def comparisons(groups: Sequence[Group], metric: str) -> Table:
    """A row for each pair of variants that a file compares, where all else that tells rows apart is equal."""
    rows, data = [], []
    differences = {}
    places = {_place(group): group for group in groups if VARIANT in group.distinguishing}
    for (_, *others), group in places.items():
        for rival in group.runs[0].compared_with:
            other = places.get((rival, *others))
            data.append({"configuration": group.label, "compared_with": other.label if other else rival})
            if other is None:
                rows.append((group.label, f"{rival}: no such row here", "-", "-", "-"))
                continue
            difference = group.difference(other, metric)
            differences[f"{group.label} and {other.label}"] = difference
            rows.append((group.label, other.label, str(difference), str(difference.summary.n), difference.verdict))
            data[-1] |= {"metric": metric, **_numbers(difference), "verdict": difference.verdict}
    note = (
        "Differences of runs with equal seeds: their mean ± half the width of its 95 % confidence interval (Student's "
        f"t). Each verdict is of one pair, not corrected for their number.{_of_pairs(differences)}{stops(groups)}"
    )
    columns = ("configuration", "compared with", f"difference in {title(metric)}", "equal seeds", "at 95 %")
    text = f"Differences in {title(metric)}."
    return Table(columns, (False, False, True, True, False), tuple(rows), text, note, tuple(data))


def _place(group: Group) -> tuple[str, ...]:
    """Its variant, then the values of the other keys that tell it apart."""
    return tuple(value_text(group.keys.get(key)) for key in group.distinguishing)


def pivot(groups: Sequence[Group], metric: str, across: Sequence[str], labels: Mapping[str, str]) -> Table:
    """A metric by the values of two keys: rows by the first, columns by the second.

    Raises:
        ConfigError: a key does not vary, or others do, so that a cell would hold several groups.
    """
    varying, keys = differing([group.keys for group in groups]), across
    for key in keys:
        if key not in varying:
            known = ", ".join(varying) or "none"
            averaged = key in differing([values_of(run) for group in groups for run in group.runs])
            over = "seeds" if key == "seed" else f"all values of {key}"
            why = f"rows are means over {over}" if averaged else "it is the same in all of these runs"
            raise ConfigError(f"pivot {key}: {why}. Keys that vary: {known}.")
    cells: dict[tuple[str, str], list[Group]] = {}
    places: list[dict[str, Any]] = [{}, {}]
    for group in groups:
        texts = [key_text(key, group.keys.get(key)) for key in keys]
        for place, text, key in zip(places, texts, keys, strict=True):
            place.setdefault(text, group.keys.get(key))
        cells.setdefault((texts[0], texts[1]), []).append(group)
    for (row, column), several in cells.items():
        if len(several) > 1:
            others = ", ".join(differing([group.keys for group in several]))
            raise ConfigError(
                f"pivot: {len(several)} configurations have {keys[0]}={row} and {keys[1]}={column}. They differ in "
                f"{others}: choose by --where, or average over it by --group-by {keys[0]},{keys[1]}."
            )
    rows, columns = ([text for text, _ in sorted(place.items(), key=lambda item: _order(item[1]))] for place in places)
    prefix = "" if keys[1].rsplit(".", 1)[-1] in ("name", VARIANT) else f"{short(keys[1])}="
    heads = [labels.get(text) or (f"{prefix}{text}" if text != "-" else text) for text in columns]
    body = [
        (
            labels.get(row, row),
            *(str(cells[row, column][0].summary(metric)) if (row, column) in cells else "-" for column in columns),
        )
        for row in rows
    ]
    text = f"{title(metric)}: {caption(groups, meanings(groups)[0])}"
    data = []
    for (group,) in cells.values():
        settings = _settings({key: group.keys.get(key) for key in keys})
        value = group.summary(metric)
        numbers = {"mean": value.mean, "ci95": value.half_width, "std": value.std, "n": value.n}
        data.append({**settings, "configuration": group.label, "metric": metric, **numbers})
    numeric = (False, *[True] * len(columns))
    return Table((short(keys[0]), *heads), numeric, tuple(body), text, f"{text}{stops(groups)}", tuple(data))


def short(key: str) -> str:
    """A key in the heading of a table: its last part, or what is named."""
    parts = key.split(".")
    return parts[-2] if parts[-1] == "name" and len(parts) > 1 else parts[-1]


def _order(value: Any) -> tuple[bool, float, str]:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return not number, float(value) if number else 0.0, value_text(value)


def stops(groups: Sequence[Group]) -> str:
    """Which groups have runs that a callback stopped, whose means are of fewer rounds than planned."""
    by_reason: dict[str, list[str]] = {}
    for group in groups:
        for reason in dict.fromkeys(run.reason for run in group.stopped):
            runs = [run for run in group.stopped if run.reason == reason]
            count = f"{len(runs)} of {counted(len(group.complete), 'run')} after {rounds_text(runs)} rounds"
            who, _, why = reason.partition(": ")
            text = f"{who[:1].upper()}{who[1:]}" + (f" ({why})" if why else "")
            by_reason.setdefault(text, []).append(f"{group.label}, {count}")
    return "".join(f" {reason}: {'; '.join(rows)}." for reason, rows in by_reason.items())


def no_better(groups: Sequence[Group]) -> str:
    """Which groups' models a constant would have matched: nobody sees that in a column of accuracies."""
    by_measure: dict[str, list[str]] = {}
    for group in groups:
        for name in {run.ranked_by: None for run in group.complete if run.ranked_by}:
            model, baseline = (group.measure(name, who).mean for who in ("model", "baseline"))
            if model is None or baseline is None:
                continue
            if not (model > baseline if higher_is_better(name) else model < baseline):
                by_measure.setdefault(name, []).append(group.label)
    return "".join(
        f" No better on test records than a baseline without features, by {title(name)}: {'; '.join(labels)}."
        for name, labels in by_measure.items()
    )


def measures(groups: Sequence[Group]) -> Table:
    """A row for each measure of a group's final models, beside a baseline that knows no feature; none of old runs."""
    rows = []
    for group in groups:
        for name in group.measures:
            model, baseline = (str(group.measure(name, who)) for who in ("model", "baseline"))
            rows.append((group.label, title(name), model, baseline))
    note = (
        "Final models (each silo's own, where silos have models of their own) on the test records of all silos (or, "
        "where it says so, the mean over silos, weighted by their test records), beside a baseline that knows the "
        "training labels and no features. Computed without noise: no epsilon covers them."
    )
    positive = sorted({run.positive_class for group in groups for run in group.complete if run.positive_class})
    if len(positive) == 1:
        note += f" The positive class is {positive[0]}."
    elif positive:
        note += f" The positive class is the second of two: {', '.join(positive)}, by configuration."
    columns = ("configuration", "measure", "model", "baseline")
    return Table(columns, (False, False, True, True), tuple(rows), "Final models; mean ± 95 % CI.", note)


def meanings(groups: Sequence[Group]) -> tuple[list[str], list[str]]:
    """What every epsilon of these groups has in common, in words; and which of `MEANINGS` differ."""
    private = [group for group in groups if group.epsilon("server") not in (None, math.inf)]
    same, varied = [], []
    for what, heading in MEANINGS.items():
        values = {group.meaning(what) for group in private}
        if len(values) == 1:
            same.append(f"{heading} {values.pop()}")
        elif values:
            varied.append(what)
    return same, varied


def caption(groups: Sequence[Group], same: Sequence[str]) -> str:
    """One line for a paper."""
    counts = sorted({len(group.complete) for group in groups})
    number = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    delta = next((text for text in same if text.startswith("delta ")), "").replace("delta ", "; delta = ")
    return f"Mean ± 95 % CI over {number} runs{delta}."


def explanation(over: str, metrics: Sequence[str], same: Sequence[str]) -> str:
    """What the numbers are; ``same``: what holds for every epsilon."""
    meaning = f" ({', '.join(same)})" if same else ""
    measured = " The AUC is that of the final model on all test records." if "auc" in metrics else ""
    evaluated = [title(metric) for metric in metrics if metric == ACCURACY or metric.startswith("test_")]
    if evaluated:
        measured += (
            f" Of {', '.join(evaluated)}: each run's mean over the last 10 % of rounds, and over silos, each of which "
            "counts alike."
        )
    return (
        f"Mean over {over}, complete runs only, ± half the width of its 95 % confidence interval (Student's t)."
        f"{measured} Epsilon is that of one run, the largest among them, rounded up{meaning}."
    )


def to_markdown(table: Table) -> str:
    rule = ["---:" if numeric else "---" for numeric in table.numeric]
    cells = [[cell.replace("|", "\\|").replace("<", "&lt;") for cell in row] for row in (table.columns, *table.rows)]
    lines = [f"| {' | '.join(row)} |" for row in (cells[0], rule, *cells[1:])]
    return "\n".join([*lines, "", table.note or table.caption, ""])


def tex(text: str) -> str:
    """Text as LaTeX, in which no character of it means anything else; the privacy parameters are symbols."""
    text = re.sub(r"^-(?=\d)", r"$-$", text.translate(_TEX))
    return re.sub(r"\b(delta|epsilon)\b", _symbol, text)


def _symbol(match: re.Match[str]) -> str:
    return {"delta": r"$\delta$", "epsilon": r"$\varepsilon$"}[match[0]]


def to_latex(table: Table) -> str:
    r"""A `table` environment with a caption of one line; needs `\usepackage{booktabs}`."""
    align = "".join("r" if numeric else "l" for numeric in table.numeric)
    lines = [" & ".join(map(tex, row)) + r" \\" for row in (table.columns, *table.rows)]
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            *([f"% {table.note}"] if table.note else []),
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{tex(table.caption)}}}",
            rf"\begin{{tabular}}{{{align}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def summary_csv(
    groups: Sequence[Group], metrics: Sequence[str], references: Mapping[str, Group] = NO_REFERENCES
) -> str:
    """Numbers in full; an epsilon of inf is no guarantee."""
    rows = []
    for group in groups:
        row: dict[str, Any] = {"configuration": group.label, "runs": group.count, "complete": len(group.complete)}
        made = [run.rounds for run in group.complete]
        row["stopped"] = len(group.stopped)
        row |= {"rounds_min": min(made, default=None), "rounds_max": max(made, default=None)}
        for metric in metrics:
            value = group.summary(metric)
            row |= {f"{metric}_mean": value.mean, f"{metric}_ci95": value.half_width, f"{metric}_std": value.std}
            row[f"{metric}_not_finite"] = value.not_finite
        if group.label in references:
            row |= _numbers(group.difference(references[group.label], metrics[0]))
        row["epsilon_asked"] = group.asked
        row |= {f"epsilon_{view}": group.epsilon(view) for view in ("server", "third_party")}
        row |= {what: group.meaning(what) for what in MEANINGS}
        rows.append(row | _settings(group.keys))
    return csv_text(rows)


def _numbers(difference: Difference) -> dict[str, Any]:
    """A difference's columns."""
    return {
        "difference": difference.summary.mean,
        "difference_ci95": difference.summary.half_width,
        "difference_pairs": difference.summary.n,
        "difference_other_test_records": difference.other_tests,
    }


def runs_csv(runs: Sequence[Run], metrics: Sequence[str]) -> str:
    """A row for each run, those that are not complete included."""
    rows = []
    for run in runs:
        spent = run.guarantee
        row = {"name": run.name, "id": run.id, "seed": run.seed, "status": run.status, "reason": run.reason}
        row |= {"rounds": run.rounds, **{metric: run.number(metric) for metric in metrics}}
        row |= {f"{name}_{who}": value for name, both in run.measures.items() for who, value in both.items()}
        for what in ("server", "third_party"):
            row[f"epsilon_{what}"] = getattr(spent, what) if spent else None
        row["epsilon_total_server"] = spent.adaptive["epsilon"] if spent and spent.adaptive else None
        row |= {what: getattr(spent, what) if spent else None for what in MEANINGS}
        rows.append({**row, "folder": str(run.folder), **_settings(run.config)})
    return csv_text(rows)


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration's columns, in which `rounds` are those that were planned, not made."""
    return {"planned_rounds" if key == "rounds" else key: value for key, value in config.items()}
