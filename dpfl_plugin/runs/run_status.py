"""How far a run is, from its folder's files alone: nothing has to be asked, and nothing has to be alive.

Three files decide, in this order: `result.json` of a run that ended for good; `task.json`, where a sweep says what
became of the run's process, and which it touches every few seconds while that one is alive; the lock of the folder, of
a run by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from dpfl_plugin.config.load import read_yaml
from dpfl_plugin.core.outcomes import score_key
from dpfl_plugin.errors import DpflError, is_full
from dpfl_plugin.runs.checkpoint import saved_rounds
from dpfl_plugin.runs.folder import RunFolder, has_ended, last_object, read_object, run_folders, to_json

SILENT_SECONDS: Final = 600.0  # after which a run by itself on another machine is taken for ended
STALE_SECONDS: Final = 60.0  # the same of a sweep's; file servers and their clients may hold a time back for half of it
COMPLETE: Final = ("done", "budget_exhausted")  # how `result.json` has that a run ended for good
WRITTEN: Final = ("ledger.jsonl", "metrics.jsonl", "log.txt", "checkpoint")  # while a run goes on

Status = Literal["pending", "running", "interrupted", "failed", "lost", "done"]


@dataclass(frozen=True)
class RunStatus:
    """What is known of a run. What takes more files than its status does is read when it is asked for.

    Attributes:
        status: pending: it has not begun. lost: its process ended without a word; its sweep runs it again, as those
            that were interrupted. done: also where a budget ended it.
        reason: of a failure or loss, or why a run ended before its last round.
        result, task: what `result.json` and `task.json` say.
    """

    folder: Path
    status: Status
    reason: str = ""
    result: dict[str, Any] = field(default_factory=dict)
    task: dict[str, Any] | None = None

    @cached_property
    def _files(self) -> RunFolder:
        return RunFolder(self.folder)

    @cached_property
    def _line(self) -> dict[str, Any]:
        """The last evaluation."""
        return last_object(self._files.metrics)

    @cached_property
    def _config(self) -> dict[str, Any]:
        try:
            return read_yaml(self._files.config)
        except (DpflError, OSError):
            return {}

    @property
    def name(self) -> str:
        label = self._files.label()
        return str(self._config.get("name") or self.folder.parent.name) + (f", {label}" if label else "")

    @cached_property
    def round(self) -> int:
        """The last that is known to be over."""
        if self._whole:
            return int(self.result["rounds"])
        return max(_round(self._line), saved_rounds(self._files.checkpoint))

    @property
    def rounds(self) -> int | None:
        """Of how many; None where a budget decides."""
        return self._config.get("rounds")

    def eta(self, rounds: int | None) -> float | None:
        """Seconds until so many rounds are over, by the pace so far."""
        done = _round(self._line) if self.status == "running" else 0
        return (self.seconds or 0.0) / done * (rounds - done) if done and rounds else None

    def ended_early(self, rounds: int | None) -> str:
        """ " after 15 of 40 rounds: why", of a run that is done; "" where all of ``rounds`` were made."""
        early = self._whole and rounds is not None and self.round < rounds
        return f" after {self.round} of {rounds} rounds: {self.reason}" if early else ""

    @property
    def heard(self) -> float | None:
        """Seconds since it wrote anything."""
        return _heard(self._files)

    @property
    def score(self) -> str:
        """What its outcome is ranked by."""
        return score_key(self._source).removeprefix("test_")

    @property
    def value(self) -> float | None:
        """The score of the last evaluation."""
        value = self._source.get(score_key(self._source))
        return _number(value.get("last") if isinstance(value, dict) else value)

    @property
    def tail_mean(self) -> float | None:
        """The mean score over the last tenth of the rounds, of a run that is done."""
        return _number(self.result[score_key(self.result)]["mean_last_10_percent"]) if self._whole else None

    @property
    def seconds(self) -> float | None:
        return _number(self._source.get("seconds"))

    @property
    def epsilon(self) -> float | None:
        """Towards the server; None where nothing but the ledger knows of all that was released."""
        if self.result.get("tuning") is not None:  # by what all candidates released
            epsilon = self.result["tuning"]["epsilon"]
        elif not self.result and (self._is_behind or self._files.tuning() is not None):
            return None
        else:
            epsilon = ((self.result or self._line).get("epsilon") or {}).get("server")
        return _number(epsilon.get("epsilon") if isinstance(epsilon, dict) else epsilon)

    @property
    def next(self) -> str:
        """How to go on; nothing where it is done, or at work."""
        if self.status not in ("interrupted", "failed", "lost"):
            return ""
        if (tuning := self._files.tuning()) is not None:
            return f"the dpfl tune command that began {tuning}"
        how = shlex.join(["dpfl", "resume", str(self.folder)])
        if _shares(self._files.ledger):
            how += ", and the ledger that it shares"
        return f"mend the cause, then {how}" if self.status == "failed" else how

    @property
    def _whole(self) -> bool:
        return self.status == "done" and self.result.get("status") in COMPLETE

    @property
    def _source(self) -> dict[str, Any]:
        return self.result if self._whole else self._line

    @property
    def _is_behind(self) -> bool:
        """Whether a run may have released more than when it was evaluated last, also if it is at work."""
        return _round(self._line) < self.round or _charged_since(self._files.ledger, _round(self._line))

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
    return [status_of(RunFolder(path)) for path in run_folders(folder)]


def status_of(folder: RunFolder, now: float | None = None) -> RunStatus:
    """How far a run is that has a folder."""
    result, task = read_object(folder.result) or {}, task_of(folder)
    status, reason = _status(folder, result, task or {}, time.time() if now is None else now)
    return RunStatus(folder.path, status, reason, result, task)


def _status(folder: RunFolder, result: dict[str, Any], task: dict[str, Any], now: float) -> tuple[Status, str]:
    ended_as, state = result.get("status"), task.get("state")
    if ended_as in COMPLETE:
        damage = _damage(folder, result)
        return ("failed", damage) if damage else ("done", str(result["reason"] or ""))
    if state == "running":
        silent = now - task_file(folder).stat().st_mtime
        if silent <= STALE_SECONDS and not has_ended(task["pid"], task["host"]):
            return "running", ""
        if _is_locked_since(folder, task) and folder.at_work():  # by `dpfl resume`
            return "running", ""
        if ended_as != "interrupted" or _written(folder.result) < _written(task_file(folder)):
            where = f"process {task['pid']} on {task['host']}" + (f", job {task['job']}" if task.get("job") else "")
            return "lost", f"{where} ended without a word"
    is_at_work = _is_locked_since(folder, task) and (folder.at_work() or _is_elsewhere(folder, ended=bool(result)))
    if state == "failed" and not is_at_work:
        return "failed", str(task.get("reason", ""))
    if ended_as == "failed" and not is_at_work and state not in ("pending", "stopped"):
        return "failed", str(result.get("reason", "result.json does not say why"))
    if (tuning := folder.tuning()) is not None and (tuning / folder.result.name).exists():
        return "done", "left behind by its tuning"
    return ("running", "") if is_at_work else ("interrupted", str(task.get("reason", "")))


def _damage(folder: RunFolder, result: dict[str, Any]) -> str:
    """What is wrong with the `result.json` of a run that ended for good; "" for nothing."""
    try:
        _reason, numbers = result["reason"], [result["rounds"], result["seconds"]]
        numbers += [result[score_key(result)]["mean_last_10_percent"], result["epsilon"]["server"]["epsilon"]]
        for number in numbers:
            float(0 if number is None else number)
        return ""
    except (KeyError, TypeError, ValueError) as error:
        what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        return (
            f"{folder.result} is damaged ({what}): restore it from a copy, or remove it and continue from the "
            "checkpoint (a sweep with --retry)"
        )


def write_task(folder: RunFolder, state: str, **facts: Any) -> None:
    """Say what became of a run's process: running, stopped, failed, done, or pending (to be tried again).

    Where a disk is full the old file is written over, which takes no room.

    Raises:
        OSError: it cannot be written, or only over the old one.
    """
    folder.make()
    path, content = task_file(folder), to_json({"state": state, "time": round(time.time(), 3), **facts}, None)
    try:
        folder.write(path, content)
    except OSError as error:
        if is_full(error) and path.exists():
            with open(path, "r+") as file:
                file.write(content)
                file.truncate()
        raise


def task_file(folder: RunFolder) -> Path:
    return folder.path / "task.json"


def task_of(folder: RunFolder) -> dict[str, Any] | None:
    """What `task.json` says; nothing if it does not say whose process it is of."""
    task = read_object(task_file(folder))
    whole = task is not None and (
        task.get("state") != "running" or (type(task.get("pid")) is int and type(task.get("host")) is str)
    )
    return task if whole else None


def _written(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else 0.0


def _is_locked_since(folder: RunFolder, task: dict[str, Any]) -> bool:
    """Whether the folder was locked later than a sweep wrote of it, if one did: by `dpfl resume`."""
    try:
        return not task or (folder.path / ".lock").stat().st_mtime > task_file(folder).stat().st_mtime
    except OSError:
        return False


def _is_elsewhere(folder: RunFolder, *, ended: bool) -> bool:
    """Whether a process on another machine has it, as far as that can be told: it wrote something lately."""
    holder = folder.holder()
    if ended or holder is None or holder[1] == os.uname().nodename:
        return False
    heard = _heard(folder)
    return heard is not None and heard < SILENT_SECONDS


def _heard(folder: RunFolder) -> float | None:
    times = []
    for name in WRITTEN:
        with contextlib.suppress(OSError):
            times.append((folder.path / name).stat().st_mtime)
    return max(0.0, time.time() - max(times)) if times else None


def _charged_since(ledger: Path, rounds: int) -> bool:
    """Whether the last charge may be of a release later than the evaluation after ``rounds``; also if none can be read.

    A round's number counts those before it; that of scores and of models of the silos' own those that are over.
    """
    number = last_object(ledger, "round").get("round")
    return type(number) is not int or number >= rounds


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


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
