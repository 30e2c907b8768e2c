"""`dpfl status` of single runs, and where it looks if it is given no folder."""

from __future__ import annotations

import json
import shlex
import sys
import textwrap
import time
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpfl_plugin import terminal
from dpfl_plugin.api.progress import duration
from dpfl_plugin.config.load import NOT_IN_ID, flat, read_yaml
from dpfl_plugin.core.rounding import places
from dpfl_plugin.errors import ConfigError, DpflError
from dpfl_plugin.runs.folder import RunFolder, to_json
from dpfl_plugin.sweeps.single import Single, runs_in

COLOURS: Final = {"running": "cyan", "failed": "red", "interrupted": "yellow", "done": "green"}
WATCH_SECONDS: Final = 2.0
MOST: Final = 30  # rows, unless all are asked for
MOST_SETTINGS, MOST_SIGNS = 3, 40  # of what tells runs of one name apart, in a row; of each value
MOST_OF_A_REASON: Final = 40  # characters, in a row
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
        apart = _apart(found)
        print(to_json({"runs": [_plain(run) | {"settings": apart[run.folder]} for run in found]}))
        return True
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    console.print(_summary(found), markup=False, soft_wrap=True)
    most = len(found) if every else MOST
    terminal.show_table(console, _table(found[:most], folder, _apart(found[:most])))
    if len(found) > most:
        console.print(f"and {len(found) - most} more (--all)")
    for run in found[:most]:
        if _short(run.reason) != run.reason:
            console.print(f"{run.folder}: {run.reason}", markup=False, soft_wrap=True)
        if run.next:
            console.print(f"{run.folder}: go on: {run.next}", markup=False, soft_wrap=True)
    return True


def _summary(found: list[Single]) -> str:
    counts = {status: sum(run.status == status for run in found) for status in COLOURS}
    runs = "1 run" if len(found) == 1 else f"{len(found)} runs"
    at_work = [f"{run.name}: round {run.round}{_of(run)}, {_heard(run)}" for run in found if run.status == "running"]
    counted = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    return f"{runs}: {counted}" + (f" ({'; '.join(at_work[:3])})" if at_work else "")


def _apart(found: list[Single]) -> dict[Path, dict[str, Any]]:
    """Of each run the settings that tell it from others of its name; {} of the only one."""
    settings = {run.folder: _settings(run.folder) for run in found}
    apart: dict[Path, dict[str, Any]] = {}
    for name in dict.fromkeys(run.name for run in found):
        alike = [settings[run.folder] for run in found if run.name == name]
        keys = dict.fromkeys(key for one in alike for key in one)
        varied = [key for key in keys if len({json.dumps(one.get(key), default=str) for one in alike}) > 1]
        apart |= {
            run.folder: {key: settings[run.folder].get(key) for key in varied} for run in found if run.name == name
        }
    return apart


def _settings(folder: Path) -> dict[str, Any]:
    try:
        return flat(read_yaml(RunFolder(folder).config), NOT_IN_ID)
    except (DpflError, OSError):
        return {}


def _said(settings: dict[str, Any]) -> str:
    written = {key: json.dumps(value, default=str).strip('"') for key, value in settings.items()}
    short = [
        f"{key}={value if len(value) <= MOST_SIGNS else value[:MOST_SIGNS] + '...'}" for key, value in written.items()
    ]
    return ", ".join(short[:MOST_SETTINGS]) + ", ..." * (len(short) > MOST_SETTINGS)


def _table(found: list[Single], folder: Path, apart: dict[Path, dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=True, header_style="bold")
    shown = any(apart[run.folder] for run in found)
    for name in ("run", *(["settings"] if shown else []), "folder", "status", "rounds", "score", "epsilon", "what"):
        table.add_column(name)
    for run in found:
        inside = run.folder.relative_to(folder) if run.folder != folder else run.folder
        table.add_row(
            Text(run.name),
            *([Text(_said(apart[run.folder]))] if shown else []),
            Text(str(inside)),
            Text(run.status, style=COLOURS[run.status]),
            f"{run.round}{_of(run)}",
            "-" if run.value is None else f"{run.score} {run.value:.4f}",
            "-" if run.epsilon is None else places(run.epsilon, 3),
            Text(_heard(run) if run.status == "running" else _short(run.reason)),
        )
    return table


def _short(reason: str) -> str:
    """So that a row is one line; what is left out is below the table."""
    return textwrap.shorten(reason, MOST_OF_A_REASON, placeholder=" ...") if len(reason) > MOST_OF_A_REASON else reason


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
