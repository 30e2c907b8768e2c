"""What a transcript proves about epsilon: the statistics of `dpfl audit`. Numbers in, numbers out.

Bits are fair coins, one for each canary: which of two neighbouring data sets the canary made. Scores are functions of
the transcript. [S] is Steinke, Nasr, Jagielski 2023, "Privacy auditing with one (1) training run", arXiv:2305.08846.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from dpfl_plugin.late import dp_accounting

Array = NDArray[np.float64]
Bits = NDArray[np.bool_]

# Numbers of guesses that the one-run bound tries, as shares of the canaries: fixed before any score is seen.
GUESSES: Final = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.09, 0.06)
_MOST_EPSILON: Final = 100.0


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate, and the limits that hold the truth but with the stated probability."""

    low: float
    estimate: float
    high: float

    def map(self, function: Callable[[float], float]) -> Interval:
        """The interval of an increasing function."""
        return Interval(function(self.low), function(self.estimate), function(self.high))


def one_run_p_value(num_canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """How probable ``correct`` right guesses of ``guesses`` are at most, if every canary is (epsilon, delta)-protected.

    P[B >= v] + 2 m delta max_i P[v > B >= v - i] / i,   B ~ Binomial(r, e^eps / (1 + e^eps))      [S] Thm 5.2
    """
    tail = float(special.bdtrc(correct - 1, guesses, special.expit(epsilon))) if correct else 1.0
    if delta == 0 or correct == 0:
        return tail
    k = np.arange(correct - 1, -1, -1)
    ways = special.gammaln(guesses + 1) - special.gammaln(k + 1) - special.gammaln(guesses - k + 1)
    below = np.cumsum(np.exp(ways - epsilon * (guesses - k) - guesses * math.log1p(math.exp(-epsilon))))
    worst = float(np.max(below / np.arange(1, correct + 1)))
    return min(1.0, tail + 2 * num_canaries * delta * worst)


def one_run_bound(scores: Array, bits: Bits, delta: float, false_alarm: float) -> float:
    """Epsilon that is exceeded, but with probability ``false_alarm``: the best over `GUESSES`, each at its share of it.

    The r/2 highest scores are guessed to have their bit set, the r/2 lowest not, and none in between is guessed.
    """
    m = len(scores)
    order = np.argsort(scores, kind="stable")
    best = 0.0
    for half in sorted({round(share * m) // 2 for share in GUESSES} - {0}):
        correct = int(bits[order[-half:]].sum() + (~bits[order[:half]]).sum())
        best = max(best, _largest_refuted(m, 2 * half, correct, delta, false_alarm / len(GUESSES)))
    return best


def _largest_refuted(m: int, guesses: int, correct: int, delta: float, false_alarm: float) -> float:
    def excess(epsilon: float) -> float:
        return one_run_p_value(m, guesses, correct, epsilon, delta) - false_alarm

    if excess(0.0) > 0:
        return 0.0
    low, high = 0.0, _MOST_EPSILON  # p grows with epsilon; at the end below ``low`` it is refuted for sure
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if excess(middle) > 0 else (middle, high)
    return low


def separation(scores: Array, bits: Bits, false_alarm: float) -> Interval | None:
    """mu, the distance of the two groups' means in standard deviations; None with fewer than two scores in a group.

    Exact for normal scores of equal variance: the t statistic is then noncentral t.
    """
    high, low = scores[bits], scores[~bits]
    if min(len(high), len(low)) < 2:
        return None
    freedom = len(scores) - 2
    spread = math.sqrt((high.var() * len(high) + low.var() * len(low)) / freedom)
    unit = math.sqrt(1 / len(high) + 1 / len(low))
    difference = float(high.mean() - low.mean())
    t = difference / (spread * unit) if spread > 0 else math.copysign(math.inf, difference)
    if math.isinf(t):
        return Interval(t, t, t)
    noncentrality = [_noncentrality(t, freedom, level) for level in (1 - false_alarm, false_alarm)]
    return Interval(noncentrality[0] * unit, t * unit, noncentrality[1] * unit)


def _noncentrality(t: float, freedom: int, level: float) -> float:
    """The noncentrality at which the noncentral t distribution has P[T <= t] = level.

    P[T <= t] = E[Phi(t S - noncentrality)], S^2 ~ chi^2 / freedom; its tails beyond 1e-12 are left out.
    """
    first, last = stats.chi.ppf([1e-12, 1 - 1e-12], freedom)
    s = np.linspace(first, last, 2001)
    weights = stats.chi.pdf(s, freedom)
    weights, s = weights / weights.sum(), s / math.sqrt(freedom)

    def excess(noncentrality: float) -> float:
        return float(weights @ stats.norm.cdf(t * s - noncentrality)) - level

    return float(optimize.brentq(excess, -10 + min(t * s[0], t * s[-1]), 10 + max(t * s[0], t * s[-1])))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon at delta of mu-Gaussian differential privacy (Balle, Wang 2018, Thm 8)."""
    if mu <= 0:
        return 0.0
    return float(dp_accounting.get_epsilon_gaussian(1 / mu, delta)) if math.isfinite(mu) else math.inf


def spread(values: Array, freedom: int, false_alarm: float) -> Interval:
    """The standard deviation of normal values, from their sum of squares with ``freedom`` degrees of freedom."""
    total = float(np.square(values).sum())
    low, high = stats.chi2.ppf([false_alarm / 2, 1 - false_alarm / 2], freedom)
    return Interval(math.sqrt(total / high), math.sqrt(total / freedom), math.sqrt(total / low))


@dataclass(frozen=True, slots=True)
class Correlation:
    """The most striking of several correlations: its |r|, what |r| passes by chance, and how many there were."""

    largest: float = 0.0
    threshold: float = 1.0
    pairs: int = 0


def striking(correlations: list[tuple[float, int]], false_alarm: float) -> Correlation:
    """Of (r, number of values) pairs the one that most exceeds its threshold, at the false-alarm rate of all.

    r sqrt((n - 1) / (1 - r^2)) of n pairs of independent centred normals is Student's t with n - 1 degrees.
    """
    if not correlations:
        return Correlation()
    r, n = (np.array(column) for column in zip(*correlations, strict=True))
    t = stats.t.isf(false_alarm / (2 * len(r)), n - 1)
    thresholds = t / np.sqrt(n - 1 + t**2)
    most = int(np.argmax(np.abs(r) / thresholds))
    return Correlation(float(abs(r[most])), float(thresholds[most]), len(r))


def correlation(x: Array, y: Array) -> float:
    """Of centred values; 0 where one of them is constant 0."""
    norm = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(np.vdot(x, y)) / norm if norm > 0 else 0.0


def normality(values: Array) -> float:
    """p-value of Kolmogorov and Smirnov for a centred normal distribution of the values' own size.

    Estimating the size makes false alarms rarer than stated.
    """
    size = float(np.sqrt(np.square(values).mean()))
    return float(stats.kstest(values / size, "norm").pvalue) if size > 0 else 0.0
