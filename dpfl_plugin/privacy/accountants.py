"""Accountants: a composition and delta go in, epsilon comes out. Registered as ``dpfl_plugin.accountants``."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.errors import ConfigError
from dpfl_plugin.privacy import pld
from dpfl_plugin.privacy.events import SampledGaussian, Term


class Accountant(Protocol):
    """Turns releases into a guarantee.

    Every accountant: an empty composition costs 0.0; any release with noise_multiplier 0 costs math.inf (there is
    no guarantee); the result is an upper bound, which more rounds, more releases or less noise never lower.
    """

    @property
    def name(self) -> str: ...

    def epsilon(self, composition: Sequence[Term], delta: float) -> float:
        """The smallest epsilon >= 0 that is known to hold at ``delta``.

        Raises:
            ConfigError: delta is outside (0, 1), a number is out of range, or neighbouring relations are mixed.
            UnsupportedError: no sound bound is known for a release.
        """
        ...

    def epsilons(self, per_round: Term, rounds: Sequence[int], delta: float) -> list[float]:
        """`epsilon` of ``per_round`` run ``n`` times, for each n of ``rounds``."""
        ...


def _checked(composition: Sequence[Term], delta: float) -> tuple[tuple[Term, ...], bool]:
    """The normalised composition, and whether each of its releases is noised at all."""
    pld.check_delta(delta)
    terms = pld.normalise(composition)
    for term in terms:
        release = term.release
        pld.check_release(release if release.noise_multiplier != 0 else replace(release, noise_multiplier=1.0))
    return terms, all(term.release.noise_multiplier > 0 for term in terms)


def _repeated(per_round: Term, rounds: int) -> Term:
    return replace(per_round, rounds=per_round.rounds * rounds)


@dataclass(frozen=True, slots=True)
class PLD:
    """Privacy loss distributions: tight, and an upper bound; see `dpfl_plugin.privacy.pld`.

    Gaussians without sampling and with certain participation have a closed form (Balle, Wang 2018, Thm 8): together
    they are one Gaussian of noise multiplier 1 / sqrt(sum of 1 / sigma^2) (Dong, Roth, Su 2022, Cor. 3.3).
    """

    name: ClassVar[str] = "PLD"

    def epsilon(self, composition: Sequence[Term], delta: float) -> float:
        """See `Accountant.epsilon`; math.inf if any noise_multiplier is 0: there is no guarantee."""
        terms, noised = _checked(composition, delta)
        if not terms:
            return 0.0
        if not noised:
            return math.inf
        if all(term.release.rate == 1 and term.participation == 1 for term in terms):
            return _gaussian(terms, delta)
        return pld.epsilon(terms, delta)

    def epsilons(self, per_round: Term, rounds: Sequence[int], delta: float) -> list[float]:
        """See `Accountant.epsilons`; the discretised loss is shared between the points."""
        return [self.epsilon([_repeated(per_round, n)], delta) for n in rounds]


@functools.lru_cache(maxsize=4096)
def _gaussian(terms: tuple[Term, ...], delta: float) -> float:
    from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

    inverse_variance = sum(t.count * t.rounds / t.release.noise_multiplier**2 for t in terms)
    return float(get_epsilon_gaussian(1 / math.sqrt(inverse_variance), delta))


@dataclass(frozen=True, slots=True)
class RDP:
    """Renyi differential privacy by dp_accounting: looser than `PLD`, and a second opinion.

    Fixed-size batches: Wang, Balle, Kasiviswanathan 2019, Thm 27; Poisson: Mironov, Talwar, Zhang 2019; conversion:
    Canonne, Kamath, Steinke 2020, Prop. 12. Participation: log(1 - p + p e^{(alpha - 1) R}) / (alpha - 1).
    """

    name: ClassVar[str] = "RDP"

    def epsilon(self, composition: Sequence[Term], delta: float) -> float:
        """See `Accountant.epsilon`; math.inf if any noise_multiplier is 0: there is no guarantee."""
        terms, noised = _checked(composition, delta)
        if not terms:
            return 0.0
        if not noised:
            return math.inf
        from dp_accounting import rdp

        orders = rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS
        total = sum(_round_rdp(term) * term.rounds for term in terms)
        return float(rdp.compute_epsilon(orders, total, delta)[0])

    def epsilons(self, per_round: Term, rounds: Sequence[int], delta: float) -> list[float]:
        """See `Accountant.epsilons`; the Renyi divergences are shared between the points."""
        return [self.epsilon([_repeated(per_round, n)], delta) for n in rounds]


def _round_rdp(term: Term) -> NDArray[np.float64]:
    """(orders,) Renyi divergence of one round of the term."""
    orders, release = _release_rdp(term.release)
    present = release * term.count
    if term.participation == 1:
        return present
    absent = math.log1p(-term.participation)
    mixed = np.logaddexp(absent, math.log(term.participation) + (orders - 1) * present)
    return np.asarray(np.maximum(mixed, 0.0) / (orders - 1), dtype=np.float64)


@functools.lru_cache(maxsize=4096)
def _release_rdp(release: SampledGaussian) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(orders, Renyi divergences) of one release.

    dp_accounting's accountants differ in what REPLACE_ONE makes of a noise multiplier. Its RDP of batches without
    replacement reads it as std / sensitivity under replacement, which is ours. A Gaussian without sampling is handed
    over as add-or-remove, where it is std / sensitivity in every version: alpha / (2 sigma^2) holds for any relation.
    """
    from dp_accounting import dp_event
    from dp_accounting.privacy_accountant import NeighboringRelation as Relation
    from dp_accounting.rdp import RdpAccountant

    gaussian = dp_event.GaussianDpEvent(release.noise_multiplier)
    event, relation = gaussian, Relation.ADD_OR_REMOVE_ONE
    if release.rate < 1 and release.sampler == "fixed":
        event, relation = dp_event.SampledWithoutReplacementDpEvent(1, release.rate, gaussian), Relation.REPLACE_ONE
    elif release.rate < 1:
        event = dp_event.PoissonSampledDpEvent(release.rate, gaussian)
    accountant = RdpAccountant(neighboring_relation=relation).compose(event)
    return np.asarray(accountant._orders, dtype=np.float64), np.asarray(accountant._rdp, dtype=np.float64)


def max_rounds(
    accountant: Accountant, per_round: Term, spent: Sequence[Term], epsilon: float, delta: float, limit: int
) -> int:
    """The largest n <= limit such that ``spent`` and n more times ``per_round`` stay within (epsilon, delta).

    Doubling, then bisection; the answer's own epsilon has been computed and fits. 0 if not one fits.

    Raises:
        ConfigError: epsilon is negative or not a number, or as `Accountant.epsilon`.
    """
    if not epsilon >= 0:
        raise ConfigError(f"epsilon={epsilon!r} must be at least 0.")

    def fits(rounds: int) -> bool:
        return accountant.epsilon([*spent, _repeated(per_round, rounds)], delta) <= epsilon

    if limit <= 0 or not fits(0) or not fits(1):
        return 0
    low, high = 1, 2
    while high < limit and fits(high):
        low, high = high, 2 * high
    if high >= limit:
        high = limit
        if fits(limit):
            return limit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
