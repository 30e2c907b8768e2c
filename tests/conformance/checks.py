"""Statistical checks whose false-alarm rate is stated, to be tried on what they should and should not notice.

Where seeds are fixed a check can only fail when code changes; ALPHA is its rate per fresh seed, and fresh noise has a
fresh one each time.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

ALPHA = 1e-9
Array = NDArray[np.float64]


def assert_normal(noise: Array, std: float) -> None:
    """Independent draws of N(0, std^2): std within 3 %, distribution, moments and both tails; false alarm < 6 ALPHA.

    From 28,000 draws on, 3 % are 7 standard errors of the standard deviation.
    """
    z = noise.ravel() / std
    assert z.size >= 28_000
    assert abs(z.std() - 1) < 0.03, f"the standard deviation is {z.std():.3f} of what the ledger claims"
    assert stats.kstest(z, "norm").pvalue > ALPHA
    quantile = stats.norm.isf(ALPHA / 2)
    assert abs(z.mean()) < quantile / math.sqrt(z.size)
    assert abs(stats.kurtosis(z)) < quantile * math.sqrt(24 / z.size)
    for tail in (z > 3, z < -3):
        assert stats.binomtest(int(tail.sum()), z.size, stats.norm.sf(3)).pvalue > ALPHA, "a tail"


def assert_uncorrelated(one: Array, other: Array) -> None:
    """Independent normals do not correlate: |r| < 0.1; false alarm < ALPHA from 3,000 draws on, and |r| = 0.2 shows."""
    assert one.size >= 3000
    r = float(np.corrcoef(one.ravel(), other.ravel())[0, 1])
    assert abs(math.atanh(min(abs(r), 0.999999))) < stats.norm.isf(ALPHA / 2) / math.sqrt(one.size - 3), f"r = {r:.3f}"


def assert_frequency(counts: NDArray[np.int64], number: int, probability: float) -> None:
    """Every one of ``counts`` is Binomial(number, probability) by itself; false alarm < ALPHA in all."""
    level = ALPHA / counts.size
    low, high = stats.binom.ppf([level / 2, 1 - level / 2], number, probability)
    assert low <= counts.min() and counts.max() <= high, (counts.min(), counts.max(), low, high)
