"""`report`: tables, plots and a page from run folders; nothing here needs torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

import dpfl_plugin
from dpfl_plugin.config.load import flat
from dpfl_plugin.core.outcomes import higher_is_better
from dpfl_plugin.core.text import Printed
from dpfl_plugin.errors import ConfigError, nearest, require
from dpfl_plugin.reports import tables
from dpfl_plugin.reports.groups import Group, grouped, require_keys, select
from dpfl_plugin.reports.page import page
from dpfl_plugin.reports.plots import MOST, left_out, plot, plot_tradeoff
from dpfl_plugin.reports.runs import AXES, Problem, Run, scan
from dpfl_plugin.reports.tables import Table
from dpfl_plugin.runs.folder import write_atomic
from dpfl_plugin.terminal import printed, show_table

DEFAULT_AXES: Final = ("rounds", "epsilon", "bytes", "seconds")
MOST_ROWS: Final = 40  # displayed; the files have all


@dataclass(frozen=True, slots=True)
class Report(Printed):
    """What was made of run folders.

    Attributes:
        out: the folder of all files. table: a row for each configuration, the best first.
        problems: folders that were left out, and why. lines: where the files are, in words.
    """

    out: Path
    table: Table
    problems: Sequence[Problem]
    lines: Sequence[str]

    def __str__(self) -> str:
        rows, problems = self.table.rows, self.problems
        lines = [f"{len(rows) - MOST_ROWS} more rows in the files."] if len(rows) > MOST_ROWS else []
        lines += [
            self.table.caption,
            *(f"left out: {problem.folder}: {problem.reason}" for problem in problems[:MOST_ROWS]),
        ]
        if len(problems) > MOST_ROWS:
            lines.append(f"left out: {len(problems) - MOST_ROWS} more folders; the page names all.")
        return "\n".join([printed(self._show, width=200), *lines, *self.lines])

    def _show(self, console: Console) -> None:
        table = RichTable()
        for column, numeric in zip(self.table.columns, self.table.numeric, strict=True):
            table.add_column(escape(column), justify="right" if numeric else "left")
        for row in self.table.rows[:MOST_ROWS]:
            table.add_row(*map(escape, row))
        show_table(console, table)

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        rows = [dict(zip(self.table.columns, row, strict=True)) for row in self.table.rows]
        problems = {str(problem.folder): problem.reason for problem in self.problems}
        return {"out": str(self.out), "rows": rows, "caption": self.table.caption, "left_out": problems}


def report(
    folders: str | Path | Sequence[str | Path],
    out: str | Path = "report",
    *,
    metrics: Sequence[str] = (),
    against: Sequence[str] = (),
    group_by: Sequence[str] = (),
    where: Mapping[str, Any] | None = None,
    html: bool = True,
) -> Report:
    """Read run folders, and write tables, plots and a page to ``out``.

    Runs that differ in their seed only are one row: mean and standard deviation. Partial and failed runs are shown as
    such and never averaged.

    Args:
        folders: of runs, or above them. out: is made; files of an earlier report there are replaced.
        metrics: of metrics.jsonl, or measures of the final models on all test records ("auc"); rows are ranked by the
            first. None: all of metrics.jsonl, what the outcome is ranked by first.
        against: axes of plots: rounds, epsilon, epsilon_third_party, bytes, seconds; none: all but the third.
        group_by: keys ("algorithm.name"): average over all else, not over seeds only.
        where: only runs with these values, {"algorithm.name": "scaffold"} or nested as in a file.
        html: whether to write the page.

    Raises:
        ConfigError: a folder is not there, none holds a run, or an argument names what no run has.
    """
    several = isinstance(folders, Path | Iterable)
    require(several, "folders", folders, "be a folder, or a list of folders")
    named = [folders] if isinstance(folders, str | Path) else folders
    require(isinstance(where, Mapping | None), "where", where, "be a mapping of keys to values")
    for axis in against:
        if axis not in AXES:
            known = ", ".join(AXES)
            raise ConfigError(f"against {axis} is not an axis{nearest(axis, list(AXES))}. Known: {known}.")
    runs, problems = _read([Path(folder) for folder in named], flat(where or {}))
    by = list(group_by) or None
    require_keys(runs, by or [], "group_by")
    measured = _known(run.numbers for run in runs)
    every = [*measured, *_known(run.measures for run in runs)]
    for metric in metrics:
        if metric not in every:
            raise ConfigError(f"metric {metric}: no run has it{nearest(metric, every)}. Known: {', '.join(every)}.")
    chosen = list(metrics) or measured
    groups = _best_first(grouped(runs, by), chosen)
    over = "seeds" if by is None else f"all runs with the same {', '.join(by)}"
    table = tables.summary(groups, chosen, over)
    lines = _write(Path(out), groups, chosen, list(against) or list(DEFAULT_AXES), table, problems, html=html)
    return Report(Path(out), table, problems, lines)


def _read(folders: Sequence[Path], where: Mapping[str, Any]) -> tuple[list[Run], list[Problem]]:
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder} is not a folder. Give folders of run folders, e.g. runs.")
    runs, problems = scan(folders)
    if runs:
        runs = select(runs, where)
    if not runs:
        reasons = "".join(f"\n  {problem.folder}: {problem.reason}" for problem in problems[:10])
        asked = "is as where says" if where else ""
        raise ConfigError(f"{', '.join(map(str, folders))}: no run {asked}{reasons}")
    return list(runs), list(problems)


def _known(of_runs: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(name for names in of_runs for name in names))


def _best_first(groups: Sequence[Group], metrics: Sequence[str]) -> list[Group]:
    """By the first metric, the largest first, or the smallest of an error; what has no number comes last."""
    sign = -1 if metrics and higher_is_better(metrics[0]) else 1

    def order(group: Group) -> float:
        mean = group.summary(metrics[0]).mean if metrics else None
        return math.inf if mean is None else sign * mean

    return sorted(groups, key=order)


def _write(
    out: Path,
    groups: Sequence[Group],
    metrics: Sequence[str],
    against: Sequence[str],
    table: Table,
    problems: Sequence[Problem],
    *,
    html: bool,
) -> list[str]:
    """All files; returns lines that say where they are."""
    for folder in (out / "tables", out / "plots"):
        folder.mkdir(parents=True, exist_ok=True)
    runs, measured = [run for group in groups for run in group.runs], tables.measures(groups)
    for name, content in {
        "summary.csv": tables.summary_csv(groups, metrics),
        "summary.md": tables.to_markdown(table),
        "summary.tex": tables.to_latex(table),
        "runs.csv": tables.runs_csv(runs, metrics),
        **({"measures.md": tables.to_markdown(measured)} if measured.rows else {}),
    }.items():
        write_atomic(out / "tables" / name, content)
    curved = [metric for metric in metrics if any(metric in run.curve for run in runs)]  # final models have no curves
    names = [(metric, axis) for metric in curved for axis in against]
    drawn = [plot(out / "plots" / f"{metric}-{axis}", groups[:MOST], metric, axis) for metric, axis in names]
    more = ", measures.md" * bool(measured.rows)
    lines = [f"tables: {out / 'tables'}/summary.csv, summary.md, summary.tex, runs.csv{more}"]
    few = f", of the first {MOST} of {len(groups)} configurations" * (len(groups) > MOST)
    points = [plot_tradeoff(out / "plots" / f"{metric}-tradeoff", groups, metric) for metric in metrics]
    lines.append(f"plots: {out / 'plots'}/, {sum(map(len, drawn + points))} files{few}")
    for (metric, axis), files in zip(names, drawn, strict=True):
        if not files:
            lines.append(f"not drawn, no run has values for it: {metric} against {axis}")
        elif missing := left_out(groups[:MOST], metric, axis):
            lines.append(
                f"not in {metric}-{axis}, since a run has no finite values there or its runs have no range in common: "
                + "; ".join(group.label for group in missing)
            )
    if html:
        made_by = f"dpfl {dpfl_plugin.__version__}"
        text = page(groups, metrics, caption=table.caption, problems=problems, made_by=made_by)
        write_atomic(out / "index.html", text)
        lines.append(f"page: {out / 'index.html'}")
    return lines
