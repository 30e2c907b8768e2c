"""How well a model does on records with labels, by scikit-learn and lifelines; what is not defined is None.

Measures are computed from records without noise: they are for the experimenter, and no epsilon covers them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.core.outcomes import Outcome
from dpfl_plugin.measures.answers import Answers, at_risk, losses_of_bins

Table = dict[str, Any]
BINS: Final = 10  # of a calibration curve
MOST_CLASSES: Final = 30  # of a confusion matrix
NO_LIFELINES: Final = "c_index needs lifelines, which is not installed: pip install 'dpfl-plugin[survival]'."


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
        labels: [n, ...], n at least 1. curves: also the calibration curve and the confusion matrix.
    """
    if not _finite(said):
        return {outcome.score: None}
    make: dict[str, Callable[..., Table]] = {
        "classes": _classes,
        "ordinal": _ordinal,
        "multi_label": _multi_label,
    }
    import sklearn

    # What is given is checked above, and what is not defined is None here. Warnings are not switched off: that is one
    # switch for all threads of a process.
    settings = sklearn.config_context(assume_finite=True, skip_parameter_validation=True)
    with settings, np.errstate(all="ignore"):
        if outcome.kind == "regression":
            assert said.predicted is not None
            found = _of_numbers(labels, said.predicted)
        elif outcome.kind == "counts":
            found = _counts(labels, said)
        elif outcome.kind == "survival":
            found = _survival(outcome, said, labels)
        else:
            found = make[outcome.kind](said, labels, curves)
    first = outcome.score
    return {first: found[first], **found}


def _finite(said: Answers) -> bool:
    parts = (said.probabilities, said.predicted, said.scores)
    return all(part is None or bool(np.isfinite(part).all()) for part in parts)


def _classes(said: Answers, y: NDArray[Any], curves: bool) -> Table:
    """Of two classes the second is the positive one."""
    from sklearn import metrics

    assert said.predicted is not None
    found: Table = {
        "accuracy": metrics.accuracy_score(y, said.predicted),
        "balanced_accuracy": _balanced_accuracy(y, said.predicted),
    }
    p = said.probabilities
    if said.scores is not None:  # two classes
        found["auc"] = _defined(lambda: metrics.roc_auc_score(y, said.scores), (y.min() != y.max()))
        found["pr_auc"] = _defined(lambda: metrics.average_precision_score(y, said.scores), bool(y.any()))
        positive = bool((said.predicted == 1).any())
        found["f1"] = _defined(lambda: metrics.f1_score(y, said.predicted), positive or bool((y == 1).any()))
        found["sensitivity"] = _defined(lambda: metrics.recall_score(y, said.predicted), bool((y == 1).any()))
        found["specificity"] = _defined(
            lambda: metrics.recall_score(y, said.predicted, pos_label=0), bool((y == 0).any())
        )
        found["precision"] = _defined(lambda: metrics.precision_score(y, said.predicted), positive)
    else:
        every = p is not None and len(np.unique(y)) == p.shape[1]
        found["auc"] = _defined(lambda: metrics.roc_auc_score(y, p, multi_class="ovr", average="macro"), every)
        one_hot = None if p is None else np.eye(p.shape[1])[y]
        found["pr_auc"] = _defined(lambda: metrics.average_precision_score(one_hot, p, average="macro"), every)
        found["f1"] = metrics.f1_score(y, said.predicted, average="macro", zero_division=0.0)
    found |= _of_probabilities(p, y)
    if curves:
        found |= _curves(said, y)
    return _plain(found)


def _balanced_accuracy(y: NDArray[Any], predicted: NDArray[Any]) -> float:
    """The mean recall of the classes that occur, without scikit-learn's warning where one class is all there is."""
    from sklearn import metrics

    return float(metrics.recall_score(y, predicted, labels=np.unique(y), average="macro", zero_division=0.0))


def _of_probabilities(p: NDArray[Any] | None, y: NDArray[Any]) -> Table:
    """Brier (of two classes that of the second, else the sum over classes) and log loss; None without probabilities."""
    from sklearn import metrics

    if p is None:
        return {"brier": None, "log_loss": None}
    K = p.shape[1]
    summed = metrics.mean_squared_error(np.eye(K)[y], p) * K
    return {"brier": summed / 2 if K == 2 else summed, "log_loss": metrics.log_loss(y, p, labels=range(K))}


def _curves(said: Answers, y: NDArray[Any]) -> Table:
    from sklearn import calibration, metrics

    found: Table = {}
    p = said.probabilities
    K = p.shape[1] if p is not None else 2 if said.scores is not None else MOST_CLASSES + 1
    if K <= MOST_CLASSES:
        found["confusion_matrix"] = metrics.confusion_matrix(y, said.predicted, labels=range(K)).tolist()
    if p is not None and K == 2:
        share, mean = calibration.calibration_curve(y == 1, p[:, 1], n_bins=BINS)
        found["calibration_curve"] = {"predicted": mean.tolist(), "observed": share.tolist()}
    return found


def _ordinal(said: Answers, y: NDArray[Any], curves: bool) -> Table:
    from sklearn import metrics

    assert said.predicted is not None
    # Of all levels, in their order: those that occur would stand next to each other.
    levels = range(
        2 + max(y.max(), said.predicted.max()) if said.probabilities is None else said.probabilities.shape[1]
    )
    kappa = _defined(
        lambda: metrics.cohen_kappa_score(y, said.predicted, labels=levels, weights="quadratic"),
        y.min() != y.max() or (said.predicted != y).any(),  # one level is said of one level: chance is as good
    )
    found = {
        "mae": metrics.mean_absolute_error(y, said.predicted),
        "accuracy": metrics.accuracy_score(y, said.predicted),
        "balanced_accuracy": _balanced_accuracy(y, said.predicted),
        "quadratic_kappa": kappa,
        **_of_probabilities(said.probabilities, y),
    }
    if curves and said.probabilities is not None and len(levels) <= MOST_CLASSES:
        found["confusion_matrix"] = metrics.confusion_matrix(y, said.predicted, labels=levels).tolist()
    return _plain(found)


def _of_numbers(y: NDArray[Any], predicted: NDArray[Any] | None) -> Table:
    from sklearn import metrics

    y = y.astype(np.float64)
    return _plain(
        {
            "rmse": math.sqrt(metrics.mean_squared_error(y, predicted)),
            "mae": metrics.mean_absolute_error(y, predicted),
            "r2": _defined(lambda: metrics.r2_score(y, predicted), len(y) > 1),
        }
    )


def _poisson(labels: NDArray[Any], said: Answers) -> tuple[float, NDArray[Any], NDArray[Any]]:
    """(mean deviance, counts, expected counts)"""
    from sklearn import metrics

    assert said.predicted is not None
    y, exposure = labels.astype(np.float64).T
    expected = np.clip(said.predicted * exposure, np.finfo(np.float64).tiny, np.finfo(np.float64).max)
    return float(metrics.mean_poisson_deviance(y, expected)), y, expected


def _counts(labels: NDArray[Any], said: Answers) -> Table:
    from sklearn import metrics

    deviance, y, expected = _poisson(labels, said)
    explained = _defined(lambda: metrics.d2_tweedie_score(y, expected, power=1), y.min() != y.max())
    return _plain({"deviance": deviance, "d2": explained, **_of_numbers(y, expected)})


def _multi_label(said: Answers, y: NDArray[Any], curves: bool) -> Table:
    from sklearn import metrics

    p = said.probabilities
    assert p is not None and said.predicted is not None
    y = y.astype(np.int64)
    per_label = []
    for k in range(y.shape[1]):
        both = bool(y[:, k].min() != y[:, k].max())
        per_label.append(
            {
                "auc": _defined(lambda k=k: metrics.roc_auc_score(y[:, k], p[:, k]), both),  # type: ignore[misc]
                "pr_auc": _defined(lambda k=k: metrics.average_precision_score(y[:, k], p[:, k]), both),  # type: ignore[misc]
                "f1": metrics.f1_score(y[:, k], said.predicted[:, k], zero_division=0.0),
                "brier": metrics.mean_squared_error(y[:, k], p[:, k]),
            }
        )
    every = all(one["auc"] is not None for one in per_label)
    found = {
        "brier": float(np.mean([one["brier"] for one in per_label])),
        "accuracy": 1 - metrics.hamming_loss(y, said.predicted),
        "subset_accuracy": float((y == said.predicted).all(axis=1).mean()),
        "auc": _defined(lambda: float(np.mean([one["auc"] for one in per_label])), every),
        "pr_auc": _defined(lambda: float(np.mean([one["pr_auc"] for one in per_label])), every),
        "f1": float(np.mean([one["f1"] for one in per_label])),
    }
    return {**_plain(found), **({"by_label": [_plain(one) for one in per_label]} if curves else {})}


def _deviance(outcome: Outcome, said: Answers, labels: NDArray[Any]) -> float:
    assert said.probabilities is not None
    return float(2 * losses_of_bins(said.probabilities, *at_risk(outcome, labels)).mean())


def _survival(outcome: Outcome, said: Answers, labels: NDArray[Any]) -> Table:
    deviance, expected = _deviance(outcome, said, labels), said.survival().sum(axis=1)
    try:
        from lifelines.utils import concordance_index
    except ImportError:
        return _plain({"deviance": deviance, "c_index": None})
    try:
        found = concordance_index(labels[:, 0], expected, labels[:, 1])
    except ZeroDivisionError:  # no two records can be compared
        found = None
    return _plain({"deviance": deviance, "c_index": found})


def _defined(value: Callable[[], Any], defined: object) -> Any:
    return value() if defined else None


def _plain(found: Table) -> Table:
    """Numbers as JSON has them; what is not finite is None."""
    return {key: _number(value) for key, value in found.items()}


def _number(value: Any) -> Any:
    if value is None or isinstance(value, dict | list):
        return value
    return float(value) if math.isfinite(value) else None
