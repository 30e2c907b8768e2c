"""Closed forms for choosing an algorithm's options before a run.

[S] is "Balancing Privacy and Performance for Private Federated Learning Algorithms" (under review, no authors named);
[L] is Li, Wang, Wu, "Convergence Analysis for Differentially Private Federated Averaging in Heterogeneous Settings",
Mathematics 2025, 13(3), 497.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FedAvgSyncProblem:
    """What the bound of DP-FedAvg with noise at synchronisation depends on ([L] Theorems 3 and 4).

    Attributes:
        mu, L: every silo's loss is mu-strongly convex and L-smooth; 0 < mu <= L.
        G: no batch's gradient is longer.
        variance: sum_k p_k^2 phi_k^2, phi_k^2 being that of a record's gradient at silo k.
        heterogeneity: Gamma = F* - sum_k p_k F_k*, at least 0.
        distance: ||w_0 - w*||.
        num_silos: N; participants: K, of a round, drawn without or with replacement.
        num_records: n, of all silos; batch_size: b; dimension: d.
        epsilon, delta: what the noise of eq. 20 is said to give a round; inf: there is no noise.
    """

    mu: float
    L: float
    G: float
    variance: float
    heterogeneity: float
    distance: float
    num_silos: int
    participants: int
    num_records: int
    batch_size: int
    dimension: int
    epsilon: float
    delta: float
    with_replacement: bool = False

    def __post_init__(self) -> None:
        require(0 < self.L < math.inf, "L", self.L, "be positive and finite")
        require(0 < self.mu <= self.L, "mu", self.mu, f"be in (0, L={self.L:g}]: the losses have to be strongly convex")
        for key in ("G", "epsilon"):
            require(getattr(self, key) > 0, key, getattr(self, key), "be positive")
        for key in ("variance", "heterogeneity", "distance"):
            require(0 <= getattr(self, key) < math.inf, key, getattr(self, key), "be finite and at least 0")
        for key in ("participants", "num_records", "batch_size", "dimension"):
            require(getattr(self, key) >= 1, key, getattr(self, key), "be at least 1")
        most = f"be at most num_silos={self.num_silos}"
        require(self.participants <= self.num_silos, "participants", self.participants, most)
        require(0 < self.delta < 1, "delta", self.delta, "be in (0, 1)")

    def alpha(self, local_steps: int) -> float:
        """max(8 L / mu, Q), of the steps 2 / (mu (alpha + t)). [L] Theorem 3."""
        return max(8 * self.L / self.mu, local_steps)

    def terms(self, local_steps: int) -> tuple[float, float, float]:
        """A, B and H of [L] Theorems 3 and 4: what batches and drift, the noise, and the drawing of silos contribute.

        Without replacement H is (N - K) / (N - 1) times 4 Q^2 G^2 / K, with replacement that itself; if all silos take
        part it is 0.
        """
        Q, b, G, n = local_steps, self.batch_size, self.G, self.num_records
        A = self.variance / b + 8 * (Q - 1) ** 2 * G**2 + 6 * self.L * self.heterogeneity
        logarithms = math.log(n) * math.log(1.25**2 * Q**2 * b**2 / (n * self.delta**2))
        noise = 8 * self.dimension * Q**4 * b**2 * G**2 * logarithms / (n * self.L**2 * self.epsilon**2)
        N, K = self.num_silos, self.participants
        drawn = 4 / K * Q**2 * G**2
        left_out = 1.0 if self.with_replacement else (N - K) / max(1, N - 1)
        return A, noise * (2 * (Q - 1) ** 2 + 1), left_out * drawn

    def bound(self, local_steps: int, rounds: int) -> float:
        """What E F(w_T) - F* stays below after T = rounds * Q iterations. [L] Theorem 3, eq. 24; Theorem 4."""
        start = 2 * self.L * self.distance**2
        rate = 2 * self.L / self.mu / (rounds * local_steps + self.alpha(local_steps))
        return rate * (sum(self.terms(local_steps)) / self.mu + start)

    def local_steps(self, rounds: int, most: int) -> int:
        """The Q of 1..most with the least bound after so many rounds. [L] Remarks 3 and 4."""
        return min(range(1, most + 1), key=lambda Q: self.bound(Q, rounds))


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
