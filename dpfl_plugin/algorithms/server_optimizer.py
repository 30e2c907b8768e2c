"""Server optimisers on the mean update: post-processing, free of charge.

Reddi et al. 2021, arXiv:2003.00295, Alg. 2; "fedexp" is after [T], Takakura, Liew, Hasegawa 2025, arXiv:2504.09850,
LDP-FedEXP with the Gaussian mechanism. That it costs no privacy is proven here: it is a function of what silos release.
Its step size is our reading of [T], written from the abstract and FedExP (Jhunjhunwala et al. 2023, arXiv:2301.09604)
and not compared with the paper's own formula; what [T] proves of convergence is not claimed of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import require

Name = Literal["sgd", "momentum", "adam", "yogi", "adagrad", "fedexp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptimizer:
    """x <- x + eta_g * direction(mean update). State: "optimizer_m", "optimizer_v", (d,) each.

    Attributes:
        learning_rate: eta_g.
        beta_1: momentum of the update; beta_2: of its square (adam, yogi); tau: added to the root (adaptivity).

    "fedexp" multiplies the mean update by `extrapolation`.
    """

    name: Name = "sgd"
    learning_rate: float = 1.0
    beta_1: float = 0.9
    beta_2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        require(self.learning_rate > 0, "server_lr", self.learning_rate, "be positive")
        require(0 <= self.beta_1 < 1, "beta_1", self.beta_1, "be in [0, 1)")
        require(0 <= self.beta_2 < 1, "beta_2", self.beta_2, "be in [0, 1)")
        require(self.tau > 0, "tau", self.tau, "be positive")

    def init(self, model: torch.Tensor) -> Vectors:
        """State before the first step."""
        state = {}
        if self.name not in ("sgd", "fedexp"):
            state["optimizer_m"] = torch.zeros_like(model)
        if self.name in ("adam", "yogi", "adagrad"):
            state["optimizer_v"] = torch.full_like(model, self.tau**2)  # Reddi et al., Alg. 2: v_{-1} >= tau^2
        return state

    def step(self, server: Vectors, update: torch.Tensor, square: torch.Tensor | None = None) -> Vectors:
        """New "model" and optimizer state from the mean update (d,).

        Args:
            square: of fedexp: the mean of the silos' squared norms, without their noise (1,).
        """
        x, eta_g = server["model"], self.learning_rate
        if self.name == "fedexp":
            assert square is not None
            return {"model": x + eta_g * extrapolation(update, square) * update}
        if self.name == "sgd":
            return {"model": x + eta_g * update}
        if self.name == "momentum":
            m = self.beta_1 * server["optimizer_m"] + update
            return {"model": x + eta_g * m, "optimizer_m": m}
        m = self.beta_1 * server["optimizer_m"] + (1 - self.beta_1) * update  # l. 10
        v, square = server["optimizer_v"], update.square()
        if self.name == "adagrad":
            v = v + square  # l. 11
        elif self.name == "yogi":
            v = v - (1 - self.beta_2) * square * torch.sign(v - square)  # l. 12
        else:
            v = self.beta_2 * v + (1 - self.beta_2) * square  # l. 13
        return {"model": x + eta_g * m / (v.sqrt() + self.tau), "optimizer_m": m, "optimizer_v": v}  # l. 14


def extrapolation(update: torch.Tensor, square: torch.Tensor) -> float:
    """max(1, mean_i (||c_i||^2 - d sigma_i^2) / ||mean_i c_i||^2), of the silos' noisy updates c_i: after [T].

    The numerator is an unbiased estimate of the mean squared norm of the updates without their noise: large where silos
    disagree. The denominator keeps the noise of the mean, which makes steps shorter. Both are functions of what silos
    released.
    """
    mean = float(update.to(torch.float64).square().sum())
    return max(1.0, float(square) / mean) if mean > 0 else 1.0
