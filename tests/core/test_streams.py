import itertools

import numpy as np
from scipy import stats

from dpfl_plugin.core.streams import PURPOSES, Stream, stream, stream_key

ALPHA = 1e-6  # false alarm of each statistical assertion; seeds are fixed, so it can only fail once


def test_a_stream_is_named_by_its_key_and_nothing_else():
    shared = Stream()
    first = shared.seek(stream_key(7, "noise", 1, 2, 3)).standard_normal(5)
    shared.generator.random(11)  # use that must leave no trace
    again = shared.seek(stream_key(7, "noise", 1, 2, 3)).standard_normal(5)
    assert np.array_equal(first, again)
    assert np.array_equal(first, stream(7, "noise", 1, 2, 3).standard_normal(5))


def test_seek_leaves_no_half_used_word():
    shared = Stream()
    expected = shared.seek(stream_key(1, "batch")).integers(0, 2**32, 4, dtype=np.uint32)
    shared.seek(stream_key(2, "batch")).integers(0, 2**32, 3, dtype=np.uint32)  # half a 64-bit word is left over
    assert np.array_equal(shared.seek(stream_key(1, "batch")).integers(0, 2**32, 4, dtype=np.uint32), expected)


def test_every_part_of_a_name_counts():
    names = list(itertools.product((0, 1), ("noise", "batch"), (0, 1), (0, 1), (0, 1), (0, 1)))
    keys = {stream_key(*name) for name in names}
    assert len(keys) == len(names)


def test_seeds_that_agree_in_their_low_32_bits_differ():
    """torch.Generator.manual_seed would give them the same normals."""
    assert not np.array_equal(stream(5, "noise").random(4), stream(5 + 2**32, "noise").random(4))


def test_purposes_have_numbers_of_their_own():
    assert len(set(PURPOSES.values())) == len(PURPOSES)


def test_first_draws_of_neighbouring_streams_are_independent_normals():
    """100,000 streams, one draw each; would notice a correlation of 0.03 (5 standard deviations are 0.016)."""
    shared = Stream()
    draws = np.array([shared.seek(stream_key(3, "noise", 0, 0, k)).standard_normal() for k in range(100_000)])
    assert stats.kstest(draws, "norm").pvalue > ALPHA
    assert stats.kstest(1.03 * draws, "norm").pvalue < ALPHA
    assert stats.pearsonr(draws[:-1], draws[1:]).pvalue > ALPHA
