"""Counts and sums of variables: what one record moves is bounded, and the noise is what it is called."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from dpfl_plugin.core.streams import stream
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.privacy.events import SampledGaussian
from dpfl_plugin.privacy.statistics import STEP
from dpfl_plugin.privacy.tabulation import Tabulation

SIZES, MOMENTS = (3, 2, 5), 2
PLAIN = Tabulation(SIZES, MOMENTS, 0.0)


def records(rng: np.random.Generator, count: int) -> tuple[list[Any], list[Any]]:
    """Cells, some of them none, and values, some of them missing or at the ends."""
    codes = [rng.integers(-1, size, count) for size in SIZES]
    values = [rng.uniform(-1, 1, count) for _ in range(MOMENTS)]
    for x in values:
        x[rng.random(count) < 0.4] = rng.choice([-1.0, 1.0, 0.0, math.nan])
    return codes, values


@pytest.mark.parametrize(("neighbouring", "squares"), [("replace_one", 2 * 3 + 4 * 2), ("add_or_remove", 5)])
def test_it_is_one_release_of_known_sensitivity(neighbouring: Any, squares: int) -> None:
    tabulation = Tabulation(SIZES, MOMENTS, 3.0)
    assert tabulation.sensitivity(neighbouring) == pytest.approx(math.sqrt(squares))
    assert tabulation.release(neighbouring, "person") == SampledGaussian(
        noise_multiplier=3.0, sampler="full", rate=1.0, neighbouring=neighbouring, unit="person"
    )


@pytest.mark.parametrize("most", [1, 4])
def test_no_record_and_no_person_moves_it_further(most: int) -> None:
    """Of single records the bound is reached; of persons, each of whom has up to so many, it holds."""
    rng, farthest = np.random.default_rng(0), {"replace_one": 0.0, "add_or_remove": 0.0}
    nobody = [np.full(most, -1) for _ in SIZES], [np.full(most, math.nan) for _ in range(MOMENTS)]
    for _ in range(3000):
        own = np.zeros(most, np.int64)
        first, second = (PLAIN.total(*records(rng, most), own) for _ in range(2))
        farthest["replace_one"] = max(farthest["replace_one"], float(np.linalg.norm(first - second)))
        farthest["add_or_remove"] = max(farthest["add_or_remove"], float(np.linalg.norm(first)))
    assert not PLAIN.total(*nobody, np.zeros(most, np.int64)).any()
    for neighbouring, reached in farthest.items():
        bound = PLAIN.sensitivity(neighbouring)  # type: ignore[arg-type]
        assert reached <= bound * (1 + 2**-20) and (most > 1 or reached > 0.9 * bound)


def test_persons_count_once_and_the_order_of_records_does_not_matter() -> None:
    rng = np.random.default_rng(1)
    codes, values = records(rng, 60)
    owners = rng.integers(0, 20, 60)
    owners[:20] = np.arange(20)
    total, order = PLAIN.total(codes, values, owners), rng.permutation(60)
    assert (PLAIN.total([c[order] for c in codes], [x[order] for x in values], owners[order]) == total).all()
    twin = np.zeros(PLAIN.size)
    for person in range(20):
        rows = np.flatnonzero(owners == person)
        for row in rows:
            place = 0
            for size, cells in zip(SIZES, codes, strict=True):
                twin[place + cells[row]] += (cells[row] >= 0) / len(rows)
                place += size
            for x in values:
                known = not math.isnan(x[row])
                twin[place : place + 2] += np.array([x[row], x[row] ** 2 - 1]) / len(rows) if known else 0.0
                place += 2
    assert total == pytest.approx(twin, abs=60 * STEP)


def test_noise_has_the_standard_deviation_that_is_stated() -> None:
    """A chi-squared test with 12,000 degrees of freedom: a false alarm in less than 1e-6 of all draws."""
    tabulation = Tabulation((600, 200), 100, 4.0)
    codes, values = [np.zeros(5, np.int64)] * 2, [np.zeros(5)] * 100
    exact = tabulation.total(codes, values, np.arange(5))
    noise = [
        tabulation.noisy(codes, values, np.arange(5), "replace_one", stream(3, "description", silo=silo)) - exact
        for silo in range(12)
    ]
    squares = float(np.sum(np.square(noise)) / tabulation.noise_std("replace_one") ** 2)
    assert chi2(12_000).ppf(2.5e-7) < squares < chi2(12_000).isf(2.5e-7)
    assert abs(tabulation.noise_std("replace_one") / (4 * tabulation.sensitivity("replace_one")) - 1) < 2**-8


def test_too_many_records_for_the_integers_of_the_noise_are_refused() -> None:
    wide = Tabulation((2**60,), 0, 1.0)
    with pytest.raises(UnsupportedError, match="fewer bins"):
        wide.noisy([np.zeros(2**10, np.int64)], [], np.arange(2**10), "replace_one", stream(0, "description"))
