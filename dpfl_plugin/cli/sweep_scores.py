"""What the configurations of a sweep came to, over their seeds: a small table at its end."""

from __future__ import annotations

import json
import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpfl_plugin import terminal
from dpfl_plugin.config.sweep import Row
from dpfl_plugin.core.rounding import places
from dpfl_plugin.sweeps import state
from dpfl_plugin.sweeps.manifest import Sweep
from dpfl_plugin.sweeps.state import State

MOST_ROWS = 20


def show(sweep: Sweep) -> None:
    """Print score and epsilon of each configuration, and where single runs and plots are to be seen."""
    found = [
        (row, known)
        for row, known in zip(sweep.rows, state.states((sweep.folder_of(r), r.rounds) for r in sweep.rows), strict=True)
        if known.status == "done"
    ]
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    groups = _by_configuration(found)
    if groups:
        terminal.show_table(console, _table(groups[:MOST_ROWS]))
    if len(groups) > MOST_ROWS:
        console.print(f"and {len(groups) - MOST_ROWS} more configurations")
    folder = shlex.quote(str(sweep.folder.parents[1]))
    console.print(f"Single runs, with score and epsilon: dpfl status {folder}", markup=False, soft_wrap=True)
    console.print(f"Tables and plots: dpfl report {folder}", markup=False, soft_wrap=True)


def _by_configuration(found: Sequence[tuple[Row, State]]) -> list[tuple[str, list[State]]]:
    """Runs that differ in their seeds alone are of one; by its name, in the order of the manifest."""
    groups: dict[str, tuple[str, list[State]]] = {}
    for row, known in found:
        key = json.dumps([row.name, _without_seed(row.changes)], sort_keys=True, default=str)
        words = [word for word in row.label.split(" ") if not word.startswith("seed=")]
        groups.setdefault(key, (" ".join(words) or "base", []))[1].append(known)
    return list(groups.values())


def _without_seed(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in changes.items() if key != "seed"}


def _table(groups: Sequence[tuple[str, list[State]]]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=True, header_style="bold")
    for name in ("configuration", "runs", "score, last 10 % of rounds", "epsilon, at most"):
        table.add_column(name)
    for name, runs in groups:
        scores = [run.accuracy for run in runs if run.accuracy is not None]
        spread = f" ± {statistics.stdev(scores):.4f}" if len(scores) > 1 else ""
        score = f"{runs[0].score} {statistics.fmean(scores):.4f}{spread}" if scores else "-"
        spent = [run.epsilon for run in runs]
        epsilon = "none" if None in spent else places(max(one for one in spent if one is not None), 3)
        table.add_row(Text(name), str(len(runs)), score, epsilon)
    return table
