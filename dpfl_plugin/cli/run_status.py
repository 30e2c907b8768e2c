"""`dpfl status` of single runs, and where it looks if it is given no folder."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpfl_plugin.api.progress import duration
from dpfl_plugin.cli import fitting
from dpfl_plugin.core.rounding import places
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.runs.folder import to_json
from dpfl_plugin.sweeps.single import Single, runs_in

COLOURS: Final = {"running": "cyan", "failed": "red", "interrupted": "yellow", "done": "green"}
WATCH_SECONDS: Final = 2.0
MOST: Final = 30  # rows, unless all are asked for
RUNS, SWEEPS = Path("runs"), Path("sweeps")  # where `dpfl run` and `dpfl sweep` put theirs


def is_sweep(folder: Path) -> bool:
    """Whether `dpfl sweep` planned something there."""
    return any(folder.glob("sweeps/*/manifest.jsonl"))


def usual_folder() -> Path:
    """Where to look if nobody says: the one sweep in `sweeps`, or `runs`.

    Raises:
        ConfigError: there is nothing, or more than one of them.
    """
    found = sorted(path for path in SWEEPS.glob("*") if is_sweep(path)) if SWEEPS.is_dir() else []
    if RUNS.is_dir() and runs_in(RUNS):
        found.append(RUNS)
    if not found:
        raise ConfigError(
            f"there are no runs in ./{RUNS} and no sweep in ./{SWEEPS}. Give a folder: dpfl status DIR, of a run, of "
            "runs (--out of dpfl run), of a sweep, or one that sites share."
        )
    if len(found) > 1:
        listed = "; ".join(shlex.join(["dpfl", "status", str(path)]) for path in found)
        raise ConfigError(f"there is more than one place to look. Choose one: {listed}")
    return found[0]


def show(folder: Path, *, watch: bool, every: bool, as_json: bool) -> bool:
    """Print how far runs are, with ``watch`` once none is at work any more; False where there are none, or a sweep."""
    if is_sweep(folder) or not (found := runs_in(folder)):
        return False
    while watch and not as_json and any(run.status == "running" for run in found):
        print(_summary(found), flush=True)
        time.sleep(WATCH_SECONDS)
        found = runs_in(folder)
    if as_json:
        print(to_json({"runs": [_plain(run) for run in found]}))
        return True
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    console.print(_summary(found), markup=False, soft_wrap=True)
    most = len(found) if every else MOST
    fitting.show(console, _table(found[:most], folder))
    if len(found) > most:
        console.print(f"and {len(found) - most} more (--all)")
    for run in found[:most]:
        if run.next:
            console.print(f"{run.folder}: go on: {run.next}", markup=False, soft_wrap=True)
    return True


def _summary(found: list[Single]) -> str:
    counts = {status: sum(run.status == status for run in found) for status in COLOURS}
    runs = "1 run" if len(found) == 1 else f"{len(found)} runs"
    at_work = [f"{run.name}: round {run.round}{_of(run)}, {_heard(run)}" for run in found if run.status == "running"]
    counted = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    return f"{runs}: {counted}" + (f" ({'; '.join(at_work[:3])})" if at_work else "")


def _table(found: list[Single], folder: Path) -> Table:
    table = Table(box=None, pad_edge=False, show_header=True, header_style="bold")
    for name in ("run", "folder", "status", "rounds", "score", "epsilon", "what"):
        table.add_column(name)
    for run in found:
        inside = run.folder.relative_to(folder) if run.folder != folder else run.folder
        table.add_row(
            Text(run.name),
            Text(str(inside)),
            Text(run.status, style=COLOURS[run.status]),
            f"{run.round}{_of(run)}",
            "-" if run.value is None else f"{run.score} {run.value:.4f}",
            "-" if run.epsilon is None else places(run.epsilon, 3),
            Text(_heard(run) if run.status == "running" else run.reason),
        )
    return table


def _of(run: Single) -> str:
    return "" if run.rounds is None else f"/{run.rounds}"


def _heard(run: Single) -> str:
    return "has written nothing yet" if run.heard is None else f"wrote {duration(run.heard)} ago"


def _plain(run: Single) -> dict[str, Any]:
    return {
        "folder": str(run.folder),
        "name": run.name,
        "status": run.status,
        "round": run.round,
        "rounds": run.rounds,
        "seconds_since_written": run.heard,
        f"test_{run.score}": run.value,
        "epsilon": run.epsilon,
        "reason": run.reason,
        "next": run.next,
    }
