"""What is said of silos' values in few numbers."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest

from dpfl_plugin.core.outcomes import CLASSES
from dpfl_plugin.federation.summaries import of_ranks, spread


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


def test_ranks_mean_of_silos_own_models_is_weighed_as_that_of_the_model() -> None:
    silos: dict[int, dict[str, Any]] = {
        silo: {
            "model": {"accuracy": 0.5},
            "baseline": {"accuracy": 0.4},
            "own_models": {"accuracy": own},
            "num_test": n,
        }
        for silo, own, n in ((0, 0.6, 30), (1, 1.0, 10))
    }
    found = of_ranks(CLASSES, silos)
    assert found is not None and found["mean_of_silos"]["own_models"]["accuracy"] == pytest.approx(0.7)
    assert found["silos"]["1"]["own_models"] == {"accuracy": 1.0}
    del silos[1]["own_models"]  # of one silo alone they are no measure of all
    some = of_ranks(CLASSES, silos)
    assert some is not None and set(some["mean_of_silos"]) == {"model", "baseline"} == set(some["silos"]["0"])
