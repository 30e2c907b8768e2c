"""Curves: means and bands as far as all runs of a group reach."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from scipy import stats

from dpfl_plugin.experiments.reports.curves import band
from tests.experiments.reports.folders import some


def test_a_band_against_rounds(tmp_path: Path) -> None:
    runs = some(tmp_path, {"seed": 0, "accuracies": [0.1, 0.3]}, {"seed": 1, "accuracies": [0.3, 0.7]})
    found = band(runs, "test_accuracy", "rounds")
    assert found is not None and found.half_width is not None
    np.testing.assert_allclose(found.x, [1, 2])
    np.testing.assert_allclose(found.mean, [0.2, 0.5])
    each = stats.t.ppf(0.975, 1) / math.sqrt(2)
    np.testing.assert_allclose(found.half_width, [each * np.std([0.1, 0.3], ddof=1), each * np.std([0.3, 0.7], ddof=1)])


def test_a_band_reaches_as_far_as_all_runs_do(tmp_path: Path) -> None:
    """Beyond, it would be the mean of those that lasted, another quantity."""
    runs = some(tmp_path, {"seed": 0, "accuracies": [0.1] * 4}, {"seed": 1, "accuracies": [0.3] * 9})
    found = band(runs, "test_accuracy", "rounds")
    assert found is not None
    np.testing.assert_allclose(found.x, [1, 2, 3, 4])
    np.testing.assert_allclose(found.mean, 0.2)


def test_a_band_on_axes_that_differ_is_between_evaluations_linear(tmp_path: Path) -> None:
    """Accuracy 0.1 per round, at one and at two seconds a round: at t seconds 0.1 t and 0.05 t."""
    steps = [0.1 * i for i in range(1, 11)]
    runs = some(tmp_path, {"seed": 0, "accuracies": steps}, {"seed": 1, "accuracies": steps, "step": 2.0})
    found = band(runs, "test_accuracy", "seconds")
    assert found is not None
    assert found.x[0] == 2 and found.x[-1] == 10
    np.testing.assert_allclose(found.mean, 0.075 * found.x, rtol=1e-9)


def test_no_band_where_a_value_is_missing(tmp_path: Path) -> None:
    runs = some(tmp_path, {"seed": 0}, {"seed": 1, "epsilon": None}, {"seed": 2, "accuracies": [0.1, None, 0.3]})
    assert band(runs[:2], "test_accuracy", "epsilon") is None
    assert band([runs[0], runs[2]], "test_accuracy", "rounds") is None
    assert band([], "test_accuracy", "rounds") is None
    assert band(runs[:1], "nothing", "rounds") is None


def test_no_band_where_runs_do_not_overlap(tmp_path: Path) -> None:
    runs = some(tmp_path, {"seed": 0, "accuracies": [0.1, 0.2]}, {"seed": 1, "accuracies": [0.1, 0.2], "step": 100.0})
    assert band(runs, "test_accuracy", "seconds") is None
