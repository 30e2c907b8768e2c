"""`dpfl status`: how far runs, a sweep, or a federation over a shared folder are, by their files alone."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from rich.table import Table
from rich.text import Text

from dpfl_plugin.config.load import NOT_IN_ID, flat, read_yaml
from dpfl_plugin.core.rounding import places
from dpfl_plugin.core.text import Printed, duration
from dpfl_plugin.errors import ConfigError, DpflError, printable
from dpfl_plugin.experiments.status import SweepStatus, sweep_status
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.runs.run_status import RunStatus, runs_in
from dpfl_plugin.terminal import printed, show_table

ORDER: Final = ("running", "failed", "lost", "interrupted", "done")
WIDTH: Final = 200  # without a terminal to fit into
MOST_ROWS: Final = 30  # unless all are asked for
MOST_SETTINGS, MOST_SIGNS = 3, 40  # of what tells runs of one name apart, in a row; of each value
MOST_OF_A_REASON: Final = 40  # characters, in a row
RUNS, SWEEPS = Path("runs"), Path("sweeps")  # where `dpfl run` and `dpfl sweep` put theirs


def status(folder: str | Path | None = None) -> RunsStatus | SweepStatus | SharedStatus:
    """How far the runs of a folder are, those of its sweeps, or the federation whose sites share it.

    Args:
        folder: None: the one sweep in `sweeps`, or `runs`.

    Raises:
        ConfigError: there is nothing, or there is more than one place to look. DataError: it cannot be read.
    """
    folder = _usual_folder() if folder is None else Path(folder)
    shared = (folder / "server" / "status.json").is_file()
    if shared or any(folder.glob("*/status.json")):  # of others, for which what follows need not be imported
        from dpfl_plugin.adapters.folder.status import begun_before_the_server, read_status

        if shared:
            return SharedStatus(folder, **read_status(folder))
        if silos := begun_before_the_server(folder):
            return SharedStatus(folder, None, silos)
    if not _is_sweep(folder) and (runs := runs_in(folder)):
        return RunsStatus(folder, tuple(runs))
    return sweep_status(folder)


def _is_sweep(folder: Path) -> bool:
    """Whether `dpfl sweep` planned something there."""
    return any(folder.glob("sweeps/*/manifest.jsonl"))


def _usual_folder() -> Path:
    folders = sorted(path for path in SWEEPS.glob("*") if _is_sweep(path)) if SWEEPS.is_dir() else []
    if RUNS.is_dir() and runs_in(RUNS):
        folders.append(RUNS)
    if not folders:
        raise ConfigError(
            f"there are no runs in ./{RUNS} and no sweep in ./{SWEEPS}. Give a folder: dpfl status DIR, of a run, of "
            "runs (--out of dpfl run), of a sweep, or one that sites share."
        )
    if len(folders) > 1:
        listed = "; ".join(shlex.join(["dpfl", "status", str(path)]) for path in folders)
        raise ConfigError(f"there is more than one place to look. Choose one: {listed}")
    return folders[0]


@dataclass(frozen=True, slots=True)
class RunsStatus(Printed):
    """How far the runs in a folder are, or below it."""

    folder: Path
    runs: tuple[RunStatus, ...]

    @property
    def goes_on(self) -> bool:
        """Whether there is something to wait for."""
        return any(run.status == "running" for run in self.runs)

    @property
    def summary(self) -> list[str]:
        """How many runs are where, and how far those at work are."""
        counts = {status: sum(run.status == status for run in self.runs) for status in ORDER}
        runs = "1 run" if len(self.runs) == 1 else f"{len(self.runs)} runs"
        at_work = [f"{r.name}: round {r.round}{_of(r)}, {_heard(r)}" for r in self.runs if r.status == "running"]
        counted = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        return [f"{runs}: {counted}" + (f" ({'; '.join(at_work[:3])})" if at_work else "")]

    def to_dict(self) -> dict[str, Any]:
        """What `dpfl status --json` prints of runs."""
        apart = _apart(self.runs)
        return {"runs": [run.to_dict() | {"settings": apart[run.folder]} for run in self.runs]}

    def text(self, *, every: bool) -> str:
        """The summary, a table, and how to go on; ``every``: of all runs, not of the first ones only."""
        shown = self.runs if every else self.runs[:MOST_ROWS]
        table = self._table(shown)
        lines = [*self.summary, printed(lambda console: show_table(console, table), WIDTH)]
        if len(self.runs) > len(shown):
            lines.append(f"and {len(self.runs) - len(shown)} more (--all)")
        for run in shown:
            if _short(run.reason) != run.reason:
                lines.append(f"{run.folder}: {run.reason}")
            if run.next:
                lines.append(f"{run.folder}: go on: {run.next}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text(every=False)

    def _table(self, runs: Sequence[RunStatus]) -> Table:
        apart = _apart(runs)
        table = Table(box=None, pad_edge=False, show_header=True)
        some = any(apart[run.folder] for run in runs)
        for name in ("run", *(["settings"] if some else []), "folder", "status", "rounds", "score", "epsilon", "what"):
            table.add_column(name)
        for run in runs:
            inside = run.folder.relative_to(self.folder) if run.folder != self.folder else run.folder
            table.add_row(
                Text(run.name),
                *([Text(_settings_text(apart[run.folder]))] if some else []),
                Text(str(inside)),
                run.status,
                f"{run.round}{_of(run)}",
                "-" if run.value is None else f"{run.score} {run.value:.4f}",
                "-" if run.epsilon is None else places(run.epsilon, 3),
                Text(_heard(run) if run.status == "running" else _short(run.reason)),
            )
        return table


def _apart(runs: Sequence[RunStatus]) -> dict[Path, dict[str, Any]]:
    """Of each run the settings that tell it from others of its name; {} of the only one."""
    settings = {run.folder: _settings(run.folder) for run in runs}
    apart: dict[Path, dict[str, Any]] = {}
    for name in dict.fromkeys(run.name for run in runs):
        folders = [run.folder for run in runs if run.name == name]
        keys = dict.fromkeys(key for folder in folders for key in settings[folder])
        varied = [key for key in keys if len({json.dumps(settings[f].get(key), default=str) for f in folders}) > 1]
        apart |= {folder: {key: settings[folder].get(key) for key in varied} for folder in folders}
    return apart


def _settings(folder: Path) -> dict[str, Any]:
    try:
        return flat(read_yaml(RunFolder(folder).config), NOT_IN_ID)
    except (DpflError, OSError):
        return {}


def _settings_text(settings: Mapping[str, Any]) -> str:
    written = {key: json.dumps(value, default=str).strip('"') for key, value in settings.items()}
    short = [f"{key}={text if len(text) <= MOST_SIGNS else text[:MOST_SIGNS] + '...'}" for key, text in written.items()]
    return ", ".join(short[:MOST_SETTINGS]) + ", ..." * (len(short) > MOST_SETTINGS)


def _short(reason: str) -> str:
    """So that a row is one line; what is left out is below the table."""
    return textwrap.shorten(reason, MOST_OF_A_REASON, placeholder=" ...") if len(reason) > MOST_OF_A_REASON else reason


def _of(run: RunStatus) -> str:
    return "" if run.rounds is None else f"/{run.rounds}"


def _heard(run: RunStatus) -> str:
    return "has written nothing yet" if run.heard is None else f"wrote {duration(run.heard)} ago"


@dataclass(frozen=True, slots=True)
class SharedStatus(Printed):
    """How a federation over a shared folder stands, by what its members wrote of themselves, unsigned.

    Attributes:
        server: None where it has not begun.
    """

    folder: Path
    server: Mapping[str, Any] | None
    silos: Mapping[str, Mapping[str, Any]]

    goes_on: ClassVar = False
    summary: ClassVar[list[str]] = []

    def to_dict(self) -> dict[str, Any]:
        """What `dpfl status --json` prints of a shared folder."""
        return {"server": self.server, "silos": self.silos}

    def text(self, *, every: bool) -> str:
        """All of it."""
        return "\n".join([*self._lines(), "  (what each wrote of itself, unsigned)"])

    def __str__(self) -> str:
        return self.text(every=True)

    def _lines(self) -> list[str]:
        if self.server is None:
            begins = f"waiting for the server, which has not begun here: dpfl server {self.folder} CONFIG begins"
            return [begins, *(printable(f"  {name}: {_of_silo(silo)}") for name, silo in self.silos.items())]
        server = self.server
        of = f" of {server['of']}" if server.get("of") else ""
        lines = [f"{server.get('name')}: {server.get('status')}, {server.get('rounds')}{of} rounds done"]
        lines += [f"  {server['reason']}"] if server.get("reason") else []
        if waits := _list(server.get("waits_for")):
            lines.append(f"  waiting for {', '.join(map(str, waits))}, since {server.get('since')}")
        odd = server.get("odd")
        for name, silo in self.silos.items():
            why = odd.get(name) if isinstance(odd, dict) else None
            lines.append(f"  {name}: {_of_silo(silo)}{f'; its file is not taken: {why}' if why else ''}")
        for refusal in _list(server.get("refused")):
            if isinstance(refusal, dict):
                lines.append(f"  round {refusal.get('round')}: refused of {refusal.get('silo')}: {refusal.get('why')}")
        return list(map(printable, lines))


def _of_silo(silo: Mapping[str, Any]) -> str:
    if not silo:
        return "has not been started"
    why = f" ({silo['why']})" if silo.get("why") else ""
    last = f", round {silo['round']} answered last" if silo.get("round") else ""
    return f"{silo.get('doing')}{why}{last}"


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
