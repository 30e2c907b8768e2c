"""The runtime of rank 0: it runs rounds at the silo ranks (`rounds`), has them evaluate, and keeps their states."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dpfl_plugin import errors
from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.core.outcomes import CLASSES, Outcome
from dpfl_plugin.core.stopwatch import STOPPED, Seconds, Stopwatch
from dpfl_plugin.core.vectors import Vectors, stack
from dpfl_plugin.errors import DpflError
from dpfl_plugin.federation.runtime import ChargeSink, Observer, SilosLost
from dpfl_plugin.federation.silo_group import SiloMetrics
from dpfl_plugin.federation.summaries import of_ranks
from dpfl_plugin.oracle import Draw
from dpfl_plugin.runtimes.mpi import wire
from dpfl_plugin.runtimes.mpi.link import Transfer, pull_all, push_all
from dpfl_plugin.runtimes.mpi.ranks import Ranks, SiloLostError
from dpfl_plugin.runtimes.mpi.rounds import Round, RoundLostError


class MpiRuntime:
    """Runs rounds at the silo ranks.

    Args:
        stack_size: silos advanced together, and charges written together; the result does not depend on it.
        aggregation: "gather": every upload comes to rank 0 and is added in the order of silos; "reduce": ranks add up
            their own, and MPI the ranks: faster for large models, but the bits depend on the number of ranks.
        observers: get every round's single uploads, which then are kept for the round (O(S d) memory).
        stopwatch: takes the time of each part of rank 0's work.
        outcome: what labels are.
    """

    def __init__(
        self,
        ranks: Ranks,
        charges: ChargeSink,
        *,
        num_silos: int,
        stack_size: int = 1,
        aggregation: str = "gather",
        observers: Sequence[Observer] = (),
        stopwatch: Stopwatch = STOPPED,
        outcome: Outcome = CLASSES,
    ) -> None:
        if observers and aggregation != "gather":
            raise errors.UnsupportedError(
                f"runtime.aggregation={aggregation!r}: single uploads do not come to rank 0. Use gather."
            )
        self._ranks, self._charges, self._num_silos, self._outcome = ranks, charges, num_silos, outcome
        self._stack_size, self._aggregation = stack_size, aggregation
        self._observers, self._clock = observers, stopwatch
        self._layout: wire.Layout = {}  # of a silo's state

    def run_round(self, down: Vectors, plan: RoundPlan, draw: Draw) -> Vectors:
        self._tell_of_lost()
        self._ranks.clean = False
        current = Round(
            self._ranks,
            self._charges,
            plan,
            self._stack_size,
            self._aggregation,
            bool(self._observers),
            self._clock,
        )
        try:
            current.begin(down, draw)
            total = current.run()
        except SiloLostError:
            raise
        except (DpflError, OSError, RoundLostError) as error:
            current.cancel()
            if isinstance(error, RoundLostError):
                self._tell_of_lost()
            raise
        self._ranks.clean = True
        for observer in self._observers:
            observer(draw.round, plan.participants, stack(current.seen))
        self._clock.lap("communication")
        return total

    def commit(self) -> None:
        self._ranks.tell("commit")

    def evaluate(self, model: Tensor, dissimilarity: bool, after: int | None = None) -> dict[int, SiloMetrics]:
        ranks = self._ranks
        self._tell_of_lost()
        ranks.clean = False
        how = {"dissimilarity": dissimilarity, "after": after, "at": time.time_ns(), "apart": ranks.retries_on_loss}
        ranks.tell("evaluate", model=wire.layout({"model": model}), **how)
        ranks.spread({"model": model}, "taking the model to evaluate")
        found = {
            silo: SiloMetrics(loss, score, personalised_score=own)
            for header in ranks.answers("evaluated", "evaluating").values()
            for silo, loss, score, own in header["metrics"]
        }
        if dissimilarity:
            gradients = {silo: torch.empty_like(model) for silo in sorted(found)}
            self._pull({silo: {"gradient": value} for silo, value in gradients.items()})
            found = {silo: replace(m, gradient=gradients[silo]) for silo, m in found.items()}
        ranks.clean = True
        self._clock.lap("evaluation")
        self._tell_of_lost()
        return dict(sorted(found.items()))

    def measures(self, model: Tensor) -> dict[str, Any] | None:
        """Of each silo, where this rank may have them; else None, and silo ranks note theirs
        (`dpfl_plugin.runs.measurements`)."""
        ranks = self._ranks
        self._tell_of_lost()
        ranks.clean = False
        how = {"at": time.time_ns(), "apart": ranks.retries_on_loss}
        ranks.tell("measure", model=wire.layout({"model": model}), **how)
        ranks.spread({"model": model}, "taking the model to measure")
        answers = ranks.answers("measured", "measuring").values()
        ranks.clean = True
        self._clock.lap("evaluation")
        self._tell_of_lost()
        return of_ranks(self._outcome, {silo: table for header in answers for silo, table in header["tables"]})

    def states(self) -> Vectors:
        ranks = self._ranks
        self._tell_of_lost()
        ranks.clean = False
        ranks.tell("states")
        answers = ranks.answers("states", "sending its states")
        if answers:  # else all are lost, and what they held is not known here
            self._layout = wire.read_layout(answers[min(answers)]["states"])
        states = wire.zeros(self._layout, torch.device("cpu"), self._num_silos)
        theirs = [silo for silo in range(self._num_silos) if ranks.owner(silo) in answers]
        self._pull({silo: {name: value[silo] for name, value in states.items()} for silo in theirs})
        ranks.clean = True
        self._tell_of_lost()
        return states

    def load_states(self, states: Vectors) -> None:
        ranks = self._ranks
        self._tell_of_lost()
        ranks.clean = False
        self._layout = wire.layout(states, row=True)
        ranks.tell("load", states=self._layout)
        on_their_way: dict[int, list[Transfer]] = {rank: [] for rank in ranks.silo_ranks}
        for silo in range(self._num_silos):
            rank = ranks.owner(silo)
            if rank in on_their_way:
                row = {name: value[silo].contiguous() for name, value in states.items()}
                on_their_way[rank] += push_all(ranks.link, rank, row)
        ranks.finish_each(on_their_way, "taking its states")
        ranks.answers("loaded", "taking its states")
        ranks.clean = True
        self._tell_of_lost()

    def profiles(self) -> dict[int, Seconds]:
        self._ranks.tell("profile")
        found = self._ranks.answers("profiled", "telling its times")
        return {rank: header["seconds"] for rank, header in found.items()}

    def _pull(self, into: dict[int, Vectors]) -> None:
        """What every silo sends, in the order of silos; nothing from those that are lost."""
        for silo, vectors in into.items():
            rank = self._ranks.owner(silo)
            if rank not in self._ranks.lost:
                self._ranks.finish_each(
                    {rank: pull_all(self._ranks.link, rank, vectors)}, f"sending what silo {silo} has"
                )

    def _tell_of_lost(self) -> None:
        """Raise SilosLost if ranks with silos were lost since it was asked last.

        At the end of whatever was asked of all ranks: those that live have then sent and taken all that belongs to it.
        """
        news = set(self._ranks.news())
        silos = [silo for silo in range(self._num_silos) if self._ranks.owner(silo) in news]
        if silos:
            raise SilosLost({silo: self._ranks.lost[self._ranks.owner(silo)] for silo in silos})
