"""Silos of one process: their records, their states, and the work of a round. Every runtime has one."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from dpfl_plugin.algorithms.base import Algorithm, RoundPlan
from dpfl_plugin.core.vectors import Layout, Vectors, stack
from dpfl_plugin.gradients import smoothing
from dpfl_plugin.gradients.base import Engine, Loss, Records, layers
from dpfl_plugin.gradients.losses import predict
from dpfl_plugin.oracle import Draw, PrivacyRules, PrivateOracle
from dpfl_plugin.privacy.events import Charge

# A silo's state beside the algorithm's, which never sees it: C_i (m, 1), where the clipping adapts it.
CLIP_NORM = "oracle.clip_norm"
# Records in one forward pass of an evaluation; bounds its memory, not its result's meaning.
EVALUATION_CHUNK = 8192


@dataclass(frozen=True, slots=True)
class SiloMetrics:
    """A silo's mean training loss and test accuracy; ``gradient`` (d,) of its training loss where asked for."""

    train_loss: float
    test_accuracy: float
    gradient: Tensor | None = None


class SiloHost:
    """Runs rounds for the silos whose records it holds.

    Args:
        train, test: records by silo id.
        states: (len(train), d) each, rows in the order of ascending ids.
    """

    def __init__(
        self,
        *,
        model: torch.nn.Module,
        loss: Loss,
        algorithm: Algorithm,
        rules: PrivacyRules,
        engine: Engine,
        train: Mapping[int, Records],
        test: Mapping[int, Records],
        states: Vectors,
    ) -> None:
        self.ids = sorted(train)
        self._row = {silo: row for row, silo in enumerate(self.ids)}
        self._model, self._loss, self._layout = model.eval(), loss, Layout.of(model)
        self._algorithm, self._rules, self._engine = algorithm, rules, engine
        self._train = {silo: engine.prepare(records) for silo, records in train.items()}
        self._test = test
        self.states = self._begun(states)
        self._layers = layers(self._layout)
        self._pending: list[tuple[list[int], Vectors]] = []
        self._smoothed: dict[smoothing.Kind, Engine] = {}

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def train(self) -> Mapping[int, Records]:
        """The training records by silo id, as the engine prepared them."""
        return self._train

    def planted(self, engine: Engine, train: Mapping[int, Records], states: Vectors) -> SiloHost:
        """The same silos with an engine around their own, and with records that theirs has prepared; for audits."""
        other = copy.copy(self)
        other._engine, other._train, other._pending = engine, dict(train), []
        other.states = self._begun(states)
        return other

    def _begun(self, states: Vectors) -> Vectors:
        """With C_i, where the clipping adapts it; in float64 on any device, so that a checkpoint has all of it."""
        if not self._rules.clipping.adapts:
            return states
        start = torch.full((len(self._train), 1), self._rules.clip_norm, dtype=torch.float64)
        return {**states, CLIP_NORM: start}

    def run(self, ids: Sequence[int], down: Vectors, plan: RoundPlan, draw: Draw) -> tuple[Vectors, list[Charge]]:
        """(uploads (m, d), charges) of the silos ``ids``, advanced together.

        The charges must be in the ledger before anything else is done with the uploads. New states wait for `commit`.
        """
        if self._rules.unit == "silo" and len(ids) > 1:
            # Rows of a stack are raw gradients here: one silo at a time, none can end up in another's upload.
            parts = [self.run([silo], down, plan, draw) for silo in ids]
            return stack([up for up, _ in parts]), [charge for _, charges in parts for charge in charges]
        rows = [self._row[silo] for silo in ids]
        oracle = PrivateOracle(
            self._rules,
            self._engine_for(plan),
            [self._train[silo] for silo in ids],
            ids,
            draw,
            max_gradients=plan.num_gradients,
            share=plan.share,
            layers=self._layers,
            clip_norms=self.states[CLIP_NORM][rows, 0].tolist() if CLIP_NORM in self.states else None,
        )
        old = {name: value[rows] for name, value in self.states.items() if name != CLIP_NORM}
        up, new = self._algorithm.local_update(down, old, oracle, plan)
        oracle.check_upload(up)
        if CLIP_NORM in self.states:
            new = {**new, CLIP_NORM: self.states[CLIP_NORM].new_tensor(oracle.clip_norms).unsqueeze(1)}
        self._pending.append((rows, new))
        return up, oracle.charges()

    def _engine_for(self, plan: RoundPlan) -> Engine:
        if plan.smoothing is None:
            return self._engine
        if plan.smoothing not in self._smoothed:
            self._smoothed[plan.smoothing] = smoothing.engine(plan.smoothing, self._model, self._loss)
        return self._smoothed[plan.smoothing]

    def commit(self) -> None:
        for rows, new in self._pending:
            for name, value in new.items():
                self.states[name][rows] = value
        self._pending.clear()

    def discard(self) -> None:
        """Forget the new states of a round that does not count."""
        self._pending.clear()

    @torch.no_grad()
    def evaluate(self, model: Tensor, dissimilarity: bool) -> dict[int, SiloMetrics]:
        parameters = self._layout.unflatten(model)
        metrics = {}
        for silo in self.ids:
            train, test = self._train[silo], self._test[silo]
            loss, correct = 0.0, 0
            for outputs, labels in self._outputs(parameters, train):
                loss += float(self._loss(outputs, labels).double().sum())
            for outputs, labels in self._outputs(parameters, test):
                correct += int((predict(outputs) == labels).sum())
            gradient = None
            if dissimilarity:
                gradient = torch.empty_like(model)
                self._engine.clipped_sum(model, train, math.inf, gradient)
                gradient /= len(train)
            metrics[silo] = SiloMetrics(loss / len(train), correct / len(test), gradient)
        return metrics

    def _outputs(self, parameters: dict[str, Tensor], records: Records):  # type: ignore[no-untyped-def]
        for first in range(0, len(records), EVALUATION_CHUNK):
            chunk = records.between(first, min(first + EVALUATION_CHUNK, len(records)))
            yield functional_call(self._model, parameters, (chunk.features,)), chunk.labels
