"""What a noisy histogram of scores by class tells: accuracy and AUC, and how much of that is noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CERTAIN = 2.0  # standard deviations of noise that a class must have more records than, for there to be an AUC


@dataclass(frozen=True, slots=True)
class Noisy:
    """A number and the standard deviation that noise alone gives it; None where noise leaves nothing of it."""

    value: float | None
    noise_std: float | None


def accuracy(histogram: Sequence[float]) -> float:
    """The share of records that are predicted correctly: the lower half of the first class's bins, the upper of the
    second's.

    Args:
        histogram: [2 B], B even: shares of all records, by `validation.edges`, of the first class and then the second.
    """
    first, second = np.split(np.asarray(histogram, dtype=np.float64), 2)
    half = len(first) // 2
    return float(first[:half].sum() + second[half:].sum())


def auc(histogram: Sequence[float], noise_std: float) -> Noisy:
    """The share of pairs of a record of each class of which that of the second has the higher score; pairs within a
    bin count half. Clipped to [0, 1].

    Counts are as they were released, negative ones included: setting those to 0 would move every sum up, and the AUC
    towards 1/2, the more the smaller a class is. The standard deviation is to first order in the noise (delta method):
    A = p'Kn / (PN), dA/dp = Kn/(PN) - A/P, dA/dn = K'p/(PN) - A/N, and noise is alike in all counts.

    Args:
        histogram: as `accuracy` has it; noise_std: of the noise in each of its numbers.
    """
    n, p = np.split(np.asarray(histogram, dtype=np.float64), 2)
    least = CERTAIN * noise_std * math.sqrt(len(n))
    P, N = float(p.sum()), float(n.sum())
    if not (least < P and least < N):
        return Noisy(None, None)
    below = np.cumsum(n) - n / 2  # Kn: of the other class, below each bin
    above = np.cumsum(p[::-1])[::-1] - p / 2  # K'p
    A = float(p @ below) / (P * N)
    slopes = np.concatenate([below / (P * N) - A / P, above / (P * N) - A / N])
    return Noisy(min(1.0, max(0.0, A)), noise_std * float(np.linalg.norm(slopes)))
