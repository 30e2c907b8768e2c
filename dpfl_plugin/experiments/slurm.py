"""What is asked of Slurm, by its own commands; without sacct and squeue, files say enough."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from dpfl_plugin.errors import ConfigError, DpflError
from dpfl_plugin.experiments.manifest import Sweep
from dpfl_plugin.runs.folder import write_atomic

TIMEOUT_SECONDS: Final = 20.0
CLOCKS_SECONDS: Final = 3600.0  # by which the clocks of two machines may differ
_SQUEUE: Final = ["squeue", "--noheader", "--array", "--me"]
# The controller was reached, and may have taken the job, but its answer did not come back.
_LOST: Final = re.compile(r"timed out|zero bytes|unexpected message|communication", re.IGNORECASE)
LIVE: Final = ("PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "CONFIGURING", "STOPPED")


class UncertainError(DpflError):
    """sbatch failed in a way that does not say whether Slurm has the job."""


def submit(script: str, sweep: Sweep, lock: int | None = None) -> str:
    """Hand a script to sbatch, and keep it beside the manifest; returns the job's number.

    Args:
        lock: descriptor that sbatch inherits, as it may outlive this process and still submit.

    Raises:
        UncertainError: sbatch lost its connection: the job may have been submitted, or may not.
        DpflError: sbatch is missing or refuses; the message is its own.
    """
    (sweep.folder / "log").mkdir(parents=True, exist_ok=True)
    write_atomic(sweep.folder / "array.sbatch", script)
    if shutil.which("sbatch") is None:
        raise ConfigError(
            f"--on slurm: there is no sbatch here. The script is {sweep.folder / 'array.sbatch'}; or use --on local, "
            "or slurm/dev-cluster for a small Slurm on this machine."
        )
    keep = () if lock is None else (lock,)
    command = ["sbatch", "--parsable"]
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False, pass_fds=keep)
    said = (done.stderr or done.stdout).strip()
    if done.returncode and not _LOST.search(said):
        raise DpflError(f"sbatch refuses: {said}. The script is {sweep.folder / 'array.sbatch'}.")
    number = re.search(r"^(\d+)(;.*)?$", done.stdout, re.MULTILINE)  # a site's own sbatch may print more
    if done.returncode or number is None:
        raise UncertainError(f"sbatch ends with exit code {done.returncode}, and no job number: {said}.")
    return number[1]


def job_named(name: str, since: float) -> str | None:
    """The number of the one job of this name; "" if Slurm has none, None if Slurm cannot be asked.

    Args:
        since: seconds of the epoch; the job is no older. squeue forgets jobs that ended, sacct does not.
    """
    queued = _lines([*_SQUEUE, "--format=%F %j"])
    for number, _, found in (line.partition(" ") for line in queued or []):
        if found.strip() == name:
            return number
    day = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since - CLOCKS_SECONDS))
    ended = _lines(["sacct", "-n", "-P", "-X", "-S", day, "-o", "JobID,JobName"])
    for number, _, found in (line.partition("|") for line in ended or []):
        if found.strip() == name:
            return number.partition("_")[0]
    return None if queued is None else ""


def remember(sweep: Sweep, job: str, pack: int, tasks: Sequence[int] | None = None) -> None:
    """Note a job beside the manifest; ``tasks`` by their number in the array, if that is not their own."""
    facts = {"job": job, "pack": pack, "tasks": tasks, "time": round(time.time())}
    path = sweep.folder / "jobs.jsonl"
    torn = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
    with open(path, "a") as file:
        file.write("\n" * torn + json.dumps(facts) + "\n")  # after a torn line, on one of its own
        file.flush()
        os.fsync(file.fileno())


def jobs_of(folder: Path, say: Callable[[str], None] = lambda text: None) -> list[dict[str, Any]]:
    """What was submitted for a sweep: job, pack, tasks and time of each.

    Args:
        say: is told of lines that cannot be read, of which a crash or a full disk may leave one.
    """
    path, found = folder / "jobs.jsonl", []
    try:
        lines = path.read_bytes().splitlines() if path.exists() else []
    except OSError as error:
        say(f"{path} cannot be read ({error.strerror}): which jobs were submitted is not known.")
        return []
    for number, line in enumerate(lines, start=1):
        try:
            job = json.loads(line)
            tasks = job["tasks"]
            whole = type(job["job"]) is str and type(job["pack"]) is int and job["pack"] > 0
            if not whole or not (tasks is None or all(type(task) is int for task in tasks)):
                raise ValueError("it names no job")
            found.append(job)
        except (ValueError, KeyError, TypeError):
            say(
                f"{path}, line {number}: is not a whole record of a submitted job, as a crash may leave it: its tasks, "
                "if there are any (squeue --me), are not known here. A run is safe all the same: its folder is locked."
            )
    return found


def queue(jobs: Iterable[str]) -> dict[str, str] | None:
    """State by task ("123_4") of those that are still in the queue; None if squeue cannot be asked."""
    asked = ",".join(jobs)
    if not asked:
        return {}
    lines = _lines(["squeue", "--noheader", "--array", "--jobs", asked, "--format=%i %T"])
    if lines is None:  # of a job that it has forgotten squeue says that it is invalid, and then of no other
        lines = _lines([*_SQUEUE, "--format=%i %T"])
    if lines is None:
        return None
    wanted = set(asked.split(","))
    found = dict(line.split() for line in lines if len(line.split()) == 2)
    return {task: state for task, state in found.items() if task.partition("_")[0] in wanted}


def accounting(jobs: Iterable[str]) -> dict[str, str] | None:
    """State by task of all that sacct knows of, e.g. TIMEOUT or OUT_OF_MEMORY; None if it cannot be asked."""
    asked = ",".join(jobs)
    lines = _lines(["sacct", "-n", "-P", "-X", "-j", asked, "-o", "JobID,State"]) if asked else []
    return None if lines is None else dict(line.split("|", 1) for line in lines if "|" in line)


def largest_array() -> int | None:
    """The largest index of an array's task + 1, by the site's configuration; None if it cannot be asked."""
    found = setting("MaxArraySize") or ""
    return int(found) if found.isdigit() else None


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
        if found := re.search(r"\bTimeLimit=(?:(\d+)-)?(\d+):(\d+):(\d+)\b", line):
            days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
            return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return None


def spans(numbers: Sequence[int]) -> str:
    """[0, 1, 2, 5] as "0-2,5", as sbatch --array takes it."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def live_rows(sweep: Sweep, say: Callable[[str], None]) -> set[int]:
    """Rows of tasks that are in the queue already; where no squeue is installed, none is known.

    Raises:
        DpflError: squeue is there and does not answer.
    """
    jobs = {job["job"]: job for job in jobs_of(sweep.folder, say)}
    rows: set[int] = set()
    chunks = {pack: sweep.chunks(pack) for pack in {job["pack"] for job in jobs.values()}}
    found = queue(jobs)
    if found is None and shutil.which("squeue") is None:
        say(
            "there is no squeue here: tasks that wait in the queue are not known, and may be submitted once more. No "
            "run is done twice for that: its folder is locked, and who finds it done ends at once."
        )
    elif found is None:
        raise DpflError(
            f"squeue does not answer, so that it is not known which tasks of job {', '.join(jobs)} still wait in the "
            "queue. Nothing is submitted, as that might be for the second time. Try again once squeue answers."
        )
    for name, state in (found or {}).items():
        number, _, index = name.partition("_")
        if state in LIVE:
            job, place = jobs[number], int(index or 0)  # a single task of submitit's is no array
            task = job["tasks"][place] if job["tasks"] is not None else place
            rows |= {row.index for row in chunks[job["pack"]][task]}
    return rows


def _lines(command: list[str]) -> list[str] | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.splitlines() if done.returncode == 0 else None
