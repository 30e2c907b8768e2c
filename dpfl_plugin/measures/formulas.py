"""Measures of answers, by the definitions of scikit-learn and lifelines. Positive classes are truth values [n]."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

Array = NDArray[Any]


def counts(positive: Array, predicted: Array) -> tuple[int, int, int]:
    """(how many are positive and predicted to be, are positive, are predicted to be)"""
    return int((positive & predicted).sum()), int(positive.sum()), int(predicted.sum())


def f1(positive: Array, predicted: Array) -> float:
    """The harmonic mean of precision and recall; 0 where nothing is positive and nothing is predicted to be."""
    hits, positives, found = counts(positive, predicted)
    return 2 * hits / (positives + found) if positives + found else 0.0


def _steps(positive: Array, scores: Array) -> tuple[Array, Array]:
    """(records, positive ones) with scores of at least each score that occurs, from the highest on."""
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    return ends + 1, np.cumsum(positive[order])[ends]


def auc(positive: Array, scores: Array) -> float:
    """The area under the ROC curve; ties count half."""
    taken, hits = (np.append(0, found) for found in _steps(positive, scores))
    recall, false_alarms = hits / hits[-1], (taken - hits) / (taken[-1] - hits[-1])
    return float(np.sum(np.diff(false_alarms) * (recall[1:] + recall[:-1]) / 2))


def average_precision(positive: Array, scores: Array) -> float:
    """The sum of the precision at each score, weighted by how much recall it adds."""
    taken, hits = _steps(positive, scores)
    return float(np.sum(np.diff(hits, prepend=0) / hits[-1] * (hits / taken)))


def each_class(measure: Callable[[Array, Array], float], y: Array, p: Array) -> float:
    """The mean of a measure of each class against all others."""
    return float(np.mean([measure(y == k, p[:, k]) for k in range(p.shape[1])]))


def balanced_accuracy(y: Array, predicted: Array) -> float:
    """The mean recall of the classes that occur."""
    return float(np.mean([(predicted[y == k] == k).mean() for k in np.unique(y)]))


def log_loss(y: Array, p: Array) -> float:
    """The mean of -log of the probability of the class that it is, which counts as the least number format's step."""
    least = np.finfo(p.dtype).eps
    return float(-np.log(np.clip(p[np.arange(len(y)), y], least, 1 - least)).mean())


def confusion(y: Array, predicted: Array, K: int) -> Array:
    """(K, K) records by class and predicted class."""
    return np.bincount(y.astype(np.int64) * K + predicted.astype(np.int64), minlength=K * K).reshape(K, K)


def quadratic_kappa(confusion: Array) -> float:
    """1 minus the squared error over that of answers which are independent of the classes (Cohen)."""
    weights = np.square(np.subtract.outer(*[np.arange(len(confusion))] * 2))
    chance = np.outer(confusion.sum(axis=1), confusion.sum(axis=0)) / confusion.sum()
    return float(1 - (weights * confusion).sum() / (weights * chance).sum())


def calibration(positive: Array, p: Array, groups: int) -> tuple[Array, Array, Array]:
    """(mean probability, share of positive ones, number) of the records of each of so many groups of equal size, from
    the smallest probabilities on; records of equal ones are in one group, so that some may be empty, and left out."""
    ends = np.percentile(p, np.linspace(0, 100, groups + 1))[1:-1]
    places = np.searchsorted(ends, p)
    number, mean, share = (np.bincount(places, each, groups) for each in (None, p, positive))
    there = number > 0
    return mean[there] / number[there], share[there] / number[there], number[there]


def roc(positive: Array, scores: Array, most: int) -> tuple[Array, Array]:
    """(false positive rate, sensitivity) at each score that occurs, from (0, 0) to (1, 1); at ``most`` of them."""
    taken, hits = (np.append(0, found) for found in _steps(positive, scores))
    some = np.unique(np.linspace(0, len(taken) - 1, min(most, len(taken))).round().astype(int))
    return (taken - hits)[some] / (taken[-1] - hits[-1]), hits[some] / hits[-1]


def kaplan_meier(times: Array, events: Array, at: Array) -> tuple[Array, Array]:
    """(probability of no event up to each time, Greenwood's standard error of it); NaN beyond the last observation.

    Args:
        times: [n]. events: [n] 1 where the event was then, 0 where the record was censored, which is taken to be later.
    """
    when, happened = np.unique(times[events > 0], return_counts=True)
    at_risk = len(times) - np.searchsorted(np.sort(times), when)
    survival = np.append(1.0, np.cumprod(1 - happened / at_risk))
    rest = at_risk - happened
    terms = np.divide(happened, at_risk * rest, out=np.zeros(len(when)), where=rest > 0)  # S is 0 where nobody is left
    place = np.searchsorted(when, at, side="right")
    observed = np.where(at <= times.max(), survival[place], np.nan)
    return observed, observed * np.sqrt(np.append(0.0, np.cumsum(terms)))[place]


def concordance(times: Array, events: Array, expected: Array) -> float | None:
    """Harrell's C: of all pairs of records of which it is known who has the event first, the share in which that one
    was ``expected`` to stay free of it for less long; ties of what is expected count half. None without such pairs.

    Args:
        times: [n]. events: [n] 1 where the event was then, 0 where the record was censored, which is taken to be later.
    """
    later: list[float] = []  # what is expected of those who are known to have no event up to now, sorted
    pairs = right = ties = 0
    order = np.lexsort((events, -times))  # the last first; at one time those who are censored
    rows = zip(times[order].tolist(), events[order].tolist(), expected[order].tolist(), strict=True)
    for _, group in itertools.groupby(rows, key=lambda row: row[0]):
        now = []
        for _, event, value in group:
            if not event:
                bisect.insort(later, value)
                continue
            below, upto = bisect.bisect_left(later, value), bisect.bisect_right(later, value)
            pairs, right, ties = pairs + len(later), right + len(later) - upto, ties + upto - below
            now.append(value)
        for value in now:
            bisect.insort(later, value)
    return (right + ties / 2) / pairs if pairs else None


def r2(y: Array, predicted: Array) -> float:
    """The share of the variance that is explained; where there is none, 1 for a perfect prediction, else 0."""
    error, variance = np.square(y - predicted).sum(), np.square(y - y.mean()).sum()
    return float(1 - error / variance) if variance else float(error == 0)


def poisson_deviance(y: Array, expected: Array | float) -> float:
    """The mean deviance of counts."""
    return float(2 * (xlogy(y, y / expected) - y + expected).mean())
