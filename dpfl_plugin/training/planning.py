"""What a round will do, known without any record: who takes part, with what weight, and what silos will send.

Participants are drawn from the run's seed, never from data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from dpfl_plugin.algorithms.base import Algorithm, RoundPlan, Setting
from dpfl_plugin.core.streams import stream
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import ConfigError


def draw_participants(seed: int, round: int, setting: Setting, eligible: Sequence[int] | None = None) -> list[int]:
    """S of the silos, uniformly, without replacement, independently of all data; ascending.

    Args:
        eligible: who may be drawn, ascending, at least S of them; None for all.
    """
    pool = range(setting.num_silos) if eligible is None else eligible
    if setting.num_participants == len(pool):
        return list(pool)
    rng = stream(seed, "participants", round)
    chosen = rng.choice(len(pool), setting.num_participants, replace=False)
    return sorted(pool[int(index)] for index in chosen)


@dataclass(frozen=True, slots=True)
class Planner:
    """Completes an algorithm's round plans.

    Attributes:
        weights: of each silo, adding up to 1.
        training: the part [0, last) of each silo's records that rounds may read; shares are shares of it.
    """

    algorithm: Algorithm
    setting: Setting
    weights: tuple[float, ...]
    seed: int
    training: tuple[float, float] = (0.0, 1.0)

    def asks(self, server: Vectors, round: int) -> RoundPlan:
        """The algorithm's plan of a round, before anybody is drawn.

        Raises:
            ConfigError: the algorithm asks for a participation that is not known.
        """
        plan = self.algorithm.round_plan(server, round, self.setting, stream(self.seed, "plan", round))
        if plan.participation not in ("all", "sampled"):
            raise ConfigError(f"the algorithm's round plan has participation {plan.participation!r}: all or sampled.")
        first, last = plan.share
        return replace(plan, task="train", share=(first * self.training[1], last * self.training[1]))

    def of_all(self, task: Literal["score", "personalise"], local_steps: int = 0, local_lr: float = 0.0) -> RoundPlan:
        """A plan beside the algorithm's rounds, of all silos."""
        return RoundPlan(
            local_steps=local_steps,
            local_lr=local_lr,
            num_gradients=local_steps,
            participation="all",
            share=self.training,
            phase=task,
            task=task,
            participants=tuple(range(self.setting.num_silos)),
            weights=self.weights,
        )

    def plan(self, server: Vectors, round: int, eligible: Sequence[int] | None = None) -> RoundPlan | None:
        """The plan of a round, with its participants and their weights; None if too few silos are eligible.

        Args:
            eligible: silos that may still take part, ascending; None for all.

        Raises:
            ConfigError: as `asks`.
        """
        plan = self.asks(server, round)
        num_silos, sampled = self.setting.num_silos, plan.participation == "sampled"
        if eligible is not None and len(eligible) < (self.setting.num_participants if sampled else num_silos):
            return None
        chosen = draw_participants(self.seed, round, self.setting, eligible) if sampled else list(range(num_silos))
        if len(set(self.weights)) == 1:  # exactly 1/S and S/M, whatever their floating sum
            weights, share = (1 / len(chosen),) * len(chosen), len(chosen) / num_silos
        else:
            share = math.fsum(self.weights[silo] for silo in chosen)
            weights = tuple(self.weights[silo] / share for silo in chosen)
        return replace(plan, participants=tuple(chosen), weights=weights, silo_share=share)


@dataclass(slots=True)
class Rehearsal:
    """Stands in for the oracle of one silo, without records: its gradients are zero."""

    num_silos: int = 1
    released: list[Tensor] = field(default_factory=list)

    def gradient(self, y: Tensor) -> Tensor:
        return torch.zeros_like(y)

    def release(self, update: Tensor) -> Tensor:
        self.released.append(update + 1)  # as noise would, it tells what was released from what was not
        return self.released[-1]


def rehearse(algorithm: Algorithm, server: Vectors, plan: RoundPlan) -> tuple[Vectors, Rehearsal]:
    """What one silo would send in a round, (1, d) each, and what it released: known without any record."""
    oracle = Rehearsal()
    silos = algorithm.init_silos(server["model"], 1)
    up, _ = algorithm.local_update(algorithm.download(server), silos, oracle, plan)
    return up, oracle
