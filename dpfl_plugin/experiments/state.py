"""How far a run is, from its folder's files alone: nothing has to be asked, and nothing has to be alive.

`task.json` says which process took a run on, and is touched every few seconds while that one is alive. What
`result.json` says of a run that ended for good comes first.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.outcomes import score_key
from dpfl_plugin.errors import DataError, is_full
from dpfl_plugin.runs.checkpoint import saved_rounds
from dpfl_plugin.runs.environment import changed, file_digests
from dpfl_plugin.runs.folder import RunFolder, has_ended, last_object, read_object, to_json

BEAT_SECONDS: Final = 5.0
STALE_SECONDS: Final = 60.0  # file servers and their clients may hold a time back for half of it

Status = Literal["pending", "running", "done", "failed", "lost"]


@dataclass(frozen=True, slots=True)
class State:
    """What is known of a run.

    Attributes:
        status: lost is a run whose process ended without a word; it is run again as pending ones are.
        reason: of a failure or loss, or why a run ended before its last round.
        round: the last one that was evaluated; eta: seconds that are left, by the pace so far.
        task: what its `task.json` says.
        accuracy: or what else the outcome is ranked by, which is called ``score``.
    """

    status: Status
    reason: str = ""
    round: int = 0
    eta: float | None = None
    accuracy: float | None = None
    score: str = "accuracy"
    epsilon: float | None = None
    seconds: float | None = None
    task: dict[str, Any] | None = None


def write_task(folder: RunFolder, state: str, **facts: Any) -> None:
    """Say what became of a run's process: running, stopped, failed, done, or pending (to be tried again)."""
    _write(folder, task_file(folder), {"state": state, "time": round(time.time(), 3), **facts})


def _write(folder: RunFolder, path: Path, facts: dict[str, Any]) -> None:
    """Write a file; where a disk is full, over the old one, which takes no room.

    Raises:
        OSError: it cannot be written, or only over the old one.
    """
    folder.make()
    content = to_json(facts, None)
    try:
        folder.write(path, content)
    except OSError as error:
        if is_full(error) and path.exists():
            with open(path, "r+") as file:
                file.write(content)
                file.truncate()
        raise


def touch(folder: RunFolder) -> None:
    os.utime(task_file(folder))


def task_file(folder: RunFolder) -> Path:
    return folder.path / "task.json"


def note_end(folder: RunFolder, code: int, reason: str) -> None:
    """What a run that a launcher started says itself at its end: a launcher's exit code may mean anything."""
    _write(folder, _end_file(folder), {"code": code, "reason": reason})


def end_of(folder: RunFolder) -> tuple[int, str] | None:
    """Exit code and reason that a run noted at its end; None if it ended without a word."""
    end = read_object(_end_file(folder))
    return (int(end["code"]), str(end["reason"])) if end else None


def forget_end(folder: RunFolder) -> None:
    """Have nothing noted, in a file that a full disk lets be written over."""
    _write(folder, _end_file(folder), {})


def _end_file(folder: RunFolder) -> Path:
    return folder.path / "end.json"


def finished(folder: RunFolder) -> bool:
    """Whether a run ended for good, so that it is never run again."""
    result = read_object(folder.result) or {}
    return result.get("status") in ("done", "budget_exhausted") and _done(folder, result, None).status == "done"


def other_code(folder: RunFolder, config: Config) -> list[str]:
    """Modules of users' code that a finished run was made with in another version than there is now."""
    return changed(file_digests(config), json.loads(folder.result.read_text()).get("code") or {})


def state_of(folder: RunFolder, rounds: int | None, now: float) -> State:
    """The state of a run that has a folder; ``rounds`` of how many, for the time that is left."""
    result, task = read_object(folder.result), task_of(folder)
    status = (result or {}).get("status")
    if result is not None and status in ("done", "budget_exhausted"):
        return _done(folder, result, task)
    state = (task or {}).get("state")
    if task is not None and state == "failed":
        return State("failed", str(task.get("reason", "")), task=task)
    if result is not None and status == "failed" and state not in ("pending", "running", "stopped"):
        reason = str(result.get("reason", "result.json does not say why"))
        return State("failed", reason, _count(result.get("rounds")), task=task)
    line = last_object(folder.metrics)
    round = _count(line.get("round"))
    seconds = _number(line.get("seconds")) or 0.0
    if task is not None and state == "running":
        silent = now - task_file(folder).stat().st_mtime
        if silent > STALE_SECONDS or has_ended(task["pid"], task["host"]):
            where = f"process {task['pid']} on {task['host']}" + (f", job {task['job']}" if task.get("job") else "")
            return State("lost", f"{where} ended without a word", round, task=task)
        eta = seconds / round * (rounds - round) if round and rounds else None
        return State("running", round=round, eta=eta, seconds=seconds, task=task)
    stopped = str(task.get("reason", "")) if task is not None and state == "stopped" else ""
    return State(
        "pending", stopped or ("interrupted, continues from its checkpoint" if round else ""), round, task=task
    )


def progress(folder: RunFolder) -> tuple[int, bool]:
    """Rounds that are saved, and whether the run has ended."""
    return saved_rounds(folder.checkpoint), state_of(folder, None, time.time()).status in ("done", "failed")


def states(rows: Iterable[tuple[RunFolder, int | None]]) -> list[State]:
    """The state of each run (its folder, its number of rounds), in order."""
    now = time.time()
    begun: dict[Path, set[str]] = {}
    found = []
    for folder, rounds in rows:
        parent = folder.path.parent
        if parent not in begun:
            begun[parent] = {entry.name for entry in os.scandir(parent)} if parent.is_dir() else set()
        there = folder.path.name in begun[parent]
        found.append(state_of(folder, rounds, now) if there else State("pending"))
    return found


def _done(folder: RunFolder, result: dict[str, Any], task: dict[str, Any] | None) -> State:
    """The state of a run whose `result.json` says that it is done; failed if it does not say with what, or the
    statement beside it says otherwise."""
    try:
        return State(
            "done",
            str(result["reason"]),
            int(result["rounds"]),
            accuracy=_number(result[score_key(result)]["mean_last_10_percent"]),
            score=score_key(result).removeprefix("test_"),
            epsilon=_number(result["epsilon"]["server"]["epsilon"]),
            seconds=_number(result["seconds"]),
            task=task,
        )
    except DataError as error:
        return State("failed", str(error), task=task)
    except (KeyError, TypeError, ValueError) as error:
        what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        return State(
            "failed",
            f"{folder.result} is damaged ({what}): restore it from a copy, or remove it and use --retry, which "
            "continues from the checkpoint",
            task=task,
        )


def _count(value: Any) -> int:
    return value if type(value) is int else 0


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def task_of(folder: RunFolder) -> dict[str, Any] | None:
    """What `task.json` says; nothing if it does not say whose process it is of."""
    task = read_object(task_file(folder))
    whole = task is not None and (
        task.get("state") != "running" or (type(task.get("pid")) is int and type(task.get("host")) is str)
    )
    return task if whole else None
