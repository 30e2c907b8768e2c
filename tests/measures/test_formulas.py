"""Each formula against scikit-learn's, on answers with ties, empty classes and certain probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import calibration, metrics

from dpfl_plugin.measures import formulas

rng = np.random.default_rng(0)
CLASSES = [rng.integers(0, 4, size=n) for n in (8, 60, 500)]
ANSWERS = [np.where(rng.random(len(y)) < 0.6, y, rng.integers(0, 4, size=len(y))) for y in CLASSES]


@pytest.mark.parametrize(("y", "predicted"), list(zip(CLASSES, ANSWERS, strict=True)))
def test_of_classes(y: np.ndarray, predicted: np.ndarray) -> None:
    positive, found = y == 1, predicted == 1
    hits, positives, taken = formulas.counts(positive, found)
    assert formulas.f1(positive, found) == pytest.approx(metrics.f1_score(positive, found, zero_division=0))
    assert hits / positives == pytest.approx(metrics.recall_score(positive, found))
    assert hits / taken == pytest.approx(metrics.precision_score(positive, found))
    assert formulas.balanced_accuracy(y, predicted) == pytest.approx(metrics.balanced_accuracy_score(y, predicted))
    confusion = metrics.confusion_matrix(y, predicted, labels=range(5))
    assert (formulas.confusion(y, predicted, 5) == confusion).all()
    kappa = metrics.cohen_kappa_score(y, predicted, labels=range(5), weights="quadratic")
    assert formulas.quadratic_kappa(confusion) == pytest.approx(kappa)
    assert formulas.f1(y > 9, y > 9) == 0


@pytest.mark.parametrize("digits", [1, 12])  # with ties, and without
@pytest.mark.parametrize("n", [12, 400])
def test_of_probabilities(n: int, digits: int) -> None:
    y = rng.permutation(np.arange(n) % 3)
    p = rng.dirichlet([0.5] * 3, size=n).round(digits)
    p[:, 2] = np.clip(1 - p[:, 0] - p[:, 1], 0, 1)
    positive, scores = y == 1, p[:, 1]
    assert formulas.auc(positive, scores) == pytest.approx(metrics.roc_auc_score(positive, scores))
    precision = metrics.average_precision_score(positive, scores)
    assert formulas.average_precision(positive, scores) == pytest.approx(precision)
    p /= p.sum(axis=1, keepdims=True)
    several = metrics.roc_auc_score(y, p, multi_class="ovr", average="macro")
    assert formulas.each_class(formulas.auc, y, p) == pytest.approx(several)
    assert formulas.log_loss(y, p) == pytest.approx(metrics.log_loss(y, p, labels=range(3)))
    share, mean = calibration.calibration_curve(positive, scores, n_bins=10, strategy="quantile")
    *found, number = formulas.calibration(positive, scores, 10)
    np.testing.assert_allclose(found, (mean, share))
    assert number.sum() == n and number @ found[1] == pytest.approx(positive.sum())
    theirs = metrics.roc_curve(positive, scores, drop_intermediate=False)
    np.testing.assert_allclose(formulas.roc(positive, scores, n + 1), theirs[:2])
    rates = formulas.roc(positive, scores, 5)
    assert len(rates[0]) <= 5 and [rate[0] for rate in rates] == [0, 0] and [rate[-1] for rate in rates] == [1, 1]


def test_of_numbers() -> None:
    y = rng.poisson(2.0, size=50).astype(float)
    expected = rng.gamma(2.0, size=50)
    assert formulas.r2(y, expected) == pytest.approx(metrics.r2_score(y, expected))
    assert formulas.r2(y * 0, y * 0) == 1 and formulas.r2(y * 0, expected) == 0
    assert formulas.poisson_deviance(y, expected) == pytest.approx(metrics.mean_poisson_deviance(y, expected))


@pytest.mark.parametrize("size", [5, 300])
def test_kaplan_meier_with_greenwoods_error(size: int) -> None:
    """Nothing is said beyond the last observation, and an event of the last record leaves nobody."""
    lifelines = pytest.importorskip("lifelines")
    times, events = rng.integers(1, 12, size).astype(float), rng.integers(0, 2, size)
    at = np.arange(0.5, 14.0)
    curve = lifelines.KaplanMeierFitter().fit(times, events)
    observed, error = formulas.kaplan_meier(times, events, at)
    seen = at <= times.max()
    np.testing.assert_allclose(observed[seen], curve.survival_function_at_times(at[seen]), atol=1e-12)
    assert np.isnan(observed[~seen]).all() and np.isnan(error[~seen]).all()
    variances = curve._cumulative_sq_
    steps = variances.index.searchsorted(at[seen], side="right") - 1
    np.testing.assert_allclose(error[seen], observed[seen] * np.sqrt(variances.to_numpy()[steps]), atol=1e-12)
    assert formulas.kaplan_meier(np.ones(1), np.ones(1), np.ones(1)) == (0.0, 0.0)


@pytest.mark.parametrize("size", [12, 300])
def test_of_survival(size: int) -> None:
    """With ties of times, of expectations, and of events with censorings at one time."""
    lifelines = pytest.importorskip("lifelines.utils")
    for _ in range(20):
        times, expected = rng.integers(1, 20, size=size).astype(float), rng.integers(0, 30, size=size) / 3
        events = (rng.random(size) < 0.6).astype(float)
        found = formulas.concordance(times, events, expected)
        assert found == pytest.approx(lifelines.concordance_index(times, expected, events))
    assert formulas.concordance(times, np.zeros(size), expected) is None  # nobody had an event
