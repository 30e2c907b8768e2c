"""What a model says, from its outputs: probabilities, means, hazards; and what one says that knows no features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from dpfl_plugin.core.outcomes import Outcome

Doubles = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Answers:
    """What is said of n records, by the kind of outcome.

    Attributes:
        probabilities: [n, K] of classes and levels, None where the loss gives none; [n, k] of labels that hold; [n, B]
            of an event in a bin of time, if there was none before (hazards).
        predicted: [n] the class; the median level, which is the least far away on average; the mean of a regression, in
            the label's unit; the expected count for exposure 1. [n, k] the labels that hold. None of survival.
        scores: [n], of two classes: larger for the second.
    """

    probabilities: Doubles | None = None
    predicted: NDArray[Any] | None = None
    scores: Doubles | None = None

    def at(self, which: NDArray[np.bool_]) -> Answers:
        """What is said of these [n] of the records."""
        parts = (self.probabilities, self.predicted, self.scores)
        return Answers(*(None if part is None else part[which] for part in parts))

    def survival(self) -> Doubles:
        """[n, B] the probability of no event up to the end of each bin, from hazards."""
        assert self.probabilities is not None
        return np.cumprod(1 - self.probabilities, axis=1, dtype=np.float64)


def answers(outcome: Outcome, outputs: Doubles, *, probabilistic: bool = True) -> Answers:
    """Of a model's outputs [n, c].

    Args:
        probabilistic: of classes, whether the loss makes outputs log-odds.
    """
    if outcome.kind == "classes":
        return _of_classes(outputs, probabilistic)
    if outcome.kind == "ordinal":
        at_most = np.column_stack([expit(outputs), np.ones(len(outputs))])
        levels = np.diff(at_most, axis=1, prepend=0.0)
        return Answers(levels, (at_most < 0.5).sum(axis=1))
    if outcome.kind == "regression":
        return Answers(None, outcome.middle + outcome.half_range * outputs[:, 0])
    if outcome.kind == "counts":
        with np.errstate(over="ignore"):
            return Answers(None, np.exp(outputs[:, 0]))
    found = expit(outputs)
    return Answers(found, (found > 0.5).astype(np.int64) if outcome.kind == "multi_label" else None)


def _of_classes(outputs: Doubles, probabilistic: bool) -> Answers:
    if outputs.shape[1] == 1:
        one = outputs[:, 0]
        both = np.stack([expit(-one), expit(one)], axis=1) if probabilistic else None
        return Answers(both, (one > 0).astype(np.int64), one)
    scores = outputs[:, 1] - outputs[:, 0] if outputs.shape[1] == 2 else None
    return Answers(softmax(outputs, axis=1) if probabilistic else None, outputs.argmax(axis=1), scores)


def baseline(outcome: Outcome, labels: NDArray[Any], num_outputs: int, count: int) -> Answers:
    """What is said of ``count`` records by who knows the training ``labels`` [t, ...] and no feature: how often each
    class, level or label holds, the mean, the rate by exposure, each bin's share of events.

    Args:
        num_outputs: classes, or labels.
    """
    if outcome.has_classes:
        counts = np.bincount(labels, minlength=num_outputs)
        shares = counts / len(labels)
        score = np.full(count, shares[1]) if num_outputs == 2 else None
        level = counts.argmax() if outcome.kind == "classes" else (2 * counts.cumsum() < len(labels)).sum()
        return Answers(_same(shares, count), np.full(count, level), score)
    values = labels.astype(np.float64)
    if outcome.kind == "regression":
        return Answers(None, np.full(count, values.mean()))
    if outcome.kind == "counts":
        return Answers(None, np.full(count, values[:, 0].sum() / values[:, 1].sum()))
    if outcome.kind == "multi_label":
        shares = values.mean(axis=0)
        return Answers(_same(shares, count), _same((shares > 0.5).astype(np.int64), count))
    shares, events = at_risk(outcome, labels)
    hazards = events.sum(axis=0) / np.maximum(shares.sum(axis=0), np.finfo(np.float64).tiny)
    return Answers(_same(hazards, count))


def at_risk(outcome: Outcome, labels: NDArray[Any]) -> tuple[Doubles, NDArray[np.bool_]]:
    """[n, B] each: the share of each bin of time that a record counts for, and in which bin it has its event, as the
    loss has it."""
    upper = np.asarray(outcome.edges, dtype=np.float32)
    lower = np.concatenate([np.zeros(1, np.float32), upper[:-1]])
    time, event = labels[:, :1].astype(np.float32), labels[:, 1:] > 0
    begun = (time > lower) | ((time == 0) & (lower == 0))
    shares = np.clip((time - lower) / (upper - lower), 0.0, 1.0).astype(np.float64)
    return np.where(event, begun.astype(np.float64), shares), event & begun & (time <= upper)


def counts_by_bin(outcome: Outcome, labels: NDArray[Any]) -> list[tuple[float, int, int]]:
    """(where it ends, who is at risk as it begins, events) of each bin of time."""
    shares, events = at_risk(outcome, labels)
    counts = (np.asarray(outcome.edges), (shares > 0).sum(axis=0), events.sum(axis=0))
    return [(float(end), int(there), int(happened)) for end, there, happened in zip(*counts, strict=True)]


def losses_of_bins(hazards: Doubles, shares: Doubles, events: NDArray[np.bool_]) -> Doubles:
    """[n] each record's negative log-likelihood."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(events, np.log(hazards), np.log1p(-hazards))
        found: Doubles = -np.where(shares > 0, shares * logs, 0.0).sum(axis=1)
    return found


def _same(row: NDArray[Any], count: int) -> NDArray[Any]:
    return np.broadcast_to(row, (count, *row.shape))
