"""How far the sweeps in a folder are: runs that are pending, running, done, failed or lost; and Slurm's queue."""

from __future__ import annotations

import functools
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from dpfl_plugin.config.sweep import Row
from dpfl_plugin.core.rounding import places
from dpfl_plugin.core.text import Printed, duration
from dpfl_plugin.errors import ConfigError, DataError
from dpfl_plugin.experiments import manifest, slurm, submission
from dpfl_plugin.experiments.reports.groups import Summary
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.runs.run_status import RunStatus, status_of
from dpfl_plugin.terminal import printed, show_table

ORDER: Final = ("running", "failed", "lost", "pending", "done")
WIDTH: Final = 200  # without a terminal to fit into
MOST_LINES: Final = 12  # of each status, unless all are asked for
MOST_CONFIGURATIONS: Final = 20  # in the table of scores


@dataclass(frozen=True, slots=True)
class SweepStatus(Printed):
    """All runs of the sweeps in a folder, each once, with their states; and what Slurm says of their tasks."""

    rows: tuple[Row, ...]
    states: tuple[RunStatus, ...]
    queue: Counter[str] | None = None

    @property
    def counts(self) -> dict[str, int]:
        """The number of runs with each status."""
        counted = Counter(state.status for state in self.states)
        return {status: counted[status] for status in ORDER}

    @property
    def fraction(self) -> float:
        """How much is done, by rounds."""
        pairs = zip(self.rows, self.states, strict=True)
        parts = [1.0 if s.status in ("done", "failed") else s.round / (row.rounds or math.inf) for row, s in pairs]
        return sum(parts) / len(parts)

    @property
    def goes_on(self) -> bool:
        """Whether there is something to wait for."""
        return bool(self.counts["running"] or self.counts["pending"] or self.counts["lost"])

    @property
    def summary(self) -> list[str]:
        """How many runs are where; and that nobody is at them, where nobody is."""
        counts = self.counts
        lines = [f"{len(self.rows)} runs: " + "  ".join(f"{n} {status}" for status, n in counts.items() if n)]
        if self.queue:
            lines.append("Slurm tasks: " + ", ".join(f"{n} {name.lower()}" for name, n in self.queue.items()))
        elif (counts["pending"] or counts["lost"]) and not counts["running"]:
            lines.append("nothing is working on them; the command that began the sweep continues it")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """What `dpfl status --json` prints of a sweep."""
        runs = [
            {
                "index": row.index,
                "id": row.id,
                "label": row.label,
                "status": state.status,
                "reason": state.reason,
                "round": state.round,
                "rounds": row.rounds,
                "eta_seconds": state.eta(row.rounds),
                f"test_{state.score}": state.tail_mean,
                "epsilon": state.epsilon if state.status == "done" else None,
            }
            for row, state in zip(self.rows, self.states, strict=True)
        ]
        return {"counts": self.counts, "slurm": self.queue, "runs": runs}

    def text(self, *, every: bool) -> str:
        """The summary and a table; ``every``: of all runs, not the first of each status only."""
        table = Table(box=None, pad_edge=False, show_header=True)
        for name in ("run", "id", "status", "", "what"):
            table.add_column(name)
        for status in ORDER:
            pairs = [pair for pair in zip(self.rows, self.states, strict=True) if pair[1].status == status]
            shown = pairs if every else pairs[:MOST_LINES]
            for row, state in shown:
                table.add_row(str(row.index), row.id, status, Text(_detail(row, state)), Text(row.label))
            if len(shown) < len(pairs):
                table.add_row("", "", status, f"and {len(pairs) - len(shown)} more (--all)", "")
        return "\n".join([*self.summary, printed(lambda console: show_table(console, table), WIDTH)])

    def __str__(self) -> str:
        return self.text(every=False)

    def scores(self) -> str:
        """Score and epsilon of each configuration whose runs are done, over its seeds; "" of none."""
        groups = self._by_configuration()
        table = Table(box=None, pad_edge=False, show_header=True)
        for name in ("configuration", "runs", "mean ± 95 % CI, last 10 % of rounds", "epsilon, at most"):
            table.add_column(name)
        for name, runs in groups[:MOST_CONFIGURATIONS]:
            values = [run.tail_mean for run in runs if run.tail_mean is not None]
            score = f"{runs[0].score} {Summary.of(values)}" if values else "-"
            spent = [run.epsilon for run in runs]
            epsilon = "none" if None in spent else places(max(value for value in spent if value is not None), 3)
            table.add_row(Text(name), str(len(runs)), score, epsilon)
        more = len(groups) - MOST_CONFIGURATIONS
        text = printed(lambda console: show_table(console, table), WIDTH) if groups else ""
        return f"{text}\nand {more} more configurations" if more > 0 else text

    def _by_configuration(self) -> list[tuple[str, list[RunStatus]]]:
        """Runs that differ in their seeds alone are of one; by its name, in the order of the manifest."""
        groups: dict[str, tuple[str, list[RunStatus]]] = {}
        for row, state in zip(self.rows, self.states, strict=True):
            if state.status != "done":
                continue
            changes = {key: value for key, value in row.changes.items() if key != "seed"}
            key = json.dumps([row.name, changes], sort_keys=True, default=str)
            words = [word for word in row.label.split(" ") if not word.startswith("seed=")]
            groups.setdefault(key, (" ".join(words) or "base", []))[1].append(state)
        return list(groups.values())


def sweep_status(folder: Path) -> SweepStatus:
    """The state of every run of the sweeps in a folder.

    Raises:
        ConfigError: there is no sweep. DataError: the only one cannot be read.
    """
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
        jobs += [job["job"] for job in submission.jobs_of(path, _note)]
        for row in sweep.rows:
            if row.id not in rows:
                rows[row.id], folders[row.id] = row, sweep.folder_of(row)
    queue = slurm.queue(jobs) if jobs else None
    tasks = None if queue is None else Counter(queue.values())
    return SweepStatus(tuple(rows.values()), tuple(_explained(states(folders.values()), jobs)), tasks)


def states(folders: Iterable[RunFolder]) -> list[RunStatus]:
    """The state of each run of a sweep; those that were interrupted are pending, too."""
    now = time.time()
    names: dict[Path, set[str]] = {}
    states = []
    for folder in folders:
        parent = folder.path.parent
        if parent not in names:
            names[parent] = {entry.name for entry in os.scandir(parent)} if parent.is_dir() else set()
        state = status_of(folder, now) if folder.path.name in names[parent] else RunStatus(folder.path, "pending")
        if state.status == "interrupted":
            reason = state.reason or ("interrupted, continues from its checkpoint" if state.round else "")
            state = replace(state, status="pending", reason=reason)
        states.append(state)
    return states


@functools.cache
def _note(text: str) -> None:
    """Told once, however often the folder is looked at."""
    print(f"dpfl: note: {text}", file=sys.stderr)


def _explained(states: Sequence[RunStatus], jobs: list[str]) -> Sequence[RunStatus]:
    """With what sacct knows of the tasks of lost runs, where there is one."""
    if not jobs or not any(state.status == "lost" for state in states):
        return states
    ended = slurm.accounting(jobs) or {}
    ways = [ended.get(str((state.task or {}).get("job"))) if state.status == "lost" else None for state in states]
    return [
        replace(state, reason=f"{state.reason} ({way})") if way else state
        for state, way in zip(states, ways, strict=True)
    ]


def _detail(row: Row, state: RunStatus) -> str:
    if state.status == "running":
        of, eta = f"/{row.rounds}" if row.rounds else "", state.eta(row.rounds)
        left = f", {duration(eta)} left" if eta is not None else ""
        return f"round {state.round}{of}{left}"
    if state.status == "done":
        score = f"{state.score} {state.tail_mean:.4f}" if state.tail_mean is not None else ""
        score += f", epsilon {places(state.epsilon, 3)}" if state.epsilon is not None else ""
        return score + state.ended_early(row.rounds)
    return state.reason
