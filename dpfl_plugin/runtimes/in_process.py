"""All silos in this process: nothing else to install."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.average import WeightedSum
from dpfl_plugin.core.stopwatch import Seconds
from dpfl_plugin.core.vectors import Vectors, stack
from dpfl_plugin.data.base import Holding
from dpfl_plugin.federation.runtime import ChargeSink, Observer, Runtime
from dpfl_plugin.federation.silo_group import SiloGroup, SiloMetrics
from dpfl_plugin.oracle import Draw
from dpfl_plugin.owners.custody import CheckedCharges, Custody
from dpfl_plugin.runs.build import Parts
from dpfl_plugin.runs.record_marks import MarkKey
from dpfl_plugin.runs.records import hold_all, keys_of


class InProcess:
    """Runs one stack of silos after another.

    Args:
        stack_size: silos advanced together; the result does not depend on it.
        observers: get every round's single uploads, which then are kept for the round (O(S d) memory).
    """

    def __init__(
        self,
        host: SiloGroup,
        charges: ChargeSink,
        *,
        stack_size: int = 1,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._host, self._charges, self._stack_size = host, charges, stack_size
        self._observers = observers

    def run_round(self, down: Vectors, plan: RoundPlan, draw: Draw) -> Vectors:
        self._host.discard()  # what an earlier, abandoned round left
        total, seen = WeightedSum(), []
        for first in range(0, len(plan.participants), self._stack_size):
            part = slice(first, first + self._stack_size)
            up, charges = self._host.run(plan.participants[part], down, plan, draw)
            self._charges.append(charges)
            self._host.clock.lap("I/O")
            total.add(up, plan.weights[part])
            self._host.clock.lap("communication")
            if self._observers:
                seen.append(up)
            del up  # not kept beside the next silos' work
        self._charges.sync()  # before the sum, or any single upload, is handed on
        for observer in self._observers:
            observer(draw.round, plan.participants, stack(seen))
        self._host.clock.lap("I/O")
        return total.total

    def commit(self) -> None:
        self._host.commit()

    def evaluate(self, model: Tensor, dissimilarity: bool, after: int | None = None) -> dict[int, SiloMetrics]:
        return self._host.evaluate(model, dissimilarity)

    def measures(self, model: Tensor) -> dict[str, Any] | None:
        return self._host.measures(model)

    def states(self) -> Vectors:
        return self._host.states

    def load_states(self, states: Vectors) -> None:
        self._host.states = states

    def profiles(self) -> dict[int, Seconds]:
        return {}


class InProcessBackend:
    """All silos in one process, one stack after another."""

    def __init__(self) -> None:
        self._custody = Custody()
        self._key: MarkKey | None = None

    def hold(self, config: Config, base: Path, key: Path) -> Holding:
        self._custody.close()
        self._custody = Custody.here()
        self._custody.check(config)
        self._key = MarkKey.at(key)
        holding = hold_all(config, base, keys_of(config, self._key.value, self._custody.order_secret()))
        return replace(holding, survey=self._key.marked(holding.survey))

    def begin(self) -> None:
        if self._key is not None:
            self._key.keep()

    def runtime(self, parts: Parts, charges: ChargeSink, config: Config) -> Runtime:
        said = self._custody.begin(config, parts, range(parts.setting.num_silos))
        if said is not None:
            print(f"dpfl: {said}", file=sys.stderr, flush=True)
        return InProcess(parts.host, CheckedCharges(self._custody, charges), stack_size=parts.stack)
