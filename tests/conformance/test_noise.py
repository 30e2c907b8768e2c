"""Noise by every way to the server: as strong as the ledger claims, normal, and never the same twice.

False alarm of each test below 1e-7 per fresh seed. Seeds are fixed but for fresh noise, which has a fresh one.
"""

import functools
import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from dpfl_plugin.gradients.base import Records
from dpfl_plugin.privacy.events import Charge
from tests.conformance.cases import C, Case, N, Transcript, cases, claimed_sensitivity, of_noise, run, zero_records
from tests.conformance.checks import ALPHA, assert_normal, assert_uncorrelated

pytestmark = pytest.mark.statistical
F, SILOS, STEPS, ROUNDS, SIGMA = 100, 5, 4, 5, 2.5
EVERY = pytest.mark.parametrize("case", of_noise(), ids=str)


@functools.cache
def noise(case: Case, seed: int = 0) -> Transcript:
    """30,000 draws: releases of silos whose records have no gradient."""
    return run(case, [zero_records(F)] * SILOS, sigma=SIGMA, steps=STEPS, rounds=ROUNDS, seed=seed)


@EVERY
def test_noise_is_what_the_ledger_claims_and_normal(case: Case) -> None:
    made = noise(case)
    assert_normal(made.values, claimed_sensitivity(made.event) * made.event.noise_multiplier)
    assert made.event.noise_multiplier == SIGMA


@EVERY
def test_noise_does_not_depend_on_the_records(case: Case) -> None:
    """Records far beyond C along the first feature: noise on the other features is as strong as it was without."""
    base = zero_records(F)
    features = base.features.clone()
    features[:, 0] = 1e6
    made = run(case, [Records(features, base.labels)] * SILOS, sigma=SIGMA, steps=STEPS, rounds=ROUNDS)
    others = made.values.reshape(*made.values.shape[:-1], 3, F)[..., 1:]
    assert_normal(others, claimed_sensitivity(made.event) * made.event.noise_multiplier)
    assert made.charges == noise(case).charges


@EVERY
def test_no_two_releases_share_noise(case: Case) -> None:
    """Between rounds, steps and silos, at distances of one and two; then between two whole runs.

    At least 18,000 pairs each, in which |r| = 0.07 shows. Any two single releases of 300 draws: only |r| > 0.5.
    """
    values = noise(case).values
    for axis, distance in itertools.product(range(3), (1, 2)):
        along = np.moveaxis(values, axis, 0)
        if len(along) > distance:
            assert_uncorrelated(along[:-distance], along[distance:])
    single = np.abs(np.corrcoef(values.reshape(-1, values.shape[-1])) - np.eye(values[..., 0].size))
    assert single.max() < 0.5  # 9 standard deviations
    assert_uncorrelated(noise(case).values, noise(case, seed=1).values)
    if case.fresh:
        assert_uncorrelated(noise(case).values, noise.__wrapped__(case).values)


@pytest.mark.parametrize("case", [case for case in cases() if not case.fresh], ids=str)
def test_a_canary_is_no_longer_than_its_bound(case: Case) -> None:
    """Projected on its gradient, no release of a data set with one huge record exceeds C/b and 6 standard deviations.

    With little noise, so that a canary of 1.3 C/b shows.
    """
    base, sigma = zero_records(F), 0.02
    features = base.features.clone()
    features[7, 3] = 1e9
    made = run(case, [Records(features, base.labels)] * 3, sigma=sigma, steps=8, rounds=2)
    direction = torch.full((3, F), 0.0)
    direction[:, 3] = 1 / 3
    direction[int(base.labels[7]), 3] -= 1
    projection = made.values @ (direction / direction.norm()).flatten().numpy().astype(float)
    delta = claimed_sensitivity(made.event)
    longest = delta / 2 if made.event.neighbouring == "replace_one" else delta
    assert projection.max() <= longest + 6 * delta * sigma
    assert projection.max() >= 0.7 * longest, "the canary is there"


@EVERY
def test_a_charge_for_each_release(case: Case) -> None:
    made = noise(case)
    assert sum(charge.count for charge in made.charges) == made.values[..., 0].size
    expected = {"fixed": 5 / N, "poisson": 0.25, "full": 1.0}[case.sampler] if case.unit == "record" else 1.0
    for charge in made.charges:
        assert isinstance(charge, Charge) and charge.share == (0.0, 1.0)
        release = charge.release
        assert (release.rate, release.neighbouring, release.unit) == (expected, case.neighbouring, case.unit)
        assert release.sampler == (case.sampler if case.unit == "record" else "full")


@pytest.mark.parametrize("mechanism", sorted({case.mechanism for case in cases()}))
def test_tails_of_the_mechanism(mechanism: str) -> None:
    """A million draws: beyond 4 standard deviations 63 are expected, beyond 4.5 seven, beyond 6.5 none (8e-5)."""
    case = next(case for case in cases() if case.mechanism == mechanism)
    assert not case.fresh
    value = torch.zeros(1_000_000, dtype=torch.float64)
    case.rules(SIGMA).mechanism(value, C, np.random.default_rng(0), value)
    z = value.abs().numpy() / (SIGMA * C)
    for bound in (3.0, 4.0, 4.5):
        assert stats.binomtest(int((z > bound).sum()), z.size, 2 * stats.norm.sf(bound)).pvalue > ALPHA, bound
    assert z.max() < 6.5


# Power: the same checks, on noise that is a little wrong


@pytest.mark.parametrize(
    "wrong",
    [
        lambda z, rng: 1.1 * z,
        lambda z, rng: 0.95 * z,
        lambda z, rng: z + 0.05,
        lambda z, rng: np.clip(z, -2.9, 2.9),
        lambda z, rng: rng.laplace(scale=0.5**0.5, size=z.size),
        lambda z, rng: rng.uniform(-(3**0.5), 3**0.5, z.size),
        lambda z, rng: np.where(rng.random(z.size) < 0.05, 0.0, z),
        lambda z, rng: np.where(rng.random(z.size) < 0.001, 4 * z, z),
    ],
    ids=["10 %", "5 %", "mean", "cut", "laplace", "uniform", "5 % without", "tails"],
)
def test_wrong_noise_is_noticed(wrong) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(0)
    z = rng.standard_normal(30_000)
    assert_normal(z, 1.0)
    with pytest.raises(AssertionError):
        assert_normal(wrong(z, rng), 1.0)


def test_shared_noise_is_noticed() -> None:
    """A fifth of the standard deviation in common, in 3,000 draws."""
    rng = np.random.default_rng(0)
    one, other = rng.standard_normal((2, 3000))
    assert_uncorrelated(one, other)
    with pytest.raises(AssertionError, match="r = "):
        assert_uncorrelated(one, 0.2 * one + (1 - 0.2**2) ** 0.5 * other)
