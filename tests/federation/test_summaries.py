"""What is said of silos' values in few numbers."""

from __future__ import annotations

import math
import warnings

import pytest

from dpfl_plugin.federation.summaries import spread


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([4.0, 1.0, 2.0, 3.0], {"min": 1.0, "p10": 1.3, "median": 2.5, "max": 4.0}),
        ([2.0, math.inf, 1.0], {"min": 1.0, "p10": 1.0, "median": 2.0, "max": math.inf}),
        ([math.inf, math.inf], {"min": math.inf, "p10": math.inf, "median": math.inf, "max": math.inf}),
    ],
    ids=["finite", "one infinite", "infinite"],
)
def test_an_infinite_deviance_hides_no_other_silos(values: list[float], expected: dict[str, float]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert spread(values) == pytest.approx(expected)
