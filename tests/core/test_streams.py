import copy
import itertools
import os
import pickle
import warnings

import numpy as np
import pytest
from randomgen import AESCounter
from scipy import stats

from dpfl_plugin.core.fresh import FreshGenerator
from dpfl_plugin.core.streams import PURPOSES, SecureStream, Stream, stream, stream_key, words

ALPHA = 1e-6  # false alarm of each statistical assertion; seeds are fixed, so it can only fail once


def test_a_stream_is_named_by_its_key_and_nothing_else():
    shared = Stream()
    first = shared.seek(stream_key(7, "noise", 1, 2, 3)).standard_normal(5)
    shared.generator.random(11)  # use that must leave no trace
    again = shared.seek(stream_key(7, "noise", 1, 2, 3)).standard_normal(5)
    assert np.array_equal(first, again)
    assert np.array_equal(first, stream(7, "noise", 1, 2, 3).standard_normal(5))


def test_every_byte_of_a_key_counts():
    shared, key = Stream(), stream_key(7, "noise")
    first = shared.seek(key).standard_normal(5)
    for byte in range(32):
        other = bytearray(key)
        other[byte] ^= 1
        assert not np.array_equal(shared.seek(bytes(other)).standard_normal(5), first), byte


def test_seek_leaves_no_half_used_word():
    shared = Stream()
    expected = shared.seek(stream_key(1, "batch")).integers(0, 2**32, 4, dtype=np.uint32)
    shared.seek(stream_key(2, "batch")).integers(0, 2**32, 3, dtype=np.uint32)  # half a 64-bit word is left over
    assert np.array_equal(shared.seek(stream_key(1, "batch")).integers(0, 2**32, 4, dtype=np.uint32), expected)


def test_words_name_the_streams_of_their_keys():
    keys = [stream_key(3, "noise", step=step) for step in range(5)]
    source = Stream()
    for key, name in zip(keys, words(keys), strict=True):
        first = source.seek(key).random(4)
        assert np.array_equal(source.seek(name).random(4), first)
        assert np.array_equal(source.seek(name).random(4), first)  # and a draw leaves them as they are


def test_every_part_of_a_name_counts():
    names = list(itertools.product((0, 1), ("noise", "batch"), (0, 1), (0, 1), (0, 1), ("", "coins")))
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


def test_secure_bits_are_those_of_aes_in_counter_mode(monkeypatch):
    """FIPS 197, appendix C.1: the cipher; and what the operating system gave is the key, all of it."""
    key, block = bytes(range(16)), bytes.fromhex("00112233445566778899aabbccddeeff")
    cipher = AESCounter(key=int.from_bytes(key, "little"), counter=int.from_bytes(block, "little"))
    assert cipher.random_raw(2).astype("<u8").tobytes().hex() == "69c4e0d86a7b0430d8cdb78070b4c55a"
    monkeypatch.setattr("os.urandom", lambda size: bytes(range(size)))
    ours = SecureStream().seek(b"any name").bit_generator
    same = AESCounter(key=int.from_bytes(key, "little"), counter=0)
    assert np.array_equal(ours.random_raw(1000), same.random_raw(1000))


def test_secure_streams_never_repeat_themselves_or_each_other():
    source = SecureStream()
    first = source.seek(stream_key(1, "noise")).standard_normal(4)
    again = source.seek(stream_key(1, "noise")).standard_normal(4)
    other = SecureStream().seek(stream_key(1, "noise")).standard_normal(4)
    assert len({*first, *again, *other}) == 12


def test_noise_that_is_drawn_for_several_sums_at_once_is_used_once():
    """Also where sums of another size or with more noise come between them, or more than were expected."""
    generator, asked = FreshGenerator(sums=12), [(40, 9e9)] * 5 + [(40, 7e8), (30, 9e9)] * 3 + [(40, 9e9)] * 40
    found = [generator.rounded(count, std) for count, std in asked]
    assert [len(one) for one in found] == [count for count, _ in asked]
    # 30 normals have a third of their standard deviation, or three times it, with a probability below 10^-8. What is of
    # another noise than was asked is off by ten times, and of another size is too short.
    assert all(std / 3 < one.std() < 3 * std for one, (_, std) in zip(found, asked, strict=True))
    # 2,010 numbers of at least 10^9 that are about equally likely: three pairs of them are equal with a probability
    # below 10^-9, and of what is used again 30 at least.
    every = np.concatenate(found)
    assert len(every) - len(np.unique(every)) < 3
    assert stats.kstest(every[:200] / 9e9, "norm").pvalue > ALPHA


def test_no_two_holders_of_a_secure_stream_draw_the_same() -> None:
    source = SecureStream(8)
    source.seek(b"").rounded(10, 1e6)  # and seven more, which are there to be handed out
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        for holder in (source, source.seek(b"")):
            with pytest.raises(TypeError, match="same noise"):
                copied(holder)
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking where threads are: the child ends at once
        child = os.fork()
    if child == 0:
        os.write(write, source.seek(b"").rounded(10, 1e6).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1000) != source.seek(b"").rounded(10, 1e6).tobytes()
    os.close(read)
    os.close(write)
