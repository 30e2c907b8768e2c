"""Batches by every way to the server: fresh for each release, uniform, and of the size that is accounted for.

Record j is the j-th unit vector, so that a release without noise shows its batch: feature j moves if j is in it.
"""

import functools

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from dpfl_plugin.gradients.base import Records
from tests.conformance.cases import CLASSES, Case, N, of_noise, run
from tests.conformance.checks import ALPHA, assert_frequency

pytestmark = pytest.mark.statistical
SAMPLED = [case for case in of_noise() if case.unit == "record" and case.sampler != "full"]
EVERY = pytest.mark.parametrize("case", SAMPLED, ids=str)
SILOS, STEPS, ROUNDS = 4, 150, 2


@functools.cache
def batches(case: Case, seed: int = 0, rounds: int = ROUNDS) -> NDArray[np.bool_]:
    """(rounds, steps, silos, records): who is in."""
    records = Records(torch.eye(N, dtype=torch.float64), torch.arange(N) % CLASSES)
    made = run(case, [records] * SILOS, sigma=0.0, clip_norm=1e3, steps=STEPS, rounds=rounds, seed=seed)
    return np.asarray((made.values.reshape(*made.values.shape[:-1], CLASSES, N) != 0).any(axis=-2))


@EVERY
def test_batches_have_the_size_that_is_accounted_for(case: Case) -> None:
    """Poisson sizes: 1,200 of Binomial(22, 0.25), in four bins; false alarm 1e-7. A rate of 0.3 would show."""
    sizes = batches(case).sum(axis=-1).ravel()
    if case.sampler == "fixed":
        assert (sizes == 5).all()
        return
    cuts = np.array([-1, 3, 5, 7, N])
    counts = np.histogram(sizes, cuts + 0.5)[0]
    right, wrong = (np.diff(stats.binom.cdf(cuts, N, rate)) * sizes.size for rate in (0.25, 0.3))
    assert stats.chisquare(counts, right).pvalue > ALPHA
    assert stats.chisquare(counts, wrong).pvalue < ALPHA


@EVERY
def test_every_record_and_every_pair_is_drawn_as_often(case: Case) -> None:
    """1,200 batches; false alarm 2e-7; a record that is drawn twice as often, or never, would show."""
    drawn = batches(case).reshape(-1, N).astype(int)
    b = 5
    alone, together = (b / N, b * (b - 1) / (N * (N - 1))) if case.sampler == "fixed" else (0.25, 0.25**2)
    assert_frequency(drawn.sum(axis=0), len(drawn), alone)
    pairs = (drawn.T @ drawn)[np.triu_indices(N, 1)]
    assert_frequency(pairs, len(drawn), together)
    with pytest.raises(AssertionError):
        assert_frequency(2 * drawn.sum(axis=0), len(drawn), alone)
    with pytest.raises(AssertionError):
        assert_frequency(pairs * (np.arange(pairs.size) > 0), len(drawn), together)


@EVERY
def test_every_release_has_a_batch_of_its_own(case: Case) -> None:
    """Two batches are equal by chance once in 26,334 (fixed) or 28,000 (Poisson): of 600 pairs two are by 3e-4, and 12
    by 1e-28. Releases that share theirs would make hundreds."""
    first = batches(case)
    pairs = [(first[:1], batches(case, seed=1, rounds=1))]
    pairs += [(along[:-1], along[1:]) for along in (np.moveaxis(first, axis, 0) for axis in range(3))]
    for one, other in pairs:
        assert (one == other).all(axis=-1).sum() < 12
