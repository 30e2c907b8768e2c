"""`python -m benchmarks.soak`: a sweep on a Slurm of its own while something of it is killed every few seconds.

Counts the runs that were lost, those whose result is not, to the bit, what it is undisturbed, and the charges that
their ledgers miss; all have to be 0. Writes the table in docs/slurm.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from benchmarks.pages import ROOT, put
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.ledger import Ledger

CLUSTER = ROOT / "slurm" / "dev-cluster"
NODES = 3
VICTIMS = ("run", "rank", "task", "script", "step", "node")
RANKS: dict[str, Any] = {
    "ranks": 3,
    "slurm": {"nodes": 2},
}  # of each run of a sweep over MPI: a server and two silo ranks
BASE: dict[str, Any] = {
    "name": "soak",
    "rounds": 150,
    "data": {
        "dataset": {"name": "synthetic", "num_features": 4, "num_classes": 3, "records_per_silo": 30},
        "num_silos": 4,
    },
    "algorithm": {"name": "scaffold", "local_steps": 2, "local_lr": 0.5},
    "privacy": {"clip_norm": 1.0, "noise_multiplier": 4.0, "record_rate": 0.5},
    "checkpoint": {"every": 10},
    "evaluation": {"reveal": "server"},  # at ranks the server gets what one process has, to be compared
}
Outcome = tuple[str, list[dict[str, Any]], set[Charge]]


def outcomes(out: Path) -> dict[str, Outcome]:
    """What each finished run of a folder came to: digest of its model, evaluations without times, charges."""
    found = {}
    for path in out.glob("runs/*/*/result.json"):
        result = json.loads(path.read_text())
        if result["status"] != "done":
            continue
        lines = [json.loads(line) for line in (path.parent / "metrics.jsonl").read_text().splitlines()]
        measured = [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
        charged = set(Ledger.open(path.parent / "ledger.jsonl", append=False))
        found[path.parent.name] = (result["model_sha256"], measured, charged)
    return found


@dataclass
class Tally:
    """What a soak found."""

    runs: int
    lost: int = 0
    different: int = 0
    charges_missing: int = 0
    submissions: int = 0
    seconds: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def table(self) -> str:
        kills = ", ".join(f"{self.kills[victim]} {victim}" for victim in VICTIMS)
        rows = {
            "runs": str(self.runs),
            "kills": f"{self.kills.total()} ({kills})",
            "times submitted": str(self.submissions),
            "minutes": f"{self.seconds / 60:.1f}",
            "runs lost": str(self.lost),
            "results different from undisturbed ones": str(self.different),
            "charges missing in ledgers": str(self.charges_missing),
        }
        return "\n".join(["| what | |", "| --- | --- |", *(f"| {what} | {found} |" for what, found in rows.items())])


def soak(
    folder: Path,
    runs: int,
    every: float,
    rng: random.Random,
    environment: dict[str, str],
    ranks: dict[str, Any] | None = None,
) -> Tally:
    """Run the sweep undisturbed here, then on the cluster under attack: one kill every ``every`` seconds on average.

    With ``ranks``, what a sweep says of MPI ranks, they run undisturbed in one process, too.
    """
    folder.mkdir(exist_ok=True)
    alone, config = folder / "alone.yaml", folder / "sweep.yaml"
    alone.write_text(yaml.safe_dump({**BASE, "sweep": {"seeds": runs}}, sort_keys=False))
    config.write_text(yaml.safe_dump({**BASE, "sweep": {"seeds": runs, **(ranks or {})}}, sort_keys=False))
    sweep = [sys.executable, "-m", "dpfl_plugin", "sweep"]
    subprocess.run([*sweep, alone, "--out", folder / "undisturbed", "--jobs", "2"], check=True, env=environment)
    out, tally, began = folder / "out", Tally(runs), time.monotonic()
    packed = ["--pack", "3", "--jobs", "1" if ranks else "2", "--at-once", "1" if ranks else "2"]
    first = "rank" if ranks else "run"
    with contextlib.suppress(KeyboardInterrupt):
        while len(outcomes(out)) < runs:
            submitted = [*sweep, config, "--out", out, "--on", "slurm", *packed]
            subprocess.run([*submitted, "--retry"], check=True, env=environment)
            tally.submissions += 1
            while _queued(environment):
                # The first as soon as there is a run to be killed: a fast machine may be done before the next.
                time.sleep(rng.expovariate(1 / every) if tally.kills else 0.1)
                _kill_one(rng.choice(VICTIMS) if tally.kills else first, rng, tally, environment)
    tally.seconds = time.monotonic() - began
    expected, found = outcomes(folder / "undisturbed"), outcomes(out)
    tally.lost = len(set(expected) - set(found))
    for run in set(expected) & set(found):
        tally.different += expected[run][:2] != found[run][:2]
        tally.charges_missing += len(expected[run][2] - found[run][2])
    return tally


def _queued(environment: dict[str, str]) -> bool:
    states = ("--states=pending,running,completing,requeued",)
    asked = subprocess.run(["squeue", "-h", *states], env=environment, capture_output=True, text=True, check=False)
    return asked.returncode != 0 or bool(asked.stdout.strip())


def _kill_one(victim: str, rng: random.Random, tally: Tally, environment: dict[str, str]) -> None:
    if victim == "node":
        node = f"n{rng.randint(1, NODES)}"
        subprocess.run([CLUSTER, "node", node, "crash"], check=True, env=environment)
        time.sleep(rng.uniform(0, 15))  # long enough, at times, for the controller to notice
        subprocess.run([CLUSTER, "node", node, "up"], check=True, env=environment)
    else:
        found = _processes(environment["SLURM_CONF"])[victim]
        if not found:
            return
        number = rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]) if victim == "run" else signal.SIGKILL
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(found), number)
    tally.kills[victim] += 1


def _processes(configuration: str) -> dict[str, list[int]]:
    """What of the cluster's jobs may be killed: runs, their ranks and what started them, the tasks that look after
    them, batch scripts, Slurm's steps."""
    found: dict[str, list[int]] = {victim: [] for victim in VICTIMS}
    tasks = dict(of_the_cluster(configuration, b"sweep-task"))
    for pid, parent in tasks.items():
        found["run" if parent in tasks else "task"].append(pid)
    found["rank"] = [pid for pid, _ in of_the_cluster(configuration, b"sweep-run")]
    found["script"] = [pid for pid, _ in of_the_cluster(configuration, b"slurm_script")]
    found["step"] = [pid for pid, _ in of_the_cluster(configuration, b"slurmstepd:")]
    return found


def of_the_cluster(configuration: str, word: bytes) -> Iterator[tuple[int, int]]:
    """(process, parent) of those with a word in the command line, and the cluster in the environment."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            lines = (folder / "environ").read_bytes().split(b"\0")
            if word in (folder / "cmdline").read_bytes() and f"SLURM_CONF={configuration}".encode() in lines:
                yield int(folder.name), int((folder / "stat").read_text().rpartition(")")[2].split()[1])


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """A Slurm of its own; gives the environment in which it is used."""
    own = {"DPFL_CLUSTER": str(folder), "DPFL_CLUSTER_NODES": str(NODES), "DPFL_CLUSTER_PORT": "17300"}
    environment = {**os.environ, **own, "SLURM_CONF": str(folder / "slurm.conf"), "OMP_NUM_THREADS": "1"}
    environment["PATH"] += ":/usr/sbin"
    subprocess.run([CLUSTER, "up"], check=True, env=environment, stdin=subprocess.DEVNULL)
    try:
        yield environment
    finally:
        subprocess.run([CLUSTER, "down"], check=False, env=environment)


def pmi2() -> dict[str, str]:
    """What starts MPICH's ranks by srun, for the environment that jobs inherit."""
    prefixes = [Path(sys.prefix), *map(Path, filter(None, os.environ.get("DPFL_MPI", "").split(":")))]
    for prefix in prefixes:
        for library in (prefix / "lib").glob("libmpi.so.12*"):
            return {"SLURM_MPI_TYPE": "pmi2", "DPFL_PYTHON": sys.executable, "MPI4PY_LIBMPI": str(library)}
    raise SystemExit("No MPICH: name the folder of one in $DPFL_MPI, or leave out its runs by --over-mpi 0.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=40, help="of one process each")
    parser.add_argument("--over-mpi", type=int, default=20, help="runs of three MPICH ranks each; see $DPFL_MPI")
    parser.add_argument(
        "--every", type=float, default=4.0, help="seconds from kill to kill, on average; threefold over MPI"
    )
    parser.add_argument("--seed", type=int, default=None, help="of who is killed when")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder, cluster(Path(folder) / "slurm") as environment:
        rng, every = random.Random(seed), arguments.every
        tally = Tally(0)
        if arguments.runs:
            tally += soak(Path(folder) / "processes", arguments.runs, every, rng, environment)
        if arguments.over_mpi:
            # Three ranks take that much longer to begin.
            tally += soak(Path(folder) / "ranks", arguments.over_mpi, 3 * every, rng, environment | pmi2(), RANKS)
    print(tally.table())
    put("docs/slurm.md", "soak", tally.table())
    if tally.lost or tally.different or tally.charges_missing:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
