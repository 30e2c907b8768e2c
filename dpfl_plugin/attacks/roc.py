"""How well scores tell members from non-members."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Scores = tuple[Array, Array]
"""(members' scores (n,), non-members' scores (k,)) of one run."""

LEVEL = 0.95
_RESAMPLES = 1000


def auc(members: Array, others: Array) -> float:
    """The probability that a member scores above a non-member; ties count half."""
    ordered = np.sort(others)
    below = np.searchsorted(ordered, members, "left") + np.searchsorted(ordered, members, "right")
    return float(below.mean() / (2 * len(others)))


def tpr_at(members: Array, others: Array, fpr: float) -> float:
    """The share of members above the smallest threshold that at most a share ``fpr`` of the non-members pass."""
    threshold = np.sort(others)[::-1][int(fpr * len(others))]
    return float((members > threshold).mean())


def curve(members: Array, others: Array) -> tuple[Array, Array]:
    """(false, true) positive rates at every threshold, from (0, 0) to (1, 1)."""
    thresholds = np.unique(np.concatenate([members, others]))[::-1]
    false = np.searchsorted(np.sort(-others), -thresholds, "right") / len(others)
    true = np.searchsorted(np.sort(-members), -thresholds, "right") / len(members)
    return np.concatenate([[0.0], false]), np.concatenate([[0.0], true])


def pooled(runs: Sequence[Scores]) -> Scores:
    """The scores of several runs as if of one."""
    return np.concatenate([members for members, _ in runs]), np.concatenate([others for _, others in runs])


@dataclass(frozen=True, slots=True)
class Measured:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float


def measure(runs: Sequence[Scores], statistic: Callable[[Array, Array], float], rng: np.random.Generator) -> Measured:
    """``statistic`` of the pooled scores, with a bootstrap interval.

    Runs are drawn anew, and in each its records: the noise of a run is shared by all its records, so that records alone
    would promise too much. With one run its chance goes unseen.
    """
    values = []
    for _ in range(_RESAMPLES):
        chosen = rng.integers(len(runs), size=len(runs))
        values.append(statistic(*pooled([(_again(runs[i][0], rng), _again(runs[i][1], rng)) for i in chosen])))
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(values, [tail, 100 - tail])
    return Measured(statistic(*pooled(runs)), float(low), float(high))


def _again(scores: Array, rng: np.random.Generator) -> Array:
    return scores[rng.integers(len(scores), size=len(scores))]
