"""Means and quantiles of noisy counts: exact without noise, and with it as far off as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, chi2

from dpfl_plugin.measures.noisy_counts import Estimate, count, mean_and_std, quantile

X = np.random.default_rng(0).beta(2, 5, 500) * 2 - 1
SUMS = (float(X.sum()), float((X**2 - 1).sum()))
EDGES = np.linspace(-1, 1, 17).tolist()
COUNTS = np.histogram(X, EDGES)[0].astype(float).tolist()
REPEATS = 4000


def test_without_noise_they_are_those_of_the_records() -> None:
    mean, std = mean_and_std(SUMS, 0.0, Estimate(500.0, 0.0))
    assert mean == pytest.approx((X.mean(), 0.0)) and std == pytest.approx([X.std()] * 3)
    for share in (0.05, 0.25, 0.5, 0.75, 0.95):
        found = quantile(COUNTS, EDGES, share, 0.0)
        known = np.quantile(X, share)
        assert found.low <= known <= found.high and found.high - found.low <= 2 / 16 + 1e-12
        assert abs(found.value - known) < 1 / 16
    assert [count(noisy, 2.0, 9).value for noisy in (-3.0, 4.5, 12.0)] == [0.0, 4.5, 9.0]


def test_standard_errors_are_those_of_repeated_noise() -> None:
    """Noise small enough for the delta method; by chi-squared and binomial bounds a false alarm in less than 1e-6 of
    all draws, and an error of 10 % in a standard deviation would be noticed."""
    rng = np.random.default_rng(1)
    made = []
    for _ in range(REPEATS):
        a, b, missing, usable = rng.normal(0, 4.0, 4)
        sums = (SUMS[0] + a, SUMS[1] + b)
        made.append(mean_and_std(sums, 4.0, Estimate(500.0 + usable - missing, 4.0 * math.sqrt(2))))
    low, high = (chi2(REPEATS).ppf(1e-7) / REPEATS, chi2(REPEATS).isf(1e-7) / REPEATS)
    errors = np.array([mean.value - X.mean() for mean, _ in made])
    assert low * 0.97 < np.mean(errors**2) / np.mean([mean.noise_std**2 for mean, _ in made]) < high * 1.03
    misses = sum(not std.low <= X.std() <= std.high for _, std in made)
    assert binom(REPEATS, 0.05).ppf(1e-7) <= misses <= binom(REPEATS, 0.05).isf(1e-7)


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5, 0.75, 0.95])
def test_an_interval_of_a_quantile_covers_it(share: float) -> None:
    """Each end misses in 2.5 % of all draws at most: of 4,000, so many misses come with less than 1e-7."""
    rng, known = np.random.default_rng(2), np.quantile(X, share, method="inverted_cdf")
    found = [quantile(np.array(COUNTS) + rng.normal(0, 8, 16), EDGES, share, 8.0) for _ in range(REPEATS)]
    misses = sum(not one.low <= known <= one.high for one in found)
    assert misses <= binom(REPEATS, 0.05).isf(1e-7)
    assert all(one.low <= one.value <= one.high for one in found)


def test_noise_alone_gives_the_range_and_no_error() -> None:
    assert quantile([-1.0, -2.0, -3.0], [0.0, 1.0, 2.0, 3.0], 0.5, 50.0) == (1.5, 0.0, 3.0)
    mean, std = mean_and_std((30.0, 5.0), 50.0, Estimate(-4.0, 50.0))
    assert mean.value == 1.0 and mean.noise_std > 2 and (std.low, std.high) == (0.0, 1.0)
