"""Measures of classes from counts and from cumulative counts, as scikit-learn's functions of the same names give them.

What those check of their arguments is known here, and takes them longer than a small run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


def confusion(labels: NDArray[Any], said: NDArray[Any], num_classes: int) -> NDArray[np.int64]:
    """[K, K]: how many records of each class (rows) are said to be of each (columns)."""
    found: NDArray[np.int64] = np.bincount(labels * num_classes + said, minlength=num_classes**2)
    return found.reshape(num_classes, num_classes)


def balanced_accuracy(counts: NDArray[np.int64]) -> float:
    """The mean recall of the classes that occur; of `confusion`'s counts."""
    true = counts.sum(axis=1)
    return float(np.mean(counts.diagonal()[true > 0] / true[true > 0]))


def f1(counts: NDArray[np.int64], *, of_second: bool) -> float:
    """Of the second of two classes (0 where it neither occurs nor is said), or the mean over all that occur or are
    said."""
    both = counts.sum(axis=0) + counts.sum(axis=1)
    each = 2 * counts.diagonal() / np.maximum(both, 1)
    return float(each[1]) if of_second else float(np.mean(each[both > 0]))


def brier(p: Numbers, labels: NDArray[Any]) -> float:
    """Of two classes that of the second, else the sum over classes; ``p``: [n, K] probabilities."""
    K = p.shape[1]
    summed = float(np.mean(np.mean(np.square(np.eye(K)[labels] - p), axis=0))) * K
    return float(summed / 2 if K == 2 else summed)


def log_loss(p: Numbers, labels: NDArray[Any]) -> float:
    """Mean of -log of the probability of each record's class, which counts as at least the epsilon of its type."""
    eps = np.finfo(p.dtype).eps
    return float(np.mean(-np.log(np.clip(p, eps, 1 - eps))[np.arange(len(labels)), labels]))


def auc(positive: NDArray[np.bool_], scores: Numbers) -> float:
    """Area under the ROC curve; some records are ``positive``, some are not."""
    wrong, right = _cumulative(positive, scores)
    # Points on a line between their neighbours add nothing, but for rounding.
    corner = np.ones(len(right), dtype=bool)
    corner[1:-1] = (np.diff(wrong, 2) != 0) | (np.diff(right, 2) != 0)
    x, y = (np.concatenate([[0.0], part[corner]]) / part[-1] for part in (wrong, right))
    return float((np.diff(x) * (y[1:] + y[:-1]) / 2.0).sum())


def average_precision(positive: NDArray[np.bool_], scores: Numbers) -> float:
    """Precision where recall rises, weighted by how far; some records are ``positive``."""
    wrong, right = _cumulative(positive, scores)
    rises = np.diff(np.concatenate([[0.0], right / right[-1]]))
    parts = rises * (right / (right + wrong))
    return float(parts[::-1].copy().sum())  # from the highest recall down: sums depend on the order in memory


def _cumulative(positive: NDArray[np.bool_], scores: Numbers) -> tuple[Numbers, Numbers]:
    """How many records that are not positive, and that are, have at least each of the scores, from the highest down."""
    falling = np.argsort(-scores, kind="stable")
    last = np.append(np.flatnonzero(np.diff(scores[falling])), len(scores) - 1)
    right: Numbers = np.cumsum(positive[falling], dtype=np.float64)[last]
    return 1 + last - right, right


def calibration(p: Numbers, positive: NDArray[np.bool_], bins: int) -> tuple[Numbers, Numbers]:
    """(mean probability, share of positive records) of each of ``bins`` equal intervals that has records."""
    place = np.searchsorted(np.linspace(0.0, 1.0, bins + 1)[1:-1], p)
    count = np.bincount(place, minlength=bins)
    some = count > 0
    mean, share = (np.bincount(place, weights=of, minlength=bins)[some] / count[some] for of in (p, positive))
    return mean, share
