"""Batches drawn with replacement, and the last bit of Poisson rates; samplers are tested with what they are accounted
as, too."""

import math
from fractions import Fraction

import numpy as np
import pytest

from dpfl_plugin.core.streams import stream
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import LEAST_RATE, FixedSize, Poisson, WithReplacement, make


def test_with_replacement_every_record_is_as_likely_in_every_place():
    """b = 4 of n = 20, 3000 batches: 12000 draws, each record 600 times, 5.5 standard deviations are 131; and a record
    is in a batch with probability 1 - (1 - 1/n)^b, 0.185: 556 times, within 117. Without replacement it would be 0.2:
    600 times in each record, which the sum over the records (20 x 44 off, 5.5 standard deviations are 490) tells apart.
    """
    sampler, n = WithReplacement(batch_size=4), 20
    batches = [sampler.draw(n, stream(0, "batch", k)) for k in range(3000)]
    assert {len(batch) for batch in batches} == {4} and sampler.divisor(n) == 4
    counts = np.bincount(np.concatenate(batches), minlength=n)
    assert abs(counts - 600).max() < 131
    present = sum(np.bincount(np.unique(batch), minlength=n) for batch in batches)
    expected = 3000 * sampler.rate(n)
    assert sampler.rate(n) == pytest.approx(1 - (1 - 1 / n) ** 4)
    assert abs(present - expected).max() < 117 and abs(present.sum() - n * expected) < 490
    assert sampler.rate(1) == 1.0


def test_with_replacement_takes_the_options_of_fixed_batches():
    assert make("with_replacement", 0.2, None) == WithReplacement(record_rate=0.2)
    assert make("with_replacement", 0.2, None).divisor(22) == FixedSize(record_rate=0.2).divisor(22) == 4


def test_at_silo_level_batches_do_not_count():
    given = {"neighbouring": "replace_one", "clip_norm": 1.0, "mechanism": Gaussian(1.0)}
    rules = PrivacyRules(unit="silo", sampler=WithReplacement(batch_size=4), **given)
    assert rules.release(math.nan).sampler == "full"


class Uniform:
    """Gives certain ones of the numbers k 2^-53 that a generator may give."""

    def __init__(self, numbers):
        self.random = lambda count: np.array(numbers) / 2**53
        self.permutation = lambda index: index


@pytest.mark.parametrize("rate", [LEAST_RATE, 1.7 * 2.0**-30, 1e-6, 0.01, 0.1, 1 / 3, 0.2, 0.5, 0.999, 1.0])
def test_a_poisson_record_is_drawn_for_no_more_numbers_than_its_rate_is_charged_for(rate):
    """Of 2^53 numbers, the first floor(2^53 s): one more and it is more likely than is charged, one less and not as
    likely as can be."""
    many = math.floor(Fraction(rate) * 2**53)
    sampler, around = Poisson(rate), [0, many - 1, min(many, 2**53 - 1), min(many + 1, 2**53 - 1)]
    drawn = sampler.draw(4, Uniform(around))
    assert drawn.tolist() == [place for place, number in enumerate(around) if number < many]
    assert Fraction(many, 2**53) <= Fraction(sampler.rate(4)) <= Fraction(many, 2**53) * (1 + Fraction(1, 2**22))


@pytest.mark.parametrize("rate", [0.99 * LEAST_RATE, 1e-300, 0.0, -0.1, 1.1, math.nan])
def test_poisson_rates_that_are_refused(rate):
    with pytest.raises(ConfigError, match=r"record_rate.*2\^-30"):
        make("poisson", rate, None)
