"""`dpfl report`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

import dpfl_plugin
from dpfl_plugin.cli import fitting
from dpfl_plugin.config.load import parse_setting
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.registry import nearest
from dpfl_plugin.report import tables
from dpfl_plugin.report.groups import Group, grouped, require_keys, select
from dpfl_plugin.report.page import ExtraMissingError, page
from dpfl_plugin.report.plots import MOST, left_out, plot, plot_tradeoff
from dpfl_plugin.report.runs import AXES, Problem, Run, flat, scan
from dpfl_plugin.training.folder import write_atomic

MOST_ROWS: Final = 40  # printed; the files have all
DEFAULT_AXES: Final = ("rounds", "epsilon", "bytes", "seconds")


def report_folders(
    folders: Sequence[Path],
    out: Path,
    *,
    metrics: Sequence[str],
    against: Sequence[str],
    group_by: Sequence[str],
    where: Sequence[str],
    html: bool,
) -> None:
    """Read run folders, write tables, plots and a page to ``out``, and print a short table.

    Raises:
        ConfigError: a folder is not there, none holds a run, an option names what no run has, or a library is missing.
    """
    for axis in against:
        if axis not in AXES:
            raise ConfigError(f"--against {axis} is not an axis{nearest(axis, list(AXES))}. Known: {', '.join(AXES)}.")
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder} is not a folder. Give folders of run folders, e.g. runs.")
    runs, problems = scan(folders)
    if runs:
        runs = select(runs, _conditions(where))
    if not runs:
        left_out = "".join(f"\n  {problem.folder}: {problem.reason}" for problem in problems[:10])
        raise ConfigError(f"{', '.join(map(str, folders))}: no run {'is as --where says' * bool(where)}{left_out}")
    by = [key for keys in group_by for key in keys.split(",")] or None
    require_keys(runs, by or [], "--group-by")
    known = _known_metrics(runs)
    for metric in metrics:
        if metric not in known:
            raise ConfigError(f"--metric {metric}: no run has it{nearest(metric, known)}. Known: {', '.join(known)}.")
    chosen = list(metrics) or known
    groups = _best_first(grouped(runs, by), chosen)
    over = "seeds" if by is None else f"all runs with the same {', '.join(by)}"
    files = _write(out, groups, chosen, list(against) or list(DEFAULT_AXES), over, problems, html=html)
    _show(groups, chosen, over, problems, files)


def _conditions(where: Sequence[str]) -> dict[str, Any]:
    conditions: dict[str, Any] = {}
    for condition in where:
        conditions |= flat(parse_setting(condition, "--where"))
    return conditions


def _known_metrics(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(metric for run in runs for metric in run.numbers))


def _best_first(groups: Sequence[Group], metrics: Sequence[str]) -> list[Group]:
    """By the first metric, the largest first; what has no number comes last."""

    def order(group: Group) -> float:
        mean = group.summary(metrics[0]).mean if metrics else None
        return math.inf if mean is None else -mean

    return sorted(groups, key=order)


def _write(
    out: Path,
    groups: Sequence[Group],
    metrics: Sequence[str],
    against: Sequence[str],
    over: str,
    problems: Sequence[Problem],
    *,
    html: bool,
) -> list[str]:
    """All files; returns lines that say where they are."""
    table = tables.summary(groups, metrics, over)
    made_by = f"dpfl {dpfl_plugin.__version__}"
    text, without = "", ""
    if html:
        try:
            text = page(groups, metrics, caption=table.caption, problems=problems, made_by=made_by)
        except ExtraMissingError as error:
            without = str(error)
    for folder in (out / "tables", out / "plots"):
        folder.mkdir(parents=True, exist_ok=True)
    runs = [run for group in groups for run in group.runs]
    for name, content in {
        "summary.csv": tables.summary_csv(groups, metrics),
        "summary.md": tables.to_markdown(table),
        "summary.tex": tables.to_latex(table),
        "runs.csv": tables.runs_csv(runs, metrics),
    }.items():
        write_atomic(out / "tables" / name, content)
    names = [(metric, axis) for metric in metrics for axis in against]
    drawn = [plot(out / "plots" / f"{metric}-{axis}", groups[:MOST], metric, axis) for metric, axis in names]
    lines = [f"tables: {out / 'tables'}/summary.csv, summary.md, summary.tex, runs.csv"]
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
    if text:
        write_atomic(out / "index.html", text)
        lines.append(f"page: {out / 'index.html'}")
    elif html:
        lines.append(f"page: left out, {without}")
    return lines


def _show(
    groups: Sequence[Group], metrics: Sequence[str], over: str, problems: Sequence[Problem], files: Sequence[str]
) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:  # without a terminal to fit into, lines are as long as they are
        console = Console(highlight=False, width=200)
    table = tables.summary(groups, metrics, over)
    shown = RichTable(title=None)
    for column, numeric in zip(table.columns, table.numeric, strict=True):
        shown.add_column(escape(column), justify="right" if numeric else "left")
    for row in table.rows[:MOST_ROWS]:
        shown.add_row(*map(escape, row))
    fitting.show(console, shown)
    lines = [f"{len(table.rows) - MOST_ROWS} more rows in the files."] if len(table.rows) > MOST_ROWS else []
    lines.append(table.caption)
    lines += [f"left out: {problem.folder}: {problem.reason}" for problem in problems[:MOST_ROWS]]
    if len(problems) > MOST_ROWS:
        lines.append(f"left out: {len(problems) - MOST_ROWS} more folders; the page names all.")
    for line in [*lines, *files]:
        console.print(line, soft_wrap=True, markup=False)
