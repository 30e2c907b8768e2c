"""The statistics of audits: what they promise holds as often as they say, and they see what they should."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from dpfl_plugin.privacy.accountants import Gaussian
from dpfl_plugin.privacy.audit import (
    Correlation,
    gaussian_epsilon,
    normality,
    one_run_bound,
    one_run_p_value,
    separation,
    spread,
    striking,
)
from dpfl_plugin.privacy.events import SampledGaussian, Term

ALPHA = 1e-7


def too_many(alarms: int, trials: int, rate: float) -> bool:
    """More alarms than a rate explains, but with probability 1e-7."""
    return alarms > stats.binom.isf(ALPHA, trials, rate)


def randomized_response(epsilon, m, rng):
    bits = rng.random(m) < 0.5
    truth = rng.random(m) < 1 / (1 + math.exp(-epsilon))
    return np.where(truth, bits, ~bits) + 0.01 * rng.random(m), bits  # ties broken at random


# One run


def test_without_delta_the_p_value_is_a_binomial_tail():
    q = math.e / (1 + math.e)
    assert one_run_p_value(500, 100, 80, 1.0, 0.0) == pytest.approx(stats.binom.sf(79, 100, q), rel=1e-12)
    assert one_run_p_value(10, 4, 4, 0.0, 0.0) == pytest.approx(1 / 16)


@pytest.mark.parametrize(("m", "r", "v", "epsilon", "delta"), [(300, 100, 80, 0.7, 1e-5), (50, 20, 20, 2.0, 1e-3)])
def test_the_p_value_by_its_formula_term_by_term(m, r, v, epsilon, delta):
    q = 1 / (1 + math.exp(-epsilon))

    def probability(low, high):  # P[high > B >= low]
        return math.fsum(math.comb(r, k) * q**k * (1 - q) ** (r - k) for k in range(max(0, low), high))

    worst = max(probability(v - i, v) / i for i in range(1, m + 1))
    expected = probability(v, r + 1) + 2 * m * delta * worst
    assert one_run_p_value(m, r, v, epsilon, delta) == pytest.approx(min(1.0, expected), rel=1e-9)


def test_the_p_value_grows_with_epsilon_and_delta():
    for delta in (0.0, 1e-6, 1e-4):
        values = [one_run_p_value(400, 200, 150, epsilon, delta) for epsilon in np.linspace(0, 4, 60)]
        assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(values))
    assert one_run_p_value(400, 200, 150, 1.0, 1e-4) > one_run_p_value(400, 200, 150, 1.0, 0.0)


@pytest.mark.statistical
@pytest.mark.parametrize("epsilon", [0.5, 1.5])
def test_the_one_run_bound_exceeds_the_truth_no_more_often_than_it_says(epsilon):
    """False alarm 1e-7. Randomized response is the mechanism for which guesses are as good as they can be.

    Power: with many bits the bound comes close to epsilon, and one of an epsilon 0.5 larger passes it always.
    """
    rng = np.random.default_rng()
    bounds = [one_run_bound(*randomized_response(epsilon, 200, rng), 0.0, 0.2) for _ in range(300)]
    assert not too_many(sum(bound > epsilon for bound in bounds), 300, 0.2)
    assert 0.75 * epsilon < one_run_bound(*randomized_response(epsilon, 20_000, rng), 0.0, 0.05)
    assert one_run_bound(*randomized_response(epsilon + 0.5, 20_000, rng), 0.0, ALPHA) > epsilon


@pytest.mark.statistical
def test_the_one_run_bound_holds_for_a_mechanism_that_fails_with_probability_delta():
    """False alarm 1e-7. All bits are told with probability delta: m delta of the runs may be refuted, and then are."""
    rng, delta, epsilon, m = np.random.default_rng(), 0.02, 0.5, 100
    alarms = 0
    for _ in range(300):
        scores, bits = randomized_response(epsilon, m, rng)
        scores = np.where(rng.random(m) < delta, 10.0 * np.where(bits, 1, -1), scores)  # each bit told or not
        alarms += one_run_bound(scores, bits, delta, 0.2) > epsilon
    assert not too_many(alarms, 300, 0.2)


@pytest.mark.statistical
def test_the_one_run_bound_of_a_gaussian_stays_below_its_epsilon_and_sees_half_the_noise():
    """False alarm 1e-7 for each of the bounds that is wrong with this probability."""
    rng, m, mu, delta = np.random.default_rng(), 5000, 1.0, 1e-10
    bits = rng.random(m) < 0.5
    noise = rng.standard_normal(m)
    bound = one_run_bound(mu * bits + noise, bits, delta, ALPHA)
    assert 0.5 < bound < gaussian_epsilon(mu, delta)
    assert one_run_bound(mu * bits + noise / 2, bits, delta, ALPHA) > 1.5 * bound


def test_nothing_is_proven_by_few_canaries_or_by_chance():
    assert one_run_bound(np.array([1.0, 0.0]), np.array([True, False]), 1e-5, 0.05) == 0.0
    assert one_run_bound(np.arange(100.0), np.arange(100) % 2 == 0, 1e-5, 0.05) == 0.0


# Gaussian


@pytest.mark.statistical
def test_the_limits_of_the_separation_hold_as_often_as_they_say():
    """False alarm 1e-7 on either side; they are tight: each side fails at about its rate."""
    rng, mu, trials = np.random.default_rng(), 1.3, 500
    low = high = 0
    for _ in range(trials):
        bits = rng.random(40) < 0.5
        found = separation(3.0 * (mu * bits + rng.standard_normal(40)) - 7.0, bits, 0.1)
        low, high = low + (found.low > mu), high + (found.high < mu)
    for alarms in (low, high):
        assert not too_many(alarms, trials, 0.1)
        assert alarms > stats.binom.ppf(ALPHA, trials, 0.1)


def test_the_separation_of_extremes():
    bits = np.arange(400) % 2 == 0
    far = separation(50.0 * bits + np.sin(np.arange(400.0)), bits, ALPHA)
    assert 50 < far.low < far.estimate < far.high < 150
    assert separation(np.zeros(3), np.array([True, False, False]), 0.05) is None
    assert separation(bits.astype(float), bits, 0.05).low == math.inf


@pytest.mark.parametrize("delta", [1e-3, 1e-8])
def test_epsilon_of_mu_is_that_of_the_gaussian_accountant(delta):
    release = SampledGaussian(noise_multiplier=4.0, sampler="full", rate=1.0, neighbouring="replace_one")
    claimed = Gaussian().epsilon([Term(release=release, count=9, rounds=1)], delta)
    assert gaussian_epsilon(3 / 4.0, delta) == pytest.approx(claimed, rel=1e-9)
    assert gaussian_epsilon(-1.0, delta) == 0.0 and gaussian_epsilon(math.inf, delta) == math.inf


# Noise


@pytest.mark.statistical
def test_the_limits_of_a_deviation_hold_and_see_three_percent():
    """False alarm 1e-7."""
    rng = np.random.default_rng()
    wrong = sum(not f.low < 2.0 < f.high for f in (spread(2 * rng.standard_normal(50), 50, 0.1) for _ in range(1000)))
    assert not too_many(wrong, 1000, 0.1) and wrong > stats.binom.ppf(ALPHA, 1000, 0.1)
    noise = rng.standard_normal(50_000)
    found = spread(noise, len(noise), ALPHA)
    assert found.low < 1 < found.high < 1.03 and spread(1.06 * noise, len(noise), ALPHA).low > 1.02


@pytest.mark.statistical
def test_the_threshold_of_many_correlations_is_passed_as_often_as_it_says():
    """False alarm 1e-7. At a rate of 0.2 for 30 pairs; a true correlation of 0.9 passes it at a rate of 1e-7."""
    rng = np.random.default_rng()

    def largest(true=0.0, rate=0.2):
        x, y = rng.standard_normal((2, 30, 60))
        y[0] = true * x[0] + math.sqrt(1 - true**2) * y[0]
        r = (x * y).sum(axis=1) / np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
        return striking([(value, 60) for value in r], rate)

    found = [largest() for _ in range(600)]
    alarms = sum(one.largest > one.threshold for one in found)
    assert not too_many(alarms, 600, 0.2) and alarms > stats.binom.ppf(ALPHA, 600, 0.15)
    seen = largest(0.95, ALPHA)
    assert seen.largest > seen.threshold and seen.pairs == 30


def test_no_pairs_no_correlation():
    assert striking([], ALPHA) == Correlation()


@pytest.mark.statistical
def test_noise_of_another_shape_is_not_normal():
    """False alarm 1e-7."""
    rng = np.random.default_rng()
    assert normality(3 * rng.standard_normal(50_000)) > ALPHA
    assert normality(rng.laplace(size=50_000)) < ALPHA
    assert normality(rng.standard_normal(50_000) * rng.choice([0.5, 1.5], 50_000)) < ALPHA
    assert normality(np.zeros(10)) == 0.0
