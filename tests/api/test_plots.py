"""`curves.png`: what was measured is seen, also where it is one point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import colors, image

from dpfl_plugin.api.plots import baseline_of, curves, detailed, of_measures
from dpfl_plugin.errors import ConfigError


def line(round: int) -> dict[str, Any]:
    return {"round": round, "test_accuracy": 0.5, "epsilon": {"server": 1.0, "third_party": 0.5}}


@pytest.mark.parametrize("rounds", [[1], [10], [1, 10], list(range(1, 100))])
def test_every_number_of_evaluations_is_seen(tmp_path: Path, rounds: list[int]) -> None:
    curves(tmp_path / "a.png", {"run": [line(at) for at in rounds]}, "a title", 1e-5)
    picture = image.imread(tmp_path / "a.png")[:, :, :3]
    first = np.abs(picture - np.array(colors.to_rgb("C0"))).max(axis=2) < 0.02
    # Without the legend, which lies in the lower half of each pair of axes.
    assert first[: len(first) // 3].sum() > 20


def test_rounds_are_whole_numbers_from_0() -> None:
    for last in (1, 2, 10, 1000):
        axis = detailed({"run": [line(last)]}, "a title", 1e-5).axes[-1]
        low, high = axis.get_xlim()
        ticks = [tick for tick in axis.get_xticks() if low <= tick <= high]
        assert low == 0 and ticks[0] == 0 and len(ticks) > 1 and all(tick == int(tick) for tick in ticks)


CURVE = {"predicted": [0.1, 0.4, 1.0], "observed": [0.0, 0.5, 1.0], "records": [12, 10, 11]}
RATES = {"false_positive_rate": [0.0, 0.2, 1.0], "sensitivity": [0.0, 0.7, 1.0]}
SURVIVAL = {"group": "all records", "records": 20, "times": [1.0, 2.0, 5.0], "predicted": [0.9, 0.7, 0.5]} | {
    "observed": [1.0, 0.6, None],
    "standard_error": [0.0, 0.1, None],
}
MEASURES = {"calibration_curve": CURVE, "roc_curve": RATES, "auc": 0.75, "survival_curves": [SURVIVAL]}


def lines_of(kind: str) -> dict[str, np.ndarray]:
    (axis,) = of_measures(kind, MEASURES, "a title").axes
    return {str(each.get_label()): np.asarray(each.get_xydata(), float) for each in axis.lines}


def test_calibration_has_wilsons_intervals_and_counts() -> None:
    proportion = pytest.importorskip("statsmodels.stats.proportion")
    (axis,) = of_measures("calibration", MEASURES, "a title").axes
    (points,) = axis.containers
    bars = [np.asarray(bar)[:, 1] for bar in points[2][0].get_segments()]
    for bar, share, number in zip(bars, CURVE["observed"], CURVE["records"], strict=True):
        expected = proportion.proportion_confint(share * number, number, method="wilson")
        np.testing.assert_allclose(bar, expected, atol=1e-4)
    assert [text.get_text() for text in axis.texts] == ["12", "10", "11"]
    assert "all: predicted 49.1%, observed 48.5%" in [text.get_text() for text in axis.get_legend().get_texts()]


def test_roc_and_survival_are_what_was_measured() -> None:
    np.testing.assert_array_equal(lines_of("roc")["AUC 0.750"], np.transpose([*RATES.values()]))
    predicted = lines_of("survival")["all records, n = 20"]
    np.testing.assert_array_equal(predicted, [(0, 1), (1, 0.9), (2, 0.7), (5, 0.5)])
    (axis,) = of_measures("survival", MEASURES, "a title").axes
    bars = np.array(axis.containers[0][2][0].get_segments()[1])[:, 1]
    width = 1.959964 * 0.1 / (0.6 * np.log(0.6))  # of log(-log S), Kalbfleisch and Prentice 2002, (1.14)
    np.testing.assert_allclose(sorted(bars), sorted(0.6 ** np.exp([width, -width])), atol=1e-9)


def test_pictures_that_measures_do_not_have_are_refused() -> None:
    with pytest.raises(ConfigError, match="kind='rock' must be one of curves, calibration, roc, survival"):
        of_measures("rock", MEASURES, "a title")
    with pytest.raises(ConfigError, match=r"plot\('survival'\) is of survival; the measures have no survival_curves"):
        of_measures("survival", {"auc": 0.5}, "a title")


def test_the_score_without_features_is_a_line_where_runs_share_it() -> None:
    results = [{"measures": {"baseline_score": score}} for score in (0.6, 0.6, 0.7)]
    assert [baseline_of(*results[:2]), baseline_of(*results), baseline_of({})] == [0.6, None, None]
    for baseline in (0.6, None):
        drawn = detailed({"run": [line(1), line(2)]}, "a title", 1e-5, baseline).axes[0].lines
        level = [each.get_ydata() for each in drawn if each.get_label() == "no features"]
        assert [list(ys) for ys in level] == ([] if baseline is None else [[0.6, 0.6]])
