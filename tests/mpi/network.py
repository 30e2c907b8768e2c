"""Ranks in one thread: whenever rank 0 looks, the silo ranks take a step, in an order that may be drawn at random."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpfl_plugin.federation.runtime import ChargeSink
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.runs.measurements import Notes
from dpfl_plugin.runtimes.mpi.ranks import Ranks
from dpfl_plugin.runtimes.mpi.server import MpiRuntime
from dpfl_plugin.runtimes.mpi.silos import SiloRank
from dpfl_plugin.runtimes.mpi.wire import Header, decode, encode


class Network:
    """What is on its way between ``size`` ranks.

    Args:
        rng: in which order, and whether at all, silo ranks take a step; None: each does, in order.

    Attributes:
        stuck: ranks that take no step.
        dead: ranks that take no step either, and whose death is known.
        log: what was sent, ("header" or "vector", source, target).
    """

    def __init__(self, size: int, rng: random.Random | None = None) -> None:
        self.size, self.rng = size, rng
        self.headers: defaultdict[int, deque[tuple[int, bytes]]] = defaultdict(deque)
        self.between_silos: defaultdict[tuple[int, int], deque[bytes]] = defaultdict(deque)
        self.vectors: defaultdict[tuple[int, int], deque[Tensor]] = defaultdict(deque)
        self.pulls: defaultdict[tuple[int, int], deque[Tensor]] = defaultdict(deque)
        self.casts: list[Tensor] = []
        self.sums: list[list[Tensor]] = []
        self.silo_ranks: list[SiloRank] = []
        self.stuck: set[int] = set()
        self.dead: set[int] = set()
        self.log: list[tuple[str, int, int]] = []

    def step(self) -> None:
        ranks = [rank for rank in range(1, self.size) if rank not in self.stuck | self.dead]
        if self.rng is not None:
            ranks = [rank for rank in self.rng.sample(ranks, len(ranks)) if self.rng.random() < 0.5]
        for rank in ranks:
            self.silo_ranks[rank - 1].step()


@dataclass
class Moving:
    """A transfer that is done when ``ready`` says so."""

    network: Network
    rank: int
    ready: Callable[[], bool]

    def done(self) -> bool:
        if self.rank == 0:
            self.network.step()
        return self.ready()


class Loopback:
    """One rank's link. Everything is copied when it is sent."""

    def __init__(self, network: Network, rank: int) -> None:
        self.network, self.rank, self.size = network, rank, network.size
        self.outlives = True
        self._casts = self._sums = 0

    def gone(self) -> set[int]:
        return self.network.dead

    def send(self, to: int, header: Header) -> None:
        self.network.log.append((header.get("do") or header["say"], self.rank, to))
        self.network.headers[to].append((self.rank, encode(header)))

    def poll(self) -> tuple[int, Header] | None:
        if self.rank == 0:
            self.network.step()
        if not self.network.headers[self.rank]:
            return None
        source, data = self.network.headers[self.rank].popleft()
        return source, decode(data)

    def tell_peer(self, to: int, header: Header) -> None:
        assert 0 not in (to, self.rank)
        self.network.between_silos[self.rank, to].append(encode(header))

    def hear_peer(self, source: int) -> Header | None:
        waiting = self.network.between_silos[source, self.rank]
        return decode(waiting.popleft()) if waiting else None

    def push(self, to: int, value: Tensor) -> Moving:
        self.network.log.append(("vector", self.rank, to))
        self.network.vectors[self.rank, to].append(value.clone())
        return Moving(self.network, self.rank, lambda: True)

    def pull(self, source: int, into: Tensor) -> Moving:
        place, came = (source, self.rank), [False]
        self.network.pulls[place].append(into)

        def ready() -> bool:
            while self.network.pulls[place] and self.network.vectors[place]:
                target, value = self.network.pulls[place].popleft(), self.network.vectors[place].popleft()
                assert target.shape == value.shape and target.dtype == value.dtype
                target.copy_(value)
            came[0] = came[0] or not any(into is waiting for waiting in self.network.pulls[place])
            return came[0]

        return Moving(self.network, self.rank, ready)

    def broadcast(self, value: Tensor) -> Moving:
        index, self._casts = self._casts, self._casts + 1
        if self.rank == 0:
            self.network.casts.append(value.clone())
            return Moving(self.network, 0, lambda: True)

        def ready() -> bool:
            if index < len(self.network.casts):
                value.copy_(self.network.casts[index])
            return index < len(self.network.casts)

        return Moving(self.network, self.rank, ready)

    def reduce(self, value: Tensor, into: Tensor | None) -> Moving:
        index, self._sums = self._sums, self._sums + 1
        while len(self.network.sums) <= index:
            self.network.sums.append([])
        self.network.log.append(("sum", self.rank, 0))
        self.network.sums[index].append(value.clone())

        def ready() -> bool:
            parts = self.network.sums[index]
            if into is not None and len(parts) == self.size:
                into.copy_(torch.stack(parts).sum(dim=0))
            return into is None or len(parts) == self.size

        return Moving(self.network, self.rank, ready)


def loopback(
    hosts: Sequence[SiloGroup],
    sink: ChargeSink,
    *,
    network: Network | None = None,
    stack_size: int = 1,
    timeout: float | None = None,
    clock: Callable[[], float] = lambda: 0.0,
    enduring: bool = False,
    notes: Sequence[Notes] | None = None,
    **options: Any,
) -> MpiRuntime:
    """The MPI runtime over silo ranks in this thread, one for each of ``hosts``; None for ``notes``: to rank 0."""
    network = network or Network(1 + len(hosts))
    for rank, host in enumerate(hosts, start=1):
        network.silo_ranks.append(SiloRank(Loopback(network, rank)))
        network.silo_ranks[-1].take(host, torch.device("cpu"), stack_size, notes and notes[rank - 1])
        network.silo_ranks[-1].lasts = enduring
    num_silos = sum(len(host.ids) for host in hosts)
    ranks = Ranks(Loopback(network, 0), timeout, clock)
    ranks.retries_on_loss = enduring
    return MpiRuntime(ranks, sink, num_silos=num_silos, stack_size=stack_size, **options)
