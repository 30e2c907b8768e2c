"""Budgets and bounds of Chang, Seif, Tandon 2022 ([C]), "Differentially Private Federated Learning with Drift Control".

Letters in all of them: R rounds of tau local steps, S of K users in a round, batches of B records; sigma_0^2 the
variance of the noise on a gradient (all of its coordinates together: E ||n||^2), beta and R_th of its decay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Scheme = Literal[0, 1, 2]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftControlProblem:
    """What the bounds of DP-SCAFFOLD depend on ([C] Theorem 3): convex and L-smooth losses.

    Attributes:
        num_silos: K; participants: S, of a round; local_steps: tau, at least 2; server_lr: eta_g, at least 1.
        batch_size: B; gradient_variance: sigma^2, of one record's gradient.
        distance: ||w_0 - w*||; control_error: C_0, the mean of ||c_k - grad f_k(w*)||^2 at the start.
    """

    num_silos: int
    participants: int
    local_steps: int
    server_lr: float
    batch_size: int
    gradient_variance: float
    distance: float
    control_error: float

    def without_noise(self, rounds: int) -> float:
        """11 K C_0 / (S R) + 15 / (tau S B) (1 + tau / eta_g^2) sigma^2, in the brackets of eq. 9 to 13."""
        S, tau = self.participants, self.local_steps
        batches = 15 / (tau * S * self.batch_size) * (1 + tau / self.server_lr**2) * self.gradient_variance
        return 11 * self.num_silos * self.control_error / (S * rounds) + batches

    def of_noise(self, variances: NDArray[np.float64]) -> float:
        """What noise adds in the brackets of eq. 9 and 10; ``variances`` (R, tau), the same for all users.

        16 / (tau S R) sum_{r,k,t} v_rt + 1 / (25 eta_g^2 S tau^3 R) sum_{r,t} sum_{i<t} (1 + 1/(tau-1))^i sum_k v_r,t-i
        """
        R, tau = variances.shape
        K, S = self.num_silos, self.participants
        # v_rs is in the terms t = s, ..., tau, with the powers 0, ..., tau - s: a geometric sum.
        growth = 1 + 1 / (tau - 1)
        powers = (growth ** np.arange(tau, 0, -1) - 1) / (growth - 1)
        first: float = 16 * K / (tau * S * R) * float(variances.sum())
        drift: float = K / (25 * self.server_lr**2 * S * tau**3 * R) * float((variances * powers).sum())
        return first + drift

    def effective_lr(self, variances: NDArray[np.float64]) -> float:
        """The tau eta_g eta_l with the least bound. Eq. 9; Theorem 3 wants it at most 1 / (81 L)."""
        R = len(variances)
        inside = self.without_noise(R) + self.of_noise(variances)
        return self.distance / math.sqrt(R * inside)

    def bound(self, variances: NDArray[np.float64]) -> float:
        """Eq. 10: E f - f* at the mean of the iterates of R rounds, with the step of eq. 9."""
        return self._bound(len(variances), self.of_noise(variances))

    def corollary(
        self, scheme: Scheme, rounds: int, *, variance: float, beta: float = 1.0, threshold: int = 0
    ) -> float:
        """Corollary 1 (constant noise), 2 (scheme 1, eq. 6) or 3 (scheme 2, eq. 7): simpler, and at least eq. 10.

        Args:
            variance: sigma_0^2. beta: in (0, 1]; threshold: R_th.
        """
        share, tau, eta_g = self.num_silos / self.participants, self.local_steps, self.server_lr
        simple = 16 + 3 / (25 * eta_g**2 * tau)
        decayed = max(rounds - threshold, 0) if scheme else 0
        constant = rounds - decayed
        if scheme == 2:
            steps = _geometric(beta, tau * decayed)
            noise = constant / rounds * share * simple + share / (tau * rounds) * (16 + 3 / (25 * eta_g**2)) * steps
        else:
            noise = share / rounds * (constant + _geometric(beta, decayed + 1) - 1) * simple
        return self._bound(rounds, noise * variance)

    def _bound(self, rounds: int, noise: float) -> float:
        return 2 * self.distance * math.sqrt((self.without_noise(rounds) + noise) / rounds)


def noise_variances(
    scheme: Scheme, rounds: int, local_steps: int, *, variance: float, beta: float = 1.0, threshold: int = 0
) -> NDArray[np.float64]:
    """(R, tau) variances of eq. 6 (scheme 1) or 7 (scheme 2); 0: all are ``variance``."""
    later = np.maximum(np.arange(1, rounds + 1) - threshold, 0)[:, np.newaxis]
    steps = np.arange(local_steps)[np.newaxis, :]
    exponents = {
        0: 0 * (later + steps),
        1: later + 0 * steps,
        2: np.where(later > 0, local_steps * (later - 1) + steps, 0),
    }
    return np.asarray(variance * float(beta) ** exponents[scheme], dtype=np.float64)


def same_budget_variance(
    scheme: Scheme, rounds: int, local_steps: int, *, variance: float, beta: float, threshold: int
) -> float:
    """Of constant noise that spends in ``rounds`` rounds what a scheme spends in them, in [C]'s sum of 1 / sigma^2.

    It is the harmonic mean of the scheme's variances, hence below their mean, which is all that Corollaries 1 and 2 see
    of them: at equal rounds and budgets the bound of constant noise is the least, whatever beta and R_th are.
    """
    each = noise_variances(scheme, rounds, local_steps, variance=variance, beta=beta, threshold=threshold)
    return float(1 / (1 / each).mean())


def rounds_spent(rounds: int, scheme: Scheme, beta: float, threshold: int, local_steps: int) -> float:
    """Return the budget that R rounds spend, in rounds of constant noise: the brackets of [C] Thms 1 and 2.

    Their Renyi divergence is proportional to the sum of 1 / sigma^2 over all steps. With n = max(R - R_th, 0) and
    x = 1 / beta: scheme 1 (Eq. 6) spends R_th + x + ... + x^n, scheme 2 (Eq. 7) R_th + (1 + x + ... + x^{tau n - 1})
    / tau, and scheme 0 R. This compares schedules with each other; it says nothing of epsilon.
    """
    decayed = max(rounds - threshold, 0)
    if scheme == 0 or decayed == 0:
        return float(rounds)
    if scheme == 1:
        return threshold + _geometric(1 / beta, decayed + 1) - 1
    return threshold + _geometric(1 / beta, local_steps * decayed) / local_steps


def last_round(scheme: Scheme, beta: float, threshold: int, local_steps: int, budget_rounds: float) -> int:
    """Return the last round that decaying noise affords on the budget of ``budget_rounds`` rounds of constant noise.

    With their R_th = 200, tau = 50 and 600 rounds, scheme 1 stops at 493 for the printed beta = 0.998 and scheme 2 at
    438 for 0.99992. They print 497 and 428, which are those of 0.9981 and 0.99991.
    """
    rounds = min(math.floor(budget_rounds), threshold)
    while rounds_spent(rounds + 1, scheme, beta, threshold, local_steps) <= budget_rounds:
        rounds += 1
    return rounds


def _geometric(x: float, number: int) -> float:
    """1 + x + ... + x^(number - 1); infinite where it overflows."""
    if x == 1 or math.log(x) * number > 700:
        return float(number) if x == 1 else math.inf
    return math.expm1(number * math.log(x)) / (x - 1)
