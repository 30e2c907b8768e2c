"""Scores: the noise of a count, and what it is charged as."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.events import Term
from dpfl_plugin.privacy.scores import Scores

ALPHA = 1e-6  # false alarm, for this seed
SHARE = (0.9, 1.0)


@pytest.mark.slow
@pytest.mark.statistical
def test_the_noise_has_the_standard_deviation_that_is_charged():
    scores = Scores(SHARE, 3.0)
    rng, seventeen = np.random.default_rng(1), torch.tensor([17.0], dtype=torch.float64)
    noise = np.array([float(scores.noisy(seventeen, "replace_one", rng)) - 17 for _ in range(20_000)])
    std = scores.release("replace_one").noise_multiplier  # one record moves a count by 1
    assert kstest(noise, norm(scale=std).cdf).pvalue > ALPHA
    assert kstest(noise, norm(scale=1.1 * std).cdf).pvalue < ALPHA  # would notice 10 %


@pytest.mark.parametrize("neighbouring", ["replace_one", "add_or_remove"])
def test_a_score_costs_one_gaussian_release_of_a_count_under_either_relation(neighbouring):
    """delta_G(eps) = Phi(1/(2 s) - eps s) - e^eps Phi(-1/(2 s) - eps s) (Balle, Wang 2018, Thm 8)."""
    s = 2.5
    release = Scores(SHARE, s).release(neighbouring)
    epsilon = PLD().epsilon([Term(release=release, count=1, rounds=1)], 1e-4)
    delta = norm.cdf(1 / (2 * s) - epsilon * s) - np.exp(epsilon) * norm.cdf(-1 / (2 * s) - epsilon * s)
    assert delta == pytest.approx(1e-4, rel=1e-3)


def test_gradients_read_what_scores_do_not():
    scores = Scores(SHARE, 1.0)
    assert scores.training == (0.0, 0.9) and scores.training[1] == scores.share[0]
