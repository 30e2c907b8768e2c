"""Tables of groups and of runs, for programs (CSV), papers (LaTeX) and pages (Markdown)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from dpfl_plugin.core.outcomes import higher_is_better
from dpfl_plugin.reports.groups import Group, epsilon_text
from dpfl_plugin.reports.runs import Run
from dpfl_plugin.runs.csv_cells import csv_text

MEANINGS: Final = {"delta": "delta", "unit": "protects", "neighbouring": "neighbours", "accountant": "accountant"}
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
    """Cells as text, under headings; ``numeric`` columns are aligned to the right; the caption says what they mean."""

    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str


def summary(groups: Sequence[Group], metrics: Sequence[str], over: str) -> Table:
    """A row for each group; what epsilon means is in the caption if it is the same for all, else in columns."""
    same, varied = meanings(groups)
    names = [metric.replace("_", " ") for metric in metrics]
    columns = ["configuration", "runs", "rounds", *names, "epsilon, server", "epsilon, third party"]
    columns += [MEANINGS[what] for what in varied]
    rows = []
    for group in groups:
        numbers = [str(group.summary(metric)) for metric in metrics]
        spent = [epsilon_text(group.epsilon(view)) for view in ("server", "third_party")]
        more = [group.meaning(what) for what in varied]
        rows.append((group.label, group.state, group.rounds, *numbers, *spent, *more))
    numeric = (False, False, *[True] * (len(columns) - 2))
    return Table(tuple(columns), numeric, tuple(rows), caption(over, same) + no_better(groups))


def no_better(groups: Sequence[Group]) -> str:
    """Which groups' models a constant would have matched: nobody sees that in a column of accuracies."""
    found: dict[str, list[str]] = {}
    for group in groups:
        for name in {run.ranked_by: None for run in group.complete if run.ranked_by}:
            model, baseline = (group.measure(name, who).mean for who in ("model", "baseline"))
            if model is None or baseline is None:
                continue
            if not (model > baseline if higher_is_better(name) else model < baseline):
                found.setdefault(name, []).append(group.label)
    return "".join(
        f" No better on test records than a baseline without features, by {name.replace('_', ' ')}: "
        f"{'; '.join(labels)} (measures.md)."
        for name, labels in found.items()
    )


def measures(groups: Sequence[Group]) -> Table:
    """A row for each measure of a group's final models, beside a baseline that knows no feature; none of old runs."""
    rows = []
    for group in groups:
        for name in group.measures:
            model, baseline = (str(group.measure(name, who)) for who in ("model", "baseline"))
            rows.append((group.label, name.replace("_", " "), model, baseline))
    said = (
        "Final models (each silo's own, where silos have models of their own) on the test records of all silos (or, "
        "where it says so, the mean over silos, weighted by their test records), beside a baseline that knows the "
        "training labels and no features; "
        "mean ± standard deviation (n - 1) over complete runs. Computed without noise: no epsilon covers them."
    )
    positive = sorted({run.positive_class for group in groups for run in group.complete if run.positive_class})
    if len(positive) == 1:
        said += f" The positive class is {positive[0]}."
    elif positive:
        said += f" The positive class is the second of two: {', '.join(positive)}, by configuration."
    return Table(("configuration", "measure", "model", "baseline"), (False, False, True, True), tuple(rows), said)


def meanings(groups: Sequence[Group]) -> tuple[list[str], list[str]]:
    """What every epsilon of these groups has in common, in words; and which of `MEANINGS` differ."""
    private = [group for group in groups if group.epsilon("server") not in (None, math.inf)]
    same, varied = [], []
    for what, title in MEANINGS.items():
        values = {group.meaning(what) for group in private}
        if len(values) == 1:
            same.append(f"{title} {values.pop()}")
        elif values:
            varied.append(what)
    return same, varied


def caption(over: str, same: Sequence[str]) -> str:
    """What the numbers are; ``same``: what holds for every epsilon."""
    meaning = f" ({', '.join(same)})" if same else ""
    return (
        f"Mean ± standard deviation (n - 1) over {over}, complete runs only; of each run the mean over the last 10 % "
        "of rounds, and of what is measured on test records the mean over silos, each of which counts alike. "
        f"Epsilon is that of one run, the largest among them, rounded up{meaning}."
    )


def to_markdown(table: Table) -> str:
    rule = ["---:" if numeric else "---" for numeric in table.numeric]
    cells = [[cell.replace("|", "\\|").replace("<", "&lt;") for cell in row] for row in (table.columns, *table.rows)]
    lines = [f"| {' | '.join(row)} |" for row in (cells[0], rule, *cells[1:])]
    return "\n".join([*lines, "", table.caption, ""])


def tex(text: str) -> str:
    """Text as LaTeX, in which no character of it means anything else."""
    return text.translate(_TEX)


def to_latex(table: Table) -> str:
    r"""A `table` environment; needs `\usepackage{booktabs}`."""
    align = "".join("r" if numeric else "l" for numeric in table.numeric)
    lines = [" & ".join(map(tex, row)) + r" \\" for row in (table.columns, *table.rows)]
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
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


def summary_csv(groups: Sequence[Group], metrics: Sequence[str]) -> str:
    """Numbers in full; an epsilon of inf is no guarantee."""
    rows = []
    for group in groups:
        row: dict[str, Any] = {"configuration": group.label, "runs": len(group.runs), "complete": len(group.complete)}
        for metric in metrics:
            found = group.summary(metric)
            row |= {f"{metric}_mean": found.mean, f"{metric}_std": found.std, f"{metric}_not_finite": found.not_finite}
        row |= {f"epsilon_{view}": group.epsilon(view) for view in ("server", "third_party")}
        row |= {what: group.meaning(what) for what in MEANINGS}
        rows.append({**row, **group.keys})
    return csv_text(rows)


def runs_csv(runs: Sequence[Run], metrics: Sequence[str]) -> str:
    """A row for each run, those that are not complete included."""
    rows = []
    for run in runs:
        spent = run.guarantee
        row = {"name": run.name, "id": run.id, "seed": run.seed, "status": run.status, "reason": run.reason}
        row |= {"rounds": run.rounds, **{metric: run.number(metric) for metric in metrics}}
        row |= {f"{name}_{who}": value for name, both in run.measures.items() for who, value in both.items()}
        for what in ("server", "third_party", "total_server"):
            row[f"epsilon_{what}"] = getattr(spent, what) if spent else None
        row |= {what: getattr(spent, what) if spent else None for what in MEANINGS}
        rows.append({**row, "folder": str(run.folder), **run.config})
    return csv_text(rows)
