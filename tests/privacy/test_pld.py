"""Privacy loss distributions against closed forms, integration, dp_accounting and their own finer grids."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import ndtr
from scipy.stats import binom

from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.privacy import pld, step_loss
from dpfl_plugin.privacy.events import SampledGaussian, Sampler, Term


def release(sampler: Sampler, rate: float, sigma: float) -> SampledGaussian:
    neighbouring = "add_or_remove" if sampler == "poisson" else "replace_one"
    return SampledGaussian(noise_multiplier=sigma, sampler=sampler, rate=rate, neighbouring=neighbouring)


def steps(sampler: Sampler, rate: float, sigma: float, number: int = 1) -> Term:
    return Term(release=release(sampler, rate, sigma), count=1, rounds=number)


# Slow twins: profiles h(a) of one step, and their composition by integration


def gaussian_profile(b: float, mu: float) -> float:
    """H_b(N(mu, 1), N(0, 1)); Balle, Wang 2018, Thm 8."""
    if b <= 0:
        return 1 - b
    return float(ndtr(mu / 2 - math.log(b) / mu) - b * ndtr(-mu / 2 - math.log(b) / mu))


def fixed_profile(a: float, q: float, sigma: float) -> float:
    if a >= 1:
        return q * gaussian_profile(1 + (a - 1) / q, 1 / sigma)
    return 1 - a + a * fixed_profile(1 / a, q, sigma) if a > 0 else 1.0


def remove_profile(a: float, q: float, sigma: float) -> float:
    """H_a((1 - q) N0 + q N1, N0) = q H_b(N1, N0) with b = 1 + (a - 1) / q."""
    return q * gaussian_profile(1 + (a - 1) / q, 1 / sigma)


def add_profile(a: float, q: float, sigma: float) -> float:
    """H_a(Q, P) = 1 - a + a H_{1/a}(P, Q), for all a > 0."""
    return 1 - a + a * remove_profile(1 / a, q, sigma)


def composed_twice(profile: Callable[..., float], a: float, q: float, sigma: float) -> float:
    """E h(a e^-L) over the first step's loss L, from its tail P(L > l) = h(e^l) - e^l h'(e^l), by parts."""
    mu = 1 / sigma
    normal = lambda z: math.exp(-z * z / 2) / math.sqrt(2 * math.pi)  # noqa: E731
    mixed = lambda z: (1 - q) * normal(z) + q * normal(z - mu)  # noqa: E731
    loss = lambda z: math.log(1 - q + q * math.exp(mu * z - mu * mu / 2))  # noqa: E731
    h = lambda a: profile(a, q, sigma)  # noqa: E731
    over = lambda f, low: quad(f, low, mu + 12, epsabs=1e-14, epsrel=1e-10, limit=400, points=[mu / 2, 0.0, mu])[0]  # noqa: E731
    if profile is remove_profile:
        return float(over(lambda z: mixed(z) * h(a * math.exp(-loss(z))), -12))
    if profile is add_profile:
        return float(over(lambda z: normal(z) * h(a * math.exp(loss(z))), -12))
    both = lambda z: mixed(z) * h(a * math.exp(-loss(z))) + normal(z) * h(a * math.exp(loss(z)))  # noqa: E731
    split = quad(both, mu / 2, mu / 2 + 14, epsabs=1e-14, epsrel=1e-10, limit=400)[0]
    return float(split + (1 - q) * (1 - 2 * ndtr(-mu / 2)) * h(a))


def exact(sampler: Sampler, a: float, q: float, sigma: float, twice: bool) -> float:
    profiles = [fixed_profile] if sampler == "fixed" else [remove_profile, add_profile]
    return max(composed_twice(p, a, q, sigma) if twice else p(a, q, sigma) for p in profiles)


@settings(max_examples=60, deadline=None)
@given(
    sampler=st.sampled_from(["fixed", "poisson"]),
    q=st.floats(0.01, 0.99),
    sigma=st.floats(0.4, 50),
    fraction=st.floats(0, 3),
)
def test_one_step_is_bounded_tightly(sampler: Any, q: float, sigma: float, fraction: float) -> None:
    epsilon = fraction * math.log1p(q * math.expm1(min(2 / sigma, 3.0)))
    truth = exact(sampler, math.exp(epsilon), q, sigma, twice=False)
    bound = pld.delta_at([steps(sampler, q, sigma)], epsilon)
    assert bound >= truth * (1 - 1e-9) - 1e-15  # the twin's own rounding
    assert bound <= truth * 1.01 + 1e-14


@pytest.mark.parametrize("sampler", ["fixed", "poisson"])
@pytest.mark.parametrize(("q", "sigma"), [(0.2, 1.0), (0.05, 0.6), (0.5, 3.0), (0.9, 2.0)])
def test_two_steps_are_bounded_tightly(sampler: Sampler, q: float, sigma: float) -> None:
    for epsilon in (0.0, 0.3 * q / sigma, q / sigma, 3 * q / sigma):
        truth = exact(sampler, math.exp(epsilon), q, sigma, twice=True)
        bound = pld.delta_at([steps(sampler, q, sigma, 2)], epsilon)
        assert truth * (1 - 1e-6) <= bound <= truth * 1.005


@pytest.mark.parametrize("delta", [0.3, 1e-2, 1e-5, 1e-10, 1e-20, 1e-29])
@pytest.mark.parametrize(
    ("sigma", "number"), [(1.0, 1), (1.0, 300), (20.0, 1), (20.0, 1000), (300.0, 40_000), (1e4, 7)]
)
def test_gaussians_on_the_grid_match_the_closed_form_at_every_delta(sigma: float, number: int, delta: float) -> None:
    from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

    truth = get_epsilon_gaussian(sigma / math.sqrt(number), delta)
    bound = pld.epsilon([steps("full", 1.0, sigma, number)], delta)
    assert truth - 1e-9 <= bound <= truth * 1.0006 + 1e-9


@pytest.mark.parametrize("tilt", [0.01, 0.5, 2.0, 5.0, 9.0, 20.0])
def test_every_tilt_gives_an_upper_bound_to_the_last_grid_point(tilt: float) -> None:
    """In 60 digits, so that tails and rounding, far below the bound's own size, are seen to be covered."""
    mu = mpmath.mpf(1)
    (law,) = pld._laws((steps("full", 1.0, 20.0, 400),), 1e-8, 1)
    losses, bound = law.curve(tilt, 1e-8)
    for j in [*range(0, losses.size, losses.size // 60), losses.size - 2, losses.size - 1]:
        with mpmath.workdps(60):
            e = mpmath.mpf(float(losses[j]))
            truth = mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu)
        assert bound[j] >= float(truth)


def test_what_lies_above_the_window_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a window that is too short on purpose, the tail is a third of delta."""
    laws = pld._laws((steps("full", 1.0, 20.0, 400),), 1e-6, 1)
    exact_epsilon = pld.epsilon([steps("full", 1.0, 20.0, 400)], 1e-6)
    monkeypatch.setattr(pld, "_TAIL", 0.3)
    assert exact_epsilon <= laws[0].epsilon(1e-6) < 1.5 * exact_epsilon
    losses, bound = laws[0].curve(4.0, 1e-6)
    assert bound[-1] >= gaussian_profile(math.exp(losses[-1]), 1.0) > 1e-9


# One step's grid


@pytest.mark.parametrize("q", [1e-3, 0.2, 0.999, 1.0])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 60.0, 1e4])
def test_discretised_masses_are_those_of_two_distributions(q: float, sigma: float) -> None:
    directions: list[tuple[Sampler, pld.Direction]] = [
        ("fixed", "symmetric"),
        ("poisson", "remove"),
        ("poisson", "add"),
    ]
    for sampler, direction in directions[: 1 if q == 1 else 3]:
        one = release(sampler, q, sigma)
        step = pld.step_loss(one, direction, 8.0, pld.loss_scale(one, direction) / 10)
        losses = step.dl * (step.first + np.arange(step.mass.size))
        assert step.mass.sum() + step.infinite == pytest.approx(1, abs=2e-13)
        lower = float(np.dot(step.mass, np.exp(-losses)))
        assert lower <= 1 + 2e-13
        # what the lower distribution misses has a loss below the grid or is beyond reach
        assert lower == pytest.approx(1, abs=1e-13 + 4 * float(ndtr(-8.0 + 1 / sigma)))
        if direction == "symmetric":
            np.testing.assert_allclose(step.mass[::-1], step.mass * np.exp(-losses), rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("q", [1e-9, 0.01, 0.7, 1 - 1e-9])
@pytest.mark.parametrize("sigma", [0.05, 1.0, 300.0])
def test_the_loss_of_a_point_is_that_of_the_two_normals_and_its_inverse_finds_the_point(q: float, sigma: float) -> None:
    """At all sizes of t = (z - 1 / (2 sigma)) / sigma, between which the way to compute it changes."""
    t = np.array([-60.0, -1.1, -1.0, -0.9, -1e-6, 1e-6, 1.0, 29.9, 30.0, 30.1, 30.9, 31.5, 60.0, 600.0])
    z = sigma * t + 0.5 / sigma
    loss, off = step_loss._loss(z, sigma, q), 4e-16 * (1 + 1 / sigma**2)  # z is rounded
    with mpmath.workdps(60):
        of_points = [(mpmath.mpf(float(at)) - mpmath.mpf(0.5) / sigma) / sigma for at in z]
        expected = [float(mpmath.log1p(mpmath.mpf(q) * mpmath.expm1(one))) for one in of_points]
    np.testing.assert_allclose(loss, expected, rtol=1e-14, atol=off)
    found = (step_loss._points(loss[t > -1], sigma, q) - 0.5 / sigma) / sigma
    np.testing.assert_allclose(found, t[t > -1], rtol=1e-12, atol=off + 1e-15 / q)


def test_fine_grids_do_not_cancel() -> None:
    one = release("fixed", 0.05, 1e4)
    step = pld.step_loss(one, "symmetric", 8.0, 5e-6 / 1e3)
    ratio = step.mass[1:] / step.mass[:-1]
    middle = -step.first
    assert np.abs(np.diff(np.log(ratio[middle + 5 : middle + 2000]))).max() < 1e-5  # a smooth density, no noise


# Curves


CURVE = np.array([-1.0, 0.0, 1.0, 2.0]), np.array([0.5, 0.4, 0.2, 0.1])
HALF = math.log1p(0.5 * math.expm1(1.0))  # half of the way from 0 to 1, in e^epsilon


def test_between_points_bounds_are_linear_in_e_to_the_epsilon_and_beyond_them_nothing_is_claimed() -> None:
    values = {-2.0: 1.0, -1.0: 0.5, 0.0: 0.4, HALF: 0.3, 1 + HALF: 0.15, 2.0: 0.1, 3.0: 0.1}
    for at, bound in values.items():
        assert pld._value_at(*CURVE, at) == pytest.approx(bound), at
    for delta, epsilon in {0.6: 0.0, 0.45: 0.0, 0.4: 0.0, 0.3: HALF, 0.2: 1.0, 0.15: 1 + HALF, 0.1: 2.0}.items():
        assert pld._first_below(*CURVE, delta) == pytest.approx(epsilon), delta
    assert pld._first_below(CURVE[0] + 3, CURVE[1], 0.6) == 2.0
    assert pld._first_below(CURVE[0] - 4, CURVE[1], 0.15) == 0.0
    with pytest.raises(UnsupportedError, match="no finite epsilon"):
        pld._first_below(*CURVE, 0.05)


# Composition


TYPICAL = steps("fixed", 0.2, 60.0, 20_000)


@pytest.mark.parametrize("term", [TYPICAL, steps("fixed", 0.05, 5.0, 500), steps("poisson", 0.01, 0.8, 1000)])
def test_halving_the_grid_changes_little_and_only_downwards(term: Term) -> None:
    coarse, fine, finest = (pld.epsilon([term], 1e-5, refine=refine) for refine in (1, 2, 8))
    assert finest <= fine <= coarse
    assert coarse < finest * (1 + 3e-4)


def test_a_round_of_many_steps_is_many_rounds_of_one() -> None:
    one = release("fixed", 0.1, 10.0)
    assert pld.epsilon([Term(release=one, count=50, rounds=20)], 1e-5) == pld.epsilon(
        [Term(release=one, count=1, rounds=1000)], 1e-5
    )
    nearly = pld.epsilon([Term(release=one, count=50, rounds=20, participation=1 - 1e-12)], 1e-5)
    assert nearly == pytest.approx(pld.epsilon([Term(release=one, count=50, rounds=20)], 1e-5), rel=1e-4)


def test_order_and_grouping_do_not_matter() -> None:
    terms = [steps("fixed", 0.2, 60.0, 100), steps("fixed", 0.1, 20.0, 30), steps("full", 1.0, 100.0, 3)]
    values = {pld.epsilon(order, 1e-5) for order in itertools.permutations(terms)}
    split = [*terms[1:], replace(terms[0], rounds=40), replace(terms[0], rounds=60)]
    assert values == {pld.epsilon(split, 1e-5)}


@pytest.mark.parametrize("sampler", ["fixed", "poisson"])
@pytest.mark.parametrize("probability", [0.01, 0.3, 0.9])
def test_participation_is_the_binomial_mixture(sampler: Sampler, probability: float) -> None:
    """delta of n rounds is the mean over the binomial number of rounds taken part in, exactly."""
    one, count, rounds, epsilon = release(sampler, 0.2, 3.0), 4, 3, 0.25
    mixed = pld.delta_at([Term(release=one, count=count, rounds=rounds, participation=probability)], epsilon)
    expected = sum(
        binom.pmf(k, rounds, probability) * pld.delta_at([Term(release=one, count=count * k, rounds=1)], epsilon)
        for k in range(1, rounds + 1)
    )
    assert mixed == pytest.approx(expected, rel=2e-3)


def test_participation_lies_between_none_and_all() -> None:
    always = Term(release=release("fixed", 0.2, 60.0), count=50, rounds=400)
    values = [pld.epsilon([replace(always, participation=p)], 2.5e-6) for p in (0.0, 1e-6, 0.05, 0.2, 0.7, 1.0)]
    assert values == sorted(values) and values[0] == 0.0
    # participation is public: it is no amplification of the epsilon of a round, as sampling records is
    assert values[3] > 0.2 * values[-1]


@pytest.mark.parametrize(("q", "sigma"), [(0.2, 2.0), (0.05, 10.0), (0.5, 1.0)])
def test_fixed_size_costs_at_least_the_pair_it_contains(q: float, sigma: float) -> None:
    """((1 - q) N0 + q N1, N0) has at most the profile of a fixed-size step, so its composition costs no more."""
    fixed = (steps("fixed", q, sigma, 100),)
    (law,) = pld._laws(fixed, 1e-5, 1)
    remove, _ = pld._laws((steps("poisson", q, sigma, 100),), 1e-5, 1)
    assert remove.epsilon(1e-5) <= law.epsilon(1e-5) * (1 + 2e-4)


def test_full_rate_is_the_plain_gaussian() -> None:
    plain = pld.epsilon([steps("full", 1.0, 5.0, 30)], 1e-5)
    assert pld.epsilon([steps("fixed", 1.0, 5.0, 30)], 1e-5) == pytest.approx(plain, rel=1e-12)
    assert pld.epsilon([steps("poisson", 1.0, 5.0, 30)], 1e-5) == pytest.approx(plain, rel=1e-12)
    assert pld.epsilon([steps("fixed", 1 - 1e-9, 5.0, 30)], 1e-5) == pytest.approx(plain, rel=1e-4)
    assert pld.epsilon([steps("poisson", 1 - 1e-9, 5.0, 30)], 1e-5) == pytest.approx(plain, rel=1e-4)


@pytest.mark.parametrize("sampler", ["fixed", "poisson"])
def test_monotone_in_everything(sampler: Sampler) -> None:
    by_steps = [pld.epsilon([steps(sampler, 0.1, 8.0, n)], 1e-5) for n in (1, 2, 5, 50, 500, 5000)]
    by_rate = [pld.epsilon([steps(sampler, q, 8.0, 500)], 1e-5) for q in (0.001, 0.01, 0.1, 0.11, 0.5, 0.99, 1.0)]
    by_sigma = [pld.epsilon([steps(sampler, 0.1, s, 500)], 1e-5) for s in (500.0, 50.0, 8.0, 7.9, 2.0, 0.9)]
    by_delta = [pld.epsilon([steps(sampler, 0.1, 8.0, 500)], d) for d in (0.1, 1e-3, 1e-5, 1e-9, 1e-15)]
    for values in (by_steps, by_rate, by_sigma, by_delta):
        assert values == sorted(values)


@pytest.mark.parametrize(("q", "sigma", "number"), [(0.01, 0.8, 300), (0.1, 2.0, 500)])
def test_agrees_with_dp_accounting_on_poisson(q: float, sigma: float, number: int) -> None:
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    theirs = from_gaussian_mechanism(sigma, sampling_prob=q, value_discretization_interval=2e-4).self_compose(number)
    assert pld.epsilon([steps("poisson", q, sigma, number)], 1e-6) == pytest.approx(
        theirs.get_epsilon_for_delta(1e-6), rel=1e-3
    )


def test_heterogeneous_composition_agrees_with_dp_accounting() -> None:
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism as their

    a = their(1.0, sampling_prob=0.05, value_discretization_interval=2e-4).self_compose(40)
    b = their(2.0, sampling_prob=0.3, value_discretization_interval=2e-4).self_compose(10)
    ours = [steps("poisson", 0.05, 1.0, 40), steps("poisson", 0.3, 2.0, 10)]
    assert pld.epsilon(ours, 1e-6) == pytest.approx(a.compose(b).get_epsilon_for_delta(1e-6), rel=1e-3)


def test_both_directions_count() -> None:
    remove, add = (law.epsilon(1e-5) for law in pld._laws((steps("poisson", 0.01, 0.8, 1000),), 1e-5, 1))
    assert remove > 1.3 * add
    assert pld.epsilon([steps("poisson", 0.01, 0.8, 1000)], 1e-5) == remove


def test_epsilon_and_delta_invert_each_other() -> None:
    epsilon = pld.epsilon([TYPICAL], 2.5e-6)
    assert pld.delta_at([TYPICAL], epsilon) == pytest.approx(2.5e-6, rel=1e-6)


def test_tails_are_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """With almost no reach, most of delta is tail: the bound must rise, not fall."""
    (law,) = pld._laws((steps("full", 1.0, 1.0, 3),), 1e-5, 1)
    full = law.epsilon(1e-5)
    short = pld._Composition(pld._factors((steps("full", 1.0, 1.0, 3),), "symmetric", 4.8, 1))
    assert 0 < 3 * 2 * ndtr(-4.8) < 1e-5
    assert full < short.epsilon(1e-5)
    assert short.delta_at(100.0) >= 3 * 2 * ndtr(-4.8)


@pytest.mark.slow
def test_speed() -> None:
    warm = steps("fixed", 0.2, 61.0, 10)
    pld.epsilon([warm], 1e-5)  # imports
    start = time.process_time()
    pld.epsilon([TYPICAL], 2.7e-6)
    assert time.process_time() - start < 30
    start = time.process_time()
    for n in range(1, 61):
        pld.epsilon([steps("fixed", 0.2, 62.0, 350 * n)], 2.5e-6)
    assert time.process_time() - start < 100  # a quadratic algorithm would take more, a slow machine does not


# Refusals


@pytest.mark.parametrize(
    ("bad", "error", "says"),
    [
        ({"sampler": "poisson"}, UnsupportedError, "add_or_remove"),
        ({"neighbouring": "add_or_remove"}, UnsupportedError, "replace_one"),
        ({"sampler": "shuffled"}, UnsupportedError, "shuffled"),
        ({"neighbouring": "zero_out"}, UnsupportedError, "zero_out"),
        ({"rate": 0.0}, ConfigError, "rate"),
        ({"rate": 1.01}, ConfigError, "rate"),
        ({"rate": math.nan}, ConfigError, "rate"),
        ({"sampler": "full"}, ConfigError, "rate"),
        ({"noise_multiplier": 0.0}, ConfigError, "noise_multiplier"),
        ({"noise_multiplier": -1.0}, ConfigError, "noise_multiplier"),
        ({"noise_multiplier": math.nan}, ConfigError, "noise_multiplier"),
        ({"noise_multiplier": math.inf}, ConfigError, "noise_multiplier"),
    ],
)
def test_what_is_not_proven_is_refused(bad: dict[str, Any], error: type[Exception], says: str) -> None:
    one = replace(release("fixed", 0.2, 3.0), **bad)
    with pytest.raises(error, match=says):
        pld.epsilon([Term(release=one, count=1, rounds=1)], 1e-5)


@pytest.mark.parametrize(
    "bad",
    [
        {"count": -1},
        {"rounds": -1},
        {"count": 1.5},
        {"participation": 1.1},
        {"participation": -0.1},
        {"participation": math.nan},
    ],
)
def test_impossible_terms_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        pld.epsilon([replace(TYPICAL, **bad)], 1e-5)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan, 1e-31])
def test_impossible_deltas_are_refused(delta: float) -> None:
    with pytest.raises(ConfigError, match="delta"):
        pld.epsilon([TYPICAL], delta)


def test_mixed_meanings_are_refused() -> None:
    with pytest.raises(ConfigError, match="neighbouring"):
        pld.epsilon([steps("fixed", 0.2, 3.0), steps("poisson", 0.2, 3.0)], 1e-5)
    silo = replace(release("full", 1.0, 3.0), unit="silo")
    with pytest.raises(ConfigError, match="unit"):
        pld.epsilon([steps("full", 1.0, 3.0), Term(release=silo, count=1, rounds=1)], 1e-5)


def test_nothing_costs_nothing() -> None:
    assert pld.epsilon([], 1e-5) == 0.0
    assert pld.delta_at([], 0.0) == 0.0
    assert pld.epsilon([replace(TYPICAL, rounds=0), replace(TYPICAL, participation=0.0)], 1e-5) == 0.0
