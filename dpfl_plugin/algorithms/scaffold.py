"""SCAFFOLD (Karimireddy et al. 2020, arXiv:1910.06378); with a private oracle DP-SCAFFOLD and DP-SCAFFOLD-warm.

[N] is Noble et al., AISTATS 2022 (hal-03905078v1). The control variates are functions of the same private
gradients as the update, so they cost no privacy of their own ([N] Claim 4.1, server's side).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from dpfl_plugin.algorithms.base import Oracle, RoundPlan, Setting, algorithm
from dpfl_plugin.algorithms.steps import LocalSteps
from dpfl_plugin.core.average import WeightedSum
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import require


@algorithm
class Scaffold(LocalSteps):
    """Local steps corrected by control variates: y -= eta_l (H(y) - c_i + c). [N] Alg. 1.

    Attributes:
        option: how c_i is renewed. "II": c_i - c + (x - y) / (K eta_l), the mean of the round's gradients;
            "I": one more private gradient at x, which is charged like the others.
    """

    option: Literal["I", "II"] = "II"

    def init_server(self, model: torch.Tensor, setting: Setting) -> Vectors:
        return {"model": model, "control": torch.zeros_like(model), **self.begin(model, setting)}

    def init_silos(self, model: torch.Tensor, num_silos: int) -> Vectors:
        return {"control": model.new_zeros(num_silos, model.numel())}

    def round_plan(self, server: Vectors, round: int, setting: Setting, rng: np.random.Generator) -> RoundPlan:
        K = self.local_steps
        extra = 1 if self.option == "I" else 0
        return RoundPlan(local_steps=K, local_lr=self.local_rate(setting, K), num_gradients=K + extra)

    def download(self, server: Vectors) -> Vectors:
        return {"model": self.sent(server), "control": server["control"]}  # [N] Alg. 1, l. 4

    def local_update(self, down: Vectors, silos: Vectors, oracle: Oracle, plan: RoundPlan) -> tuple[Vectors, Vectors]:
        x, c, c_i = down["model"], down["control"], silos["control"]
        K, eta_l = plan.local_steps, plan.local_lr
        c_new = oracle.gradient(x.expand_as(c_i)) if self.option == "I" else None
        y = x.expand_as(c_i).clone()  # l. 6
        correction = c - c_i
        for _ in range(K):
            y.sub_(oracle.gradient(y).add_(correction).mul_(eta_l))  # l. 14
        if c_new is None:
            c_new = c_i - c + (x - y) / (K * eta_l)  # l. 15
        return {"model": y - x, "control": c_new - c_i}, {"control": c_new}  # l. 16-18

    def aggregate(self, server: Vectors, mean_up: Vectors, plan: RoundPlan) -> Vectors:
        c = server["control"] + plan.silo_share * mean_up["control"]
        return {**self.advance(server, mean_up["model"]), "control": c}  # l. 20-21

    def regroup(
        self, server: Vectors, silos: Vectors, ids: Sequence[int], weights: Sequence[float]
    ) -> tuple[Vectors, Vectors]:
        """c is the mean of the c_i of those that go on.

        Were the c_j of a silo that is gone left in c, its gradient at its last model would pull on x for ever: c - c_i
        would not average to 0 where all gradients do.
        """
        total = WeightedSum()
        total.add({"control": silos["control"].to(server["control"].device)}, weights)
        return {**server, "control": total.total["control"]}, silos

    def notes(self, server: Vectors) -> list[str]:
        return self.average_notes(server)


@algorithm
class ScaffoldWarm(Scaffold):
    """SCAFFOLD whose first rounds set c_i = 1/K sum_k H_k(x^0) while the model stays. [N] sec. 3.3.

    These rounds release K gradients of each participant like any other, and are charged like any other.

    Attributes:
        warm_rounds: the most rounds to spend on it, before which it ends once every silo was picked;
            ceil(4 / l) if left out, after which a silo was missed with probability e^-4 or so.
    """

    warm_rounds: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.warm_rounds is None or self.warm_rounds >= 1, "warm_rounds", self.warm_rounds, "be at least 1")

    def init_server(self, model: torch.Tensor, setting: Setting) -> Vectors:
        picked = torch.zeros(setting.num_silos, dtype=torch.bool)
        return {**super().init_server(model, setting), "picked": picked}

    def round_plan(self, server: Vectors, round: int, setting: Setting, rng: np.random.Generator) -> RoundPlan:
        plan = super().round_plan(server, round, setting, rng)
        limit = self.warm_rounds or math.ceil(4 / setting.silo_rate)
        plan = replace(plan, most_gradients=plan.num_gradients)  # when the warm-up ends, the draws decide
        if round < limit and not bool(server["picked"].all()):
            return replace(plan, phase="warm-up", num_gradients=self.local_steps)
        return plan

    def local_update(self, down: Vectors, silos: Vectors, oracle: Oracle, plan: RoundPlan) -> tuple[Vectors, Vectors]:
        if plan.phase != "warm-up":
            return super().local_update(down, silos, oracle, plan)
        c_i = silos["control"]
        x = down["model"].expand_as(c_i)
        c_new = torch.zeros_like(c_i)
        for _ in range(plan.local_steps):
            c_new += oracle.gradient(x)
        c_new /= plan.local_steps
        return {"control": c_new - c_i}, {"control": c_new}

    def aggregate(self, server: Vectors, mean_up: Vectors, plan: RoundPlan) -> Vectors:
        if plan.phase != "warm-up":
            return {**super().aggregate(server, mean_up, plan), "picked": server["picked"]}
        picked = server["picked"].clone()
        picked[list(plan.participants)] = True
        c = server["control"] + plan.silo_share * mean_up["control"]
        return {**server, **self.waited(server), "control": c, "picked": picked}

    def regroup(
        self, server: Vectors, silos: Vectors, ids: Sequence[int], weights: Sequence[float]
    ) -> tuple[Vectors, Vectors]:
        """As SCAFFOLD; and the warm-up does not wait for silos that are gone."""
        server, silos = super().regroup(server, silos, ids, weights)
        gone = torch.ones_like(server["picked"])
        gone[list(ids)] = False
        return {**server, "picked": server["picked"] | gone}, silos

    def notes(self, server: Vectors) -> list[str]:
        missed = (~server["picked"]).nonzero().flatten().tolist()
        if not missed:
            return super().notes(server)
        some = ", ".join(map(str, missed[:10])) + (", ..." if len(missed) > 10 else "")
        return [
            f"warm-up: {len(missed)} silos were not picked and have the control variate 0 to begin with: {some}.",
            *super().notes(server),
        ]
