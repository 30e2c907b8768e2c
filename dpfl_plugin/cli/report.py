"""`dpfl report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from dpfl_plugin import terminal
from dpfl_plugin.api.reports import Problem, Table, flat, write_report
from dpfl_plugin.config.load import parse_setting

MOST_ROWS: Final = 40  # printed; the files have all


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
    """Write a report of run folders to ``out``, and print a short table; arguments and errors as `write_report`.

    Args:
        group_by: keys, or several in one, separated by commas. where: "key=value".
    """
    made = write_report(
        folders,
        out,
        metrics=metrics,
        against=against,
        group_by=[key for keys in group_by for key in keys.split(",")],
        where=_conditions(where),
        html=html,
    )
    _show(made.table, made.problems, made.lines)


def _conditions(where: Sequence[str]) -> dict[str, Any]:
    conditions: dict[str, Any] = {}
    for condition in where:
        conditions |= flat(parse_setting(condition, "--where"))
    return conditions


def _show(table: Table, problems: Sequence[Problem], files: Sequence[str]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:  # without a terminal to fit into, lines are as long as they are
        console = Console(highlight=False, width=200)
    shown = RichTable(title=None)
    for column, numeric in zip(table.columns, table.numeric, strict=True):
        shown.add_column(escape(column), justify="right" if numeric else "left")
    for row in table.rows[:MOST_ROWS]:
        shown.add_row(*map(escape, row))
    terminal.show_table(console, shown)
    lines = [f"{len(table.rows) - MOST_ROWS} more rows in the files."] if len(table.rows) > MOST_ROWS else []
    lines.append(table.caption)
    lines += [f"left out: {problem.folder}: {problem.reason}" for problem in problems[:MOST_ROWS]]
    if len(problems) > MOST_ROWS:
        lines.append(f"left out: {len(problems) - MOST_ROWS} more folders; the page names all.")
    for line in [*lines, *files]:
        console.print(line, soft_wrap=True, markup=False)
