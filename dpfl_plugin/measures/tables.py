"""How well a model does on records with labels; what is not defined is None.

Measures are computed from records without noise: they are for the experimenter, and no epsilon covers them. Their
definitions are those of scikit-learn, which takes longer to import than a small run to train (`measures.formulas`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.core.outcomes import Outcome
from dpfl_plugin.measures import formulas
from dpfl_plugin.measures.answers import Answers, at_risk, losses_of_bins

Table = dict[str, Any]
GROUPS: Final = 10  # of a calibration curve
OF_GROUP: Final = 10  # records in each of its groups, or more
POINTS: Final = 101  # of a ROC curve
THIRDS: Final[tuple[str, ...]] = ("lowest third of risk", "middle third of risk", "highest third of risk")
MOST_CLASSES: Final = 30  # of a confusion matrix


def score(outcome: Outcome, said: Answers, labels: NDArray[Any]) -> float:
    """The measure that an outcome is ranked by (`Outcome.score`); NaN where what is said is not finite."""
    if not _finite(said):
        return math.nan
    if outcome.kind == "classes":
        return float(np.mean(said.predicted == labels))
    if outcome.kind == "ordinal":
        return float(_of_numbers(labels, said.predicted)["mae"])
    if outcome.kind == "regression":
        return float(_of_numbers(labels, said.predicted)["rmse"])
    if outcome.kind == "counts":
        return _poisson(labels, said)[0]
    if outcome.kind == "multi_label":
        assert said.probabilities is not None
        return float(np.square(said.probabilities - labels).mean())
    return _deviance(outcome, said, labels)


def table(outcome: Outcome, said: Answers, labels: NDArray[Any], *, curves: bool = True) -> Table:
    """{measure: its value}, the one that the outcome is ranked by first, and that alone, None, where what is said is
    not finite.

    Args:
        labels: [n, ...], n at least 1. curves: also the confusion matrix, and the curves of calibration, ROC, survival.
    """
    if not _finite(said):
        return {outcome.score: None}
    with np.errstate(all="ignore"):  # what is not defined is None
        if outcome.kind == "regression":
            assert said.predicted is not None
            found = _of_numbers(labels, said.predicted)
        elif outcome.kind == "counts":
            found = _counts(labels, said)
        elif outcome.kind == "survival":
            found = _survival(outcome, said, labels, curves)
        else:
            make = {"classes": _classes, "ordinal": _ordinal, "multi_label": _multi_label}[outcome.kind]
            found = make(said, labels, curves)
    first = outcome.score
    return {first: found[first], **found}


def _finite(said: Answers) -> bool:
    parts = (said.probabilities, said.predicted, said.scores)
    return all(part is None or bool(np.isfinite(part).all()) for part in parts)


def _classes(said: Answers, y: NDArray[Any], curves: bool) -> Table:
    """Of two classes the second is the positive one."""
    assert said.predicted is not None
    found: Table = {
        "accuracy": float(np.mean(y == said.predicted)),
        "balanced_accuracy": formulas.balanced_accuracy(y, said.predicted),
    }
    p = said.probabilities
    if (scores := said.scores) is not None:  # two classes
        found["auc"] = _defined(lambda: formulas.auc(y == 1, scores), y.min() != y.max())
        found["pr_auc"] = _defined(lambda: formulas.average_precision(y == 1, scores), y.any())
        hits, positives, found_positive = formulas.counts(y == 1, said.predicted == 1)
        negatives = len(y) - positives
        found["f1"] = _defined(lambda: 2 * hits / (positives + found_positive), positives + found_positive)
        found["sensitivity"] = _defined(lambda: hits / positives, positives)
        found["specificity"] = _defined(lambda: (negatives - found_positive + hits) / negatives, negatives)
        found["precision"] = _defined(lambda: hits / found_positive, found_positive)
    else:
        for name, measure in (("auc", formulas.auc), ("pr_auc", formulas.average_precision)):
            every = p is not None and len(np.unique(y)) == p.shape[1]
            found[name] = formulas.each_class(measure, y, p) if p is not None and every else None
        known = np.union1d(y, said.predicted)
        found["f1"] = float(np.mean([formulas.f1(y == k, said.predicted == k) for k in known]))
    found |= _of_probabilities(p, y)
    if p is not None and p.shape[1] == 2:
        found |= _in_the_large(p[:, 1], y)
    if curves:
        found |= _curves(said, y)
    return _plain(found)


def _in_the_large(p: NDArray[Any], y: NDArray[Any]) -> Table:
    """How far the mean probability of the second class is from how often it occurs."""
    observed = float(y.mean())
    return {
        "calibration_in_the_large": float(p.mean()) - observed,
        "predicted_observed_ratio": _defined(lambda: float(p.mean()) / observed, observed),
    }


def _of_probabilities(p: NDArray[Any] | None, y: NDArray[Any]) -> Table:
    """Brier (of two classes that of the second, else the sum over classes) and log loss; None without probabilities."""
    if p is None:
        return {"brier": None, "log_loss": None}
    K = p.shape[1]
    summed = float(np.square(np.eye(K)[y] - p).mean()) * K
    return {"brier": summed / 2 if K == 2 else summed, "log_loss": formulas.log_loss(y, p)}


def _curves(said: Answers, y: NDArray[Any]) -> Table:
    assert said.predicted is not None
    found: Table = {}
    p = said.probabilities
    K = p.shape[1] if p is not None else 2 if said.scores is not None else MOST_CLASSES + 1
    if K <= MOST_CLASSES:
        found["confusion_matrix"] = formulas.confusion(y, said.predicted, K).tolist()
    if p is not None and K == 2:
        groups = max(1, min(GROUPS, len(y) // OF_GROUP))
        mean, share, number = formulas.calibration(y == 1, p[:, 1], groups)
        found["calibration_curve"] = {
            "predicted": mean.tolist(),
            "observed": share.tolist(),
            "records": number.tolist(),
        }
    if said.scores is not None and y.min() != y.max():
        rates = formulas.roc(y == 1, said.scores, POINTS)
        found["roc_curve"] = dict(zip(("false_positive_rate", "sensitivity"), (r.tolist() for r in rates), strict=True))
    return found


def _ordinal(said: Answers, y: NDArray[Any], curves: bool) -> Table:
    assert said.predicted is not None
    # Of all levels, in their order: those that occur would stand next to each other.
    p = said.probabilities
    K = int(2 + max(y.max(), said.predicted.max()) if p is None else p.shape[1])
    confusion = formulas.confusion(y, said.predicted, K)
    kappa = _defined(
        lambda: formulas.quadratic_kappa(confusion),
        y.min() != y.max() or (said.predicted != y).any(),  # one level is said of one level: chance is as good
    )
    found = {
        "mae": float(np.abs(y - said.predicted).mean()),
        "accuracy": float(np.mean(y == said.predicted)),
        "balanced_accuracy": formulas.balanced_accuracy(y, said.predicted),
        "quadratic_kappa": kappa,
        **_of_probabilities(p, y),
    }
    if curves and p is not None and K <= MOST_CLASSES:
        found["confusion_matrix"] = confusion.tolist()
    return _plain(found)


def _of_numbers(y: NDArray[Any], predicted: NDArray[Any] | None) -> Table:
    assert predicted is not None
    y = y.astype(np.float64)
    return _plain(
        {
            "rmse": math.sqrt(np.square(y - predicted).mean()),
            "mae": float(np.abs(y - predicted).mean()),
            "r2": _defined(lambda: formulas.r2(y, predicted), len(y) > 1),
        }
    )


def _poisson(labels: NDArray[Any], said: Answers) -> tuple[float, NDArray[Any], NDArray[Any]]:
    """(mean deviance, counts, expected counts)"""
    assert said.predicted is not None
    y, exposure = labels.astype(np.float64).T
    expected = np.clip(said.predicted * exposure, np.finfo(np.float64).tiny, np.finfo(np.float64).max)
    return formulas.poisson_deviance(y, expected), y, expected


def _counts(labels: NDArray[Any], said: Answers) -> Table:
    deviance, y, expected = _poisson(labels, said)
    explained = _defined(lambda: 1 - deviance / formulas.poisson_deviance(y, y.mean()), y.min() != y.max())
    return _plain({"deviance": deviance, "d2": explained, **_of_numbers(y, expected)})


def _multi_label(said: Answers, y: NDArray[Any], curves: bool) -> Table:
    p = said.probabilities
    assert p is not None and said.predicted is not None
    y = y.astype(np.int64)
    per_label = []
    for k in range(y.shape[1]):
        both = bool(y[:, k].min() != y[:, k].max())
        per_label.append(
            {
                "auc": formulas.auc(y[:, k] == 1, p[:, k]) if both else None,
                "pr_auc": formulas.average_precision(y[:, k] == 1, p[:, k]) if both else None,
                "f1": formulas.f1(y[:, k] == 1, said.predicted[:, k] == 1),
                "brier": float(np.square(y[:, k] - p[:, k]).mean()),
            }
        )
    every = all(one["auc"] is not None for one in per_label)
    found = {
        "brier": float(np.mean([one["brier"] for one in per_label])),
        "accuracy": float(np.mean(y == said.predicted)),
        "subset_accuracy": float((y == said.predicted).all(axis=1).mean()),
        "auc": _defined(lambda: float(np.mean([one["auc"] for one in per_label])), every),
        "pr_auc": _defined(lambda: float(np.mean([one["pr_auc"] for one in per_label])), every),
        "f1": float(np.mean([one["f1"] for one in per_label])),
    }
    return {**_plain(found), **({"by_label": [_plain(one) for one in per_label]} if curves else {})}


def _deviance(outcome: Outcome, said: Answers, labels: NDArray[Any]) -> float:
    assert said.probabilities is not None
    return float(2 * losses_of_bins(said.probabilities, *at_risk(outcome, labels)).mean())


def _survival(outcome: Outcome, said: Answers, labels: NDArray[Any], curves: bool) -> Table:
    deviance, predicted = _deviance(outcome, said, labels), said.survival()
    found: Table = {
        "deviance": deviance,
        "c_index": formulas.concordance(labels[:, 0], labels[:, 1], predicted.sum(axis=1)),
    }
    if curves:
        found["survival_curves"] = _survival_curves(outcome, predicted, labels)
    return _plain(found)


def _survival_curves(outcome: Outcome, predicted: NDArray[Any], labels: NDArray[Any]) -> list[Table]:
    """Of each third of the records by predicted risk, of all where they are few: the mean of what is predicted for the
    ends of bins, and what is observed (Kaplan-Meier), with its standard error."""
    risk = -predicted.sum(axis=1)
    names: tuple[str, ...] = THIRDS
    ends = np.quantile(risk, [1 / 3, 2 / 3])
    if len(labels) < OF_GROUP * len(THIRDS) or ends[0] == ends[1]:
        ends, names = ends[:0], ("all records",)
    group = np.searchsorted(ends, risk)
    curves = []
    for number, name in enumerate(names):
        rows = group == number
        if rows.any():
            times, events = labels[rows].astype(np.float64).T
            observed, error = formulas.kaplan_meier(times, events, np.asarray(outcome.edges))
            curves.append(
                {
                    "group": name,
                    "records": int(rows.sum()),
                    "times": list(outcome.edges),
                    "predicted": predicted[rows].mean(axis=0).tolist(),
                    "observed": list(map(_number, observed)),
                    "standard_error": list(map(_number, error)),
                }
            )
    return curves


def _defined(value: Callable[[], Any], defined: object) -> Any:
    return value() if defined else None


def _plain(found: Table) -> Table:
    """Numbers as JSON has them; what is not finite is None."""
    return {key: _number(value) for key, value in found.items()}


def _number(value: Any) -> Any:
    if value is None or isinstance(value, dict | list):
        return value
    return float(value) if math.isfinite(value) else None
