"""Submission to Slurm in one piece: no task is submitted twice, and none is forgotten, whenever the submitter dies.

One process at a time submits a sweep. Before it calls sbatch it writes down, and syncs, the name of the job that it is
about to submit, which no other job has. If it ends before the job's number is recorded, the next one asks Slurm for
that name before it submits anything. An sbatch that outlives its dpfl keeps the lock until it has ended, so that what
it may still submit is waited for.
"""

from __future__ import annotations

import contextlib
import json
import math
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from dpfl_plugin.config.sweep import Row
from dpfl_plugin.errors import BusyError, ConfigError, DataError, DpflError, is_full
from dpfl_plugin.experiments import resources, scripts, slurm
from dpfl_plugin.experiments.manifest import Sweep
from dpfl_plugin.file_permissions import private_folder
from dpfl_plugin.runs.folder import locked, sync_folder, to_json, write_atomic

WAIT_SECONDS: Final = (
    120.0  # for another submitter; sbatch itself tries for a minute or so at a controller that is busy
)
LOOK_SECONDS: Final = 0.5

Say = Callable[[str], None]
Backend = Literal["local", "slurm", "submitit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to run a sweep.

    Attributes:
        jobs: runs at the same time, on this machine or in each task of Slurm; pack: runs in a task; at_once: tasks.
        progress: whether to show a bar; None: in a terminal and in Jupyter.
    """

    on: Backend = "local"
    jobs: int = 1
    at_once: int | None = None
    pack: int = 1
    progress: bool | None = None


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
    taken = (
        f"{sweep.folder}: another dpfl sweep ({{holder}}), or an sbatch that it left behind, is submitting this "
        "sweep. Once it has ended, the same command continues from there."
    )
    until, told = time.monotonic() + WAIT_SECONDS, False
    while True:
        with contextlib.ExitStack() as held:
            try:
                lock = held.enter_context(locked(sweep.folder / ".submit.lock", taken, other="--out"))
            except BusyError as error:
                if time.monotonic() >= until:
                    raise
                if not told:
                    told = True
                    say(f"{error} Waiting for it, {WAIT_SECONDS:.0f} seconds at most.")
            else:
                yield lock.fileno()
                return
        time.sleep(LOOK_SECONDS)


def intent_of(sweep_folder: Path) -> Path:
    """The file that is there from before sbatch is called until the job's number is recorded."""
    return sweep_folder / "submitting.json"


def begin(sweep: Sweep, pack: int, tasks: Sequence[int] | None) -> str:
    """Write down what is about to be submitted; returns the name that its job is to have.

    Args:
        tasks: by their number in the array, if that is not their own.
    """
    name = f"{sweep.rows[0].name}.{secrets.token_hex(4)}"
    facts = {"name": name, "pack": pack, "tasks": None if tasks is None else list(tasks), "time": round(time.time())}
    write_atomic(intent_of(sweep.folder), to_json(facts, None))
    return name


def end(sweep: Sweep, job: str | None) -> None:
    """Record the job that was submitted, None if none was: what was written down is settled."""
    intent = intent_of(sweep.folder)
    if job is not None and job not in {known["job"] for known in slurm.jobs_of(sweep.folder)}:
        _, pack, tasks, _ = _read(intent)
        try:
            slurm.remember(sweep, job, pack, tasks)
        except OSError as error:
            raise DpflError(
                f"job {job} was submitted, but {sweep.folder / 'jobs.jsonl'} cannot be written ({error.strerror}). "
                "Once it can, the same command finds the job and records it; nothing is submitted twice."
            ) from error
    intent.unlink(missing_ok=True)
    sync_folder(sweep.folder)


def settle(sweep: Sweep, say: Say) -> None:
    """Find out what became of a submission that was cut; has to be done before anything is submitted.

    Raises:
        DpflError: Slurm cannot be asked, so that it is not known.
    """
    intent = intent_of(sweep.folder)
    if not intent.exists():
        return
    name, _, _, begun = _read(intent)
    job = slurm.job_named(name, begun)
    if job is None:
        raise DpflError(
            f"{intent}: an earlier dpfl sweep was cut while it submitted the job {name}, and neither squeue nor sacct "
            "says whether it did. Nothing is submitted, as that might be for the second time. Try again once squeue "
            "answers; or look for the job by hand (squeue --me --name, sacct --name), cancel it if it is there, and "
            "remove that file."
        )
    end(sweep, job or None)
    if job:
        say(f"an earlier dpfl sweep was cut after it had submitted job {job}: it is recorded now.")
    else:
        say(f"an earlier dpfl sweep was cut before Slurm had the job {name}: what is left is submitted now.")


def _read(intent: Path) -> tuple[str, int, list[int] | None, float]:
    """Name, pack, tasks and time.

    Raises:
        DataError: the file is damaged.
    """
    try:
        facts = json.loads(intent.read_bytes())
        tasks = facts["tasks"]
        return str(facts["name"]), int(facts["pack"]), tasks and [int(task) for task in tasks], float(facts["time"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{intent}: cannot be read ({error}). It says which job a dpfl sweep was submitting when it was cut. Look "
            "at squeue --me for a job of this sweep that jobs.jsonl beside it lacks, cancel it, and remove the file."
        ) from error


def submit(sweep: Sweep, rows: Sequence[Row], options: Options, lock: int, say: Say) -> list[str]:
    """Submit rows that are not in the queue; returns the numbers of the jobs.

    Args:
        lock: the descriptor of `alone`.

    Raises:
        ConfigError: Slurm takes no array as large. DpflError: it refuses, or does not answer.
    """
    queued = slurm.live_rows(sweep, say)
    left = [row for row in rows if row.index not in queued]
    if len(left) < len(rows):
        say(f"{len(rows) - len(left)} runs are in the queue already.")
    if not left:
        return []
    tasks = sweep.tasks(left, options.pack)
    _check_size(sweep, tasks, options.pack)
    arrays = resources.arrays(sweep, tasks, options.pack, say)
    if len(arrays) > 1 and options.at_once:
        say(f"--at-once {options.at_once} holds in each of {len(arrays)} arrays, which ask Slurm for different things.")
    chunks, wanted, jobs = sweep.chunks(options.pack), {row.index for row in left}, []
    at_once = f", {options.at_once} at a time." if options.at_once else "."
    for asked, some in arrays:
        job = _hand_over(sweep, asked, some, options, lock)
        runs = sum(row.index in wanted for task in some for row in chunks[task])
        say(f"submitted {runs} runs as job {job}: {len(some)} tasks{at_once}")
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


def _hand_over(sweep: Sweep, asked: resources.Options, tasks: list[int], options: Options, lock: int) -> str:
    """Submit tasks as one array and record it; returns the job's number."""
    # submitit's tasks have numbers of their own.
    name = begin(sweep, options.pack, tasks if options.on == "submitit" else None)
    begun = time.time()
    try:
        if options.on == "submitit":
            from dpfl_plugin.experiments import by_submitit

            job = by_submitit.submit(
                sweep, tasks, name=name, asked=asked, at_once=options.at_once, pack=options.pack, jobs=options.jobs
            )
        else:
            job = slurm.submit(script(sweep, asked, tasks, options, name), sweep, lock)
    except slurm.UncertainError as error:
        found = slurm.job_named(name, begun)
        if not found:
            raise DpflError(
                f"{error} Slurm may have the job {name} all the same, or get it yet. The same command, in a minute or "
                "two, asks for it before it submits anything."
            ) from error
        job = found
    except DpflError:  # refused
        end(sweep, None)
        raise
    end(sweep, job)
    return job


def script(sweep: Sweep, asked: resources.Options, tasks: list[int], options: Options, name: str) -> str:
    """The batch script of one array."""
    return scripts.sweep_script(
        name=name,
        folder=str(sweep.folder),
        python=sys.executable,
        tasks=slurm.spans(tasks),
        at_once=options.at_once,
        pack=options.pack,
        jobs=options.jobs,
        ranks=sweep.spec.ranks,
        slurm=asked,
        setup=sweep.spec.setup,
    )
