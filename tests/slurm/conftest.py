"""A real Slurm for the tests, started by the project's own script."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.sweeping import write_long
from tests.cli.test_sweep import sweep

SCRIPT = Path(__file__).parents[2] / "slurm" / "dev-cluster"
NODES = 3


class Cluster:
    """What tests do with it."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment

    def control(self, *words: str) -> None:
        subprocess.run([SCRIPT, *words], env=self.environment, check=True, stdin=subprocess.DEVNULL)

    def ask(self, *words: str) -> str:
        return subprocess.run(words, check=True, capture_output=True, text=True, env=self.environment).stdout.strip()

    def queue(self) -> dict[str, str]:
        """State by task of all jobs that have not ended."""
        lines = self.ask("squeue", "--noheader", "--array", "--format=%i %T").splitlines()
        return dict(line.split() for line in lines if line.split()[1] not in ENDED)

    def field(self, job: str, name: str) -> str:
        """A field of `scontrol show job`."""
        words = self.ask("scontrol", "--oneliner", "show", "job", job).split()
        return next(word.partition("=")[2] for word in words if word.startswith(f"{name}="))

    def wait(self, what: Callable[[], object], seconds: float = 300) -> None:
        until = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < until, f"waited in vain; the queue: {self.queue()}"
            time.sleep(0.1)

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Jobs are taken, and wait."""
        self.ask("scontrol", "update", "partitionname=main", "state=down")
        try:
            yield
        finally:
            self.ask("scontrol", "update", "partitionname=main", "state=up")

    def drained(self) -> None:
        """Wait until all jobs have ended."""
        self.wait(lambda: not self.queue())


ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")


def free_ports() -> int:
    """The first of ten TCP ports that nobody has, below those of the system's choice; each process begins elsewhere."""
    for attempt in range(1000):
        first = 20_000 + (os.getpid() + attempt) % 1000 * 10
        with contextlib.ExitStack() as held:
            try:
                for port in range(first, first + 10):
                    held.enter_context(socket.socket()).bind(("", port))
            except OSError:
                continue
        return first
    raise AssertionError("there are no free ports")


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Each test process has a cluster of its own, so that those of one may fail nodes."""
    with started(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@contextlib.contextmanager
def started(folder: Path, **own: str) -> Iterator[Cluster]:
    """A cluster in a folder; without one, the test is skipped."""
    own = {
        "DPFL_CLUSTER": str(folder),
        "DPFL_CLUSTER_NODES": str(NODES),
        "DPFL_CLUSTER_PORT": str(free_ports()),
        **own,
    }
    environment = {**os.environ, **own, "SLURM_CONF": str(folder / "slurm.conf")}
    environment["PATH"] += ":/usr/sbin"
    up = subprocess.run([SCRIPT, "up"], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    try:
        if up.returncode:
            pytest.skip(f"Slurm cannot be started here: {up.stderr.strip()}")
        yield Cluster(environment)
    finally:
        subprocess.run([SCRIPT, "down"], env=environment, check=False, stdin=subprocess.DEVNULL, capture_output=True)


@pytest.fixture
def cluster(running: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The cluster, idle and whole, with its commands ready to be used."""
    yield from in_use(running, monkeypatch)


def in_use(running: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, running.environment[name])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield running
    for job in {task.partition("_")[0] for task in running.queue()}:
        running.ask("scancel", job)
    running.drained()


@pytest.fixture
def go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that long runs wait for; the tests make it once they have seen what they did to them."""
    path = tmp_path / "go on"
    monkeypatch.setenv("GO_ON", str(path))
    return path


@pytest.fixture(scope="session")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two runs of `write_long`, undisturbed, in one process each."""
    path = write_long(tmp_path_factory.mktemp("long"))
    assert sweep(path, "--jobs", 2).code == 0
    return path.parent / "out"
