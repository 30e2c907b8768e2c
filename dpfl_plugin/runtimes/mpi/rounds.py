"""One round as rank 0 sees it.

Every silo rank is told the plan and gets the download; each stack that is computed is reported with its charges; the
charges are written in the order of silos and synced; then, and not before, the silos are told to send. Uploads are
taken in the order of silos, two at a time, and added: rank 0 holds O(d), and adds in the same order as a run in one
process.
"""

from __future__ import annotations

from collections import deque

import torch

from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.core.average import WeightedSum
from dpfl_plugin.core.stopwatch import Stopwatch
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import TrainingError
from dpfl_plugin.federation.runtime import ChargeSink
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.runtimes.mpi import wire
from dpfl_plugin.runtimes.mpi.link import Patience, Transfer, all_done, pull_all
from dpfl_plugin.runtimes.mpi.ranks import Ranks

AT_ONCE = 2  # uploads on their way to rank 0: one is added while the next comes in


class RoundLostError(Exception):
    """Silos that take part in a round were lost before it had their uploads."""


class Round:
    """One round as rank 0 sees it."""

    def __init__(
        self,
        ranks: Ranks,
        charges: ChargeSink,
        plan: RoundPlan,
        stack_size: int,
        aggregation: str,
        keeps: bool,
        clock: Stopwatch,
    ) -> None:
        self._ranks, self._sink, self._plan, self._clock = ranks, charges, plan, clock
        self._stack_size, self._gathers, self._keeps = stack_size, aggregation == "gather", keeps
        self._computed: dict[int, list[Charge]] = {}
        self._charged = 0  # of the participants, in order
        self._layout: wire.Layout = {}
        self._round, self._device = 0, torch.device("cpu")
        self._incoming: deque[tuple[int, Vectors, list[Transfer]]] = deque()
        self._asked = self._received = 0
        self._free: list[Vectors] = []
        self._total = WeightedSum()
        self._watch = ranks.watch()
        self.seen: list[Vectors] = []

    def begin(self, down: Vectors, draw: Draw) -> None:
        self._round, self._device = draw.round, next(iter(down.values())).device
        wire.check_participants(self._plan)  # before silo ranks refuse them
        how = {"down": wire.layout(down), "apart": self._ranks.retries_on_loss}
        self._ranks.tell("round", **wire.plan_header(self._plan, draw), **how)
        self._ranks.spread(down, "taking the download")

    def run(self) -> Vectors:
        """The weighted sum of the uploads."""
        patience, everybody = Patience(), len(self._plan.participants)
        while self._received < everybody:
            if self._listen() | self._charge() | self._receive():
                patience.reset()
                continue
            self._check_complete()
            self._ranks.check(self._watch, self._owing())
            patience.wait()
        return self._total.total

    def _check_complete(self) -> None:
        """Raise RoundLostError if an upload that is not here yet will not come."""
        lost = self._ranks.lost
        if lost and any(self._ranks.owner(silo) in lost for silo in self._plan.participants[self._received :]):
            raise RoundLostError

    def cancel(self) -> None:
        """End the round at all ranks; what was asked for still comes, and is let go."""
        ranks = self._ranks
        ranks.tell_some(ranks.silo_ranks, "cancel")
        for silo, into, transfers in self._incoming:
            self._let_go(silo, into, transfers)
        if self._gathers:
            for silo in self._plan.participants[self._asked : self._charged]:
                into = wire.empty(self._layout, self._device, 1)
                self._let_go(silo, into, pull_all(ranks.link, ranks.owner(silo), into))
        missing, patience = set(ranks.silo_ranks), Patience()
        while missing - set(ranks.lost):
            found = ranks.hear()
            if found is None:
                ranks.check(self._watch, dict.fromkeys(missing, "leaving a round"))
                patience.wait()
                continue
            patience.reset()
            if found[1]["say"] == "cancelled":
                missing.discard(found[0])
        ranks.clean = True

    def _let_go(self, silo: int, into: Vectors, transfers: list[Transfer]) -> None:
        """Take an upload of a round that does not count."""
        rank = self._ranks.owner(silo)
        if rank in self._ranks.lost:
            self._ranks.keep((into, transfers))
            return
        self._ranks.finish_each({rank: transfers}, f"leaving round {self._round + 1}, silo {silo}")

    def _owing(self) -> dict[int, str]:
        """Ranks that have still to compute, or whose upload is awaited, and of which silo."""
        computing = [silo for silo in self._plan.participants if silo not in self._computed]
        awaited = [silo for silo, _, transfers in self._incoming if not all_done(transfers)]
        return {
            self._ranks.owner(silo): f"round {self._round + 1}, silo {silo}" for silo in [*computing[::-1], *awaited]
        }

    def _listen(self) -> bool:
        found = self._ranks.poll()
        if found is None:
            return False
        rank, header = found
        self._watch.heard(rank)
        by_silo: dict[int, list[Charge]] = {silo: [] for silo in header["silos"]}
        for charge in wire.read_charges(header["charges"]):
            by_silo[charge.silo].append(charge)
        self._computed.update(by_silo)
        described = wire.read_layout(header["up"])
        if self._layout and self._layout != described:
            raise TrainingError(f"rank {rank}: the silos of a round send vectors of different names, types or shapes.")
        self._layout = described
        return True

    def _charge(self) -> bool:
        """Write what is complete, stack by stack as one process does; when it is on disk, the uploads may leave."""
        self._clock.lap("communication")
        everybody, ready = self._plan.participants, self._charged
        while ready < len(everybody):
            part = everybody[ready : ready + self._stack_size]
            if not all(silo in self._computed for silo in part):
                break
            self._sink.append([charge for silo in part for charge in self._computed[silo]])
            ready += len(part)
        if ready == self._charged:
            return False
        self._sink.sync()  # before anything of an upload leaves its silo's rank
        self._clock.lap("I/O")
        released, self._charged = everybody[self._charged : ready], ready
        if self._gathers:
            for rank in self._ranks.silo_ranks:
                silos = [silo for silo in released if self._ranks.owner(silo) == rank]
                if silos:
                    self._ranks.tell_some([rank], "send", silos=silos)
        elif ready == len(everybody):
            self._reduce()
        return True

    def _reduce(self) -> None:
        self._ranks.tell_some(self._ranks.silo_ranks, "reduce", up=self._layout)
        total = wire.empty(self._layout, self._device)
        nothing = wire.zeros(self._layout, self._device)
        parts = [self._ranks.link.reduce(nothing[name], total[name]) for name in self._layout]
        self._ranks.finish(parts, self._ranks.silo_ranks, "adding up")
        self._total.total, self._received = total, len(self._plan.participants)

    def _receive(self) -> bool:
        """Ask for the next uploads in the order of silos, and add what has come."""
        if not self._gathers:
            return False
        while len(self._incoming) < AT_ONCE and self._asked < self._charged:
            silo = self._plan.participants[self._asked]
            into = self._free.pop() if self._free else wire.empty(self._layout, self._device, 1)
            self._incoming.append((silo, into, pull_all(self._ranks.link, self._ranks.owner(silo), into)))
            self._asked += 1
        if not self._incoming or not all_done(self._incoming[0][2]):
            return False
        silo, upload, _ = self._incoming.popleft()
        self._watch.heard(self._ranks.owner(silo))
        self._total.add(upload, [self._plan.weights[self._received]])
        if self._keeps:
            self.seen.append(upload)
        else:
            self._free.append(upload)
        self._received += 1
        return True
