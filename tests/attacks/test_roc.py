"""ROC statistics against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from dpfl_plugin.attacks import roc

RNG = np.random.default_rng(0)
MEMBERS, OTHERS = RNG.integers(0, 9, 50) + 1.0, RNG.integers(0, 9, 37) * 1.0  # with ties


def test_the_area_is_the_probability_of_the_right_order() -> None:
    pairs = [(m > o) + (m == o) / 2 for m in MEMBERS for o in OTHERS]
    assert roc.auc(MEMBERS, OTHERS) == pytest.approx(np.mean(pairs))
    assert roc.auc(OTHERS, MEMBERS) == pytest.approx(1 - np.mean(pairs))


def test_the_curve_has_that_area() -> None:
    false, true = roc.curve(MEMBERS, OTHERS)
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)
    assert np.trapezoid(true, false) == pytest.approx(roc.auc(MEMBERS, OTHERS))


@pytest.mark.parametrize("fpr", [0.0, 0.05, 0.3])
def test_the_false_positive_rate_is_kept(fpr: float) -> None:
    members, others = RNG.normal(1, 1, 300), RNG.normal(0, 1, 200)
    found = roc.tpr_at(members, others, fpr)
    kept = [t for t in others if (others > t).mean() <= fpr]  # thresholds at which the rate is kept
    assert found == pytest.approx(max((members > t).mean() for t in kept))


def test_intervals_hold_the_value_and_shrink_with_runs() -> None:
    def runs(count: int) -> list[roc.Scores]:
        return [(RNG.normal(1, 1, 60), RNG.normal(0, 1, 40)) for _ in range(count)]

    few, many = (roc.measure(runs(count), roc.auc, np.random.default_rng(1)) for count in (2, 20))
    for measured in (few, many):
        assert measured.low < measured.value < measured.high
    assert many.high - many.low < 0.6 * (few.high - few.low)


def test_runs_that_differ_widen_the_interval() -> None:
    """All records of a run share its noise: drawing records alone anew would not see it."""
    scores = [(RNG.normal(shift, 0.1, 200), RNG.normal(0, 0.1, 200)) for shift in (-1, 1, 1, 1)]
    measured = roc.measure(scores, roc.auc, np.random.default_rng(1))
    assert measured.high - measured.low > 0.3
