"""ScaffNew (Mishchenko et al. 2022, arXiv:2202.09357); with a private oracle DP-ScaffNew.

[S] is "Balancing Privacy and Performance for Private Federated Learning Algorithms" (under review, no authors named).
Its iterations between two communications are one round here. The coins theta_t are the server's, one for all silos,
and independent of all data, so that the number of local steps of a round is geometric and known before it starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch

from dpfl_plugin.algorithms.averages import AveragedModels
from dpfl_plugin.algorithms.base import Oracle, RoundPlan, Setting, algorithm
from dpfl_plugin.core.average import WeightedSum
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import ConfigError, require


@algorithm
class ScaffNew(AveragedModels):
    """Local steps shifted by h_i, y -= eta (g - h_i), for a random number of steps. [S] Alg. 2.

    At silo level (``unit: silo``) Delta_i = clip(y - x, C) + noise is all that leaves a silo, as in [S]; at record
    level the gradients are private and the release is plain. h_i is a function of what was sent and received.

    Attributes:
        local_lr: eta.
        p: the probability of communicating after an iteration, in (0, 1].
        local_steps: instead of p, a fixed number of local steps K, with p = 1/K in the shifts ([S] sec. 3 runs it so).
    """

    # At silo level, too: h_i and the last update are functions of what was released and of downloads.
    states_are_released: ClassVar[bool] = True
    refuses: ClassVar[Mapping[str, str]] = {
        "server_optimizer": (
            "the server's model must be the mean of the silos' models, by which the next h_i are renewed, so that they "
            "add up to 0. Leave it out, or use scaffold."
        )
    }

    local_lr: float
    p: float | None = None
    local_steps: int | None = None

    def __post_init__(self) -> None:
        require(0 < self.local_lr < float("inf"), "local_lr", self.local_lr, "be positive and finite")
        if (self.p is None) == (self.local_steps is None):
            raise ConfigError("p (probability of communicating) and local_steps (a fixed number): give exactly one.")
        require(self.p is None or 0 < self.p <= 1, "p", self.p, "be in (0, 1]: with p = 0 nothing is ever sent")
        _ = self.averages  # checks its own options
        steps = self.local_steps
        require(steps is None or steps >= 1, "local_steps", steps, "be at least 1")

    @property
    def probability(self) -> float:
        """p, or 1/K."""
        return self.p if self.p is not None else 1 / (self.local_steps or 1)

    def init_server(self, model: torch.Tensor, setting: Setting) -> Vectors:
        every = setting.num_participants == setting.num_silos
        require(every, "silo_rate", setting.silo_rate, "be 1: every silo needs every mean")
        return {"model": model, "mean_update": torch.zeros_like(model), **self.begin_average(model, setting)}

    def init_silos(self, model: torch.Tensor, num_silos: int) -> Vectors:
        zeros = model.new_zeros(num_silos, model.numel())
        return {"control": zeros, "update": zeros.clone()}  # sum_i h_i = 0, l. 1

    def round_plan(self, server: Vectors, round: int, setting: Setting, rng: np.random.Generator) -> RoundPlan:
        # l. 3: iterations up to the first theta_t = 1
        K = int(rng.geometric(self.p)) if self.p is not None else self.local_steps or 1
        return RoundPlan(local_steps=K, local_lr=self.local_lr, num_gradients=K, participation="all")

    def download(self, server: Vectors) -> Vectors:
        return {"model": self.sent(server), "mean_update": server["mean_update"]}

    def local_update(self, down: Vectors, silos: Vectors, oracle: Oracle, plan: RoundPlan) -> tuple[Vectors, Vectors]:
        x, eta, p = down["model"], plan.local_lr, self.probability
        # l. 9 of the round before, whose mean arrives only now; both are 0 before the first round.
        h_i = silos["control"] + (p / eta) * (down["mean_update"] - silos["update"])
        y = x.expand_as(h_i).clone()
        for _ in range(plan.local_steps):
            y.sub_(oracle.gradient(y).sub_(h_i).mul_(eta))  # l. 5-6
        update = oracle.release(y - x)  # l. 7
        return {"update": update}, {"control": h_i, "update": update}

    def aggregate(self, server: Vectors, mean_up: Vectors, plan: RoundPlan) -> Vectors:
        mean_update = mean_up["update"]
        return {**self.averaged(server, self.sent(server) + mean_update), "mean_update": mean_update}  # l. 8

    def regroup(
        self, server: Vectors, silos: Vectors, ids: Sequence[int], weights: Sequence[float]
    ) -> tuple[Vectors, Vectors]:
        """sum_i h_i = 0 over those that go on: the h_i are centred, as is what the next download adds to them.

        The model keeps what a silo that is gone has sent.
        """
        mean = WeightedSum()
        mean.add(silos, weights)
        mean_update = mean.total["update"].to(server["mean_update"].device)
        centred = silos["control"] - mean.total["control"]
        return {**server, "mean_update": mean_update}, {**silos, "control": centred}

    def notes(self, server: Vectors) -> list[str]:
        theorem = (
            "scaffnew: Theorem 1 of its paper presumes strongly convex losses, local_lr at most 1/L, gradients of all "
            "records without noise (sampler: full, unit: silo) and a clip_norm that no update reaches"
        )
        fails = (
            "; and a random number of local steps: with a fixed one it does not apply."
            if self.p is None
            else ". Where one of these fails it does not apply."
        )
        return [theorem + fails, *self.average_notes(server)]
