"""Workloads, and their synthetic federations: values do not matter for time, shapes do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.algorithms.scaffold import Scaffold
from dpfl_plugin.core.streams import stream
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.samplers import FixedSize


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A round of DP-SCAFFOLD on softmax regression.

    Attributes:
        num_features, num_classes: of the model.
        num_silos: M; num_records: R, training records of each silo; num_participants: S, silos in a round.
        batch_size: b, records of a local step, without replacement.
        local_steps: K; local_lr: eta_l.
        clip_norm: C; noise_multiplier: sigma_g. 0 and inf are allowed: see `contenders`.
        seed: of the data, the batches, the participants and the noise.
    """

    num_features: int
    num_classes: int
    num_silos: int
    num_records: int
    num_participants: int
    batch_size: int
    local_steps: int = 50
    local_lr: float = 0.1
    clip_norm: float = 1.0
    noise_multiplier: float = 1.0
    seed: int = 0

    @property
    def algorithm(self) -> Scaffold:
        return Scaffold(local_steps=self.local_steps, local_lr=self.local_lr)

    @property
    def sampler(self) -> FixedSize:
        return FixedSize(batch_size=self.batch_size)

    @property
    def silo_steps(self) -> int:
        """Local steps of all silos in a round."""
        return self.num_participants * self.local_steps

    def plan(self, round: int) -> RoundPlan:
        """Who takes part in a round, the same for all that are compared."""
        rng = stream(self.seed, "participants", round)
        chosen = sorted(rng.choice(self.num_silos, self.num_participants, replace=False).tolist())
        return RoundPlan(
            local_steps=self.local_steps,
            local_lr=self.local_lr,
            num_gradients=self.local_steps,
            participants=tuple(chosen),
            weights=(1 / len(chosen),) * len(chosen),
            silo_share=len(chosen) / self.num_silos,
        )

    def draw(self, round: int) -> Draw:
        """The names of a round's random streams, the same for all that are compared."""
        return Draw(self.seed, round, run="benchmark")

    def silos(self) -> list[Records]:
        """Normal features and uniform labels of all silos."""
        return [self.silo(silo) for silo in range(self.num_silos)]

    def silo(self, silo: int) -> Records:
        """Normal features and uniform labels of one silo."""
        rng = stream(self.seed, "data", silo=silo)
        features = rng.standard_normal((self.num_records, self.num_features), dtype="float32")
        labels = rng.integers(self.num_classes, size=self.num_records)
        return Records(torch.from_numpy(features), torch.from_numpy(labels))


WORKLOADS: Final[dict[str, Workload]] = {
    "W1": Workload(
        num_features=40, num_classes=10, num_silos=100, num_records=4000, num_participants=20, batch_size=800
    ),
    "W2": Workload(
        num_features=784, num_classes=47, num_silos=40, num_records=2000, num_participants=8, batch_size=400
    ),
}


def describe(workload: Workload) -> str:
    """A workload in words."""
    w = workload
    return (
        f"softmax regression {w.num_features} -> {w.num_classes} on {w.num_silos} silos of {w.num_records} records; "
        f"a round is {w.num_participants} silos x {w.local_steps} local steps on {w.batch_size} records"
    )
