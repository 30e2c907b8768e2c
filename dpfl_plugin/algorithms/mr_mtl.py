"""MR-MTL, mean-regularised multi-task learning; with a private oracle its private form. And training alone.

[P] is Liu, Hu, Wu, Smith, "On Privacy and Personalization in Cross-Silo Federated Learning", NeurIPS 2022
(arXiv:2206.07902).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch

from dpfl_plugin.algorithms.base import Oracle, RoundPlan, Setting, algorithm
from dpfl_plugin.algorithms.steps import LocalRate
from dpfl_plugin.core.average import WeightedSum
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import ConfigError, require

OWN = "own"
_OWN_MEAN = (
    "what is trained are the silos' own models, and the server's is their mean, by definition. Leave it out, or use "
    "fedavg."
)


class _OwnModels(LocalRate):
    """A model w_k of each silo's own, which stays there, and w = sum_k p_k w_k at the server.

    What a silo sends is how far its model moved in the round, a function of private gradients and of what it was sent:
    the server's epsilon covers every iterate of every silo, and so whatever is done with the models. At
    ``unit: silo`` gradients are not private by themselves, and a run is refused.
    """

    # The state of a silo that is a model of its own: evaluations measure it beside the server's.
    own_model: ClassVar[str] = OWN
    refuses: ClassVar[Mapping[str, str]] = dict.fromkeys(("server_optimizer", "average"), _OWN_MEAN)

    def pull(self, plan: RoundPlan) -> float:
        """lambda of lambda/2 ||w_k - w||^2 in a round.

        Raises:
            ConfigError: a step would carry w_k beyond w.
        """
        raise NotImplementedError

    def init_server(self, model: torch.Tensor, setting: Setting) -> Vectors:
        return {"model": model}

    def init_silos(self, model: torch.Tensor, num_silos: int) -> Vectors:
        return {OWN: model.repeat(num_silos, 1)}

    def round_plan(self, server: Vectors, round: int, setting: Setting, rng: np.random.Generator) -> RoundPlan:
        K = self.local_steps
        plan = RoundPlan(local_steps=K, local_lr=self.local_rate(setting, K), num_gradients=K)
        self.pull(plan)
        return plan

    def download(self, server: Vectors) -> Vectors:
        return {"model": server["model"]}

    def local_update(self, down: Vectors, silos: Vectors, oracle: Oracle, plan: RoundPlan) -> tuple[Vectors, Vectors]:
        mean, before, pull = down["model"], silos[OWN], self.pull(plan)
        w = before.clone()
        for _ in range(plan.local_steps):
            # The pull is a function of w_k and w alone: added after clipping and noise.
            w.sub_(oracle.gradient(w).add_((w - mean).mul_(pull)).mul_(plan.local_lr))
        return {"model": w - before}, {OWN: w}

    def aggregate(self, server: Vectors, mean_up: Vectors, plan: RoundPlan) -> Vectors:
        # Whoever takes part: the others' models stayed where they were.
        return {"model": server["model"] + plan.silo_share * mean_up["model"]}

    def regroup(
        self, server: Vectors, silos: Vectors, ids: Sequence[int], weights: Sequence[float]
    ) -> tuple[Vectors, Vectors]:
        """w is the mean of those that go on: a model that nobody trains any more must not pull on the others."""
        total = WeightedSum()
        total.add({"model": silos[OWN].to(server["model"].device)}, weights)
        return {"model": total.total["model"]}, silos

    def notes(self, server: Vectors) -> list[str]:
        return ["each silo has a model of its own; the model of the run is their mean, which no silo was trained for."]


@algorithm
class MRMTL(_OwnModels):
    """Each silo has a model of its own, pulled to the mean of all: sum_k F_k(w_k) + lambda/2 ||w_k - w||^2. [P] sec. 4.

    In a round a silo takes K private steps on F_k(w_k) + lambda/2 ||w_k - w||^2 from where its model is. With
    lambda = 0 it is training alone; as lambda grows the silos come to have one model.

    Attributes:
        mean_weight: lambda, at least 0; at most 1 / local_lr, with which a step ends at the mean.
    """

    mean_weight: float

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = 0 <= self.mean_weight < float("inf")
        require(allowed, "mean_weight", self.mean_weight, "be finite and at least 0 (0: silos train alone)")

    def pull(self, plan: RoundPlan) -> float:
        if self.mean_weight * plan.local_lr > 1:
            raise ConfigError(
                f"mean_weight={self.mean_weight:g} with steps of size {plan.local_lr:g}: each step would carry a "
                f"silo's model beyond the mean. Use a mean_weight of at most {1 / plan.local_lr:g}, or smaller steps."
            )
        return self.mean_weight


@algorithm
class Local(_OwnModels):
    """Each silo trains a model alone, on its own records: what a federation has to beat at the same charge. [P] sec. 3.

    The server learns the mean of the models, and nobody goes by it. Charged like FedAvg with as many steps: whoever
    is shown a silo's model is shown private gradients.
    """

    def pull(self, plan: RoundPlan) -> float:
        return 0.0
