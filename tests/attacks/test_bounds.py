"""The bound on attacks against trade-off curves that are known exactly."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from dpfl_plugin.attacks.bounds import Bound, bound
from dpfl_plugin.privacy.accountants import PLD, Gaussian
from dpfl_plugin.privacy.events import SampledGaussian, Term

RATES = np.concatenate([np.geomspace(1e-4, 0.5, 40), np.linspace(0.5, 1, 40)])


def full_batches(sigma: float, count: int = 1, neighbouring: str = "replace_one") -> tuple[Term, ...]:
    release = SampledGaussian(noise_multiplier=sigma, sampler="full", rate=1.0, neighbouring=neighbouring)
    return (Term(release=release, count=count, rounds=1),)


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.5])
def test_full_batches_have_the_gaussian_trade_off(mu: float) -> None:
    """Phi(Phi^-1(FPR) + mu), Dong, Roth, Su 2022, sec. 2.3: never below it, and nowhere far above."""
    found = bound(Gaussian(), [full_batches(2 / mu, count=4)], replace_one=True)
    exact = norm.cdf(norm.ppf(RATES) + mu)
    assert (found.tpr(RATES) >= exact - 1e-6).all()
    assert (found.tpr(RATES) <= exact * 1.05).all()
    assert norm.cdf(mu / math.sqrt(2)) <= found.auc() <= norm.cdf(mu / math.sqrt(2)) + 0.005


def test_exchanging_a_record_is_removing_one_and_adding_one() -> None:
    mu = 0.7
    found = bound(Gaussian(), [full_batches(1 / mu, neighbouring="add_or_remove")], replace_one=False)
    exact = norm.cdf(norm.ppf(RATES) + 2 * mu)
    assert (found.tpr(RATES) >= exact - 1e-6).all()
    assert (found.tpr(RATES) <= exact * 1.1).all()


def test_pure_privacy_is_randomised_response() -> None:
    """Both inequalities are met at FPR 1 / (1 + e^epsilon) by the answer that is true with the rest's probability."""
    epsilon = math.log(3)
    one = Bound(((epsilon, 0.0),))
    assert one.tpr([0.0, 0.1, 0.25, 1.0]) == pytest.approx([0.0, 0.3, 0.75, 1.0])
    assert one.auc() == pytest.approx(0.75, abs=1e-4)  # two triangles and a rectangle


def test_several_guarantees_bound_better_than_each() -> None:
    both = Bound(((0.5, 0.1), (2.0, 1e-3)))
    each = [Bound((one,)) for one in both.guarantees]
    assert (both.tpr(RATES) == np.minimum(*(one.tpr(RATES) for one in each))).all()
    assert both.auc() < min(one.auc() for one in each)


def test_without_a_guarantee_everything_is_allowed_and_with_no_release_nothing() -> None:
    nothing = bound(PLD(), [full_batches(0.0)], replace_one=True)
    assert (nothing.tpr(RATES) == 1).all() and nothing.auc() == 1
    silent = bound(PLD(), [], replace_one=True)
    assert (silent.tpr(RATES) <= RATES + 1e-6).all()


def test_the_worst_share_of_the_records_counts() -> None:
    cheap, dear = full_batches(5.0), full_batches(1.0)
    assert bound(PLD(), [cheap, dear], replace_one=True) == bound(PLD(), [dear], replace_one=True)
