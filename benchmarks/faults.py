"""Seconds from a kill until a job on MPI ranks has ended, or goes on; `python -m benchmarks.mpi --faults`.

A small run at two silo ranks, evaluated and saved after every round, so that what is measured is the recovery.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.table import table
from dpfl_plugin.runs.checkpoint import load_facts

BEGUN = 3  # rounds before the kill
LIMIT = 300.0  # seconds after which something is wrong
CONFIG: Final[dict[str, Any]] = {
    "rounds": 100_000,
    "data": {
        "dataset": {"name": "synthetic", "num_features": 40, "num_classes": 10, "records_per_silo": 100},
        "num_silos": 4,
    },
    "algorithm": {"name": "scaffold", "local_steps": 10, "local_lr": 0.1},
    "privacy": {"clip_norm": 1.0, "noise_multiplier": 4.0, "record_rate": 0.1},
    "evaluation": {"every": 1},
    "checkpoint": {"every": 1},
}


class Job:
    """A run on one server rank and two silo ranks."""

    def __init__(self, folder: Path, mode: str, environment: Mapping[str, str], *more: str) -> None:
        self._folder = folder
        runtime = {"on_silo_failure": mode}
        (folder / "config.yaml").write_text(yaml.safe_dump({**CONFIG, "runtime": runtime}))
        mpirun = [str(Path(sys.prefix) / "bin" / "mpirun"), *(["--with-ft", "ulfm"] if mode == "continue" else [])]
        command = [sys.executable, "-m", "mpi4py", "-m", "dpfl_plugin", "run", str(folder / "config.yaml")]
        self.process = subprocess.Popen(
            [*mpirun, "-n", "3", *command, "--out", str(folder / "runs"), *more],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
        )

    def rounds(self) -> int:
        """The last round that was evaluated."""
        try:
            (path,) = self._folder.glob("runs/run/*/metrics.jsonl")
            lines = path.read_text().splitlines()
            return int(json.loads(lines[-1])["round"])
        except (ValueError, OSError, IndexError):  # there is none yet, or one is half written
            return 0

    def lost_after(self) -> int | None:
        """After how many rounds the newest checkpoint says that a silo was lost."""
        for folder in self._folder.glob("runs/run/*/checkpoint"):
            losses = (load_facts(folder) or {"losses": ()})["losses"]
            if losses:
                return int(losses[-1]["after_round"])
        return None

    def kill(self, rank: int) -> None:
        os.kill(self._ranks()[rank], signal.SIGKILL)

    def _ranks(self) -> dict[int, int]:
        found = {}
        for path in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            for child in path.read_text().split():
                lines = Path(f"/proc/{child}/environ").read_text().split("\0")
                values = dict(line.partition("=")[::2] for line in lines)
                if "PMIX_RANK" in values:
                    found[int(values["PMIX_RANK"])] = int(child)
        return found

    def stop(self) -> None:
        """End all of it."""
        if self.process.poll() is None:
            self.process.kill()  # the ranks end with it
        self.process.wait()
        time.sleep(2.0)


@contextmanager
def job(folder: Path, mode: str, environment: Mapping[str, str], *more: str) -> Iterator[Job]:
    running = Job(folder, mode, environment, *more)
    try:
        yield running
    finally:
        running.stop()


def wait(ready: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT
    while not ready():
        if time.monotonic() > end:
            raise RuntimeError("a run of the benchmark of faults came to a halt")
        time.sleep(0.002)


def end_with_abort(folder: Path, environment: Mapping[str, str]) -> float:
    """From the kill of a silo rank to the end of mpirun."""
    with job(folder, "abort", environment) as running:
        wait(lambda: running.rounds() >= BEGUN)
        running.kill(2)
        began = time.monotonic()
        wait(lambda: running.process.poll() is not None)
        return time.monotonic() - began


def next_round_with_continue(folder: Path, environment: Mapping[str, str]) -> float:
    """From the kill of a silo rank to the evaluation of the first round without it."""
    with job(folder, "continue", environment) as running:
        wait(lambda: running.rounds() >= BEGUN)
        running.kill(2)
        began = time.monotonic()
        wait(lambda: running.lost_after() is not None)
        lost = running.lost_after() or 0
        wait(lambda: running.rounds() > lost)
        return time.monotonic() - began


def next_round_after_resume(folder: Path, environment: Mapping[str, str]) -> float:
    """From the kill of rank 0, by way of a new job with --resume, to the evaluation of a round that was new."""
    with job(folder, "abort", environment) as running:
        wait(lambda: running.rounds() >= BEGUN)
        running.kill(0)
        began = time.monotonic()
        wait(lambda: running.process.poll() is not None)
    done, waited = running.rounds(), 2.0  # seconds that `stop` adds
    with job(folder, "abort", environment, "--resume") as running:
        wait(lambda: running.rounds() > done)
        return time.monotonic() - began - waited


MEASURED: Final = {
    "a silo rank, `abort`: the job has ended": end_with_abort,
    "a silo rank, `continue`: the next round is finished": next_round_with_continue,
    "rank 0: the next round is finished after `--resume`": next_round_after_resume,
}


def faults(repetitions: int, environment: Mapping[str, str]) -> str:
    """The table of all three; medians, and the largest."""
    rows = []
    for what, measure in MEASURED.items():
        seconds = []
        for _ in range(repetitions):
            with tempfile.TemporaryDirectory() as folder:
                seconds.append(measure(Path(folder), environment))
        rows.append([what, f"{statistics.median(seconds):.2f}", f"{max(seconds):.2f}"])
    return table(["killed", "median, s", "most, s"], rows) + f"\n\nOf {repetitions} kills each, with two silo ranks."
