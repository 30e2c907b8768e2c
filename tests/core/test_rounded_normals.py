"""Noise on a grid: the law, against 40 digits; quick decisions, against exact ones; compiled loops, against numpy."""

import math
from decimal import Decimal

import mpmath
import numpy as np
import pytest
import torch
from scipy.stats import chi2

from dpfl_plugin.core import draws, ziggurat
from dpfl_plugin.core import rounded_normals as rounded
from dpfl_plugin.core.streams import FreshStream, Stream, stream_key

ALPHA = 1e-6  # false alarm


def words(seed=0):
    return np.random.SFC64(seed).random_raw


def real(number):
    return mpmath.mpf(str(number))


@pytest.mark.slow
def test_the_law_is_normal_to_40_digits():
    """The density of `ziggurat`'s formulas over exp(-x^2 / 2), at strips' edges and between; and the tail."""
    with mpmath.workdps(60):
        left, height = map(real, ziggurat._LEFT[:1]), list(map(real, ziggurat._HEIGHT))
        edge = [real(width) * 2**ziggurat.BITS for width in ziggurat._WIDTH]
        (r,) = left

        def density(x):
            whole = sum(1 / (256 * edge[i]) for i in range(2, 256) if edge[i - 1] > x)
            (i,) = [i for i in range(1, 256) if (edge[i - 1] if i > 1 else 0) <= x < edge[i]]
            under = (mpmath.exp(-(x**2) / 2) - height[i]) / (height[i - 1] - height[i])
            return 1 / (256 * edge[0]) + whole + under / (256 * edge[i])

        points = [(edge[i - 1] if i > 1 else 0) * (1 - t) + edge[i] * t for i in range(1, 256) for t in (0, 0.4, 0.999)]
        ratios = [density(x) / mpmath.exp(-(x**2) / 2) for x in points]
        ratios.append((1 - r / edge[0]) / 256 / (mpmath.sqrt(mpmath.pi / 2) * mpmath.erfc(r / mpmath.sqrt(2))))
        assert max(ratios) / min(ratios) - 1 < mpmath.mpf("1e-40")


@pytest.mark.parametrize("std", [0.3, 1.0, 7.5])
def test_integers_have_the_probabilities_of_rounded_normals(std):
    """Chi-square over all integers that are expected ten times or more; it would notice a deviation 2 % off."""
    count = 200_000
    found = rounded.by_numpy(count, std, words(3))
    assert abs(found).max() < 8 * std + 1

    def p_value(of_std):
        reach = int(5 * std) + 1
        inner = np.arange(-reach, reach + 1)
        expected = [count * float(mpmath.ncdf((k + 0.5) / of_std) - mpmath.ncdf((k - 0.5) / of_std)) for k in inner]
        pairs = [(e, int((found == k).sum())) for k, e in zip(inner, expected, strict=True) if e >= 10]
        rest = count - sum(e for e, _ in pairs), count - sum(n for _, n in pairs)
        total = sum((n - e) ** 2 / e for e, n in [*pairs, rest])
        return chi2.sf(total, len(pairs))

    assert p_value(std) > ALPHA
    assert p_value(1.02 * std) < ALPHA


def test_every_number_within_a_step_is_reached_and_as_likely_as_the_others():
    """At s = 2^33 a float32 would leave 2^10 numbers to one; the last ten bits of ours are uniform."""
    found = rounded.by_numpy(400_000, 2.0**33, words(4))

    def p_value(values):
        seen = np.bincount(values % 1024, minlength=1024)
        return chi2.sf(((seen - 400_000 / 1024) ** 2 / (400_000 / 1024)).sum(), 1023)

    assert p_value(found) > ALPHA
    assert p_value(found.astype(np.float32).astype(np.int64)) < ALPHA


def hard_words(rng):
    """Words at the edges of strips and anywhere, with uniforms that are extreme or not."""
    every = []
    for strip in range(256):
        sure = int(rounded.INNER[strip])
        near = [sure - 1, sure, sure + 1, sure + 2**20, 2**52 - 1, int(rng.integers(2**52))]
        every += [(n << 9 | int(rng.integers(2)) << 8 | strip) for n in near if 0 <= n < 2**52]
    extremes = [0, 1, 2**43, 2**44, 2**63, 2**64 - 1]
    uniforms = [[extremes[rng.integers(6)] if rng.random() < 0.3 else int(w) for w in words(7)(3)] for _ in every]
    return np.array(every, np.uint64), np.array(uniforms, np.uint64)


class AnotherWord(Exception):
    """What the exact way asks for where it rejects a point."""


def takes_another_word(given, std, fill):
    def draw(count):
        if count == 1:
            raise AnotherWord
        return np.full(count, fill, np.uint64)

    try:
        ziggurat.decide(given, std, draw)
    except AnotherWord:
        return True
    return False


@pytest.mark.parametrize("std", [0.7, 2.0**24, 2.0**42])
def test_what_is_decided_holds_for_all_bits_that_may_follow(std):
    """Of every decided word the exact value is the same with the least and the largest bits that may follow."""
    word, uniforms = hard_words(np.random.default_rng(1))
    value, sure = rounded.within_strips(word, std)
    fates, values, nexts = rounded.at_edges(word, uniforms, std)
    assert 0.1 < sure.mean() < 0.9
    for fill in (0, 2**64 - 1):
        for n in range(len(word)):
            drawn = []

            def draw(count, drawn=drawn, fill=fill):
                if count == 1:
                    raise AssertionError("rejected")
                drawn.append(count)
                return np.full(count, fill, np.uint64)

            if sure[n]:
                assert ziggurat.decide(rounded.Undecided(int(word[n])), std, draw) == value[n]
                continue
            given = rounded.undecided(word[n], uniforms[n, 0], uniforms[n, 1])
            if fates[n] == rounded.DONE and nexts[n] == word[n]:
                assert ziggurat.decide(given, std, draw) == values[n]
                assert drawn == [3, 3]  # the first 64 bits were those that were given
            elif fates[n] != rounded.KEPT and given.word & 255:  # rejected: the exact way, too, takes another word
                assert takes_another_word(given, std, fill)


def on_the_curve_beyond_r(count):
    """Words of the tail, with U from next to 1 to next to 0, and U' at the curve, off by next to nothing or more."""
    rng, uniforms = np.random.default_rng(5), []
    for _ in range(count):
        t = Decimal(float(2.0 ** rng.uniform(-40, 1.5)))
        first, second = (int(2**64 * number.exp()) for number in (-ziggurat._R * t, -t * t / 2))
        off = int(2.0 ** rng.uniform(0, 42)) * int(rng.choice([-1, 1]))
        uniforms.append([first, min(max(second + off, 0), 2**64 - 1), 0])
    word = (int(rounded.INNER[0]) + 7) << 9
    return np.full(count, word, np.uint64), np.array(uniforms, np.uint64)


def test_the_tail_is_decided_for_all_bits_that_may_follow():
    """Where U and U' are next to 1, their logarithms are next to 0, and rounded by more than themselves."""

    class Again(Exception):
        """What the exact way raises here where it tries the tail again."""

    std = 2.0**30
    word, uniforms = on_the_curve_beyond_r(600)
    fates, values, _ = rounded.at_edges(word, uniforms, std)
    assert {rounded.DONE, rounded.RETRIED, rounded.KEPT} <= set(fates.tolist())
    for n in np.flatnonzero(fates != rounded.KEPT):
        assert rounded.at_edge(word[n], uniforms[n, 0], uniforms[n, 1], std)[0] == fates[n]
        for fill in (0, 2**64 - 1):

            def draw(count, fill=fill):
                if count > 3:
                    raise Again
                return np.full(count, fill, np.uint64)

            try:
                found = ziggurat.decide(rounded.undecided(word[n], uniforms[n, 0], uniforms[n, 1]), std, draw)
            except Again:
                assert fates[n] == rounded.RETRIED
            else:
                assert (fates[n], values[n]) == (rounded.DONE, found)


@pytest.mark.parametrize("std", [1.0, 2.0**30])
def test_one_by_one_is_as_all_at_once(std):
    word, uniforms = hard_words(np.random.default_rng(2))
    open_ = ~rounded.within_strips(word, std)[1]
    at_once = rounded.at_edges(word[open_], uniforms[open_], std)
    one_by_one = rounded._one_by_one(word[open_], uniforms[open_], std)
    decided = at_once[0] == rounded.DONE
    assert decided.any() and np.array_equal(at_once[0], one_by_one[0])
    assert np.array_equal(at_once[1][decided], one_by_one[1][decided]) and np.array_equal(at_once[2], one_by_one[2])


def test_the_exact_way_rounds_what_it_is_given():
    """Of a word in the middle of a strip: (n + U) W_i std, with U of 256 bits, to the nearest integer."""
    word = 5 << 200 & 0 | (2**51 << 9) | 256 | 100
    found = ziggurat.decide(ziggurat.Undecided(word), 2.0**45, lambda n: np.full(n, 2**63, np.uint64))
    exact = (Decimal(2**51) + Decimal("0.5")) * ziggurat._WIDTH[100] * 2**45
    assert found == -int(exact.to_integral_value())


def test_what_puts_a_point_beyond_r_does_not_choose_how_far():
    """In the one cell of strip 0 that holds R, U tells whether x < R; given that, the tail has the law that it has from
    cells beyond, where U tells nothing: the same numbers from the same words, whichever U and U' were."""
    cell = int(ziggurat.TABLES.inner[0])
    edge = int((ziggurat._LEFT[0] / ziggurat._WIDTH[0] - cell) * 2**64)
    assert 2**60 < edge < 2**64 - 2**60
    for given in [(edge + 2**33, 2**63), (edge + 2**60, 1), (2**64 - 1, 2**64 - 1), (2**64 - 2**40, 2**40)]:
        of_cell, beyond = words(11), words(11)
        for _ in range(40):
            found = ziggurat.decide(ziggurat.Undecided(cell << 9, given), 2.0**40, of_cell)
            beyond(6)  # which made U and U' longer
            expected = ziggurat.decide(ziggurat.Undecided((cell + 1) << 9), 2.0**40, beyond)
            assert found == expected > float(ziggurat._R) * 2.0**40


@pytest.mark.parametrize("given", [(0, 5), (2**60, 2**63)])
def test_what_lies_left_of_r_in_the_cell_that_holds_it_is_taken(given):
    cell = int(ziggurat.TABLES.inner[0])
    found = ziggurat.decide(ziggurat.Undecided(cell << 9, given), 2.0**45, words())
    exact = (cell + Decimal(given[0]) / 2**64) * ziggurat._WIDTH[0]
    assert found == int((exact * 2**45).to_integral_value()) and exact < ziggurat._R


@pytest.mark.parametrize("std", [0.0, -1.0, math.inf, math.nan, 2.0**46])
def test_standard_deviations_that_are_refused(std):
    with pytest.raises(ValueError, match="at most 2\\^45"):
        rounded.by_numpy(1, std, words())
    with pytest.raises(ValueError, match="at most 2\\^45"):
        draws.add_rounded(torch.zeros(1, dtype=torch.float64), 1.0, std, FreshStream().seek(b""), torch.zeros(1))
    rounded.check_std(2.0**45)


def test_sums_are_rounded_to_the_grid_before_the_noise_is_added():
    """out / grid is the nearest integer plus the noise, exactly; 2^51 at most before it; of NaN 0."""
    total = torch.tensor([0.0, 0.26, -0.26, 1e6 + 0.13, math.nan, math.inf, 1e300], dtype=torch.float64)
    out = torch.empty_like(total)
    key = stream_key(1, "noise")
    draws.add_rounded(total, 0.25, 1000.0, Stream().seek(key), out)
    noise = rounded.by_numpy(7, 1000.0, Stream().seek(key).bit_generator.random_raw)
    assert (out / 0.25 - torch.from_numpy(noise)).tolist() == [0, 1, -1, 4000001, 0, 2.0**51, 2.0**51]
    draws.add_rounded(total, 0.25, 1000.0, Stream().seek(key), total)  # in place
    assert torch.equal(out, total)
