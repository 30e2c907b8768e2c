"""A run in this process that loses silos: what runs on ranks that die have to give, to the bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any
from unittest import mock

from torch import Tensor

from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.federation.runtime import ChargeSink, Runtime, SilosLost
from dpfl_plugin.federation.silo_group import SiloMetrics
from dpfl_plugin.oracle import Draw
from dpfl_plugin.runs.build import Parts
from dpfl_plugin.runtimes.in_process import InProcess, InProcessBackend

Losses = Mapping[int | tuple[str, int], Mapping[int, str]]
"""{(method, call): {silo: why}}, calls counted from 1; a call alone is one of `run_round`."""


class Losing(InProcess):
    """Loses silos in calls of its methods.

    Args:
        late: whether the round was charged by then.
    """

    def __init__(self, *args: Any, losses: Losses, late: bool, **options: Any) -> None:
        super().__init__(*args, **options)
        self.losses = {key if isinstance(key, tuple) else ("run_round", key): lost for key, lost in losses.items()}
        self.late, self.calls, self.lost = late, Counter[str](), set[int]()
        self.seen: list[tuple[RoundPlan, Draw]] = []

    def run_round(self, down: Vectors, plan: RoundPlan, draw: Draw) -> Vectors:
        self.seen.append((plan, draw))
        assert not self.lost & set(plan.participants)
        if self.late and ("run_round", self.calls["run_round"] + 1) in self.losses:
            super().run_round(down, plan, draw)
            self._host.discard()
        self._lose("run_round")
        return super().run_round(down, plan, draw)

    def _lose(self, method: str) -> None:
        self.calls[method] += 1
        lost = self.losses.get((method, self.calls[method]))
        if lost is not None:
            self.lost |= set(lost)
            raise SilosLost(lost)

    def evaluate(self, model: Tensor, dissimilarity: bool, after: int | None = None) -> dict[int, SiloMetrics]:
        self._lose("evaluate")
        found = super().evaluate(model, dissimilarity, after)
        return {silo: metrics for silo, metrics in found.items() if silo not in self.lost}

    def states(self) -> Vectors:
        self._lose("states")
        states = {name: value.clone() for name, value in super().states().items()}
        for value in states.values():
            value[list(self.lost)] = float("nan")  # nobody may look at them
        return states

    def load_states(self, states: Vectors) -> None:
        super().load_states({name: value.clone() for name, value in states.items()})


def losing(losses: Losses, *, late: bool = False, made: list[Losing] | None = None) -> Any:
    """Runs within this context lose silos; ``made`` gets their runtimes."""

    def runtime(self: InProcessBackend, parts: Parts, charges: ChargeSink, config: Config) -> Runtime:
        one = Losing(parts.host, charges, stack_size=parts.stack, losses=losses, late=late)
        if made is not None:
            made.append(one)
        return one

    return mock.patch.object(InProcessBackend, "runtime", runtime)
