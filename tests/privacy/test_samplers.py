"""Batches that are drawn with replacement; the other samplers are tested with what they are accounted as."""

import math

import numpy as np
import pytest

from dpfl_plugin.core.streams import stream
from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.oracle import PrivacyRules
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.samplers import FixedSize, WithReplacement, make


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
    with pytest.raises(ConfigError, match="with_replacement needs one of record_rate"):
        make("with_replacement", None, None)


def test_with_replacement_is_refused_at_record_level():
    given = {"neighbouring": "replace_one", "clip_norm": 1.0, "mechanism": Gaussian(1.0)}
    with pytest.raises(UnsupportedError, match="not proven at record level"):
        PrivacyRules(unit="record", sampler=WithReplacement(batch_size=4), **given)
    rules = PrivacyRules(unit="silo", sampler=WithReplacement(batch_size=4), **given)
    assert rules.release(math.nan).sampler == "full"  # batches do not count
