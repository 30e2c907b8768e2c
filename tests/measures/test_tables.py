"""Measures of few records, as silos have them: what is not defined is None, without a warning or an error."""

from __future__ import annotations

import numpy as np
import pytest

from dpfl_plugin.core.outcomes import Outcome, shortfall
from dpfl_plugin.measures import tables
from dpfl_plugin.measures.answers import Answers

# Warnings are errors in tests, and the product must not switch them off for other threads of its process.


@pytest.mark.parametrize("seed", range(5))
def test_any_few_records_have_a_table_that_ranks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(15):
        n, k = rng.integers(1, 6), rng.integers(2, 5)
        p = np.exp(rng.normal(size=(n, k)) * rng.choice([0, 1, 30]))
        p /= p.sum(axis=1, keepdims=True)
        said, alike = p.argmax(axis=1), rng.random() < 0.5
        y = np.full(n, rng.integers(k)) if alike else rng.integers(k, size=n)
        scores = p[:, 1] if k == 2 else None
        counts = np.stack([rng.poisson(0.5, n), rng.choice([1e-30, 1, 5], n)], axis=1)
        times = np.stack([rng.random(n) * 5, rng.integers(2, size=n)], axis=1)
        cases = [
            (Outcome("classes"), Answers(p, said, scores), y),
            (Outcome("classes"), Answers(None, said, scores), y),
            (Outcome("ordinal"), Answers(p, said), y),
            (Outcome("ordinal"), Answers(None, said), y),
            (Outcome("regression", range=(-1, 1)), Answers(predicted=rng.normal(size=n)), np.full(n, 0.5)),
            (Outcome("counts", range=(0, 9)), Answers(predicted=rng.random(n) * rng.choice([0, 1e300])), counts),
            (Outcome("multi_label"), Answers(p, (p > 0.5)), rng.integers(2, size=(n, k))),
            (Outcome("survival", range=(0, 5), edges=(1.0, 2.0, 5.0)), Answers(rng.random((n, 3))), times),
        ]
        for outcome, answers, labels in cases:
            for curves in (True, False):
                found = tables.table(
                    outcome, answers, labels.astype(np.float32 if labels.ndim > 1 else labels.dtype), curves=curves
                )
                assert next(iter(found)) == outcome.score and found[outcome.score] is not None


def test_balanced_accuracy_is_the_mean_recall_of_the_classes_that_occur() -> None:
    y, said = np.array([0, 0, 0, 2]), np.array([0, 1, 0, 2])
    found = tables.table(Outcome("classes"), Answers(None, said), y)
    assert found["balanced_accuracy"] == pytest.approx((2 / 3 + 1) / 2, abs=1e-15)


def test_of_two_classes_the_second_is_positive() -> None:
    """3 of 4 positives are found, and 1 of 3 negatives: no two of the measures are the same number."""
    y, said = np.array([1, 1, 1, 1, 0, 0, 0]), np.array([1, 1, 1, 0, 0, 1, 1])
    scores = np.array([3.0, 2.0, 1.5, 0.2, 0.1, 1.0, 1.2])
    found = tables.table(Outcome("classes"), Answers(None, said, scores), y)
    expected = {"sensitivity": 3 / 4, "specificity": 1 / 3, "precision": 3 / 5, "f1": 2 / 3, "auc": 10 / 12}
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-15)
    other = tables.table(Outcome("classes"), Answers(None, 1 - said, -scores), 1 - y)
    assert (other["sensitivity"], other["specificity"], other["precision"]) == pytest.approx((1 / 3, 3 / 4, 1 / 2))
    nothing = tables.table(Outcome("classes"), Answers(None, 0 * said, scores), 0 * y)
    undefined = ("sensitivity", "precision", "f1")
    assert [nothing[name] for name in undefined] == [None] * 3 and nothing["specificity"] == 1
    wrong = tables.table(Outcome("classes"), Answers(None, said, scores), 0 * y)
    assert (wrong["sensitivity"], wrong["precision"], wrong["f1"]) == (None, 0, 0)


def test_calibration_in_the_large_is_of_the_positive_class() -> None:
    y, p = np.array([0, 0, 0, 1]), np.array([0.1, 0.2, 0.3, 0.2])
    answers = Answers(np.column_stack([1 - p, p]), np.zeros(4, int), p)
    found = tables.table(Outcome("classes"), answers, y)
    assert found["calibration_in_the_large"] == pytest.approx(0.2 - 0.25)
    assert found["predicted_observed_ratio"] == pytest.approx(0.8)
    assert tables.table(Outcome("classes"), answers, 0 * y)["predicted_observed_ratio"] is None
    values = {"calibration_in_the_large": [0.01, -0.02, 0.3], "predicted_observed_ratio": [1.1, 0.8, 2.0]}
    for name, ordered in {**values, "auc": [0.9, 0.8, 0.7], "rmse": [1.0, 2.0, 3.0]}.items():
        worse = [shortfall(name, value) for value in ordered]
        assert worse == sorted(set(worse)) and len(worse) == 3


def test_survival_curves_are_of_thirds_of_predicted_risk() -> None:
    """Each against the Kaplan-Meier curve of its own records; what is said of a certain risk is seen there."""
    rng = np.random.default_rng(5)
    n, outcome = 3000, Outcome("survival", range=(0, 5), edges=(1.0, 2.0, 5.0))
    rates = np.exp(rng.normal(-1.5, 1.0, n))
    hazards = 1 - np.exp(-rates[:, None] * np.array([1.0, 1.0, 3.0]))
    times, censored = rng.exponential(1 / rates), rng.uniform(1, 9, n)
    ends = np.minimum(np.minimum(times, censored), 5.0)
    labels = np.column_stack([ends, times == ends]).astype(np.float32)
    curves = tables.table(outcome, Answers(hazards), labels)["survival_curves"]
    assert [curve["group"] for curve in curves] == [*tables.THIRDS] and sum(curve["records"] for curve in curves) == n
    for curve in curves:  # 9 intervals, 6 standard errors: a false alarm in 1e8
        for predicted, observed, error in zip(
            curve["predicted"], curve["observed"], curve["standard_error"], strict=True
        ):
            assert abs(predicted - observed) < 6 * error
    (few,) = tables.table(outcome, Answers(hazards[:20]), labels[:20])["survival_curves"]
    assert few["group"] == "all records" and few["records"] == 20


def test_kappa_weighs_levels_that_do_not_occur() -> None:
    """Of levels 0, 1 and 3 of four: with squared distances of 1, 4, 9, not of their ranks."""
    y, said = np.array([0, 1, 3, 3]), np.array([0, 3, 3, 1])
    p = np.eye(4)[said]
    distance = np.subtract.outer(y, said) ** 2
    kappa = 1 - np.mean((y - said) ** 2) / distance.mean()
    assert tables.table(Outcome("ordinal"), Answers(p, said), y)["quadratic_kappa"] == pytest.approx(kappa, abs=1e-12)
    assert tables.table(Outcome("ordinal"), Answers(p[:1], said[:1]), y[:1])["quadratic_kappa"] is None
