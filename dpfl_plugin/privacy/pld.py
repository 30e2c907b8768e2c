"""Privacy loss distributions on a grid: rigorous upper bounds on delta(epsilon) of composed, sampled Gaussians.

Three steps, each of which can only raise delta:

1. *Discretise* (`dpfl_plugin.privacy.step_loss`). The loss of one release is moved to the grid by connecting the dots
   (Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022, "Connect the Dots", Alg. 1): mass at a loss between two grid
   points is split between them so that its mass under both distributions of the pair is kept. The masses are integrals
   of positive functions over panels that end at the grid points, so nothing cancels, however fine the grid: every
   mass has a small *relative* error, which composition can only multiply.
2. *Compose* by one FFT per term, after tilting: with p the law of the loss and M(t) = E exp(t L), the tilted law is
   p(l) exp(t l) / M(t). The tilt of a composition is the composition of the tilts, and its mean can be set to
   about the epsilon that is looked for, so that rounding errors of the FFT are small against delta and not
   against 1. (Esscher 1932; for privacy losses e.g. Alghamdi et al. 2023, "The Saddle-Point Method in DP".)
3. *Cut.* An FFT of length N adds up the masses at l, l +- N dl, ...: in the window every mass comes out at least as
   large as it is. What lies above the window is bounded by Chernoff and counted as an infinite loss; what lies
   below it adds nothing to delta at an epsilon inside the window.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from dpfl_plugin.errors import ConfigError, UnsupportedError, is_real
from dpfl_plugin.privacy.events import SampledGaussian, Term
from dpfl_plugin.privacy.step_loss import MAX_POINTS, Array, Direction, StepLoss, loss_scale, step_loss

MIN_DELTA: Final = 1e-30
_CELLS_PER_STD: Final = 32  # connecting the dots adds a variance of dl^2 / 6 a release: 2e-4 of the loss's own
_TAIL: Final = 1e-9  # what tails may add to delta, relative to delta
_MASS_ROUNDING: Final = 4e-13  # relative error of a discretised, tilted mass; a hundred times what is seen
_LOSS_ROUNDING: Final = 1e-14  # error of a loss, relative to 1 + |loss|; as above
_SUM_ROUNDING: Final = 1e-8  # relative error of a sum of 2^24 positive numbers
_TILTS: Final = (1.0, 0.7)  # of Chernoff's best; each gives a bound, and the tighter one counts


def check_release(release: SampledGaussian) -> None:
    """Refuse a release whose privacy loss is not known exactly.

    Raises:
        ConfigError: a number is out of range.
        UnsupportedError: the sampler does not go with the neighbouring relation.
    """
    sigma, rate = release.noise_multiplier, release.rate
    if not (math.isfinite(sigma) and sigma > 0):
        raise ConfigError(f"noise_multiplier={sigma!r} must be finite and above 0 for a privacy loss distribution.")
    if not 0 < rate <= 1:
        raise ConfigError(f"rate={rate!r} must be in (0, 1]: batch_size / num_records, or the Poisson rate.")
    if release.neighbouring not in ("replace_one", "add_or_remove"):
        raise UnsupportedError(f"neighbouring={release.neighbouring!r} must be replace_one or add_or_remove.")
    if release.sampler == "full":
        if rate != 1:
            raise ConfigError(f"rate={rate!r} must be 1 for sampler=full.")
        return
    sound = {"fixed": "replace_one", "poisson": "add_or_remove"}
    if release.sampler not in sound:
        raise UnsupportedError(
            f"sampler={release.sampler!r} has no accountant: use fixed (without replacement), poisson or full. "
            "Shuffled epochs and weighted draws are not accounted for as if they were one of these."
        )
    if sound[release.sampler] != release.neighbouring:
        raise UnsupportedError(
            f"sampler={release.sampler} with neighbouring={release.neighbouring} has no accountant: "
            f"{release.sampler} batches are accounted for under {sound[release.sampler]}."
        )


def check_delta(delta: float) -> None:
    """Raise ConfigError unless 0 < delta < 1."""
    if not (is_real(delta) and 0 < delta < 1):
        raise ConfigError(f"delta={delta!r} must lie strictly between 0 and 1. Use less than 1 / num_records.")


def normalise(terms: Iterable[Term]) -> tuple[Term, ...]:
    """Equal factors merged, empty ones dropped, in a canonical order: equal compositions become equal tuples.

    A term of participation 1 is ``count * rounds`` rounds of one release.

    Raises:
        ConfigError: a count, number of rounds or participation is out of range, or the terms do not speak of the
            same neighbouring relation and unit.
    """
    rounds: dict[tuple[SampledGaussian, int, float], int] = {}
    for term in terms:
        whole = isinstance(term.count, int) and isinstance(term.rounds, int)
        if not whole or term.count < 0 or term.rounds < 0 or not 0 <= term.participation <= 1:
            raise ConfigError(
                f"count={term.count!r} and rounds={term.rounds!r} must be whole numbers of at least 0, and "
                f"participation={term.participation!r} in [0, 1]."
            )
        if term.count == 0 or term.rounds == 0 or term.participation == 0:
            continue
        always = term.participation == 1
        key = (term.release, 1 if always else term.count, float(term.participation))
        rounds[key] = rounds.get(key, 0) + term.rounds * (term.count if always else 1)
    meanings = {(release.neighbouring, release.unit) for release, _, _ in rounds}
    if len(meanings) > 1:
        raise ConfigError(
            "releases under different neighbouring relations or units cannot be composed into one epsilon: "
            + ", ".join(sorted(f"{neighbouring} of a {unit}" for neighbouring, unit in meanings))
            + ". Use one sampler and one unit in a run."
        )
    merged = [Term(release=r, count=c, rounds=n, participation=p) for (r, c, p), n in rounds.items()]
    return tuple(sorted(merged, key=_order))


def _order(term: Term) -> tuple[object, ...]:
    r = term.release
    return (r.sampler, r.rate, r.noise_multiplier, r.neighbouring, r.unit, term.count, term.participation)


def epsilon(terms: Sequence[Term], delta: float, *, refine: int = 1) -> float:
    """Smallest epsilon >= 0 at which the upper bound on delta(epsilon) of the composition is at most ``delta``.

    An upper bound; 3e-5 to 5e-4 (relative) above the exact value, by what changes when the grid is made finer; up to
    1e-2 for noise multipliers below 0.2, whose epsilons are in the hundreds.

    Args:
        terms: the composition; the order does not matter.
        delta: in (0, 1), at least 1e-30.
        refine: makes the grid this many times finer; for checks.

    Raises:
        ConfigError, UnsupportedError: see `check_release`, `normalise`, `check_delta`; or the grid would not fit.
    """
    check_delta(delta)
    if delta < MIN_DELTA:
        raise UnsupportedError(f"delta={delta!r} is below {MIN_DELTA}, the smallest that is supported.")
    return _epsilon(normalise(terms), float(delta), refine)


def delta_at(terms: Sequence[Term], epsilon: float, *, refine: int = 1) -> float:
    """Upper bound on delta of the composition at ``epsilon`` >= 0; may be loose below 1e-15.

    Raises:
        ConfigError, UnsupportedError: as `epsilon` does.
    """
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise ConfigError(f"epsilon={epsilon!r} must be finite and at least 0.")
    composition = normalise(terms)
    bounds = [law.delta_at(float(epsilon)) for law in _laws(composition, 1e-15, refine)]
    return min(1.0, max(bounds, default=0.0))


def profiles(terms: Sequence[Term], delta: float, levels: int, cells: int) -> list[tuple[Array, Array]]:
    """Upper bounds on delta(epsilon) of a composition, at epsilons from 0 to where it is ``delta``; for each direction.

    Args:
        terms: at least one.
        levels: bounds, each tight near another delta, of which the least counts.
        cells: about how many epsilons.

    Returns:
        (epsilons (n,), bounds (n,)) for each direction, of one where both are alike.

    Raises:
        ConfigError, UnsupportedError: as `epsilon` does.
    """
    return [law.profile(delta, levels, cells) for law in _laws(normalise(terms), delta, 1)]


@functools.lru_cache(maxsize=4096)
def _epsilon(terms: tuple[Term, ...], delta: float, refine: int) -> float:
    return max((law.epsilon(delta) for law in _laws(terms, delta, refine)), default=0.0)


def _laws(terms: tuple[Term, ...], delta: float, refine: int) -> list[_Composition]:
    """The composed losses that must all be bounded: one, or with Poisson sampling one for each direction.

    A record is either removed in all releases or added in all of them, so directions are not mixed.
    """
    if not terms:
        return []
    for term in terms:
        check_release(term.release)
    releases = sum(term.count * term.rounds for term in terms)
    reach = float(math.ceil(_quantile(_TAIL * delta / releases)))
    directions: tuple[Direction, ...] = (
        ("remove", "add") if any(_is_directed(t.release) for t in terms) else ("symmetric",)
    )
    return [_Composition(_factors(terms, direction, reach, refine)) for direction in directions]


def _is_directed(release: SampledGaussian) -> bool:
    """Whether adding a record and removing it have different losses."""
    return release.sampler == "poisson" and release.rate < 1


def _quantile(tail: float) -> float:
    """z with at most ``tail`` of a standard normal above it."""
    from scipy.special import ndtri

    return float(-ndtri(tail)) + 1e-6


@dataclass(frozen=True, eq=False)
class _Factor:
    """``rounds`` rounds that make ``count`` releases of ``step`` with probability ``participation``, else none."""

    step: StepLoss
    count: int
    rounds: int
    participation: float

    def round_log_mgf(self, step_log_mgf: float) -> float:
        if self.participation == 1:
            return self.count * step_log_mgf
        present = math.log(self.participation) + self.count * step_log_mgf
        return float(np.logaddexp(math.log1p(-self.participation), present))


def _factors(terms: tuple[Term, ...], direction: Direction, reach: float, refine: int) -> list[_Factor]:
    """The terms on one grid, a power of two fine against the root mean square loss of their releases."""
    direction_of: dict[SampledGaussian, Direction] = {
        t.release: direction if _is_directed(t.release) else "symmetric" for t in terms
    }
    scale = [loss_scale(t.release, direction_of[t.release]) for t in terms]
    number = [t.count * t.rounds * t.participation for t in terms]
    mean_square = sum(n * s * s for n, s in zip(number, scale, strict=True)) / sum(number)
    dl = 2.0 ** math.floor(math.log2(math.sqrt(mean_square) / _CELLS_PER_STD)) / refine
    return [
        _Factor(step_loss(t.release, direction_of[t.release], reach, dl), t.count, t.rounds, t.participation)
        for t in terms
    ]


class _Composition:
    """Upper bounds on delta(epsilon) of independent factors on one grid."""

    def __init__(self, factors: list[_Factor]) -> None:
        self.factors = factors
        self.dl = factors[0].step.dl
        self.releases = sum(f.count * f.rounds for f in factors)
        self.infinite = sum(f.count * f.rounds * f.step.infinite for f in factors)  # union bound
        self._uppers: dict[float, float] = {}

    def log_mgf(self, tilt: float) -> float:
        """log E exp(tilt * L) of the composition; its infinite losses aside."""
        return sum(f.rounds * f.round_log_mgf(f.step.log_mgf(tilt)) for f in self.factors)

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon >= 0 whose bound is at most delta."""
        level = math.log(1 / delta)
        tilt = self._minimise(lambda t: (self.log_mgf(t) + level) / t)
        return min(_first_below(*self.curve(share * tilt, delta), delta) for share in _TILTS)

    def delta_at(self, epsilon: float) -> float:
        """The bound at epsilon >= 0."""
        tilt = self._minimise(lambda t: self.log_mgf(t) - t * epsilon)
        guess = max(1e-15, min(0.5, math.exp(min(0.0, self.log_mgf(tilt) - tilt * epsilon))))
        return min(_value_at(*self.curve(share * tilt, guess), epsilon) for share in _TILTS)

    def profile(self, delta: float, levels: int, cells: int) -> tuple[Array, Array]:
        """Epsilons from 0 to where the bound is at most delta, and the bounds there; see `profiles`."""
        curves = []
        for level in np.log(1 / np.geomspace(0.5, delta, levels)):
            tilt = self._minimise(lambda t, level=level: (self.log_mgf(t) + level) / t)  # type: ignore[misc]
            curves.append(self.curve(tilt, delta))
        last = math.ceil(min(_first_below(*curve, delta) for curve in curves) / self.dl)
        step = max(1, last // cells)
        index = np.arange(0, last + step + 1, step)
        bounds = np.ones(index.size)
        for losses, bound in curves:
            place = index - round(float(losses[0]) / self.dl)
            there = np.where(place < 0, 1.0, bound[np.clip(place, 0, bound.size - 1)])
            bounds = np.minimum(bounds, there)
        return self.dl * index.astype(np.float64), bounds

    def _minimise(self, objective: Callable[[float], float]) -> float:
        """A tilt that about minimises the objective. Every tilt gives a bound; a good one gives a tight bound."""
        from scipy.optimize import minimize_scalar

        found = minimize_scalar(
            lambda x: objective(math.exp(x)),
            bounds=(math.log(1e-6), math.log(1e3 / self.dl)),
            method="bounded",
            options={"xatol": 0.02},
        )
        return math.exp(float(found.x))

    def _upper(self, level: float) -> float:
        """A tilt for a good bound on the upper end; looked for once for all curves."""
        if level not in self._uppers:
            self._uppers[level] = self._minimise(lambda t: (self.log_mgf(t) + level) / t)
        return self._uppers[level]

    def _window(self, tilt: float, delta: float) -> tuple[int, int, float]:
        """First grid index, length, and a bound on the probability of a loss beyond.

        By Chernoff P(L > h) <= exp(log M(t) - t h) for each t > 0. The lower end only decides how much mass is
        wrapped into the window, which raises the bound a little.
        """
        level = math.log(1 / (_TAIL * delta))
        upper = self._upper(level)
        last = math.ceil((self.log_mgf(upper) + level) / upper / self.dl)
        here = self.log_mgf(tilt)
        lower = self._minimise(lambda t: (self.log_mgf(tilt - t) - here + level) / t)
        first = math.floor(-(self.log_mgf(tilt - lower) - here + level) / lower / self.dl)
        beyond = math.exp(min(0.0, self.log_mgf(upper) - upper * last * self.dl))
        return first, max(last - first + 1, 64), beyond

    def curve(self, tilt: float, delta: float) -> tuple[Array, Array]:
        """Grid losses e_j and upper bounds on delta(e_j); tight where the tilted loss has its mass.

        With u_k the untilted masses, S_j = sum_{k > j} u_k (1 - e^{e_j - l_k}) obeys
        S_j = (1 - e^{-dl}) sum_{k > j} u_k + e^{-dl} S_{j+1}: sums of positive numbers only.

        Rounding: an FFT's error is at most eta = 8 log2(N) 2^-52 relative to its vector in the 2-norm (Higham 2002,
        Thm 24.2). A step's error e(f), |psi| <= 1, becomes at most n |e(f)| exp(n max|e|) after n-fold powers, and
        by Parseval the composed masses are off by at most ``error`` in the 2-norm; S_j then by
        |error| times the 2-norm of its weights exp(-t (l_k - e_j)) (1 - e^{e_j - l_k}), by Cauchy-Schwarz.
        """
        from scipy import fft
        from scipy.linalg.blas import dtbsv

        first, length, beyond = self._window(tilt, delta)
        length = int(fft.next_fast_len(length, real=True))
        if length > MAX_POINTS:
            raise UnsupportedError(
                f"{self.releases} releases need {length} grid points, more than {MAX_POINTS}: too many of them."
            )
        eta = 8 * math.log2(length) * 2.0**-52
        product = np.ones(length // 2 + 1, dtype=np.complex128)
        total_log_mgf, error, worst = 0.0, 0.0, 0.0
        for factor in self.factors:
            step_log_mgf = factor.step.log_mgf(tilt)
            round_log_mgf = factor.round_log_mgf(step_log_mgf)
            masses = factor.step.tilted(tilt, step_log_mgf)
            folded = np.bincount(factor.step.index % length, weights=masses, minlength=length)
            psi = fft.rfft(folded) ** factor.count
            if factor.participation < 1:
                present = math.exp(math.log(factor.participation) + factor.count * step_log_mgf - round_log_mgf)
                psi = math.exp(math.log1p(-factor.participation) - round_log_mgf) + present * psi
            product *= psi**factor.rounds
            total_log_mgf += factor.rounds * round_log_mgf
            size = factor.count * factor.rounds * eta * float(np.linalg.norm(folded))
            error += size
            worst += size * math.sqrt(length)
        if worst > 0.1:
            raise UnsupportedError(f"{self.releases} releases are too many for double precision.")
        composed = np.roll(fft.irfft(product, length), -(first % length))
        error = error * math.exp(worst) + (eta + 8 * self.releases * 2.0**-52) * float(np.linalg.norm(composed))

        losses = self.dl * np.arange(first, first + length, dtype=np.float64)
        scale = np.exp(np.clip(total_log_mgf - tilt * losses, -700, 300))
        mass = np.maximum(composed, 0.0) * scale
        above = np.append(np.cumsum(mass[::-1])[::-1][1:], 0.0)
        # S as the solution of a system with two diagonals: scipy.signal's filter does the same, but takes half a second
        # to import.
        diagonals = np.empty((2, length), order="F")
        diagonals[0], diagonals[1] = 1.0, -math.exp(-self.dl)
        sums = dtbsv(1, diagonals, -math.expm1(-self.dl) * above[::-1], lower=1, diag=1)[::-1]
        offset = self.dl * np.arange(1, length)
        weights = np.exp(-tilt * offset) * -np.expm1(-offset)
        rounding = error * float(np.linalg.norm(weights)) * scale
        largest = max(f.step.largest for f in self.factors)
        slack = _SUM_ROUNDING + self.releases * (_MASS_ROUNDING + (tilt + 1) * (1 + largest) * _LOSS_ROUNDING)
        bound = (sums + rounding) * math.exp(slack) + beyond + self.infinite
        return losses, bound


def _value_at(losses: Array, bound: Array, epsilon: float) -> float:
    """The bound at epsilon; linear in e^epsilon between points. Below the window 1, above it the last bound."""
    if epsilon >= losses[-1]:
        return float(bound[-1])
    j = math.floor((epsilon - float(losses[0])) / float(losses[1] - losses[0]))
    if j < 0:
        return 1.0
    share = math.expm1(max(0.0, epsilon - float(losses[j]))) / math.expm1(float(losses[j + 1] - losses[j]))
    return float(bound[j] + min(1.0, share) * (bound[j + 1] - bound[j]))


def _first_below(losses: Array, bound: Array, delta: float) -> float:
    """The smallest epsilon >= 0 from which on the bound is at most delta; linear in e^epsilon between points."""
    over = np.flatnonzero(bound > delta)
    if over.size == 0:
        return max(0.0, float(losses[0]))
    j = int(over[-1])
    if j + 1 >= losses.size:
        raise UnsupportedError("no finite epsilon was found at this delta; use a larger one.")
    if losses[j + 1] <= 0:
        return 0.0
    share = (bound[j] - delta) / (bound[j] - bound[j + 1])
    return max(0.0, float(losses[j]) + math.log1p(float(share) * math.expm1(float(losses[j + 1] - losses[j]))))
