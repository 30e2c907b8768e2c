"""What a task asks Slurm for: the sweep's options, its runs' own, and more of what it ran out of before."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dpfl_plugin.config.schema import SweepConfig
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.experiments import slurm
from dpfl_plugin.experiments.manifest import Sweep
from dpfl_plugin.experiments.scripts import LEAD_SECONDS, LEAST_SECONDS

Options = dict[str, str | int | bool]

OUT_OF_MEMORY: Final = "OUT_OF_MEMORY"
TIMEOUT: Final = "TIMEOUT"
MEMORY: Final = ("mem", "mem-per-cpu", "mem-per-gpu")
_MEGABYTES: Final = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
_SIZE: Final = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)


def arrays(
    sweep: Sweep, tasks: Sequence[int], pack: int, say: Callable[[str], None]
) -> list[tuple[Options, list[int]]]:
    """Tasks by what they ask for: (options of sbatch, tasks) for each array that is to be submitted."""
    chunks, ended = sweep.chunks(pack), _ended(sweep, say)
    found: list[tuple[Options, list[int]]] = []
    for task in tasks:
        options = _plain(sweep.spec.slurm) | _plain(chunks[task][0].slurm)
        worst = Counter[str]()
        for row in chunks[task]:
            worst |= ended.get(row.index, Counter())
        options = _more(options, worst, sweep.spec, say)
        _check_time(options.get("time"))
        for known, those in found:
            if known == options:
                those.append(task)
                break
        else:
            found.append((options, [task]))
    return found


def minutes(time: str) -> int:
    """Slurm's ways to write a time limit, in minutes, rounded up: 30, 30:00, 1:30:00, 2-12, 2-12:30, 2-12:30:00."""
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash or len(parts) == 3:
        hours, mins, seconds = (*parts, 0, 0)[:3]
    else:
        hours, mins, seconds = 0, *(*parts, 0)[:2]
    return int(days or 0) * 1440 + hours * 60 + mins + (seconds > 0)


def _check_time(limit: Any) -> None:
    try:
        seconds = math.inf if limit is None else 60 * minutes(str(limit))
    except ValueError:  # UNLIMITED, or wrong, as sbatch will say
        return
    if seconds < LEAST_SECONDS:
        raise ConfigError(
            f"sweep.slurm.time={limit!r} must be at least {LEAST_SECONDS // 60} minutes: Slurm asks runs to "
            f"save their state and stop {LEAD_SECONDS} seconds before it."
        )


def _plain(options: Mapping[str, str | int | bool]) -> Options:
    return {key.lstrip("-"): value for key, value in options.items()}


def _ended(sweep: Sweep, say: Callable[[str], None]) -> dict[int, Counter[str]]:
    """How often tasks of each row ran out of memory or time, as sacct has it."""
    spec = sweep.spec
    jobs = {job["job"]: job for job in slurm.jobs_of(sweep.folder)}
    if not jobs or (spec.retry_mem_factor is None and spec.retry_time_factor is None):
        return {}
    known = slurm.accounting(jobs)
    if known is None:
        say(
            "sweep.retry_mem_factor and retry_time_factor have no effect this time: sacct, which alone says that a "
            "task ran out of memory or time, is not here or does not answer."
        )
        return {}
    ended: dict[int, Counter[str]] = {}
    chunks = {pack: sweep.chunks(pack) for pack in {job["pack"] for job in jobs.values()}}
    for name, how in known.items():
        number, _, place = name.partition("_")
        if how not in (OUT_OF_MEMORY, TIMEOUT) or number not in jobs or not (place or "0").isdigit():
            continue
        job, index = jobs[number], int(place or 0)
        task = job["tasks"][index] if job["tasks"] is not None else index
        for row in chunks[job["pack"]][task]:
            ended.setdefault(row.index, Counter())[how] += 1
    return ended


def _more(options: Options, ended: Counter[str], spec: SweepConfig, say: Callable[[str], None]) -> Options:
    """Options with what a task ran out of times the factor, once for each time that it did."""
    more = dict(options)
    if (times := ended[OUT_OF_MEMORY]) and spec.retry_mem_factor is not None:
        given = [key for key in MEMORY if key in options]
        if not given:
            say(
                "sweep.retry_mem_factor has no effect: no memory is asked for that it could raise; set sweep.slurm.mem."
            )
        for key in given:
            more[key] = f"{math.ceil(_megabytes(key, options[key]) * spec.retry_mem_factor**times)}M"
    if (times := ended[TIMEOUT]) and spec.retry_time_factor is not None:
        if "time" not in options:
            say("sweep.retry_time_factor has no effect: no time is asked for; set sweep.slurm.time.")
        else:
            more["time"] = math.ceil(_minutes(options["time"]) * spec.retry_time_factor**times)
    if more != options:
        changed = ", ".join(f"--{key}={value}" for key, value in more.items() if value != options[key])
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
        return minutes(str(value))
    except ValueError as error:
        raise ConfigError(
            f"sweep.slurm.time={value!r}: is not a time that sweep.retry_time_factor can raise. Write e.g. '2:00:00'."
        ) from error
