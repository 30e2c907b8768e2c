"""`dpfl status`: how far a sweep is."""

from __future__ import annotations

import functools
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dpfl_plugin import terminal
from dpfl_plugin.api.progress import duration
from dpfl_plugin.config.sweep import Row
from dpfl_plugin.core.rounding import places
from dpfl_plugin.errors import ConfigError, DataError
from dpfl_plugin.runs.folder import to_json
from dpfl_plugin.sweeps import manifest, slurm, state, submission
from dpfl_plugin.sweeps.state import State

ORDER: tuple[state.Status, ...] = ("running", "failed", "lost", "pending", "done")
COLOURS = {"running": "cyan", "failed": "red", "lost": "yellow", "done": "green"}
MOST_LINES = 12  # of each status, unless all are asked for
WATCH_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Found:
    """All runs of the sweeps in a folder, each once, with their states; and what Slurm says of their tasks."""

    rows: list[Row]
    states: list[State]
    queue: Counter[str] | None

    @property
    def counts(self) -> dict[str, int]:
        counted = Counter(known.status for known in self.states)
        return {status: counted[status] for status in ORDER}


def show(folder: Path, *, watch: bool, every: bool, as_json: bool) -> None:
    """Print the table, once or until nothing is left to wait for."""
    if as_json:
        print(to_json(_as_json(look(folder))))
        return
    # Without a terminal to fit into, lines are as long as they are.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    if watch:
        _watch(folder, every, console)
    else:
        _print(look(folder), every, console)


def _watch(folder: Path, every: bool, console: Console) -> None:
    """Look until nothing is left to wait for: a table in place in a terminal; elsewhere a line with each change."""
    if not console.is_terminal:
        told = ""
        while _goes_on(found := look(folder)):
            if (line := "; ".join(text.plain for text in _summary(found))) != told:
                told = line
                print(line, flush=True)
            time.sleep(WATCH_SECONDS)
        _print(found, every, console)
        return
    with Live(console=console, auto_refresh=False) as live:
        while True:
            found = look(folder)
            live.update(Group(*_summary(found), _table(found, every)), refresh=True)
            if not _goes_on(found):
                return
            time.sleep(WATCH_SECONDS)


def _goes_on(found: Found) -> bool:
    return bool(found.counts["running"] or found.counts["pending"] or found.counts["lost"])


def _print(found: Found, every: bool, console: Console) -> None:
    for text in _summary(found):
        console.print(text, soft_wrap=True)
    terminal.show_table(console, _table(found, every))


def look(folder: Path) -> Found:
    """The state of every run of the sweeps in a folder."""
    rows: dict[str, Row] = {}
    folders, jobs = {}, []
    sweeps = manifest.sweeps_in(folder)
    for path in sweeps:
        try:
            sweep = manifest.read(path)
        except (ConfigError, DataError) as error:
            if len(sweeps) == 1:
                raise
            _note(f"{error} The runs of that sweep are left out.")
            continue
        if submission.intent_of(path).exists():
            _note(f"{path}: dpfl sweep is submitting it, or was interrupted; the same command finds out which.")
        jobs += [job["job"] for job in slurm.jobs_of(path, _note)]
        for row in sweep.rows:
            if row.id not in rows:
                rows[row.id], folders[row.id] = row, sweep.folder_of(row)
    states = state.states((folders[id], row.rounds) for id, row in rows.items())
    queue = slurm.queue(jobs) if jobs else None
    return Found(list(rows.values()), _explained(states, jobs), None if queue is None else Counter(queue.values()))


@functools.cache
def _note(text: str) -> None:
    """Told once, however often the folder is looked at."""
    print(f"dpfl: note: {text}", file=sys.stderr)


def _explained(states: list[State], jobs: list[str]) -> list[State]:
    """With what sacct knows of the tasks of lost runs, where there is one."""
    if not jobs or not any(known.status == "lost" for known in states):
        return states
    ended = slurm.accounting(jobs) or {}
    return [_with_end(known, ended) if known.status == "lost" else known for known in states]


def _with_end(known: State, ended: dict[str, str]) -> State:
    how = ended.get(str((known.task or {}).get("job")))
    return State("lost", f"{known.reason} ({how})" if how else known.reason, known.round, task=known.task)


def _summary(found: Found) -> list[Text]:
    """How many runs are where; and that nobody is at them, where nobody is."""
    counts = found.counts
    text = Text("  ").join(Text(f"{n} {status}", style=COLOURS.get(status, "")) for status, n in counts.items() if n)
    lines = [Text(f"{len(found.rows)} runs: ").append_text(text)]
    if found.queue:
        lines.append(Text("Slurm tasks: " + ", ".join(f"{n} {name.lower()}" for name, n in found.queue.items())))
    elif (counts["pending"] or counts["lost"]) and not counts["running"]:
        lines.append(Text("nothing is working on them; the command that began the sweep continues it"))
    return lines


def _table(found: Found, every: bool) -> Table:
    table = Table(box=None, pad_edge=False, show_header=True, header_style="bold")
    for name in ("run", "id", "status", "", "what"):
        table.add_column(name)
    for status in ORDER:
        chosen = [pair for pair in zip(found.rows, found.states, strict=True) if pair[1].status == status]
        shown = chosen if every else chosen[:MOST_LINES]
        for row, known in shown:
            style = COLOURS.get(status, "")
            table.add_row(str(row.index), row.id, Text(status, style=style), _detail(row, known), Text(row.label))
        if len(shown) < len(chosen):
            table.add_row("", "", status, f"and {len(chosen) - len(shown)} more (--all)", "")
    return table


def _detail(row: Row, known: State) -> Text:
    if known.status == "running":
        of = f"/{row.rounds}" if row.rounds else ""
        left = f", {duration(known.eta)} left" if known.eta is not None else ""
        return Text(f"round {known.round}{of}{left}")
    if known.status == "done":
        score = f"{known.score} {known.accuracy:.4f}" if known.accuracy is not None else ""
        return Text(score + (f", epsilon {places(known.epsilon, 3)}" if known.epsilon is not None else ""))
    return Text(known.reason)


def _as_json(found: Found) -> dict[str, Any]:
    runs = [
        {
            "index": row.index,
            "id": row.id,
            "label": row.label,
            "status": known.status,
            "reason": known.reason,
            "round": known.round,
            "rounds": row.rounds,
            "eta_seconds": known.eta,
            f"test_{known.score}": known.accuracy,
            "epsilon": known.epsilon,
        }
        for row, known in zip(found.rows, found.states, strict=True)
    ]
    return {"counts": found.counts, "slurm": found.queue, "runs": runs}
