"""Calibration: what is solved for fits by the accountant's own word, and a little more or less would not do."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.privacy import calibration
from dpfl_plugin.privacy.accountants import MOST_NOISE, PLD, PRV, RDP, Accountant, Gaussian
from dpfl_plugin.privacy.calibration import least_noise, most, with_noise, worst_epsilon
from dpfl_plugin.privacy.events import SampledGaussian, Term
from dpfl_plugin.privacy.paper import Paper

DELTA = 1e-5


def term(sampler: str, rate: float, releases: int, participation: float = 1.0, sigma: float = 1.0) -> Term:
    one = SampledGaussian(
        noise_multiplier=sigma,
        sampler=sampler if rate < 1 else "full",  # type: ignore[arg-type]
        rate=rate,
        neighbouring="add_or_remove" if sampler == "poisson" else "replace_one",
    )
    return Term(release=one, count=max(1, releases // 50), rounds=min(50, releases), participation=participation)


def solved(accountant: Accountant, terms: list[tuple[Term, ...]], epsilon: float) -> tuple[float, float]:
    """The noise, and the epsilon that it has."""

    def at(noise: float) -> float:
        return worst_epsilon(accountant, [with_noise(one, noise) for one in terms], DELTA)

    noise = least_noise(at, epsilon)
    return noise, at(noise)


RATES = st.floats(0.01, 1.0)
EPSILONS = st.floats(math.log(0.05), math.log(12)).map(math.exp)


@settings(max_examples=6, deadline=None)
@given(st.sampled_from(["fixed", "poisson"]), RATES, st.integers(1, 20_000), st.sampled_from([1.0, 0.3]), EPSILONS)
def test_noise_for_an_epsilon_has_this_epsilon(
    sampler: str, rate: float, releases: int, participation: float, epsilon: float
) -> None:
    noise, own = solved(PLD(), [(term(sampler, rate, releases, participation),)], epsilon)
    assert epsilon * (1 - 1e-3) < own <= epsilon
    assert f"{noise:.5g}" == f"{noise:.12g}", "five digits, to be typed into a configuration"


@settings(max_examples=6, deadline=None)
@given(st.sampled_from(["fixed", "poisson"]), RATES, st.integers(1, 20_000), st.floats(0.5, 300))
def test_from_noise_to_epsilon_and_back(sampler: str, rate: float, releases: int, sigma: float) -> None:
    epsilon = PLD().epsilon([term(sampler, rate, releases, sigma=sigma)], DELTA)
    if not 0.05 < epsilon < 12:
        return
    noise, _ = solved(PLD(), [(term(sampler, rate, releases),)], epsilon)
    assert noise == pytest.approx(sigma, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("accountant", "sampler", "rate"),
    [(RDP(), "poisson", 0.2), (PRV(eps_error=0.1), "poisson", 0.2), (Paper(), "fixed", 0.2),
     (Gaussian(), "full", 1.0), (PLD(), "full", 1.0)],
    ids=lambda value: getattr(value, "name", str(value)),
)  # fmt: skip
def test_every_accountant_can_be_solved(accountant: Accountant, sampler: str, rate: float) -> None:
    noise, own = solved(accountant, [(term(sampler, rate, 50),)], 7.0)
    assert 7.0 * (1 - 1e-3) < own <= 7.0
    assert accountant.epsilon(with_noise([term(sampler, rate, 50)], noise * 0.999), DELTA) > 7.0


def test_less_privacy_takes_less_noise_and_more_releases_take_more() -> None:
    of = lambda releases, epsilon: solved(PLD(), [(term("fixed", 0.2, releases),)], epsilon)[0]  # noqa: E731
    assert of(1000, 0.5) > of(1000, 1.0) > of(1000, 4.0)
    assert of(10_000, 1.0) > of(1000, 1.0) > of(50, 1.0)
    # Without sampling many releases are one of a smaller multiplier, exactly: noise grows with the square root.
    full = [solved(PLD(), [(term("full", 1.0, n),)], 1.0)[0] for n in (100, 400)]
    assert full[1] == pytest.approx(2 * full[0], rel=2e-4)


def test_the_worst_of_all_silos_and_shares_counts() -> None:
    """Of different b_i / R_i the largest; of disjoint shares the dearest; and schedules keep their proportions."""
    silos = [(term("fixed", rate, 500),) for rate in (0.1, 0.2, 0.15)]
    assert solved(PLD(), silos, 2.0) == solved(PLD(), [silos[1]], 2.0)
    shares = [(term("fixed", 0.2, 500),), (term("fixed", 0.05, 9000),)]
    alone = [solved(PLD(), [share], 2.0)[0] for share in shares]
    assert solved(PLD(), shares, 2.0)[0] == max(alone) != min(alone)
    schedule = (term("fixed", 0.2, 250), replace(term("fixed", 0.2, 250, sigma=3.0)))
    noise, own = solved(PLD(), [schedule], 2.0)
    twice = with_noise(schedule, noise)
    assert [t.release.noise_multiplier for t in twice] == [noise, 3 * noise]
    assert PLD().epsilon(twice, DELTA) == own and 2.0 * (1 - 1e-3) < own <= 2.0


def test_at_the_reference_point() -> None:
    """sigma_g = 60 has epsilon 2.030; the factor of Renyi's bound is what tight accounting saves."""
    one = [(term("fixed", 0.2, 20_000),)]
    tight = least_noise(lambda noise: PLD().epsilon(with_noise(one[0], noise), 2.5e-6), 2.030)
    assert tight == pytest.approx(60.0, rel=1e-3)
    assert RDP().epsilon(with_noise(one[0], 2 * tight), 2.5e-6) > 2.030  # which asks for more than twice the noise


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_budgets_that_make_no_sense(bad: float) -> None:
    with pytest.raises(ConfigError, match="epsilon="):
        least_noise(lambda noise: 1 / noise, bad)


def test_what_no_noise_reaches_is_refused() -> None:
    """Lemma B.7 does not vanish with the noise; and no amount of it is more than the accountants take."""
    with pytest.raises(ConfigError, match=r"out of reach: cannot compute below 12\.9"):
        least_noise(lambda noise: Paper().epsilon(with_noise([term("fixed", 0.2, 20_000)], noise), 2.5e-6), 1.0)
    with pytest.raises(ConfigError, match="delta"):
        least_noise(lambda noise: PLD().epsilon(with_noise([term("full", 1.0, 9)], noise), 1.0), 1.0)
    with pytest.raises(ConfigError, match="out of reach"):
        least_noise(lambda noise: 1 / noise, 1.0, fits=lambda noise: False)
    with pytest.raises(UnsupportedError):
        solved(Gaussian(), [(term("fixed", 0.2, 9),)], 1.0)


def test_noise_that_is_not_supported_counts_as_too_little() -> None:
    def at(noise: float) -> float:
        if noise < 3.0:
            raise UnsupportedError("its losses need too large a grid")
        return 10 / noise

    assert least_noise(at, 2.0) in (5.0, 5.0001)
    with pytest.raises(UnsupportedError, match=r"epsilon=8.0: cannot compute above 3\.33\d, .* noise_multiplier 3"):
        least_noise(at, 8.0)
    with pytest.raises(UnsupportedError, match=r"cannot compute above 100, .* noise_multiplier 0\.01"):
        least_noise(lambda noise: 1 / noise if noise >= 0.01 else math.inf, 101.0)


def test_a_search_that_takes_too_long_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """PRV computes no epsilon above 500, and needs a minute for each one near that."""
    monkeypatch.setattr(calibration, "SECONDS", 1.0)
    began = time.thread_time()
    with pytest.raises(UnsupportedError, match=r"cannot compute the least noise within 1 s .* is enough \(epsilon"):
        solved(PRV(), [(term("poisson", 0.1, 10),)], 1000.0)
    assert time.thread_time() - began < 10


@pytest.mark.parametrize("accountant", [PLD(), Gaussian()], ids=lambda one: one.name)
def test_without_sampling_noise_is_found_far_beyond_what_samples_can_have(accountant: Accountant) -> None:
    noise, own = solved(accountant, [(term("full", 1.0, 100),)], 1e-4)
    assert noise > MOST_NOISE
    assert 1e-4 * (1 - 1e-3) < own <= 1e-4
    assert accountant.epsilon(with_noise([term("full", 1.0, 100)], 2 * noise), DELTA) < own
    with pytest.raises(ConfigError, match=r"out of reach: cannot compute below .* noise_multiplier 10000\."):
        solved(PLD(), [(term("fixed", 0.2, 100),)], 1e-6)


@pytest.mark.parametrize("sigma", [1e4, 3e5, 1e7])
@pytest.mark.parametrize("delta", [1e-9, 1e-12, 1e-15])
def test_the_closed_form_holds_for_as_much_noise_as_it_says(sigma: float, delta: float) -> None:
    """Against Balle, Wang 2018, Thm 8, in 60 digits."""
    epsilon = Gaussian().epsilon([term("full", 1.0, 1, sigma=sigma)], delta)
    with mpmath.workdps(60):
        mu, exact = 1 / mpmath.mpf(sigma), mpmath.mpf(epsilon)
        found = mpmath.ncdf(mu / 2 - exact / mu) - mpmath.exp(exact) * mpmath.ncdf(-mu / 2 - exact / mu)
        assert abs(found / delta - 1) < (1e-8 if sigma <= 1e4 else 1e-5)


def test_the_answer_fits_whatever_else_is_asked() -> None:
    assert least_noise(lambda noise: 10 / noise, 2.0, fits=lambda noise: noise >= 5.0003) == 5.0003


def test_the_least_noise_of_all() -> None:
    """Nothing released: the least that has an epsilon at all."""
    assert least_noise(lambda noise: 0.0, 1.0) == 0.01
    assert least_noise(lambda noise: 1 / noise, 1.0 / MOST_NOISE) == MOST_NOISE


@pytest.mark.parametrize("limit", [1, 2, 7, 64, 1000])
@pytest.mark.parametrize("last", [0, 1, 2, 3, 31, 32, 33, 999, 1000, 5000])
def test_most_is_the_last_that_fits(last: int, limit: int) -> None:
    tried = []

    def fits(n: int) -> bool:
        tried.append(n)
        return n <= last

    found = most(fits, limit)
    assert found == min(last, limit) and (found == 0 or found in tried)
    assert max(tried) <= limit and len(tried) <= 25
    assert most(fits, 0) == 0


def test_a_likely_number_is_tried_first() -> None:
    """What fits together fits in part: a smaller number that seems dearer does not end the search."""
    odd = lambda n: n <= 50 and n != 4  # noqa: E731
    assert most(odd, 100) == 3 and most(odd, 100, likely=40) == 50 and most(odd, 40, likely=40) == 40
    assert most(odd, 100, likely=60) == 3 and most(lambda n: False, 100, likely=60) == 0
    assert most(lambda n: n <= 7, 5, likely=9) == 5 and most(lambda n: True, 0, likely=3) == 0
