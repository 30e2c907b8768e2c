"""How far single runs are, those of `dpfl run`, from the files of their folders alone."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from dpfl_plugin.config.load import read_yaml
from dpfl_plugin.core.outcomes import score_key
from dpfl_plugin.errors import DpflError
from dpfl_plugin.runs.checkpoint import saved_rounds
from dpfl_plugin.runs.folder import TAIL, RunFolder, last_object, read_object, run_folders

SILENT_SECONDS: Final = 600.0  # after which a process of another machine is taken for ended
WRITTEN: Final = ("ledger.jsonl", "metrics.jsonl", "log.txt", "checkpoint")  # while a run goes on

Status = Literal["running", "interrupted", "failed", "done"]


@dataclass(frozen=True, slots=True)
class RunStatus:
    """What is known of a run.

    Attributes:
        status: done, also where a budget ended it; interrupted is what its command continues with --resume.
        round: the last that is known to be over. rounds: of how many; None where a budget decides.
        heard: seconds since it wrote anything. value: of what its outcome is ranked by, the ``score``, at last.
        epsilon: None where nothing but the ledger knows of all that was released.
    """

    folder: Path
    name: str
    status: Status
    round: int
    rounds: int | None
    heard: float | None
    score: str
    value: float | None
    epsilon: float | None
    reason: str = ""

    @property
    def next(self) -> str:
        """How to go on; nothing where it is done, or at work."""
        if self.status not in ("interrupted", "failed"):
            return ""
        files = RunFolder(self.folder)
        if (tuning := files.tuning()) is not None:
            return f"the dpfl tune command that began {tuning}"
        how = shlex.join(["dpfl", "resume", str(self.folder)])
        if _shares(files.ledger):
            how += ", and the ledger that it shares"
        return how if self.status == "interrupted" else f"mend the cause, then {how}"

    def to_dict(self) -> dict[str, Any]:
        """What `dpfl status --json` prints of it."""
        return {
            "folder": str(self.folder),
            "name": self.name,
            "status": self.status,
            "round": self.round,
            "rounds": self.rounds,
            "seconds_since_written": self.heard,
            f"test_{self.score}": self.value,
            "epsilon": self.epsilon,
            "reason": self.reason,
            "next": self.next,
        }


def runs_in(folder: Path) -> list[RunStatus]:
    """The run in a folder, or those below it, in the order of their paths."""
    now = time.time()
    return [run_of(RunFolder(path), now) for path in run_folders(folder)]


def run_of(folder: RunFolder, now: float) -> RunStatus:
    """How far one run is."""
    result, config, line = read_object(folder.result) or {}, _config(folder), last_object(folder.metrics)
    heard = _heard(folder, now)
    at_work = folder.at_work() or _elsewhere(folder, heard, ended=bool(result))
    ended_as = str(result.get("status", "interrupted"))
    status: Status = "interrupted"
    if ended_as in ("done", "budget_exhausted"):
        status = "done"
    elif at_work:
        status = "running"
    elif ended_as == "failed":
        status = "failed"
    source = result if status == "done" else line
    key = score_key(source)
    value, epsilon = source.get(key), ((result or line).get("epsilon") or {}).get("server")
    if (chosen := result.get("tuning")) is not None:  # by what all candidates released
        epsilon = chosen["epsilon"]
    after = (
        int(result["rounds"])
        if ended_as in ("done", "budget_exhausted")
        else max(_round(line), saved_rounds(folder.checkpoint))
    )
    if not result and (_behind(folder, line, after) or folder.tuning() is not None):
        epsilon = None  # what was evaluated last is less than what was released since, or by all candidates of a tuning
    reason = str(result.get("reason") or "") if status in ("done", "failed") else ""
    if (
        status in ("interrupted", "running")
        and (tuning := folder.tuning()) is not None
        and (tuning / folder.result.name).exists()
    ):
        status, reason = "done", "left behind by its tuning"
    return RunStatus(
        folder=folder.path,
        name=str(config.get("name") or folder.path.parent.name) + (f", {label}" if (label := folder.label()) else ""),
        status=status,
        round=after,
        rounds=config.get("rounds"),
        heard=heard,
        score=key.removeprefix("test_"),
        value=_number(value.get("last") if isinstance(value, dict) else value),
        epsilon=_number(epsilon.get("epsilon") if isinstance(epsilon, dict) else epsilon),
        reason=reason,
    )


def _elsewhere(folder: RunFolder, heard: float | None, *, ended: bool) -> bool:
    """Whether a process on another machine has it, as far as that can be told: it wrote something lately."""
    holder = folder.holder()
    if ended or holder is None or holder[1] == os.uname().nodename:
        return False
    return heard is not None and heard < SILENT_SECONDS


def _heard(folder: RunFolder, now: float) -> float | None:
    times = []
    for name in WRITTEN:
        with contextlib.suppress(OSError):
            times.append((folder.path / name).stat().st_mtime)
    return max(0.0, now - max(times)) if times else None


def _behind(folder: RunFolder, line: dict[str, Any], after: int) -> bool:
    """Whether a run may have released more than when it was evaluated last, also if it is at work."""
    return _round(line) < after or _charged_since(folder.ledger, _round(line))


def _charged_since(ledger: Path, rounds: int) -> bool:
    """Whether the last charge may be of a release later than the evaluation after ``rounds``; also if none can be read.

    A round's number counts those before it; that of scores and of models of the silos' own those that are over.
    """
    content = b""
    with contextlib.suppress(OSError), ledger.open("rb") as file:
        start = file.seek(0, os.SEEK_END)
        while start:
            start, end = max(0, start - TAIL), start
            file.seek(start)
            content = file.read(end - start) + content
            for line in reversed(content.splitlines()[bool(start) :]):  # the first may be a part of one
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    return int(json.loads(line)["round"]) >= rounds
    return True


def _round(line: dict[str, Any]) -> int:
    number = line.get("round")
    return number if type(number) is int else 0


def _shares(ledger: Path) -> bool:
    """Whether a run charges to a ledger of several as well."""
    try:
        with ledger.open("rb") as file:
            return bool(json.loads(file.readline())["facts"].get("shared"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _config(folder: RunFolder) -> dict[str, Any]:
    try:
        return read_yaml(folder.config)
    except (DpflError, OSError):
        return {}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
