import copy
import itertools
import math
import os
import pickle
import warnings

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from dpfl_plugin.core import draws
from dpfl_plugin.core.fresh import BLOCK, FreshGenerator
from dpfl_plugin.core.streams import PURPOSES, FreshStream, Stream, stream, stream_key, words

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


def test_fresh_words_are_the_key_stream_of_aes_in_counter_mode(monkeypatch):
    """NIST SP 800-38A, F.5.1, has the key, a counter and the output blocks; ours begins at counter 0."""
    key, counter = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c"), 0xF0F1F2F3F4F5F6F7F8F9FAFBFCFDFEFF
    output = "ec8cdf7398607cb0f2d21675ea9ea1e4 362b7c3c6773516318a077d7fc5073ae 6a2cc3787889374fbeb4c81b17ba6c44"
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()

    def blocks(first, count):
        return encryptor.update(b"".join((first + number).to_bytes(16, "big") for number in range(count)))

    assert blocks(counter, 3) == bytes.fromhex(output)
    monkeypatch.setattr("os.urandom", lambda size: key[:size] * (size // 16 or 1))
    generator, counts = FreshStream().seek(b"any name"), [1, 4, 0, 2000, 2090, BLOCK, 2 * BLOCK + 1, 7]
    found = b"".join(generator.words(count).tobytes() for count in counts)
    expected = blocks(0, 5 * BLOCK)
    # In order and each once; of what is encrypted at a time the rest may be left out.
    at = 0
    for count in counts:
        part, found = found[: 8 * count], found[8 * count :]
        place = expected.index(part, at) if count < BLOCK else expected.index(part)
        assert place % 8 == 0
        at = place + 8 * count if count < BLOCK else at
    assert found == b""


@pytest.mark.parametrize("way", ["kernels", "numpy"])
def test_fresh_batches_are_uniform_subsets(way, monkeypatch):
    """Each record as often as the others, and each pair. Would notice 2 % more of one record."""
    monkeypatch.setattr(draws, "kernels", draws.Kernels(worth=1 if way == "kernels" else 2**62))
    for num_all, size in ((10, 3), (10, 7), (9, 1), (12, 12), (12, 6)):
        generator, times = FreshGenerator(), 20_000
        counts, pairs = np.zeros(num_all), 0
        for _ in range(times):
            batch = draws.subset(generator, num_all, size)
            assert len(np.unique(batch)) == size == len(batch)
            counts[batch] += 1
            pairs += {0, num_all - 1} <= set(batch.tolist())
        rate, both = size / num_all, size * (size - 1) / num_all / (num_all - 1)
        assert abs(counts - times * rate).max() <= 6 * math.sqrt(times * rate * (1 - rate) + 1e-9)
        assert abs(pairs - times * both) <= 6 * math.sqrt(times * both * (1 - both) + 1e-9)
    assert sorted(draws.subset(FreshGenerator(), 50_000, 64)) != sorted(draws.subset(FreshGenerator(), 50_000, 64))
    with pytest.raises(ValueError, match="larger"):
        draws.subset(FreshGenerator(), 3, 4)


def test_numbers_below_a_count_that_does_not_divide_are_as_likely_as_each_other():
    """Of 3 2^30 numbers, without words that are thrown away, multiples of 3 would be half of all instead of a third."""
    found = draws._below(FreshGenerator().words(20_000), 3 * 2**30)
    assert abs(np.mean(found % 3 == 0) - 1 / 3) < 6 * math.sqrt(2 / 9 / len(found))  # false alarm: 2e-9
    assert found.min() >= 0 and 2.99 * 2**30 < found.max() < 3 * 2**30
    with pytest.raises(ValueError, match=r"below 2\^32"):
        draws.subset(FreshGenerator(), 2**32, 1)


def test_words_of_fresh_noise_come_from_aes_and_not_from_its_numpy_generator():
    generator = FreshGenerator()
    assert draws._words_of(generator) == generator.words


def test_fresh_uniform_numbers_are_uniform():
    found = draws.uniform(FreshGenerator(), 100_000)
    assert stats.kstest(found, "uniform").pvalue > ALPHA
    assert stats.kstest(0.98 * found, "uniform").pvalue < ALPHA


def test_secure_streams_never_repeat_themselves_or_each_other():
    source = FreshStream()
    first = source.seek(stream_key(1, "noise")).standard_normal(4)
    again = source.seek(stream_key(1, "noise")).standard_normal(4)
    other = FreshStream().seek(stream_key(1, "noise")).standard_normal(4)
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
    source = FreshStream(8)
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
