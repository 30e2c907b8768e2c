"""What is asked of Slurm, by its own commands; without sacct and squeue, files say enough."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from dpfl_plugin.errors import ConfigError, DpflError
from dpfl_plugin.runs.folder import write_atomic

TIMEOUT_SECONDS: Final = 20.0
CLOCKS_SECONDS: Final = 3600.0  # by which the clocks of two machines may differ
_SQUEUE: Final = ["squeue", "--noheader", "--array", "--me"]
# The controller was reached, and may have taken the job, but its answer did not come back.
_LOST: Final = re.compile(r"timed out|zero bytes|unexpected message|communication", re.IGNORECASE)
LIVE: Final = ("PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "CONFIGURING", "STOPPED")


class UncertainError(DpflError):
    """sbatch failed in a way that does not say whether Slurm has the job."""


def submit(script: str, folder: Path, lock: int) -> str:
    """Hand a script to sbatch, and keep it in the sweep's folder; returns the job's number.

    Args:
        lock: descriptor that sbatch inherits, as it may outlive this process and still submit.

    Raises:
        UncertainError: sbatch lost its connection: the job may have been submitted, or may not.
        DpflError: sbatch is missing or refuses; the message is its own.
    """
    (folder / "log").mkdir(parents=True, exist_ok=True)
    path = folder / "array.sbatch"
    write_atomic(path, script)
    if shutil.which("sbatch") is None:
        raise ConfigError(
            f"--on slurm: there is no sbatch here. The script is {path}; or use --on local, "
            "or slurm/dev-cluster for a small Slurm on this machine."
        )
    command = ["sbatch", "--parsable"]
    result = subprocess.run(command, input=script, capture_output=True, text=True, check=False, pass_fds=(lock,))
    message = (result.stderr or result.stdout).strip()
    if result.returncode and not _LOST.search(message):
        raise DpflError(f"sbatch refuses: {message}. The script is {path}.")
    number = re.search(r"^(\d+)(;.*)?$", result.stdout, re.MULTILINE)  # a site's own sbatch may print more
    if result.returncode or number is None:
        raise UncertainError(f"sbatch ends with exit code {result.returncode}, and no job number: {message}.")
    return number[1]


def job_named(name: str, since: float) -> str | None:
    """The number of the one job of this name; "" if Slurm has none, None if Slurm cannot be asked.

    Args:
        since: seconds of the epoch; the job is no older. squeue forgets jobs that ended, sacct does not.
    """
    queued = _lines([*_SQUEUE, "--format=%F %j"])
    for number, _, title in (line.partition(" ") for line in queued or []):
        if title.strip() == name:
            return number
    day = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since - CLOCKS_SECONDS))
    ended = _lines(["sacct", "-n", "-P", "-X", "-S", day, "-o", "JobID,JobName"])
    for number, _, title in (line.partition("|") for line in ended or []):
        if title.strip() == name:
            return number.partition("_")[0]
    return None if queued is None else ""


def queue(jobs: Iterable[str]) -> dict[str, str] | None:
    """State by task ("123_4") of those that are still in the queue; None if squeue cannot be asked."""
    numbers = ",".join(jobs)
    if not numbers:
        return {}
    lines = _lines(["squeue", "--noheader", "--array", "--jobs", numbers, "--format=%i %T"])
    if lines is None:  # of a job that it has forgotten squeue says that it is invalid, and then of no other
        lines = _lines([*_SQUEUE, "--format=%i %T"])
    if lines is None:
        return None
    parts = set(numbers.split(","))
    states = dict(line.split() for line in lines if len(line.split()) == 2)
    return {task: state for task, state in states.items() if task.partition("_")[0] in parts}


def accounting(jobs: Iterable[str]) -> dict[str, str] | None:
    """State by task of all that sacct knows of, e.g. TIMEOUT or OUT_OF_MEMORY; None if it cannot be asked."""
    numbers = ",".join(jobs)
    lines = _lines(["sacct", "-n", "-P", "-X", "-j", numbers, "-o", "JobID,State"]) if numbers else []
    return None if lines is None else dict(line.split("|", 1) for line in lines if "|" in line)


def largest_array() -> int | None:
    """The largest index of an array's task + 1, by the site's configuration; None if it cannot be asked."""
    value = setting("MaxArraySize") or ""
    return int(value) if value.isdigit() else None


def setting(name: str) -> str | None:
    """What the site's configuration has under a name; None if it cannot be asked."""
    for line in _lines(["scontrol", "show", "config"]) or []:
        key, _, value = line.partition("=")
        if key.strip() == name:
            return value.strip()
    return None


def time_limit(job: str) -> int | None:
    """Seconds that a job may take; None if it has no limit, or scontrol cannot be asked."""
    for line in _lines(["scontrol", "--oneliner", "show", "job", job]) or []:
        if match := re.search(r"\bTimeLimit=(?:(\d+)-)?(\d+):(\d+):(\d+)\b", line):
            days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
            return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return None


def minutes(time: str) -> int:
    """Slurm's ways to write a time limit, in minutes, rounded up: 30, 30:00, 1:30:00, 2-12, 2-12:30, 2-12:30:00."""
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash or len(parts) == 3:
        hours, mins, seconds = (*parts, 0, 0)[:3]
    else:
        hours, mins, seconds = 0, *(*parts, 0)[:2]
    return int(days or 0) * 1440 + hours * 60 + mins + (seconds > 0)


def spans(numbers: Sequence[int]) -> str:
    """[0, 1, 2, 5] as "0-2,5", as sbatch --array takes it."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _lines(command: list[str]) -> list[str] | None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.splitlines() if result.returncode == 0 else None
