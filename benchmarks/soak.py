"""`python -m benchmarks.soak`: sweeps and jobs while something of them is killed or frozen every few seconds.

On a Slurm of its own, seeded: counts the runs that were lost, those whose result is not, to the bit, what it is
undisturbed, and the charges that their ledgers miss. On this machine, by `dpfl sweep` and by MPI, with fresh noise and
on a disk that is full at times: a witness reads the ledger whenever messages have reached the server. Lost, different
and uncharged have to be 0. Writes the tables in docs/slurm.md.
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
from benchmarks.witness import witnessed
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


MARK = "DPFL_SOAK"  # in the environment of every process of a campaign
EPSILON = 4.0
FROZEN = (0.5, 30.0)  # seconds
LONGEST = 300.0  # seconds without a new charge or an end: it hangs
FRESH: dict[str, Any] = {
    **BASE,
    "rounds": 60,
    "algorithm": {"module": "benchmarks.witness:Witnessed", "local_steps": 2, "local_lr": 0.5, "pause": 0.2},
    "privacy": {"randomness": "fresh", "clip_norm": 1.0, "epsilon": EPSILON, "delta": 1e-5, "record_rate": 0.5},
    "checkpoint": {},
    "runtime": {"silo_timeout": 20},
}


@dataclass
class Witness:
    """What a campaign with fresh noise found.

    Attributes:
        lost: runs that did not come to an end. hung: times that nothing happened for `LONGEST`.
        uncharged: messages that a server saw before, or without, a charge in the ledger.
        above: runs whose epsilon is above the budget. releases: of silos in rounds; again: those of them that a round
            that ran again made.
    """

    runs: int
    lost: int = 0
    hung: int = 0
    uncharged: int = 0
    above: int = 0
    seen: int = 0
    releases: int = 0
    again: int = 0
    seconds: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Witness) -> Witness:
        return Witness(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def table(self) -> str:
        kills = ", ".join(f"{count} {victim}" for victim, count in sorted(self.kills.items()))
        rows = {
            "runs": str(self.runs),
            "kills and freezes": f"{self.kills.total()} ({kills})",
            "minutes": f"{self.seconds / 60:.1f}",
            "runs lost": str(self.lost),
            "times that something hung": str(self.hung),
            "messages seen by a witness": str(self.seen),
            "of these not charged on disk before": str(self.uncharged),
            f"runs above epsilon {EPSILON:g}": str(self.above),
            "releases made again by rounds that ran again": f"{self.again} of {self.releases}"
            f" ({self.again / max(1, self.releases):.1%})",
        }
        return "\n".join(["| what | |", "| --- | --- |", *(f"| {what} | {found} |" for what, found in rows.items())])


@dataclass
class Campaign:
    """Commands that are begun again until all their runs are done, while something of them is killed, frozen, or
    without space on its disk."""

    folder: Path
    every: float
    rng: random.Random
    witness: Witness
    victims: tuple[str, ...]

    def __post_init__(self) -> None:
        self.mark = f"{os.getpid()}.{id(self)}"
        self.environment = {
            **os.environ,
            MARK: self.mark,
            "DPFL_WITNESS": str(self.folder.parent / f"{self.folder.name}.jsonl"),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        }

    def carry_out(self, command: list[str], wanted: int) -> None:
        """Begin ``command`` until so many runs of the folder are done."""
        began, tries = time.monotonic(), 0
        while self._done() < wanted and tries < 50 * wanted:
            tries += 1
            with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
                job = subprocess.Popen(
                    command, env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
                self._disturb(job)
            self._end()
        self.witness.seconds += time.monotonic() - began
        if (lost := wanted - self._done()) > 0:
            self.witness.lost += lost
            print((self.folder.parent / f"{self.folder.name}.log").read_text()[-2000:], file=sys.stderr)

    def _disturb(self, job: subprocess.Popen[bytes]) -> None:
        changed, moment = self._state(), time.monotonic()
        due = moment + self.rng.expovariate(1 / self.every)
        while job.poll() is None:
            time.sleep(0.2)
            now = time.monotonic()
            if (state := self._state()) != changed:
                changed, moment = state, now
            if now - moment > LONGEST:
                self.witness.hung += 1
                return
            if now > due and changed:  # there is something to be lost
                self._strike(self.rng.choice(self.victims), job.pid)
                due = time.monotonic() + self.rng.expovariate(1 / self.every)

    def _strike(self, victim: str, job: int) -> None:
        if victim == "full disk":
            while not remount(self.folder, str(self._used())):  # more was written meanwhile
                pass
            time.sleep(self.rng.uniform(0.5, 5))
            remount(self.folder, DISK)
        else:
            others = [pid for pid in self._processes() if pid != job]
            pool = [job] if victim == "supervisor" else others
            if not pool:
                return
            target = self.rng.choice(pool)
            with contextlib.suppress(ProcessLookupError):
                if victim == "freeze":
                    os.kill(target, signal.SIGSTOP)
                    time.sleep(self.rng.uniform(*FROZEN))
                    os.kill(target, signal.SIGCONT)
                else:
                    os.kill(target, self.rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
        self.witness.kills[victim] += 1

    def _used(self) -> int:
        """Bytes of the disk."""
        disk = os.statvfs(self.folder)
        return (disk.f_blocks - disk.f_bfree) * disk.f_frsize

    def _processes(self) -> list[int]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
        return found

    def _end(self) -> None:
        """What outlived the command goes on for a minute at most: then it hangs."""
        until = time.monotonic() + 60
        while (left := self._processes()) and time.monotonic() < until:
            time.sleep(0.2)
        self.witness.hung += bool(left)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _state(self) -> list[tuple[str, int]]:
        found = []
        for path in self.folder.rglob("ledger.jsonl"):
            with contextlib.suppress(OSError):
                found.append((str(path), path.stat().st_size))
        return sorted(found)

    def _results(self) -> list[tuple[Path, dict[str, Any]]]:
        found = []
        for path in self.folder.rglob("result.json"):
            with contextlib.suppress(OSError, ValueError):
                found.append((path.parent, json.loads(path.read_text())))
        return [(folder, result) for folder, result in found if result["status"] in ("done", "budget_exhausted")]

    def _done(self) -> int:
        return len(self._results())

    def count(self) -> None:
        """Compare what the witness saw with the ledgers, and the stated epsilons with the budget."""
        seen: Counter[tuple[str, int, int]] = Counter()
        for line in witnessed(Path(self.environment["DPFL_WITNESS"])):
            seen.update((line["ledger"], line["round"], silo) for silo in line["silos"])
        charged: dict[tuple[str, int, int], set[str]] = {}
        for folder, result in self._results():
            path = folder / "ledger.jsonl"
            for charge in Ledger.open(path, append=False):
                charged.setdefault((str(path), charge.round, charge.silo), set()).add(charge.noise_id)
            self.witness.above += result["epsilon"]["server"]["epsilon"] > EPSILON
        self.witness.seen += seen.total()
        self.witness.uncharged += sum(max(0, count - len(charged.get(key, ()))) for key, count in seen.items())
        self.witness.releases += sum(map(len, charged.values()))
        self.witness.again += sum(len(names) - 1 for names in charged.values())


DISK = "256m"


def remount(folder: Path, size: str) -> bool:
    """Give a disk another size; False if more is in it."""
    command = ["mount", "-o", f"remount,size={size}", str(folder)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


@contextlib.contextmanager
def disk(folder: Path) -> Iterator[Path]:
    """A small disk of its own, which takes an administrator."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fresh_sweep(folder: Path, runs: int, every: float, rng: random.Random) -> Witness:
    """`dpfl sweep` on this machine, two runs at a time."""
    with disk(folder):
        victims = ("run", "run", "supervisor", "freeze", "full disk")
        campaign = Campaign(folder, every, rng, Witness(runs), victims)
        config = folder / "sweep.yaml"
        config.write_text(yaml.safe_dump({**FRESH, "sweep": {"seeds": runs}}, sort_keys=False))
        command = [sys.executable, "-m", "dpfl_plugin", "sweep", str(config), "--out", str(folder / "out")]
        campaign.carry_out([*command, "--jobs", "2", "--retry"], runs)
        campaign.count()
        return campaign.witness


def fresh_ranks(folder: Path, runs: int, every: float, rng: random.Random) -> Witness:
    """Jobs of three MPI ranks on this machine, one after another."""
    witness = Witness(0)
    for number in range(runs):
        with disk(folder.with_name(f"{folder.name}{number}")) as own:
            campaign = Campaign(own, every, rng, Witness(1), ("rank", "rank", "supervisor", "freeze", "full disk"))
            config = own / "run.yaml"
            config.write_text(yaml.safe_dump({**FRESH, "seed": number}, sort_keys=False))
            command = [str(ROOT / "launchers" / "mpirun"), "-n", "3", "run", str(config), "--out", str(own / "out")]
            campaign.carry_out([*command, "--resume"], 1)
            campaign.count()
            witness += campaign.witness
    return witness


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=40, help="of one process each")
    parser.add_argument("--over-mpi", type=int, default=20, help="runs of three MPICH ranks each; see $DPFL_MPI")
    parser.add_argument(
        "--every", type=float, default=4.0, help="seconds from kill to kill, on average; threefold over MPI"
    )
    parser.add_argument("--fresh", type=int, default=20, help="runs with fresh noise on this machine, by dpfl sweep")
    parser.add_argument("--fresh-over-mpi", type=int, default=5, help="runs with fresh noise at three ranks here")
    parser.add_argument("--seed", type=int, default=None, help="of who is killed when")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", file=sys.stderr)
    rng, every = random.Random(seed), arguments.every
    tally, witness = Tally(0), Witness(0)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.fresh:
            witness += fresh_sweep(Path(folder) / "fresh", arguments.fresh, every, rng)
        if arguments.fresh_over_mpi:
            witness += fresh_ranks(Path(folder) / "fresh-ranks", arguments.fresh_over_mpi, every, rng)
    if witness.runs:
        print(witness.table())
        put("docs/slurm.md", "fresh soak", witness.table())
    if arguments.runs or arguments.over_mpi:
        with tempfile.TemporaryDirectory() as folder, cluster(Path(folder) / "slurm") as environment:
            if arguments.runs:
                tally += soak(Path(folder) / "processes", arguments.runs, every, rng, environment)
            if arguments.over_mpi:
                # Three ranks take that much longer to begin.
                tally += soak(Path(folder) / "ranks", arguments.over_mpi, 3 * every, rng, environment | pmi2(), RANKS)
        print(tally.table())
        put("docs/slurm.md", "soak", tally.table())
    bad = (tally.lost, tally.different, tally.charges_missing)
    if any((*bad, witness.lost, witness.hung, witness.uncharged, witness.above)):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
