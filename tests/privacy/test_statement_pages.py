"""What pages say of tests and guesses holds for every mechanism with this epsilon and delta."""

from __future__ import annotations

import math

import pytest
from scipy.special import log_ndtr, ndtr, ndtri

from dpfl_plugin.privacy.statement_pages import FALSE_ALARMS, guess, power


def test_no_test_of_a_private_mechanism_is_better_than_the_page_says() -> None:
    """Randomised response reaches the bound; the best test of a Gaussian release, at its exact delta, stays below."""
    for epsilon in (0.1, 1.0, 4.0, 8.0):
        lie = 1 / (1 + math.exp(epsilon))
        assert power(epsilon, 0.0, lie) == pytest.approx(1 - lie, rel=1e-12)
        assert guess(epsilon, 0.0) == pytest.approx(1 - lie, rel=1e-12)
        for mean in (0.2, 1.0, 3.0):
            delta = ndtr(mean / 2 - epsilon / mean) - math.exp(epsilon + log_ndtr(-mean / 2 - epsilon / mean))
            for rate in (1e-4, *FALSE_ALARMS, 0.3, 0.9):
                assert ndtr(ndtri(rate) + mean) <= power(epsilon, delta, rate) + 1e-12
            assert ndtr(mean / 2) <= guess(epsilon, delta) + 1e-12
    assert power(0.0, 0.0, 0.05) == pytest.approx(0.05) and power(1e4, 0.0, 0.05) == 1.0
