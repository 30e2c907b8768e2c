"""Calibration: from (epsilon, delta) to noise, rounds, steps or a cap, by root finding on the accountant that is asked.

Every answer is on the safe side: its own epsilon has been computed, by the accountant that will account for the run,
and it fits. Where an accountant computes no further, and where that takes too long, there is no answer but an error,
which says how far it could compute.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from decimal import ROUND_CEILING, Decimal
from typing import Final

from dpfl_plugin.errors import ConfigError, UnsupportedError, require
from dpfl_plugin.privacy.accountants import LEAST_NOISE, MOST_GAUSSIAN_NOISE, MOST_NOISE, Accountant
from dpfl_plugin.privacy.composition import Terms, undominated
from dpfl_plugin.privacy.events import Term

SECONDS: Final = 10.0
"""Of processor time, after which a search for the least noise stops and says so.

By pld a search takes 0.2 to 1.5 seconds, and with a schedule of 500 noise multipliers 2.6; by prv up to 6 at epsilon
0.1, and more from 10 on.
"""
RESOLUTION: Final = 1e-3  # relative: how far an epsilon that noise was solved for may fall short of what was asked for
_DIGITS: Final = 5
_STEP: Final = 4.0  # from the most noise downwards: an epsilon of too little noise is the dearest to compute
_LOG_CLIP: Final = 50.0
_TOLERANCE: Final = 1e-6  # relative, of the noise multiplier before it is rounded up


def worst_epsilon(accountant: Accountant, compositions: Iterable[Terms], delta: float) -> float:
    """The largest epsilon of compositions that hold side by side: of silos, and of disjoint shares of their records.

    Raises:
        ConfigError, UnsupportedError: as `Accountant.epsilon`.
    """
    return max((accountant.epsilon(terms, delta) for terms in undominated(compositions)), default=0.0)


def with_noise(terms: Sequence[Term], noise_multiplier: float) -> Terms:
    """``terms`` with every noise multiplier times ``noise_multiplier``: a schedule keeps its proportions."""
    return tuple(
        replace(t, release=replace(t.release, noise_multiplier=t.release.noise_multiplier * noise_multiplier))
        for t in terms
    )


class _Search:
    """Epsilons of noise multipliers, each computed once; stops before it takes longer than `SECONDS`."""

    def __init__(self, epsilon_at: Callable[[float], float], epsilon: float) -> None:
        self._epsilon_at, self._epsilon = epsilon_at, epsilon
        self._began, self._longest = time.thread_time(), 0.0
        self._found: dict[float, float] = {}
        self.unsupported = 0.0  # the most noise whose epsilon is not known

    def __call__(self, noise: float) -> float:
        """
        Raises:
            UnsupportedError: there is too little time left; or as ``epsilon_at``.
        """
        if noise not in self._found:
            began = time.thread_time()
            if began - self._began + self._longest > SECONDS:
                raise self._late()
            self._found[noise] = self._epsilon_at(noise)
            self._longest = max(self._longest, time.thread_time() - began)
        return self._found[noise]

    def known(self, noise: float) -> float:
        """Infinite where the epsilon is not known: of very little noise, whose losses need too large a grid."""
        if noise <= self.unsupported:
            return math.inf
        try:
            return self(noise)
        except _LateError:
            raise
        except UnsupportedError:
            self.unsupported = noise
            return math.inf

    def check(self, noise: float) -> None:
        """Raise UnsupportedError if the epsilon of this answer falls short because that of less noise is not known."""
        found = self.known(noise)
        limit = max(self.unsupported, LEAST_NOISE * (1 - RESOLUTION))
        if 0 < found < self._epsilon * (1 - RESOLUTION) and noise * (1 - RESOLUTION) <= limit:
            raise UnsupportedError(
                f"epsilon={self._epsilon!r}: cannot compute above {found:.4g}, which it is with noise_multiplier "
                f"{noise:g}. Ask for no more than that, give noise_multiplier, or use another accountant."
            )

    def _late(self) -> _LateError:
        enough = min((noise for noise, found in self._found.items() if found <= self._epsilon), default=math.inf)
        known = f"noise_multiplier {enough:g} is enough (epsilon {self._found[enough]:.4g}), and less may be"
        return _LateError(
            f"epsilon={self._epsilon!r}: cannot compute the least noise within {SECONDS:g} s of processor time: "
            f"{known if enough < math.inf else 'none was enough so far'}. Use a faster accountant (pld), or give "
            "noise_multiplier."
        )


class _LateError(UnsupportedError):
    """A search has no time left."""


def least_noise(
    epsilon_at: Callable[[float], float], epsilon: float, fits: Callable[[float], bool] | None = None
) -> float:
    """The least noise multiplier, rounded up to 5 significant digits, whose epsilon is at most ``epsilon``.

    Brent's method on the logarithms, of which one is nearly linear in the other. The epsilon of the answer has been
    computed and is at most ``epsilon``; it falls short of it by less than 1e-3 (relative) for an epsilon above 0.01.

    Args:
        epsilon_at: epsilon of a noise multiplier; falls as that grows. Where it is not supported it counts as infinite.
        fits: what else the answer has to meet; more noise meets it sooner or later.

    Raises:
        ConfigError: epsilon is not a positive number, or no noise that is supported meets it.
        UnsupportedError: as ``epsilon_at`` at much noise; of so little noise as ``epsilon`` allows no epsilon is known;
            or it would take longer than `SECONDS`.
    """
    from scipy.optimize import brentq

    require(0 < epsilon < math.inf, "epsilon", epsilon, "be positive and finite")
    search = _Search(epsilon_at, epsilon)
    high = MOST_NOISE
    while (least := search(high)) > epsilon and high < MOST_GAUSSIAN_NOISE:
        more = min(high * _STEP, MOST_GAUSSIAN_NOISE)
        if search(more) >= least:  # so much noise counts as less
            break
        high = more
    if least > epsilon:
        raise ConfigError(
            f"epsilon={epsilon!r} is out of reach: cannot compute below {least:.4g}, which it is with noise_multiplier "
            f"{high:g}. Ask for a larger epsilon or delta, for fewer rounds or local steps, or use a tighter "
            "accountant (pld)."
        )

    def excess(log_noise: float) -> float:
        found = search.known(math.exp(log_noise))
        return max(-_LOG_CLIP, min(_LOG_CLIP, math.log(found / epsilon))) if found > 0 else -_LOG_CLIP

    top = low = high
    while low > LEAST_NOISE and search.known(low) <= epsilon:
        high, low = low, max(low / _STEP, LEAST_NOISE)
    if search.known(low) > epsilon:
        low = math.exp(brentq(excess, math.log(low), math.log(high), xtol=_TOLERANCE))
    answer, tried = min(_round_up(low), top), 0
    while not (search.known(answer) <= epsilon and (fits is None or fits(answer))):
        answer, tried = _round_up(answer, more=1 + tried // 8), tried + 1
        if answer > MOST_GAUSSIAN_NOISE:
            raise ConfigError(f"epsilon={epsilon!r} is out of reach with noise_multiplier up to {answer:g}.")
    search.check(answer)
    return answer


def _round_up(value: float, more: int = 0) -> float:
    """``value`` rounded up to 5 significant digits, and ``more`` units of the last of them."""
    exact = Decimal(repr(value))
    unit = Decimal(1).scaleb(exact.adjusted() - _DIGITS + 1)
    return float(exact.quantize(unit, rounding=ROUND_CEILING) + more * unit)


def most(fits: Callable[[int], bool], limit: int, likely: int = 1) -> int:
    """The largest n <= limit that ``fits``, where all smaller ones fit, too; 0 if not even 1 does.

    Doubling, then bisection; the answer has been tried and fits.

    Args:
        likely: tried first, and if it fits nothing below it is. What ``fits`` says may be off by an accountant's
            error, by which n rounds may seem dearer than more of them: what fits together with more fits without.
    """
    low = min(likely, limit)
    if low <= 1 or not fits(low):
        low = 1
        if limit <= 0 or not fits(1):
            return 0
    high = 2 * low
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


def max_rounds(
    accountant: Accountant,
    per_round: Term,
    spent: Sequence[Term],
    epsilon: float,
    delta: float,
    limit: int,
    likely: int = 1,
) -> int:
    """The largest n <= limit such that ``spent`` and n more times ``per_round`` stay within (epsilon, delta).

    The answer's own epsilon has been computed and fits. 0 if not one fits.

    Args:
        likely: see `most`.

    Raises:
        ConfigError: epsilon is negative or not a number, or as `Accountant.epsilon`.
    """
    if not epsilon >= 0:
        raise ConfigError(f"epsilon={epsilon!r} must be at least 0.")

    def fits(rounds: int) -> bool:
        more = replace(per_round, rounds=per_round.rounds * rounds)
        return accountant.epsilon([*spent, more], delta) <= epsilon

    def known(rounds: int) -> bool:
        try:
            return fits(rounds)
        except UnsupportedError:  # of far too many rounds, whose losses need too large a grid
            if rounds != likely:
                raise
            return False

    return most(known if likely > 1 else fits, limit, likely) if fits(0) else 0
