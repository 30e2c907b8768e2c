"""Submission to Slurm in one piece: no task is submitted twice, and none is forgotten, whenever the submitter dies.

One process at a time submits a sweep. Before it calls sbatch it writes down, and syncs, the name of the job that it is
about to submit, which no other job has. If it ends before the job's number is recorded, the next one asks Slurm for
that name before it submits anything. An sbatch that outlives its dpfl keeps the lock until it has ended, so that what
it may still submit is waited for.

Tasks that ask Slurm for the same are one array. A task asks for the sweep's options, its runs' own, and more of what it
ran out of before.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dpfl_plugin.config.schema import SweepConfig
from dpfl_plugin.config.sweep import Row
from dpfl_plugin.errors import BusyError, ConfigError, DpflError, is_full
from dpfl_plugin.experiments import scripts, slurm
from dpfl_plugin.experiments.manifest import Options, Request, Sweep
from dpfl_plugin.experiments.scripts import LEAD_SECONDS, LEAST_SECONDS
from dpfl_plugin.file_permissions import private_folder
from dpfl_plugin.runs.folder import locked, sync_folder, to_json, write_atomic

WAIT_SECONDS: Final = 120.0  # for another submitter; sbatch tries for a minute or so at a controller that is busy
LOOK_SECONDS: Final = 0.5

OUT_OF_MEMORY: Final = "OUT_OF_MEMORY"
TIMEOUT: Final = "TIMEOUT"
MEMORY: Final = ("mem", "mem-per-cpu", "mem-per-gpu")
_MEGABYTES: Final = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
_SIZE: Final = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)

Say = Callable[[str], None]


@contextlib.contextmanager
def alone(sweep: Sweep, say: Say) -> Iterator[int]:
    """Keep other submitters of this sweep out; yields the lock's descriptor, for a child that is to keep it.

    Raises:
        BusyError: another one was at it for longer than `WAIT_SECONDS`.
        ConfigError: the folder cannot be written to, or has no locks.
    """
    try:
        private_folder(sweep.folder)
    except OSError as error:
        if is_full(error):
            raise
        raise ConfigError(f"{sweep.folder}: cannot be written to ({error.strerror}). Use another out.") from error
    message = (
        f"{sweep.folder}: another dpfl sweep ({{holder}}), or an sbatch that it left behind, is submitting this "
        "sweep. Once it has ended, the same command continues from there."
    )
    until, waiting = time.monotonic() + WAIT_SECONDS, False
    with contextlib.ExitStack() as stack:
        while True:
            try:
                lock = stack.enter_context(locked(sweep.folder / ".submit.lock", message, other="--out"))
                break
            except BusyError as error:
                if time.monotonic() >= until:
                    raise
                if not waiting:
                    say(f"{error} Waiting for it, {WAIT_SECONDS:.0f} seconds at most.")
            waiting = True
            time.sleep(LOOK_SECONDS)
        yield lock.fileno()


def intent_of(sweep_folder: Path) -> Path:
    """The file that is there from before sbatch is called until the job's number is recorded."""
    return sweep_folder / "submitting.json"


def settle(sweep: Sweep, say: Say) -> None:
    """Find out what became of a submission that was cut; has to be done before anything is submitted.

    Raises:
        DpflError: Slurm cannot be asked, so that it is not known.
    """
    intent = intent_of(sweep.folder)
    if not intent.exists():
        return
    facts = json.loads(intent.read_bytes())
    name = facts["name"]
    job = slurm.job_named(name, facts["time"])
    if job is None:
        raise DpflError(
            f"{intent}: an earlier dpfl sweep was cut while it submitted the job {name}, and neither squeue nor sacct "
            "says whether it did. Nothing is submitted, as that might be for the second time. Try again once squeue "
            "answers; or look for the job by hand (squeue --me --name, sacct --name), cancel it if it is there, and "
            "remove that file."
        )
    _record(sweep, facts, job or None)
    if job:
        say(f"an earlier dpfl sweep was cut after it had submitted job {job}: it is recorded now.")
    else:
        say(f"an earlier dpfl sweep was cut before Slurm had the job {name}: what is left is submitted now.")


def submit(sweep: Sweep, rows: Sequence[Row], options: Options, lock: int, say: Say) -> list[str]:
    """Submit rows that are not in the queue; returns the numbers of the jobs.

    Args:
        lock: the descriptor of `alone`.

    Raises:
        ConfigError: Slurm takes no array as large. DpflError: it refuses, or does not answer.
    """
    queued = _queued_rows(sweep, say)
    left = [row for row in rows if row.index not in queued]
    if len(left) < len(rows):
        say(f"{len(rows) - len(left)} runs are in the queue already.")
    if not left:
        return []
    tasks = sweep.tasks(left, options.pack)
    _check_size(sweep, tasks, options.pack)
    requests = arrays(sweep, tasks, options.pack, say)
    if len(requests) > 1 and options.at_once:
        say(f"--at-once {options.at_once} holds in each of {len(requests)} arrays, whose requests to Slurm differ.")
    chunks, indices, jobs = sweep.chunks(options.pack), {row.index for row in left}, []
    at_once = f", {options.at_once} at a time." if options.at_once else "."
    for request, part in requests:
        job = _hand_over(sweep, request, part, options, lock)
        runs = sum(row.index in indices for task in part for row in chunks[task])
        say(f"submitted {runs} runs as job {job}: {len(part)} tasks{at_once}")
        jobs.append(job)
    return jobs


def _check_size(sweep: Sweep, tasks: Sequence[int], pack: int) -> None:
    most = slurm.largest_array()
    if most is None or tasks[-1] < most:
        return
    packs = range(math.ceil(len(sweep.rows) / most), len(sweep.rows) + 1)
    fits = next((pack for pack in packs if len(sweep.chunks(pack)) <= most), None)
    fix = f"Use --pack {fits} or more: so many runs in a task." if fits else "Let more runs ask Slurm for the same."
    raise ConfigError(
        f"--pack {pack}: {tasks[-1] + 1} tasks are more than this Slurm takes in an array (MaxArraySize {most}). {fix}"
    )


def _hand_over(sweep: Sweep, request: Request, tasks: list[int], options: Options, lock: int) -> str:
    """Submit tasks as one array and record it; returns the job's number."""
    name, start = f"{sweep.rows[0].name}.{secrets.token_hex(4)}", time.time()
    # submitit's tasks have numbers of their own.
    numbers = tasks if options.on == "submitit" else None
    facts = {"name": name, "pack": options.pack, "tasks": numbers, "time": round(start)}
    write_atomic(intent_of(sweep.folder), to_json(facts, None))
    try:
        if options.on == "submitit":
            from dpfl_plugin.experiments import by_submitit

            job = by_submitit.submit(sweep, tasks, name, request, options)
        else:
            job = slurm.submit(scripts.sweep_script(sweep, tasks, name, request, options), sweep.folder, lock)
    except slurm.UncertainError as error:
        number = slurm.job_named(name, start)
        if not number:
            raise DpflError(
                f"{error} Slurm may have the job {name} all the same, or get it yet. The same command, in a minute or "
                "two, asks for it before it submits anything."
            ) from error
        job = number
    except DpflError:  # refused
        _record(sweep, facts, None)
        raise
    _record(sweep, facts, job)
    return job


def _record(sweep: Sweep, facts: Mapping[str, Any], job: str | None) -> None:
    """Record the job that was submitted, None if none was: what was written down is settled."""
    if job is not None and job not in {entry["job"] for entry in jobs_of(sweep.folder)}:
        try:
            remember(sweep, job, facts["pack"], facts["tasks"])
        except OSError as error:
            raise DpflError(
                f"job {job} was submitted, but {sweep.folder / 'jobs.jsonl'} cannot be written ({error.strerror}). "
                "Once it can, the same command finds the job and records it; nothing is submitted twice."
            ) from error
    intent_of(sweep.folder).unlink(missing_ok=True)
    sync_folder(sweep.folder)


def remember(sweep: Sweep, job: str, pack: int, tasks: Sequence[int] | None = None) -> None:
    """Note a job beside the manifest; ``tasks`` by their number in the array, if that is not their own."""
    facts = {"job": job, "pack": pack, "tasks": tasks, "time": round(time.time())}
    path = sweep.folder / "jobs.jsonl"
    torn = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
    with open(path, "a") as file:
        file.write("\n" * torn + json.dumps(facts) + "\n")  # after a torn line, on one of its own
        file.flush()
        os.fsync(file.fileno())


def jobs_of(folder: Path, say: Say = lambda text: None) -> list[dict[str, Any]]:
    """What was submitted for a sweep: job, pack, tasks and time of each.

    Args:
        say: is told of lines that cannot be read, of which a crash or a full disk may leave one.
    """
    path, jobs = folder / "jobs.jsonl", []
    try:
        lines = path.read_bytes().splitlines() if path.exists() else []
    except OSError as error:
        say(f"{path} cannot be read ({error.strerror}): which jobs were submitted is not known.")
        return []
    for number, line in enumerate(lines, start=1):
        with contextlib.suppress(ValueError):
            job = json.loads(line)
            if isinstance(job, dict) and {"job", "pack", "tasks"} <= job.keys():
                jobs.append(job)
                continue
        say(
            f"{path}, line {number}: is not a whole record of a submitted job, as a crash may leave it: its tasks, "
            "if there are any (squeue --me), are not known here. A run is safe all the same: its folder is locked."
        )
    return jobs


def _rows_by_state(
    sweep: Sweep, jobs: Sequence[dict[str, Any]], states: Mapping[str, str]
) -> Iterator[tuple[str, Row]]:
    """The state of its task, for each row; ``states``: by task, "123_4", as Slurm has it."""
    by_number = {job["job"]: job for job in jobs}
    chunks = {pack: sweep.chunks(pack) for pack in {job["pack"] for job in jobs}}
    for name, state in states.items():
        number, _, place = name.partition("_")
        if number in by_number and (place or "0").isdigit():  # tasks that wait are one: 123_[4-7]
            job, index = by_number[number], int(place or 0)  # a single task of submitit's is no array
            task = job["tasks"][index] if job["tasks"] is not None else index
            for row in chunks[job["pack"]][task]:
                yield state, row


def _queued_rows(sweep: Sweep, say: Say) -> set[int]:
    """Rows of tasks that are in the queue already; where no squeue is installed, none is known.

    Raises:
        DpflError: squeue is there and does not answer.
    """
    jobs = jobs_of(sweep.folder, say)
    numbers = [job["job"] for job in jobs]
    states = slurm.queue(numbers)
    if states is None and shutil.which("squeue") is None:
        say(
            "there is no squeue here: tasks that wait in the queue are not known, and may be submitted once more. No "
            "run is done twice for that: its folder is locked, and who finds it done ends at once."
        )
    elif states is None:
        raise DpflError(
            f"squeue does not answer, so that it is not known which tasks of job {', '.join(numbers)} still wait in "
            "the queue. Nothing is submitted, as that might be for the second time. Try again once squeue answers."
        )
    return {row.index for state, row in _rows_by_state(sweep, jobs, states or {}) if state in slurm.LIVE}


def arrays(sweep: Sweep, tasks: Sequence[int], pack: int, say: Say) -> list[tuple[Request, list[int]]]:
    """Tasks by what they ask for: (options of sbatch, tasks) for each array that is to be submitted."""
    chunks, ended = sweep.chunks(pack), _ended(sweep, say)
    requests: list[tuple[Request, list[int]]] = []
    for task in tasks:
        request, worst = _plain(sweep.spec.slurm) | _plain(chunks[task][0].slurm), Counter[str]()
        for row in chunks[task]:
            worst |= ended.get(row.index, Counter())
        request = _more(request, worst, sweep.spec, say)
        _check_time(request.get("time"))
        same = next((members for other, members in requests if other == request), None)
        if same is None:
            requests.append((request, [task]))
        else:
            same.append(task)
    return requests


def _check_time(limit: Any) -> None:
    try:
        seconds = math.inf if limit is None else 60 * slurm.minutes(str(limit))
    except ValueError:  # UNLIMITED, or wrong, as sbatch will say
        return
    if seconds < LEAST_SECONDS:
        raise ConfigError(
            f"sweep.slurm.time={limit!r} must be at least {LEAST_SECONDS // 60} minutes: Slurm asks runs to "
            f"save their state and stop {LEAD_SECONDS} seconds before it."
        )


def _plain(options: Mapping[str, str | int | bool]) -> Request:
    return {key.lstrip("-"): value for key, value in options.items()}


def _ended(sweep: Sweep, say: Say) -> dict[int, Counter[str]]:
    """How often tasks of each row ran out of memory or time, as sacct has it."""
    jobs = jobs_of(sweep.folder)
    if not jobs or (sweep.spec.retry_mem_factor is None and sweep.spec.retry_time_factor is None):
        return {}
    states = slurm.accounting(job["job"] for job in jobs)
    if states is None:
        say(
            "sweep.retry_mem_factor and retry_time_factor have no effect this time: sacct, which alone says that a "
            "task ran out of memory or time, is not here or does not answer."
        )
        return {}
    ended: dict[int, Counter[str]] = {}
    for state, row in _rows_by_state(sweep, jobs, states):
        if state in (OUT_OF_MEMORY, TIMEOUT):
            ended.setdefault(row.index, Counter())[state] += 1
    return ended


def _more(request: Request, ended: Counter[str], spec: SweepConfig, say: Say) -> Request:
    """A request with what a task ran out of times the factor, once for each time that it did."""
    more = dict(request)
    if (times := ended[OUT_OF_MEMORY]) and spec.retry_mem_factor is not None:
        keys = [key for key in MEMORY if key in request]
        if not keys:
            say(
                "sweep.retry_mem_factor has no effect: no memory is asked for that it could raise; set sweep.slurm.mem."
            )
        for key in keys:
            more[key] = f"{math.ceil(_megabytes(key, request[key]) * spec.retry_mem_factor**times)}M"
    if (times := ended[TIMEOUT]) and spec.retry_time_factor is not None:
        if "time" not in request:
            say("sweep.retry_time_factor has no effect: no time is asked for; set sweep.slurm.time.")
        else:
            more["time"] = math.ceil(_minutes(request["time"]) * spec.retry_time_factor**times)
    if more != request:
        changed = ", ".join(f"--{key}={value}" for key, value in more.items() if value != request[key])
        say(f"tasks that ran out of memory or time before ask for {changed} now.")
    return more


def _megabytes(key: str, value: Any) -> float:
    size = _SIZE.fullmatch(str(value).strip())
    if size is None:
        raise ConfigError(
            f"sweep.slurm.{key}={value!r}: is not a size that sweep.retry_mem_factor can raise. Write e.g. 4000M or 4G."
        )
    return int(size[1]) * _MEGABYTES[size[2].upper() or "M"]


def _minutes(value: Any) -> int:
    try:
        return slurm.minutes(str(value))
    except ValueError as error:
        raise ConfigError(
            f"sweep.slurm.time={value!r}: is not a time that sweep.retry_time_factor can raise. Write e.g. '2:00:00'."
        ) from error
