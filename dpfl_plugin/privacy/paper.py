"""The papers' own accounting, to compare with: what they published, whether or not it is sound.

[N] Noble, Bellet, Dieuleveut 2022, "Differentially Private Federated Learning on Heterogeneous Data" (AISTATS;
arXiv:2111.09278), appendix B. [W] Wang, Balle, Kasiviswanathan 2019, "Subsampled Renyi Differential Privacy and
Analytical Moments Accountant" (arXiv:1808.00087). [C] Chang, Seif, Tandon 2022, "Differentially Private Federated
Learning with Drift Control" (CISS), section III-A.

Renyi divergences are arrays over the orders 2, 3, ..., 512. [N] extends them to real orders, linearly in the cumulant
generating function (Eqs. 7, 8), and searches these. That gains nothing: where (alpha - 1) R(alpha) is linear, with
lambda = alpha - 1, epsilon is (a + b lambda) / lambda, which is monotone between whole orders; and below 2 it falls.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import numpy as np

from dpfl_plugin.errors import require
from dpfl_plugin.privacy.accountants import Array, Checked, mixture_rdp
from dpfl_plugin.privacy.events import SampledGaussian, Term
from dpfl_plugin.privacy.pld import check_delta

ORDERS: Final[Array] = np.arange(2.0, 513.0)

NOBLE_THIRD_PARTY_UNSOUND: Final = (
    "Noble et al.'s third-party epsilon is not a guarantee: (1) it counts the noise of all l M silos of a round for "
    "each of them, but from the second local step on gradients are taken at iterates that were never released, so that "
    "for K > 1 the other silos' noise does not hide them; (2) it takes a round without a silo for a neighbour of a "
    "round with it, and amplifies by the sampling of silos as if of records: an absent silo is not close to a present "
    "one; (3) it holds DP-SCAFFOLD to cost what DP-FedAvg does, though a control variate returns in later sums."
)
"""To be shown wherever `noble_third_party_epsilon` is."""


def gaussian_rdp(noise_multiplier: float) -> Array:
    """(orders,) alpha / (2 sigma^2). [N] Lemma B.6."""
    with np.errstate(over="ignore"):
        return ORDERS / 2 / noise_multiplier / noise_multiplier


@functools.cache
def _log_binomials() -> Array:
    """(orders, orders) log of (alpha choose j); minus infinity for j > alpha."""
    from scipy.special import gammaln

    log_factorial = gammaln(np.arange(ORDERS[-1] + 1) + 1)
    alpha, j = np.meshgrid(ORDERS.astype(int), ORDERS.astype(int), indexing="ij")
    inside = log_factorial[alpha] - log_factorial[j] - log_factorial[np.maximum(alpha - j, 0)]
    return np.where(j <= alpha, inside, -math.inf)


def subsampled_rdp(rate: float, rdp: Array) -> Array:
    """(orders,) Renyi divergence of a mechanism on a sample without replacement; replace-one neighbours.

    [W] Thm 9 with epsilon(infinity) = infinity; of a Gaussian, R(j) = j / (2 sigma^2), [N] Lemma B.7:

        log(1 + q^2 (alpha choose 2) min(4 (e^{R(2)} - 1), 2 e^{R(2)})
              + sum_{j=3}^alpha 2 q^j (alpha choose j) e^{(j-1) R(j)}) / (alpha - 1)

    Sound, but loose: as R goes to 0, it does not ([N] D.3.2), and for q near 1 it exceeds R. Rate 1 is no sampling.
    """
    if rate == 1:
        return rdp
    from scipy.special import logsumexp

    second = float(rdp[0])
    log_terms = math.log(2) + ORDERS * math.log(rate) + (ORDERS - 1) * rdp
    if second < math.log(2):
        least = math.log(4 * math.expm1(second)) if second > 0 else -math.inf
        log_terms[0] = 2 * math.log(rate) + least
    above_one = logsumexp(_log_binomials() + log_terms, axis=1)
    return np.asarray(np.logaddexp(0.0, above_one) / (ORDERS - 1), dtype=np.float64)


def mironov_epsilon(rdp: Array, delta: float) -> float:
    """min over alpha of R(alpha) + log(1 / delta) / (alpha - 1). Mironov 2017, Prop. 3; [N] Lemma B.4, Eq. 5."""
    return float((rdp + math.log(1 / delta) / (ORDERS - 1)).min())


@dataclass(frozen=True, slots=True)
class Paper(Checked):
    """Noble et al.'s bound of a silo's own releases: their Lemma B.7, Mironov's conversion; sound, but loose.

    Rounds that are drawn with a probability are mixed as in `RDP`, which is sound; the papers' amplification by the
    sampling of silos, and the credit for other silos' noise, are not here but in `noble_third_party_epsilon`.
    """

    name: ClassVar[str] = "Paper"
    caveat: ClassVar[str] = (
        "is Noble et al.'s Lemma B.7 with Mironov's conversion for fixed batches, which is sound but does not vanish "
        "as noise grows; their third-party recipe, which is not sound, is no part of it"
    )
    error: ClassVar[str] = (
        "no grid; above the exact epsilon by a factor of 2.6 to 131 over the reference values, 6.8 at rate 0.2, noise "
        "multiplier 60 and 20,000 releases; noise multipliers above 1e4 count as 1e4"
    )

    def refusal(self, term: Term) -> str:
        """See `Checked.refusal`."""
        known = term.release.sampler != "poisson" or term.release.rate == 1
        return "" if known else "Lemma B.7 is of batches without replacement (fixed). Use pld, prv or rdp."

    def bound(self, terms: tuple[Term, ...], delta: float) -> float:
        """See `Checked.bound`."""
        total = sum(
            (t.rounds * mixture_rdp(ORDERS, t.count * _release_rdp(t.release), t.participation) for t in terms),
            np.zeros_like(ORDERS),
        )
        return mironov_epsilon(total, delta)


@functools.lru_cache(maxsize=4096)
def _release_rdp(release: SampledGaussian) -> Array:
    return subsampled_rdp(release.rate, gaussian_rdp(release.noise_multiplier))


def noble_third_party_epsilon(
    *,
    noise_multiplier: float,
    local_steps: int,
    rounds: int,
    silo_rate: float,
    record_rate: float,
    num_silos: int,
    delta: float,
) -> float:
    """The epsilon that [N] publish, against a third party. NOT A GUARANTEE: see `NOBLE_THIRD_PARTY_UNSOUND`.

    [N] B.4, "Implementation": Lemma B.7 at noise sigma_g sqrt(l M), K times (Step 1, without approximation); [W] Thm 9
    at rate l on the result (Step 2); T times (Lemma B.5); Eq. 5. Their captions' 13, 11.4, 7.2 and 4.2 are this with
    delta = 1 / (M R), where R counts the training records: 80 % of a silo's.

    Args:
        noise_multiplier: sigma_g, above 0.
        local_steps: K.
        rounds: T.
        silo_rate: l, in (0, 1].
        record_rate: s, in (0, 1].
        num_silos: M.
        delta: in (0, 1).

    Raises:
        ConfigError: an argument is out of range.
    """
    check_delta(delta)
    _check_rounds(rounds)
    one = _third_party_rdp(noise_multiplier, local_steps, silo_rate, record_rate, num_silos)
    return mironov_epsilon(rounds * one, delta) if rounds else 0.0


def _silo_rdp(noise_multiplier: float, local_steps: int, record_rate: float) -> Array:
    """(orders,) Renyi divergence of K local steps of a silo. [N] B.4, Step 1."""
    require(0 < noise_multiplier < math.inf, "noise_multiplier", noise_multiplier, "be finite and above 0")
    require(local_steps >= 1, "local_steps", local_steps, "be at least 1")
    require(0 < record_rate <= 1, "record_rate", record_rate, "be in (0, 1]")
    return local_steps * subsampled_rdp(record_rate, gaussian_rdp(noise_multiplier))


def _third_party_rdp(
    noise_multiplier: float, local_steps: int, silo_rate: float, record_rate: float, num_silos: int
) -> Array:
    """(orders,) what [N] B.4 takes for the Renyi divergence of a round; Steps 1 and 2. Not sound."""
    require(0 < silo_rate <= 1, "silo_rate", silo_rate, "be in (0, 1]")
    require(silo_rate * num_silos >= 1, "num_silos", num_silos, f"be at least 1 / silo_rate = {1 / silo_rate:g}")
    credited = noise_multiplier * math.sqrt(silo_rate * num_silos)
    return subsampled_rdp(silo_rate, _silo_rdp(credited, local_steps, record_rate))


def _check_rounds(rounds: int) -> None:
    require(rounds >= 0, "rounds", rounds, "be at least 0")


# Chang et al.


def chang_theorem(
    *,
    by: Literal["round", "step"],
    noise_multiplier: float,
    beta: float,
    threshold: int,
    local_steps: int,
    rounds: int,
    silo_rate: float,
    record_rate: float,
) -> str:
    """A sentence on whether [C] Thm 1 (by round) or 2 (by step) speaks of a run, and if not, why.

    Their conditions are those of Bun, Dwork, Rothblum, Steinke 2018 on rho = Delta^2 / (2 sigma^2) <= 0.1 at every
    release, so that sigma counts in units of the sensitivity, as ``noise_multiplier`` does. The theorems amplify by the
    sampling of silos, p, as if of records; what a run states does not come from them.
    """
    number = 1 if by == "round" else 2
    decays = max(0, rounds - threshold if by == "round" else local_steps * (rounds - threshold) - 1)
    least = noise_multiplier**2 * math.exp(min(0.0, decays * math.log(beta)))
    rate = silo_rate * record_rate
    why = [
        *([f"sigma_0 = {noise_multiplier:.4g} is below sqrt(5)"] if noise_multiplier < math.sqrt(5) else []),
        *([f"p q = {rate:.4g} is above 0.1"] if rate > 0.1 * (1 + 1e-12) else []),
        *([f"beta = {beta:g} is above 1"] if beta > 1 else []),
        *([f"the last variance, {least:.4g}, is below 5"] if least < 5 <= noise_multiplier**2 else []),
    ]
    holds = f"does not apply: {'; '.join(why)}" if why else "has its conditions met"
    return (
        f"Theorem {number} of Chang, Seif, Tandon 2022 {holds}. No epsilon here comes from it: the accountant composes "
        "the noise of every release."
    )
