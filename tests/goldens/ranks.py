"""A job of MPI ranks in one process, without MPI: ranks take turns, so that what they do is the same every time.

Each silo rank has a thread of its own, as it may wait for other silo ranks in the middle of its work; one thread runs
at a time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from unittest import mock

from dpfl_plugin.runtimes.mpi import job
from dpfl_plugin.runtimes.mpi.ranks import Ranks
from dpfl_plugin.runtimes.mpi.session import MpiSession
from dpfl_plugin.runtimes.mpi.silos import SiloRank
from dpfl_plugin.runtimes.mpi.wire import Header
from tests.mpi.network import Loopback, Network


class _Turns:
    """A silo rank's thread, which works from `take` until the rank has done a step, or waits for another rank."""

    def __init__(self, rank: SiloRank) -> None:
        self._rank, self._over = rank, False
        self._mine, self._others = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def take(self) -> None:
        self._mine.release()
        self._others.acquire()
        if self._error is not None:
            raise self._error

    def give(self) -> None:
        self._others.release()
        self._mine.acquire()
        if self._over:
            raise SystemExit

    def end(self) -> None:
        self._over = True
        self._mine.release()
        self._thread.join()

    def _work(self) -> None:
        self._mine.acquire()
        with contextlib.suppress(SystemExit):
            while not self._over:
                try:
                    self._rank.step()
                except Exception as error:
                    self._error = error
                self.give()


class _Job(Network):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.silo_ranks += [SiloRank(_Link(self, rank)) for rank in range(1, size)]
        self.turns = [_Turns(rank) for rank in self.silo_ranks]

    def step(self) -> None:
        for turns in self.turns:
            turns.take()


class _Link(Loopback):
    network: _Job

    def hear_peer(self, source: int) -> Header | None:
        found = super().hear_peer(source)
        if found is None:
            self.network.turns[self.rank - 1].give()
        return found


class _Backend(MpiSession):
    """As `MpiBackend`, of a job that is here."""

    def __init__(self, there: _Job) -> None:
        super().__init__(Ranks(_Link(there, 0)))

    def begin(self) -> None:
        """Nothing: the silo ranks write their key themselves."""


@contextlib.contextmanager
def at_ranks(size: int) -> Iterator[None]:
    """A run of ``runtime.kind: mpi`` has so many ranks meanwhile."""
    there = _Job(size)
    try:
        with mock.patch.object(job, "MpiBackend", partial(_Backend, there)):
            yield
    finally:
        for turns in there.turns:
            turns.end()
