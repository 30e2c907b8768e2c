"""Filters and odometers: their tables, that they bound whoever looks, and what somebody gets out of a PLD who does."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special

from dpfl_plugin.errors import ConfigError
from dpfl_plugin.privacy import filters
from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.composition import Planned, Terms
from dpfl_plugin.privacy.events import SampledGaussian, Term
from dpfl_plugin.privacy.filters import Filter, PlanFilter, RegisteredPlan, RenyiFilter
from tests.privacy import adaptive
from tests.privacy.adaptive import gaussian_profile, poisson, removal_profile

DELTA = 1e-5
Profile = Callable[[float], float]
HALVES = (0.0, 0.5), (0.5, 1.0)


def fixed(noise_multiplier: float, rate: float = 1.0) -> SampledGaussian:
    sampler = "fixed" if rate < 1 else "full"
    return SampledGaussian(noise_multiplier=noise_multiplier, sampler=sampler, rate=rate, neighbouring="replace_one")  # type: ignore[arg-type]


def terms(release: SampledGaussian, rounds: int) -> Terms:
    return (Term(release=release, count=1, rounds=rounds),)


def plan(
    release: SampledGaussian, count: int, share: tuple[float, float] = (0.0, 1.0), records: str = "here"
) -> RegisteredPlan:
    return RegisteredPlan(records, {0: [Planned(release, count, share)]})


def by_plans(plans: Sequence[Terms], disclosed: float, delta: float) -> float:
    """Epsilon of plans one after another, each of which discloses as much."""
    mu = math.hypot(*(filters.mu_of(one, disclosed) for one in plans))
    return filters.epsilon_of(mu, disclosed * len(plans), delta)


def by_order(plans: Sequence[Terms], delta: float) -> float:
    """The least epsilon over orders."""
    best = math.inf
    for order in filters.ORDERS:
        found = filters.renyi_epsilon(sum(RenyiFilter(1.0, delta, order).cost(one, 0) for one in plans), order, delta)
        best = min(best, found)
        if found > 2 * best:
            break
    return best


# q, sigma and steps of plans; delta; what each plan may disclose, of delta; PLD, plan filter, Renyi, sum at delta / k.
HOSPITALS = terms(fixed(60.0, 0.2), 5000)
TABLE = {
    "one plan of (.2, 60, 20,000)": ([terms(fixed(60.0, 0.2), 20_000)], 2.5e-6, 0.01, 2.030, 2.031, 2.189, 2.030),
    "one plan of (1, 4, 20)": ([terms(fixed(4.0), 20)], 1e-5, 0.01, 4.984, 4.986, 5.378, 4.984),
    "one plan of (.05, 1, 1,000)": ([terms(fixed(1.0, 0.05), 1000)], 1e-5, 0.02, 13.47, 13.47, 14.53, 13.47),
    "one plan of Poisson (.01, 1, 5,000)": ([terms(poisson(1.0, 0.01), 5000)], 1e-5, 0.02, 4.202, 4.203, 4.590, 4.202),
    "4 x (.2, 60, 5,000)": ([HOSPITALS] * 4, 2.5e-6, 0.01, 2.030, 2.033, 2.189, 4.10),
    "three kinds": (
        *([HOSPITALS, terms(fixed(8.0), 10), terms(fixed(2.0, 0.05), 500)], 1e-5, 0.01),
        *(3.539, 3.549, 3.834, 5.63),
    ),
    "10 x (.05, 1, 100)": ([terms(fixed(1.0, 0.05), 100)] * 10, 1e-5, 0.02, 13.47, 16.06, 14.52, 44.6),
    "50 x (.05, 1, 20)": ([terms(fixed(1.0, 0.05), 20)] * 50, 1e-5, 0.015, 13.47, 25.3, 14.52, 143),
}


@pytest.mark.parametrize("row", TABLE)
def test_totals_of_plans(row: str) -> None:
    """Within 1 %, by the plans' own PLD, the plan filter, the Renyi filter and the sum of epsilons at delta / k."""
    plans, delta, disclosed, *expected = TABLE[row]
    everything = [term for one in plans for term in one]
    start = time.monotonic()
    found = [
        PLD().epsilon(everything, delta),
        by_plans(plans, disclosed * delta, delta),
        by_order(plans, delta),
        sum(PLD().epsilon(one, delta / len(plans)) for one in plans),
    ]
    assert found == pytest.approx(expected, rel=0.01)
    assert time.monotonic() - start < 60  # seconds; a few on a quiet machine


def test_hospitals_four_times_cost_hardly_more_than_if_all_had_been_planned() -> None:
    planned = PLD().epsilon([term for _ in range(4) for term in HOSPITALS], 2.5e-6)
    one = plan(fixed(60.0, 0.2), 5000)
    assert filters.copies(filters.chosen_filter(1.01 * planned, 2.5e-6, one), one) >= 4
    assert filters.copies(filters.chosen_filter(0.99 * planned, 2.5e-6, one), one) < 4
    start = time.monotonic()
    filters.mu_of(terms(fixed(60.0, 0.2), 5001), 1e-8)
    assert time.monotonic() - start < 10  # seconds: wanted of any registration


# What dominates a plan


@pytest.mark.parametrize("disclosed", [1e-3, 1e-7])
@pytest.mark.parametrize("release", [poisson(1.0, 0.1), poisson(3.0, 0.5), poisson(0.5, 0.01)])
def test_a_plan_is_dominated_by_its_gaussian_and_by_no_smaller_one(release: SampledGaussian, disclosed: float) -> None:
    """Against the closed profile of one release, in both directions, at every epsilon."""
    mu, log_a = filters.mu_of(terms(release, 1), disclosed), np.linspace(0, 20, 5001)
    mirrored = 1 - np.exp(log_a) + np.exp(log_a) * removal_profile(release, -log_a)
    for exact in (removal_profile(release, log_a), mirrored):
        assert np.all(exact <= disclosed + (1 - disclosed) * gaussian_profile(mu, log_a) + 1e-15)
    smaller = disclosed + (1 - disclosed) * gaussian_profile(0.98 * mu, log_a)
    assert np.any(removal_profile(release, log_a) > smaller)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.5, 4.0), st.floats(0.5, 4.0), st.floats(0.0, 0.05), st.floats(0.0, 0.05))
def test_dominating_pairs_compose_to_one_of_them(mu: float, other: float, disclosed: float, more: float) -> None:
    """Numerically: the loss of W(mu, d) x W(mu', d') is infinite, or the sum of two normal ones."""
    nodes, weights = special.roots_hermitenorm(150)
    weights = weights / weights.sum()
    log_a = np.linspace(-2, 6, 9)
    x = other**2 / 2 + other * nodes  # losses of the second
    given_them = disclosed + (1 - disclosed) * np.array([gaussian_profile(mu, log_a - loss) for loss in x])
    both = more + (1 - more) * weights @ given_them
    together = 1 - (1 - disclosed) * (1 - more)
    exact = together + (1 - together) * gaussian_profile(math.hypot(mu, other), log_a)
    assert both == pytest.approx(exact, rel=1e-3)
    assert np.all(
        exact <= disclosed + more + (1 - disclosed - more) * gaussian_profile(math.hypot(mu, other), log_a) + 1e-12
    )


@pytest.mark.parametrize("order", [1.5, 2.0, 4.0, 11.0])
@pytest.mark.parametrize("release", [poisson(1.0, 0.1), fixed(1.5, 0.3), fixed(2.0), poisson(0.7, 0.01)])
def test_a_divergence_is_that_of_the_profile(release: SampledGaussian, order: float) -> None:
    """exp((alpha - 1) R) = 1 + alpha (alpha - 1) int_1 (a^(alpha - 2) H_a + a^(-alpha - 1) H'_a) da, where H' is of the
    other direction; under replacement of a record both are q H_b(N(1, s^2), N(0, s^2))."""

    def up(log_a: float) -> float:
        return float(removal_profile(release, np.array([log_a]))[0])

    def down(log_a: float) -> float:
        if release.sampler != "poisson":
            return up(log_a)
        return 1 - math.exp(log_a) + math.exp(log_a) * up(-log_a)

    found = []
    for first, second in ((up, down), (down, up)):

        def inside(u: float, first: Profile = first, second: Profile = second) -> float:
            return math.exp((order - 1) * u) * first(u) + math.exp(-order * u) * second(u)

        moment = integrate.quad(inside, 0, 60, limit=400, points=[1, 3, 8])[0]
        found.append(math.log1p(order * (order - 1) * moment) / (order - 1))
    assert filters.divergence(release, order) == pytest.approx(max(found), rel=1e-5)


def test_a_divergence_of_poisson_batches_is_the_binomial_sum() -> None:
    """Mironov, Talwar, Zhang 2019, sec. 3.3, at whole orders."""
    for sigma, q, order in ((1.0, 0.01, 5), (2.0, 0.3, 12), (0.5, 0.001, 3)):
        exact = math.log(
            sum(
                math.comb(order, k) * (1 - q) ** (order - k) * q**k * math.exp(k * (k - 1) / (2 * sigma**2))
                for k in range(order + 1)
            )
        ) / (order - 1)
        assert exact <= filters.divergence(poisson(sigma, q), order) == pytest.approx(exact, rel=1e-9)


def test_without_noise_nothing_is_bounded() -> None:
    bare = plan(fixed(0.0), 1)
    for filter in (PlanFilter(1.0, DELTA), RenyiFilter(1.0, DELTA, 8.0)):
        assert not filters.affords(filter, [bare]) and filters.copies(filter, bare) == 0
    with pytest.raises(ConfigError, match="epsilon"):
        filters.chosen_filter(0.0, DELTA, bare)


# Plans of silos


def test_records_are_in_one_silo_and_one_interval() -> None:
    filter = PlanFilter(4.0, DELTA)
    first, second = (plan(fixed(5.0), 10, half) for half in HALVES)
    one, two = filters.cost_of([first], filter), filters.cost_of([first, first], filter)
    assert filters.cost_of([first, second], filter) == one  # 2.59 where independent cuts cost 3.85
    assert filters.cost_of([first, replace(second, records="there")], filter) == pytest.approx(two)
    whole = plan(fixed(5.0), 10)
    assert filters.cost_of([first, second, whole], filter) == pytest.approx(two)
    apart = [RegisteredPlan("here", {silo: [Planned(fixed(5.0), 10)]}) for silo in (0, 1)]
    assert filters.cost_of(apart, filter) == pytest.approx(one)
    for delta, plans, epsilon in ((1e-5, [first, second], 2.59), (1e-5, [first, replace(second, records="x")], 3.85)):
        mu = math.sqrt(filters.cost_of(plans, PlanFilter(1.0, delta)))
        assert filters.epsilon_of(mu, 0.0, delta) == pytest.approx(epsilon, rel=0.01)


# Whoever looks


def test_a_run_chosen_by_the_outcome_of_the_first() -> None:
    """Where all that was released fits epsilon 1 by its PLD, such a choice gets 1.3; filters keep it at 1."""
    first, rates = poisson(8.0), (1.0, 1e-3, 2e-5, 1e-5, 5e-6)

    def by_pld(then: SampledGaussian) -> bool:
        return PLD().epsilon([*terms(first, 1), *terms(then, 1)], DELTA) <= 1.0

    options = [adaptive.least_noise(rate, by_pld) for rate in rates]
    assert adaptive.epsilon_of_a_choice(first, options, DELTA) > 1.27
    for filter in (PlanFilter(1.0, DELTA), RenyiFilter(1.0, DELTA, 16.0)):

        def by_filter(then: SampledGaussian, filter: Filter = filter) -> bool:
            return filters.affords(filter, [plan(first, 1), plan(then, 1)])

        if not filters.affords(filter, [plan(first, 1)]):
            continue
        options = [adaptive.least_noise(rate, by_filter) for rate in (1.0, 0.03, 1e-3)]
        options = [one for one in options if by_filter(one)]
        assert options and adaptive.epsilon_of_a_choice(first, options, DELTA) <= 1.0


@pytest.mark.parametrize(("noise", "rounds", "times"), [(4.0, 20, 7.0), (20.0, 1000, 17.0)])
def test_a_run_that_stops_at_large_losses(noise: float, rounds: int, times: float) -> None:
    """To charge the rounds that ran is 7 to 17 times off in delta; the plan, and an odometer's threshold, hold."""
    mu = 1 / noise
    ran = [filters.epsilon_of(mu * math.sqrt(n), 0.0, DELTA) for n in range(1, rounds + 1)]
    assert adaptive.delta_of_a_stop(ran, mu) / DELTA == pytest.approx(times, rel=0.1)
    assert adaptive.delta_of_a_stop([ran[-1]] * rounds, mu) == pytest.approx(DELTA, rel=0.01)
    odometer = filters.odometer_for(plan(fixed(noise), 1), DELTA)
    said = [odometer.passed([plan(fixed(noise), n)]) for n in range(1, min(rounds, 100) + 1)]
    assert adaptive.delta_of_a_stop(said, mu) <= DELTA


def test_an_odometer_says_a_threshold() -> None:
    one = plan(fixed(60.0, 0.2), 5000)
    odometer = filters.odometer_for(one, 2.5e-6)
    said = [odometer.passed([one] * n) for n in range(1, 6)]
    assert said == [odometer.thresholds[filters.COPIES.index(n)] for n in (1, 2, 3.2, 4, 5)]
    assert said[3] == pytest.approx(2.315, rel=0.01)  # of 4, where 2.03 is what all cost if they were planned
    assert odometer.passed([one] * 200) == math.inf


@pytest.mark.parametrize(
    ("run", "known", "both"), [(3.0, 4.0, 3.72), (3.0, 3.0, 3.24), (4.5, 4.0, 5.67), (4.5, 4.5, 4.79)]
)
def test_a_run_of_another_epsilon_than_was_known_comes_to_more(run: float, known: float, both: float) -> None:
    """As docs/privacy.md has it, after a description of 0.5."""
    plans = [plan(fixed(1 / filters.most_mu(epsilon, 0.0, DELTA)), 1) for epsilon in (0.5, run * (1 - 1e-9))]
    assert filters.odometer_for(plans[0], DELTA, known).passed(plans) == pytest.approx(both, abs=0.006)


def test_a_threshold_counts_what_plans_disclose_at_its_own_share_of_delta() -> None:
    """A sampled plan needs a larger mu the less it may disclose."""
    one, share = plan(fixed(1.0, 0.05), 100), 0.03
    own, whole = (filters.cost_of([one], PlanFilter(0.0, part * DELTA)) for part in (share, 1.0))
    small, large = (PlanFilter(0.0, share * DELTA).needed(cost) for cost in ((own + whole) / 2, own * 1.01))
    assert whole < own and filters.Odometer((small, large), DELTA, (share, share)).passed([one]) == large


@pytest.mark.parametrize(("description", "run", "both"), [(0.25, 1.0, 1.11), (0.5, 4.0, 4.27), (1.0, 8.0, 8.53)])
def test_a_description_and_then_a_run_come_to_less_than_the_sum(description: float, run: float, both: float) -> None:
    """Where the ledger was begun by the description; and further runs have thresholds, too."""
    first, second = (
        plan(fixed(1 / filters.most_mu(epsilon, 0.0, DELTA)), 1) for epsilon in (description, run * (1 - 1e-9))
    )
    odometer = filters.odometer_for(first, DELTA, run)
    assert odometer.passed([first, second]) == pytest.approx(both, abs=0.01) and both < description + run
    assert description < odometer.passed([first]) < odometer.passed([first] * 3) < run
    assert odometer.passed([first, second, second]) < 2 * run + description
