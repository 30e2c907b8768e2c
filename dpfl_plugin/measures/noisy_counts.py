"""What follows from noisy counts and sums: means, quantiles, and how far noise may have moved them.

All of it is post-processing. Standard errors and intervals are of the noise alone: how the records themselves were
sampled is not in them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from dpfl_plugin.core.scaling import share_below
from dpfl_plugin.core.validation_scores import NORMAL_95


class Estimate(NamedTuple):
    """A number, and the standard deviation of what noise adds to it."""

    value: float
    noise_std: float


class Interval(NamedTuple):
    """A number, and where it lies with 95 % of all draws of the noise, without noise."""

    value: float
    low: float
    high: float


def count(noisy: float, noise_std: float, num_records: float) -> Estimate:
    """A count among so many records, cut to what is possible."""
    return Estimate(min(max(0.0, noisy), num_records), noise_std)


def mean_and_std(sums: tuple[float, float], noise_std: float, num_records: Estimate) -> tuple[Estimate, Interval]:
    """Mean and standard deviation of values x from -1 to 1, by the delta method.

    The interval of the standard deviation is that of the variance: an error of its own, s / (2 std) at the noisy value,
    would be smallest where noise made the value too large.

    Args:
        sums: sums of x and x^2 - 1 over the records that have a value, with noise of this standard deviation each.
        num_records: how many have one, by counts with noise of their own.
    """
    there = max(1.0, num_records.value)
    mean, second = max(-1.0, min(1.0, sums[0] / there)), sums[1] / there
    of_mean = math.hypot(noise_std, mean * num_records.noise_std) / there
    variance = second + 1 - mean**2
    slope = second - 2 * mean**2
    of_variance = math.hypot(noise_std, 2 * mean * noise_std, slope * num_records.noise_std) / there
    ends = (variance, variance - NORMAL_95 * of_variance, variance + NORMAL_95 * of_variance)
    return Estimate(mean, of_mean), Interval(*(math.sqrt(max(0.0, min(1.0, end))) for end in ends))


def quantile(counts: Sequence[float], edges: Sequence[float], share: float, noise_std: float) -> Interval:
    """Below which value so large a share of the records lies.

    The value is by linear interpolation within a bin. For the ends, let d_j = (1 - p) (c_1 + ... + c_j) - p (c_(j+1) +
    ... + c_B), which is negative or 0 without noise as long as edge j is not above the quantile, and whose noise has a
    known standard deviation. From below, the first j at which d_j is not significantly negative has the low end at edge
    j - 1; it is above the quantile only if d is significantly negative at the first edge that is not below the
    quantile, in 2.5 % of all draws. So with the high end from above. Ends are edges of bins.

    Args:
        counts: noisy counts of bins (B,). edges: of the bins (B + 1,), at equal distances. share: p.
    """
    bins, total = len(counts), math.fsum(counts)
    differences, running = [], 0.0
    for place, number in enumerate(counts, start=1):
        running += number
        std = noise_std * math.sqrt((1 - share) ** 2 * place + share**2 * (bins - place))
        differences.append((running - share * total, NORMAL_95 * std))
    first = next((j for j, (d, bound) in enumerate(differences) if d >= -bound), bins - 1)
    last = next((j for j in reversed(range(bins - 1)) if differences[j][0] <= differences[j][1]), -1) + 1
    value = edges[0] + (edges[-1] - edges[0]) * share_below(counts, share)
    low, high = edges[min(first, last)], edges[max(last, first) + 1]
    return Interval(min(max(value, low), high), low, high)
