"""The papers' published numbers, typed from the papers, and what is wrong with some of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pytest

from dpfl_plugin.errors import ConfigError
from dpfl_plugin.privacy import paper
from dpfl_plugin.privacy.accountants import PLD, RDP
from dpfl_plugin.privacy.events import SampledGaussian, Term
from dpfl_plugin.privacy.paper import (
    NOBLE_THIRD_PARTY_UNSOUND,
    ORDERS,
    Paper,
    gaussian_rdp,
    noble_third_party_epsilon,
    subsampled_rdp,
)


def training_delta(num_silos: int, num_records: int) -> float:
    """1 / (M R), R being the 80 % of a silo's records that train (Noble et al., section 5)."""
    return 1 / (num_silos * num_records * 0.8)


# Noble et al. 2022: section 5 for the settings; figures 1 to 3 and appendix D.3.3 for the epsilons
EXPERIMENTS: dict[str, tuple[dict[str, Any], float, float]] = {
    "synthetic": (
        {
            "noise_multiplier": 60.0,
            "rounds": 400,
            "silo_rate": 0.2,
            "num_silos": 100,
            "delta": training_delta(100, 5000),
        },
        13.0,
        12.906,
    ),
    "femnist": (
        {
            "noise_multiplier": 30.0,
            "rounds": 400,
            "silo_rate": 0.2,
            "num_silos": 40,
            "delta": training_delta(40, 2500),
        },
        11.4,
        11.361,
    ),
    "mnist": (
        {
            "noise_multiplier": 30.0,
            "rounds": 100,
            "silo_rate": 0.2,
            "num_silos": 60,
            "delta": training_delta(60, 1000),
        },
        7.2,
        7.149,
    ),
    "synthetic, l = 0.05": (
        {
            "noise_multiplier": 60.0,
            "rounds": 400,
            "silo_rate": 0.05,
            "num_silos": 100,
            "delta": training_delta(100, 5000),
        },
        4.2,
        4.155,
    ),
}


@pytest.mark.parametrize(("setting", "published", "computed"), EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_noble_third_party(setting: dict[str, Any], published: float, computed: float) -> None:
    """Rounded up to the digits that are printed: 13 has none, the others one."""
    epsilon = noble_third_party_epsilon(local_steps=50, record_rate=0.2, **setting)
    assert epsilon == pytest.approx(computed, abs=5e-4)
    digit = 1.0 if published == 13.0 else 0.1
    assert published - digit < epsilon <= published


def test_noble_server() -> None:
    """The reference's Lemma B.7 with Mironov's conversion; sound, and far above what is needed."""
    found = Paper().epsilon([term(0.2, 60.0, 400, 50)], 2.5e-6)
    assert found == pytest.approx(13.788212, abs=1e-6)
    assert found > 6 * PLD().epsilon([term(0.2, 60.0, 400, 50)], 2.5e-6)


def test_the_recipe_is_not_sound() -> None:
    """It promises a tenth of what is lost: l epsilon is not what holds of an absent silo.

    K = 1, all records (s = 1), one silo a round (l M = 1: no other noise is credited). If the other silos' messages are
    far from this one's, the model shows who took part, and the participation mixture is exact, not only a bound.
    """
    recipe = noble_third_party_epsilon(
        noise_multiplier=4.0, local_steps=1, rounds=10, silo_rate=0.001, record_rate=1.0, num_silos=1000, delta=1e-5
    )
    truth = PLD().epsilon([replace(term(1.0, 4.0, 10, 1), participation=0.001)], 1e-5)
    assert recipe == pytest.approx(0.053, abs=1e-3) and truth == pytest.approx(0.595, abs=1e-3)
    for word in ("K > 1", "absent silo", "DP-SCAFFOLD"):
        assert word in NOBLE_THIRD_PARTY_UNSOUND


def term(rate: float, sigma: float, rounds: int, count: int) -> Term:
    one = SampledGaussian(
        noise_multiplier=sigma, sampler="fixed" if rate < 1 else "full", rate=rate, neighbouring="replace_one"
    )
    return Term(release=one, count=count, rounds=rounds)


# The formulas


@pytest.mark.parametrize(("q", "sigma"), [(0.2, 60.0), (0.05, 0.9), (0.01, 5.0), (0.9, 1.3), (1e-6, 100.0)])
def test_lemma_b7_term_by_term(q: float, sigma: float) -> None:
    """The formula as the paper prints it, in 50 digits."""
    found = subsampled_rdp(q, gaussian_rdp(sigma))
    with mpmath.workdps(50):
        square = mpmath.mpf(sigma) ** 2
        for alpha in (2, 3, 5, 17, 100, 512):
            total = 1 + 2 * mpmath.mpf(q) ** 2 * mpmath.binomial(alpha, 2) * min(
                2 * mpmath.expm1(1 / square), mpmath.exp(1 / square)
            )
            for j in range(3, alpha + 1):
                total += 2 * mpmath.mpf(q) ** j * mpmath.binomial(alpha, j) * mpmath.exp(j * (j - 1) / (2 * square))
            assert found[alpha - 2] == pytest.approx(float(mpmath.log(total) / (alpha - 1)), rel=1e-10)


def test_lemma_b7_does_not_vanish_with_the_noise() -> None:
    """log(1 + 2 sum_{j >= 3} q^j (alpha choose j)) / (alpha - 1): Noble et al., appendix D.3.2."""
    q, alpha = 0.2, 10
    limit = math.log1p(2 * sum(q**j * math.comb(alpha, j) for j in range(3, alpha + 1))) / (alpha - 1)
    assert subsampled_rdp(q, gaussian_rdp(1e7))[alpha - 2] == pytest.approx(limit, rel=1e-9)
    assert subsampled_rdp(0.9, gaussian_rdp(60.0))[8] > 100 * gaussian_rdp(60.0)[8]


def test_sampling_everything_is_not_sampling() -> None:
    assert subsampled_rdp(1.0, gaussian_rdp(3.0)) == pytest.approx(ORDERS / 18, rel=1e-15)


def test_whole_orders_suffice() -> None:
    """Noble et al.'s extension to real orders (Eqs. 7, 8) on their fine grid never lowers epsilon."""
    for sigma, count, delta in ((60.0, 20_000, 2.5e-6), (5.0, 30, 1e-5), (160.0, 3, 1e-8)):
        rdp = count * subsampled_rdp(0.2, gaussian_rdp(sigma))
        lambdas = np.arange(0.01, 200.0, 0.01)
        generating = np.interp(lambdas, np.append(0.0, ORDERS - 1), np.append(0.0, (ORDERS - 1) * rdp))
        fine = ((generating + math.log(1 / delta)) / lambdas).min()
        assert paper.mironov_epsilon(rdp, delta) <= fine * (1 + 1e-12)


def test_a_linear_divergence_has_a_closed_optimum() -> None:
    """a + L / (a - 1) of R = c a: c + 2 sqrt(c L), at a = 1 + sqrt(L / c); a whole number here."""
    log_one_over_delta, c = 18.0, 0.5
    assert paper.mironov_epsilon(c * ORDERS, math.exp(-log_one_over_delta)) == pytest.approx(0.5 + 2 * 3.0)


def test_participation_is_mixed_as_in_rdp() -> None:
    one = [replace(term(1.0, 2.0, 10, 3), participation=0.2)]
    assert RDP().epsilon(one, 1e-5) < Paper().epsilon(one, 1e-5) < 1.5 * RDP().epsilon(one, 1e-5)


@pytest.mark.parametrize(
    "bad",
    [
        {"noise_multiplier": 0.0},
        {"noise_multiplier": math.nan},
        {"local_steps": 0},
        {"rounds": -1},
        {"silo_rate": 0.0},
        {"silo_rate": 0.001},
        {"record_rate": 1.1},
        {"delta": 0.0},
    ],
)
def test_arguments_are_checked(bad: dict[str, Any]) -> None:
    setting, *_ = EXPERIMENTS["synthetic"]
    with pytest.raises(ConfigError, match=str(next(iter(bad))) if "silo_rate" not in bad else "silo"):
        noble_third_party_epsilon(**{"local_steps": 50, "record_rate": 0.2, **setting, **bad})
