"""Accountants: a composition and delta go in, epsilon comes out. Registered as ``dpfl_plugin.accountants``."""

from __future__ import annotations

import abc
import functools
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin import registry
from dpfl_plugin.errors import UnsupportedError, require
from dpfl_plugin.late import dp_accounting
from dpfl_plugin.privacy import pld
from dpfl_plugin.privacy.events import SampledGaussian, Term
from dpfl_plugin.privacy.samplers import whole_batches

Array = NDArray[np.float64]


class Accountant(Protocol):
    """Turns releases into a guarantee.

    Every accountant: an empty composition costs 0.0; any release with noise_multiplier 0 costs math.inf (there is
    no guarantee; ours say so below 0.01); the result is an upper bound, unless ``sound`` is False, which more rounds,
    more releases, more participation or less noise never lower by more than ``error`` says.
    """

    @property
    def name(self) -> str:
        """The registered name, but for capitals."""
        ...

    @property
    def sound(self) -> bool:
        """Whether the result is an upper bound; if not, it is for comparison only."""
        ...

    @property
    def caveat(self) -> str:
        """One sentence for reports: what it takes for granted, or why it is not sound; empty if neither."""
        ...

    @property
    def error(self) -> str:
        """How far the result may be from the exact epsilon, and why, in words with numbers."""
        ...

    def epsilon(self, composition: Sequence[Term], delta: float) -> float:
        """The smallest epsilon >= 0 that is known to hold at ``delta``.

        Raises:
            ConfigError: delta is outside (0, 1), a number is out of range, or neighbouring relations are mixed.
            UnsupportedError: no bound is known for a release; names it and the accountant.
        """
        ...

    def epsilons(self, per_round: Term, rounds: Sequence[int], delta: float) -> list[float]:
        """`epsilon` of ``per_round`` run ``n`` times, for each n of ``rounds``."""
        ...


class Checked(abc.ABC):
    """An `Accountant` but for its `bound`: what has to be checked before is the same for all."""

    __slots__ = ()

    name: ClassVar[str]
    sound: ClassVar[bool] = True
    caveat: ClassVar[str] = ""
    error: ClassVar[str]

    @abc.abstractmethod
    def bound(self, terms: tuple[Term, ...], delta: float) -> float:
        """Epsilon at delta of terms that are normalised (see `pld.normalise`), noised, known, and at least one."""

    def refusal(self, term: Term) -> str:
        """Why no bound is known for a term that is well formed, and what to do; empty if one is."""
        return ""

    def epsilon(self, composition: Sequence[Term], delta: float) -> float:
        """See `Accountant.epsilon`."""
        pld.check_delta(delta)
        terms = in_passes(composition)
        for term in terms:
            self._check(term)
        if not terms:
            return 0.0
        if min(term.release.noise_multiplier for term in terms) < LEAST_NOISE:
            return math.inf
        most = self.most_noise(terms)
        return self.bound(_levelled(pld.normalise(_clamped(term, most) for term in terms)), delta)

    def most_noise(self, terms: Sequence[Term]) -> float:
        """More noise counts as this much."""
        return MOST_GAUSSIAN_NOISE if all(map(_is_plain, terms)) else MOST_NOISE

    def epsilons(self, per_round: Term, rounds: Sequence[int], delta: float) -> list[float]:
        """See `Accountant.epsilons`; what does not depend on the number of rounds is computed once."""
        return [self.epsilon([_repeated(per_round, n)], delta) for n in rounds]

    def _check(self, term: Term) -> None:
        release = term.release
        try:
            pld.check_release(release if release.noise_multiplier != 0 else replace(release, noise_multiplier=1.0))
            why = self.refusal(term)
        except UnsupportedError as error:
            why = str(error)
        if why:
            raise UnsupportedError(f"{self.name} has no bound for {_described(term)}: {why}")


def in_passes(composition: Iterable[Term]) -> tuple[Term, ...]:
    """The composition, normalised, with Gaussians without sampling in the place of releases on cyclic batches.

    n releases of a silo, the first n of a cycle of B batches, have a record of batch j in those with t mod B = j: in
    ceil(n / B) at most. They cost what as many Gaussians of the noise multiplier that was charged do: each by itself
    where noise is independent, all together where it is correlated, by the theorem of `privacy.correlation`.

    Raises:
        UnsupportedError: the n releases are not of one kind, or are not certain: then n tells nothing of any record.
    """
    terms = pld.normalise(composition)
    cyclic = [term for term in terms if term.release.sampler == "cyclic"]
    if not cyclic:
        return terms
    if len(cyclic) > 1 or cyclic[0].participation < 1:
        raise UnsupportedError(
            "releases on cyclic batches are accounted for where a silo makes them one after the other and alike, in "
            "rounds that it takes part in for certain; these have several noise multipliers, rates or probabilities."
        )
    (term,) = cyclic
    release, batches = term.release, whole_batches(term.release.rate)
    if batches < 2 or release.neighbouring != "replace_one" or release.unit != "record":
        raise UnsupportedError(
            f"sampler=cyclic is accounted for with rate 1 / batches, for replace_one of a record; not for rate="
            f"{release.rate!r}, {release.neighbouring} of a {release.unit}."
        )
    passes = Term(release=replace(release, sampler="full", rate=1.0), count=1, rounds=-(-term.rounds // batches))
    return pld.normalise([*(other for other in terms if other is not term), passes])


LEAST_NOISE: Final = 0.01  # one release costs thousands: infinity is an upper bound, and numbers that large overflow


def named_accountant(name: str) -> Accountant:
    """The registered accountant of this name, with its defaults."""
    require(isinstance(name, str), "accountant", name, "be the name of a registered accountant")
    accountant: Accountant = registry.build(registry.load("accountants", name), {}, where="accountant")
    return accountant


def why_infinite(noise_multiplier: float) -> str:
    """Why releases with this noise have an infinite epsilon, in words."""
    if noise_multiplier == 0:
        return "without noise nothing is guaranteed"
    return f"noise_multiplier {noise_multiplier:g} is below {LEAST_NOISE:g}: epsilon is too large to compute"


MOST_NOISE: Final = 1e4  # more counts as this much, which is an upper bound: tiny numbers cancel
MOST_GAUSSIAN_NOISE: Final = 1e7  # the same, where nothing is sampled and there is a closed form
_COUNTED: Final = "noise multipliers above 1e4 on samples, and above 1e7 without sampling, count as these"


def _clamped(term: Term, most: float) -> Term:
    release = term.release
    return replace(term, release=replace(release, noise_multiplier=min(release.noise_multiplier, most)))


MOST_LEVELS: Final = 64  # noise multipliers that are composed as they are
LEVELS_PER_OCTAVE: Final = 128  # beyond: 0.54 % apart


def _levelled(terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """Very many noise multipliers, each rounded down to a level: less noise is an upper bound, and can be counted.

    Gaussians without sampling are one Gaussian, however many they are, and stay exact.
    """
    if len(terms) <= MOST_LEVELS or all(map(_is_plain, terms)):
        return terms
    return pld.normalise(replace(term, release=rounded_down(term.release)) for term in terms)


def rounded_down(release: SampledGaussian) -> SampledGaussian:
    """With the noise multiplier of the level below, or its own if that is on one."""
    return replace(release, noise_multiplier=_level(release.noise_multiplier))


def _level(noise: float) -> float:
    if noise == 0:
        return 0.0
    return min(noise, math.exp2(math.floor(math.log2(noise) * LEVELS_PER_OCTAVE) / LEVELS_PER_OCTAVE))


def _described(term: Term) -> str:
    release = term.release
    return (
        f"the release sampler={release.sampler}, rate={release.rate:g}, "
        f"noise_multiplier={release.noise_multiplier:g}, neighbouring={release.neighbouring}, "
        f"participation={term.participation:g}"
    )


def _repeated(per_round: Term, rounds: int) -> Term:
    return replace(per_round, rounds=per_round.rounds * rounds)


def _is_plain(term: Term) -> bool:
    """Whether the term is Gaussians without sampling of records or rounds."""
    return term.release.rate == 1 and term.participation == 1


@dataclass(frozen=True, slots=True)
class PLD(Checked):
    """Privacy loss distributions: tight, and an upper bound; see `dpfl_plugin.privacy.pld`.

    What has a closed form takes it: see `Gaussian`.
    """

    name: ClassVar[str] = "PLD"
    error: ClassVar[str] = (
        "never below the exact epsilon; 1e-5 to 5e-4 (relative) above it for noise multipliers from 0.2 on, up to 1 % "
        "below 0.2, where epsilon is in the hundreds; exact without sampling; with more than 64 noise multipliers on "
        f"samples, each counts as one up to 0.54 % smaller; {_COUNTED}"
    )

    def bound(self, terms: tuple[Term, ...], delta: float) -> float:
        """See `Checked.bound`."""
        return _gaussian(terms, delta) if all(map(_is_plain, terms)) else pld.epsilon(terms, delta)


@dataclass(frozen=True, slots=True)
class Gaussian(Checked):
    """The closed form of Gaussians without sampling; refuses everything else.

    Together they are one Gaussian of noise multiplier 1 / sqrt(sum of 1 / sigma^2) (Dong, Roth, Su 2022, Cor. 3.3),
    whose epsilon is exact (Balle, Wang 2018, Thm 8).
    """

    name: ClassVar[str] = "Gaussian"
    caveat: ClassVar[str] = "holds for full batches in every round only, and refuses everything else"
    error: ClassVar[str] = (
        "exact, but for rounding: delta is met to 1e-8 (relative) by noise multipliers up to 1e4, and to 1e-5 up to "
        "1e7; more count as 1e7"
    )

    def refusal(self, term: Term) -> str:
        """See `Checked.refusal`."""
        return "" if _is_plain(term) else "only Gaussians without any sampling have a closed form. Use pld."

    def bound(self, terms: tuple[Term, ...], delta: float) -> float:
        """See `Checked.bound`."""
        return _gaussian(terms, delta)


@functools.lru_cache(maxsize=4096)
def _gaussian(terms: tuple[Term, ...], delta: float) -> float:
    mu = math.hypot(*(math.sqrt(t.count * t.rounds) / t.release.noise_multiplier for t in terms))
    with np.errstate(divide="ignore"):  # log(0), where not even epsilon 0 has that delta
        return float(dp_accounting.get_epsilon_gaussian(1 / mu, delta))


@dataclass(frozen=True, slots=True)
class RDP(Checked):
    """Renyi differential privacy by dp_accounting: looser than `PLD`, and a second opinion.

    Fixed-size batches: Wang, Balle, Kasiviswanathan 2019, Thm 27; Poisson: Mironov, Talwar, Zhang 2019; conversion:
    Canonne, Kamath, Steinke 2020, Prop. 12. Participation: log(1 - p + p e^{(alpha - 1) R}) / (alpha - 1).
    """

    name: ClassVar[str] = "RDP"
    caveat: ClassVar[str] = "is loose: no Renyi bound in use is tight for fixed batches"
    error: ClassVar[str] = (
        "no grid; above the exact epsilon by 3 to 20 % without sampling, 8 to 18 % for Poisson batches, "
        f"a factor of 2.2 to 2.7 for fixed ones, over reference values above 0.04; by more below; {_COUNTED}"
    )

    def bound(self, terms: tuple[Term, ...], delta: float) -> float:
        """See `Checked.bound`."""
        orders = dp_accounting.rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS
        total = sum(_round_rdp(term) * term.rounds for term in terms)
        return float(dp_accounting.rdp.compute_epsilon(orders, total, delta)[0])


def _round_rdp(term: Term) -> Array:
    """(orders,) Renyi divergence of one round of the term."""
    orders, release = _release_rdp(term.release)
    return mixture_rdp(orders, release * term.count, term.participation)


def mixture_rdp(orders: Array, present: Array, participation: float) -> Array:
    """(orders,) Renyi divergences of a round that is ``present`` with a probability, else empty.

    log(1 - p + p e^{(alpha - 1) R(alpha)}) / (alpha - 1): whether the round took place is part of what is seen.
    """
    if participation == 1:
        return present
    absent = math.log1p(-participation)
    mixed = np.logaddexp(absent, math.log(participation) + (orders - 1) * present)
    return np.asarray(np.maximum(mixed, 0.0) / (orders - 1), dtype=np.float64)


_RDP_ROUNDING: Final = 1e-14  # dp_accounting's sums are off by less; negative ones it would take for no loss at all


@functools.lru_cache(maxsize=4096)
def _release_rdp(release: SampledGaussian) -> tuple[Array, Array]:
    """(orders, Renyi divergences) of one release.

    dp_accounting's accountants differ in what REPLACE_ONE makes of a noise multiplier. Its RDP of batches without
    replacement reads it as std / sensitivity under replacement, which is ours. A Gaussian without sampling is handed
    over as add-or-remove, where it is std / sensitivity in every version: alpha / (2 sigma^2) holds for any relation.
    """
    dp_event, relations = dp_accounting.dp_event, dp_accounting.NeighboringRelation
    gaussian = dp_event.GaussianDpEvent(release.noise_multiplier)
    event, relation = gaussian, relations.ADD_OR_REMOVE_ONE
    if release.rate < 1 and release.sampler == "fixed":
        event, relation = dp_event.SampledWithoutReplacementDpEvent(1, release.rate, gaussian), relations.REPLACE_ONE
    elif release.rate < 1:
        event = dp_event.PoissonSampledDpEvent(release.rate, gaussian)
    accountant = dp_accounting.rdp.RdpAccountant(neighboring_relation=relation).compose(event)
    computed = np.asarray(accountant._rdp, dtype=np.float64)
    return np.asarray(accountant._orders, dtype=np.float64), np.maximum(computed, 0.0) + _RDP_ROUNDING


@dataclass(frozen=True, slots=True, kw_only=True)
class PRV(Checked):
    """Privacy loss random variables by Opacus, for Poisson batches: as tight as `PLD`, by independent code.

    Gopi, Lee, Wutschitz 2021, "Numerical composition of differential privacy", Thm 5.5: with the losses truncated to
    [-L, L] and rounded to a grid of eps_error / sqrt(k / 2 log(12 / delta_error)), epsilon(delta - delta_error) +
    eps_error is an upper bound for k releases; delta_error = delta / 1000.

    Args:
        eps_error: absolute error; time and memory grow with 1 / eps_error.
    """

    eps_error: float = 0.01

    name: ClassVar[str] = "PRV"
    caveat: ClassVar[str] = (
        "computes the loss of removing a record only, which no case is known to fall below that of adding one, "
        "and takes the rounding errors of its Fourier transform for negligible"
    )
    error: ClassVar[str] = (
        "not below the exact epsilon, and at most 2.2 eps_error above it: absolute, 0.022 for the default of 0.01; "
        "noise multipliers above 1e4 count as 1e4"
    )

    def __post_init__(self) -> None:
        require(1e-4 <= self.eps_error <= 1, "eps_error", self.eps_error, "be in [0.0001, 1]")

    def refusal(self, term: Term) -> str:
        """See `Checked.refusal`."""
        if term.participation < 1:
            return "Opacus' PRV accountant composes certain rounds only. Use pld or rdp."
        if term.release.sampler != "poisson" and term.release.rate < 1:
            return "Opacus' PRV accountant knows Poisson batches only. Use pld or rdp."
        return ""

    def most_noise(self, terms: Sequence[Term]) -> float:
        """See `Checked.most_noise`: it has no closed form."""
        return MOST_NOISE

    def bound(self, terms: tuple[Term, ...], delta: float) -> float:
        """See `Checked.bound`.

        Raises:
            UnsupportedError: delta is below 1e-9, or the losses need too large a grid.
        """
        if delta < _PRV_MIN_DELTA:
            raise UnsupportedError(
                f"delta={delta!r} is below {_PRV_MIN_DELTA}: there rounding errors would lower PRV's epsilon. Use pld."
            )
        groups = [(t.release.rate, t.release.noise_multiplier, t.count * t.rounds) for t in terms]
        return _prv(tuple(groups), delta, self.eps_error)


_PRV_MIN_DELTA: Final = 1e-9
_PRV_MAX_LOSS: Final = 500.0  # exp of it is a finite number
_PRV_MAX_POINTS: Final = 2**24


@functools.lru_cache(maxsize=4096)
def _prv(groups: tuple[tuple[float, float, int], ...], delta: float, eps_error: float) -> float:
    """Upper bound on epsilon of (rate, noise multiplier, number) releases.

    Opacus' `PRVAccountant`, but for the limits on the grid: it takes what it is given.
    """
    from opacus.accountants.analysis import prv

    delta_error = delta / 1000
    losses = [prv.PoissonSubsampledGaussianPRV(rate, sigma) for rate, sigma, _ in groups]
    numbers = [number for _, _, number in groups]
    with warnings.catch_warnings(), np.errstate(all="ignore"):  # log(0) at rate 1, where the loss is never below -inf
        warnings.filterwarnings("ignore", message="Optimal order")  # makes the grid longer than need be
        largest = float(prv.compute_safe_domain_size(losses, numbers, eps_error, delta_error))
        spacing = eps_error / math.sqrt(sum(numbers) * math.log(12 / delta_error) / 2)
        points = 2 * largest / spacing
        if not (largest < _PRV_MAX_LOSS and points < _PRV_MAX_POINTS):
            raise UnsupportedError(
                f"PRV needs {points:.1e} grid points for losses up to {largest:.1e}; the most are "
                f"{_PRV_MAX_POINTS:.1e} and {_PRV_MAX_LOSS:g}. "
                f"Use a larger eps_error (now {eps_error}), more noise, or pld."
            )
        domain = prv.Domain.create_aligned(-largest, largest, spacing)
        truncated = [prv.TruncatedPrivacyRandomVariable(loss, domain.t_min, domain.t_max) for loss in losses]
        try:
            composed = prv.compose_heterogeneous([prv.discretize(loss, domain) for loss in truncated], numbers)
            upper = float(composed.compute_epsilon(delta, delta_error, eps_error)[2])
        except (RuntimeError, ValueError) as error:  # it checks what it computes
            raise UnsupportedError(f"PRV does not find an epsilon at delta={delta!r}: {error} Use pld.") from error
    return max(0.0, upper)
