"""Federations whose optimum is known: silo i has the loss 1/2 sum_j a_ij (y_j - b_ij)^2."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from dpfl_plugin.algorithms.base import Algorithm, RoundPlan, Setting
from dpfl_plugin.core.streams import stream
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.vmap import Vmap
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import FullBatch, Sampler
from dpfl_plugin.runtimes.in_process import InProcess


class Quadratic(nn.Module):
    """A record (a, b) has the loss 1/2 sum a (y - b)^2."""

    def __init__(self, start: Sequence[float]) -> None:
        super().__init__()
        self.y = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, features: Tensor) -> Tensor:
        a, b = features.chunk(2, dim=1)
        return 0.5 * (a * (self.y - b) ** 2).sum(dim=1, keepdim=True)


def its_own_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """The model's output is the loss."""
    return outputs[:, 0]


class ByHand(Vmap):
    """`Vmap` with the gradients of `Quadratic` written out: the same numbers, in half the time."""

    def __init__(self, model: Quadratic) -> None:
        super().__init__(model, its_own_loss, 2**20)
        self._gradients = self._slopes

    @staticmethod
    def _slopes(parameters: dict[str, Tensor], features: Tensor, labels: Tensor) -> dict[str, Tensor]:
        a, b = features.chunk(2, dim=1)
        return {"y": a * (parameters["y"] - b)}


def silo(a: Sequence[float], b: Sequence[float], copies: int = 1) -> Records:
    """A silo of equal records (a, b)."""
    features = torch.tensor([[*a, *b]] * copies, dtype=torch.float64)
    return Records(features, torch.zeros(copies, dtype=torch.int64))


def rules(sigma: float = 0.0, clip_norm: float = math.inf, sampler: Sampler | None = None, **others) -> PrivacyRules:
    sampler = sampler or FullBatch()
    values = {"unit": "record", "neighbouring": sampler.neighbouring, "l2": 0.0, **others}
    return PrivacyRules(clip_norm=clip_norm, mechanism=Gaussian(sigma), sampler=sampler, **values)


@dataclass
class Lab:
    """An algorithm on quadratic silos, a round at a time, with everything in reach of a test."""

    algorithm: Algorithm
    silos: Sequence[Records]
    rules: PrivacyRules
    start: Sequence[float]
    silo_rate: float = 1.0
    stack: int = 1
    seed: int = 0
    known: Mapping[str, Any] = field(default_factory=dict)  # what else the algorithm knows of its setting
    weights: Sequence[float] | None = None  # of each silo, adding up to 1; equal if left out

    def __post_init__(self) -> None:
        model = Quadratic(self.start)
        count = len(self.silos)
        x = torch.tensor(self.start, dtype=torch.float64)
        self.setting = Setting(
            **{"record_rate": None, **self.known},
            num_silos=count,
            num_participants=int(self.silo_rate * count),
            silo_rate=self.silo_rate,
        )
        self.host = SiloGroup(
            model=model,
            loss=its_own_loss,
            algorithm=self.algorithm,
            rules=self.rules,
            engine=ByHand(model),
            train=dict(enumerate(self.silos)),
            test=dict(enumerate(self.silos)),
            states=self.algorithm.init_silos(x, count),
        )
        self.ledger = Ledger()
        self.uploads: list[Vectors] = []
        self.runtime = InProcess(
            self.host,
            self.ledger,
            stack_size=self.stack,
            observers=[lambda round, ids, up: self.uploads.append(up)],
        )
        self.server = self.algorithm.init_server(x, self.setting)
        self.round = 0

    def plan(self, participants: Sequence[int] | None = None) -> RoundPlan:
        chosen = tuple(range(len(self.silos))) if participants is None else tuple(participants)
        plan = self.algorithm.round_plan(self.server, self.round, self.setting, stream(self.seed, "plan", self.round))
        of_all = [1 / len(self.silos)] * len(self.silos) if self.weights is None else self.weights
        share = math.fsum(of_all[silo] for silo in chosen)
        weights = tuple(of_all[silo] / share for silo in chosen)
        return replace(plan, participants=chosen, weights=weights, silo_share=share)

    def step(self, participants: Sequence[int] | None = None) -> None:
        """One round."""
        plan = self.plan(participants)
        mean_up = self.runtime.run_round(self.algorithm.download(self.server), plan, Draw(self.seed, self.round))
        self.server = self.algorithm.aggregate(self.server, mean_up, plan)
        self.runtime.commit()
        self.round += 1

    @property
    def optimum(self) -> Tensor:
        """Minimiser of the weighted mean loss."""
        a, b = torch.stack([records.features[0] for records in self.silos]).chunk(2, dim=1)
        if self.weights is not None:
            a = a * torch.tensor(self.weights, dtype=a.dtype).unsqueeze(1)
        return (a * b).sum(dim=0) / a.sum(dim=0)


def released(value, sigma, sensitivity, round, silo):
    """What a silo releases of ``value`` (d,) in the first step of a round of seed 0, by names alone."""
    out = torch.empty_like(value)
    Gaussian(sigma)(value, sensitivity, stream(0, "noise", round, silo, 0), out)
    return out
