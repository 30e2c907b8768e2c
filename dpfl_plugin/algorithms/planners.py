"""Closed forms for choosing an algorithm's options before a run.

[S] is "Balancing Privacy and Performance for Private Federated Learning Algorithms" (under review, no authors named).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.errors import require

# Of [S] Lemma 1, which says only that it exists. R releases of sensitivity 2C with noise of variance s^2 have
# rho = R (2C)^2 / (2 s^2) in zCDP, hence epsilon near 2 sqrt(rho ln(1/delta)): s^2 = 8 C^2 R ln(1/delta) / epsilon^2.
REPLACE_A_SILO = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaffNewProblem:
    """What DP-ScaffNew's utility bound depends on ([S] Theorem 1).

    Attributes:
        mu, L: every silo's loss is mu-strongly convex and L-smooth; 0 < mu <= L.
        psi_0: sum_i ||x_0 - x*||^2 + (eta / p)^2 sum_i ||h_i - grad f_i(x*)||^2; a guess of it, as x* is not known.
        clip_norm: C, which no update may reach.
        num_silos: N; dimension: d.
        epsilon, delta: of all releases together.
        v: the constant of Lemma 1.
    """

    mu: float
    L: float
    psi_0: float
    clip_norm: float
    num_silos: int
    dimension: int
    epsilon: float
    delta: float
    v: float = REPLACE_A_SILO

    def __post_init__(self) -> None:
        require(0 < self.L < math.inf, "L", self.L, "be positive and finite")
        require(0 < self.mu <= self.L, "mu", self.mu, f"be in (0, L={self.L:g}]: the losses have to be strongly convex")
        for key in ("psi_0", "clip_norm", "epsilon", "v"):
            require(0 < getattr(self, key) < math.inf, key, getattr(self, key), "be positive and finite")
        for key in ("num_silos", "dimension"):
            require(getattr(self, key) >= 1, key, getattr(self, key), "be at least 1")
        require(0 < self.delta < 1, "delta", self.delta, "be in (0, 1)")

    @property
    def local_lr(self) -> float:
        """eta* = 1 / L. [S] Corollary 1."""
        return 1 / self.L

    @property
    def p(self) -> float:
        """p* = sqrt(mu / L). [S] Corollary 1; 1 / p* local steps a round in the mean."""
        return math.sqrt(self.mu / self.L)

    @property
    def iterations(self) -> float:
        """T*, with eta* and p*; at least 1. [S] Corollary 1; p* T* rounds in the mean."""
        if self.mu == self.L:
            return 1.0
        decay = -math.log1p(-self.mu / self.L)
        return max(1.0, math.log(self.psi_0 * decay / self._noise) / decay)

    def bound(self, local_lr: float, p: float, iterations: float) -> float:
        """What E psi_T stays below, for local_lr in (0, 1/L] and p in (0, 1]. [S] eq. 2.

        Raises:
            ConfigError: local_lr or p is outside of what the theorem covers.
        """
        require(0 < local_lr <= 1 / self.L, "local_lr", local_lr, f"be in (0, 1/L = {1 / self.L:g}]")
        require(0 < p <= 1, "p", p, "be in (0, 1]")
        theta = max(1 - self.mu * local_lr, 1 - p**2)
        return float(theta**iterations * self.psi_0 + p**2 / (1 - theta) * self._noise * iterations)

    @property
    def _noise(self) -> float:
        """v C^2 N d ln(1/delta) / eps^2."""
        size = self.v * self.clip_norm**2 * self.num_silos * self.dimension
        return size * math.log(1 / self.delta) / self.epsilon**2


def psi_0_bound(initial_loss: float, mu: float, num_silos: int) -> float:
    """2 N F(x_0) / mu, which psi_0 never exceeds with h_0 = 0, eta = 1/L and p = sqrt(mu/L): no data needed.

    For losses f_i >= 0 that are mu-strongly convex and L-smooth: ||x_0 - x*||^2 <= 2 (F(x_0) - F*) / mu, and
    ||grad f_i(x*)||^2 <= 2 L f_i(x*), whose sum over silos is at most 2 L N F*, times (eta/p)^2 = 1 / (L mu).

    Args:
        initial_loss: F(x_0), with its regulariser; log(number of classes) for a linear model that starts at 0.
    """
    return 2 * num_silos * initial_loss / mu


Classifier = Literal["logistic", "softmax"]
# The largest eigenvalue that the Hessian of a record's loss in its scores can have: p (1 - p), and diag(p) - p p^T.
_CURVATURE: dict[Classifier, float] = {"logistic": 0.25, "softmax": 0.5}


def curvature(
    features: NDArray[np.floating[Any]], l2: float, *, model: Classifier, bias: bool = True
) -> tuple[float, float]:
    """(mu, L) of a silo's mean loss with lambda/2 ||y||^2, from its records' ``features`` (n, d).

    L = (1/4 or 1/2) lambda_max(X^T X / n) + lambda. It reads private records: to publish it, or what was chosen by it,
    spends privacy that no ledger counts. `public_curvature` does not.
    """
    x = np.asarray(features, dtype=np.float64).reshape(len(features), -1)
    if bias:
        x = np.column_stack([x, np.ones(len(x))])
    largest = float(np.linalg.norm(x, 2)) ** 2 / len(x)
    return l2, _CURVATURE[model] * largest + l2


def public_curvature(largest_norm: float, l2: float, *, model: Classifier, bias: bool = True) -> tuple[float, float]:
    """(mu, L) for any records of at most the norm ``largest_norm`` (1 after ``unit_norm``): no data needed."""
    require(0 <= largest_norm < math.inf, "largest_norm", largest_norm, "be finite and at least 0")
    return l2, _CURVATURE[model] * (largest_norm**2 + bias) + l2


def public_lipschitz(largest_norm: float, *, model: Classifier, bias: bool = True) -> float:
    """L of a record's loss, without a regulariser, for any records of at most the norm ``largest_norm``."""
    require(0 <= largest_norm < math.inf, "largest_norm", largest_norm, "be finite and at least 0")
    scores = 1.0 if model == "logistic" else math.sqrt(2)  # the longest gradient in the scores: p - y
    return scores * math.sqrt(largest_norm**2 + bias)
