"""Li, Wang, Wu 2025, eq. 20, by its own lemmas and by its published form."""

import math

import pytest

from dpfl_plugin.errors import ConfigError
from dpfl_plugin.privacy.accountants import Gaussian
from dpfl_plugin.privacy.events import SampledGaussian, Term
from papers.plans.li_noise import claimed_epsilon, noise_scale

ROUND = {"local_steps": 5, "batch_size": 10, "num_records": 600}
DELTA = 1e-5


def test_the_setting_of_its_section_4():
    """Q = 5, b = 10, n_k = 600, delta = 1e-5, epsilon = 0.5: sigma_k = 28.676 G eta."""
    assert noise_scale(**ROUND, epsilon=0.5, delta=DELTA) == pytest.approx(28.676, abs=5e-4)


def test_lemmas_1_to_3_by_hand():
    """q = 1/12: epsilon' = 3, delta' = 1.2e-4, and 20 G eta is the sensitivity."""
    expected = 20 * math.sqrt(2 * math.log(1.25 / 1.2e-4)) / 3
    assert noise_scale(**ROUND, epsilon=0.5, delta=DELTA) == pytest.approx(expected)


def test_the_weighted_sum_is_equation_20_as_published():
    """sum_k p_k sigma_k^2 = 128 eta^2 Q^4 b^2 G^2 / (n eps^2) sum_k log(1.25 Q b / (n_k delta)) / n_k."""
    counts, Q, b, epsilon = (600, 300, 1100), 5, 10, 0.7
    n = sum(counts)
    total = sum(
        k / n * noise_scale(local_steps=Q, batch_size=b, num_records=k, epsilon=epsilon, delta=DELTA) ** 2
        for k in counts
    )
    published = 128 * Q**4 * b**2 / (n * epsilon**2) * sum(math.log(1.25 * Q * b / (k * DELTA)) / k for k in counts)
    assert total == pytest.approx(published)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0])
def test_the_claim_is_the_inverse(epsilon):
    sigma = noise_scale(**ROUND, epsilon=epsilon, delta=DELTA)
    assert claimed_epsilon(sigma / (2 * 5), **ROUND, delta=DELTA) == pytest.approx(epsilon)


def test_the_claim_is_below_what_the_ledger_proves():
    """For a round of its section 4: 0.5 against the exact epsilon of the Gaussian that is released."""
    multiplier = noise_scale(**ROUND, epsilon=0.5, delta=DELTA) / (2 * 5)
    release = SampledGaussian(
        noise_multiplier=multiplier, sampler="full", rate=1.0, neighbouring="replace_one", unit="silo"
    )
    proven = Gaussian().epsilon([Term(release=release, count=1, rounds=1)], DELTA)
    assert proven > 2 * claimed_epsilon(multiplier, **ROUND, delta=DELTA)


def test_where_it_claims_nothing():
    with pytest.raises(ConfigError, match="Q b / n"):
        noise_scale(local_steps=31, batch_size=10, num_records=600, epsilon=0.5, delta=DELTA)
    with pytest.raises(ConfigError, match="epsilon"):
        noise_scale(**ROUND, epsilon=0.0, delta=DELTA)
    with pytest.raises(ConfigError, match="delta"):
        claimed_epsilon(1.0, **ROUND, delta=0.1)
    with pytest.raises(ConfigError, match="noise_multiplier"):
        claimed_epsilon(0.0, **ROUND, delta=DELTA)
