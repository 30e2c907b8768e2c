"""Noise on a grid: integers Z = round(s x), where x is a standard normal of `ziggurat`, without rounding.

Why on a grid: let k be integers, the multiples of g that a value was rounded to. Then k + Z = round(k + N(0, s^2)),
for k is a whole number: a function of the Gaussian mechanism's output in real numbers. Which floating-point numbers
can be reached, how many there are and what is lost in adding, all of which depends on the value where floats are added
(Mironov 2012, "On significance of the least significant bits for differential privacy"), depends on nothing here: k +
Z is exact, and what is computed of it later is computed of a private integer.

How: nearly all of the 64-bit words that are drawn give a normal whose rounding is the same for all further bits that it
might have, by a bound on the errors of floating point. For the others more is drawn:

1. a word for each of at most `CHUNK` numbers. It is decided if its point lies within a strip and s x is not near the
   middle between two integers;
2. three words for each that is not, in order, until all are: U, U' and the word that follows if the point is rejected.
   What these leave open (U' near the curve, s x near a middle) is kept for the end;
3. after all chunks, what was kept is worked out with 130 digits and as many bits as it takes, in order.

No number depends on how exp and log are rounded: where that could matter the third step decides. So they are the same
on all machines, but for a probability of about 2^-50 a number that one machine keeps one for the third step and
another does not. `by_numpy` and the compiled loops (`sfc64`) do the same and give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.core.ziggurat import BITS, STRIPS, TABLES, R, Undecided, Words, decide

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

CHUNK: Final = 2**16
LARGEST: Final = 2.0**51
"""No sum has more steps of its grid (`grid.has_room`): what has is a broken engine's, and is cut to it."""
MOST_STD: Final = 2.0**45
"""Above, errors of floating point would be as long as a step. |round(s x)| stays below 2^50 with it: x < 19."""

# Of s x, x = (n + U) W_i < 4, in units of s: n W_i stands for all U, which may move it by 2^-52 * 3.92, and the table
# and two products are each rounded by 2^-53 * 3.92 at most. Together less than 2^-48.
NEAR: Final = 2.0**-48
# Beyond R: -ln(U) / R with U of 64 bits, of which the first are not all zero (`FEW_BITS`): off by 2^-45, and ln by
# less.
NEAR_BEYOND: Final = 2.0**-43
FEW_BITS: Final = 2**44
# Of exp(-x^2 / 2), in relation to itself: some 2^-48. Of -2 ln(U') - t^2 beyond R: 2^-42. In relation to themselves
# the logarithms are off by anything where U and U' are next to 1: a U' of 1 - 2^-55 is rounded to 1.
NEAR_CURVE: Final = 2.0**-40
_UNIT: Final = 2.0**-64
FEW: Final = 8  # that are done sooner one by one than by numpy's vectors

WIDTH, INNER, HEIGHT = TABLES
_STRIP, _NEGATIVE, _POSITION = np.uint64(STRIPS - 1), np.uint64(STRIPS), np.uint64(2**BITS - 1)
# By strip and sign, which are next to each other in a word: compiled, a sign takes as long as half a number.
_SIGNED: Final = np.concatenate([WIDTH, -WIDTH])
_INNER_OF_BOTH: Final = np.concatenate([INNER, INNER])
_STRIP_AND_SIGN = _STRIP | _NEGATIVE
_NINE, _FEW_BITS, _INNER_0 = np.uint64(9), np.uint64(FEW_BITS), INNER[0]

# What becomes of a word that is not decided alone.
DONE: Final = 0
REJECTED: Final = 1  # the next word takes its place
RETRIED: Final = 2  # beyond R: it is tried again with other uniforms
KEPT: Final = 3


def check_std(std: float) -> None:
    """Raise ValueError for a standard deviation, in units of the grid, that integers are not drawn for."""
    if not 0 < std <= MOST_STD:
        raise ValueError(f"std={std!r} must be above 0 and at most 2^45 steps of the grid.")


def by_numpy(count: int, std: float, draw: Callable[[int], Words]) -> Integers:
    """(count,) integers round(std * x).

    Args:
        std: in units of the integers, in (0, `MOST_STD`].
        draw: the next words of the stream, so many: (n,) uint64.
    """
    check_std(std)
    found = np.empty(count, np.int64)
    kept: list[tuple[int, Undecided]] = []
    for first in range(0, count, CHUNK):
        part = found[first : first + CHUNK]
        word = draw(len(part))
        value, sure = within_strips(word, std)
        part[:] = value
        left = np.flatnonzero(~sure)
        word = word[left]
        while len(left):
            uniforms = draw(3 * len(left)).reshape(-1, 3)
            fate, value, word = (_one_by_one if len(left) < FEW else at_edges)(word, uniforms, std)
            done, keep = fate == DONE, fate == KEPT
            part[left[done]] = value[done]
            for n in np.flatnonzero(keep):
                kept.append((first + int(left[n]), undecided(word[n], uniforms[n, 0], uniforms[n, 1])))
            left, word = left[~(done | keep)], word[~(done | keep)]
    for index, one in kept:
        found[index] = decide(one, std, draw)
    return found


def nearest(total: Floats, grid: float) -> Floats:
    """(n,) the integers nearest to ``total`` in units of ``grid``, a power of two, cut to `LARGEST`; 0 for NaN.

    None is -0.0, whose sign would be that of what was rounded.
    """
    scaled = np.nan_to_num(total * (1.0 / grid), nan=0.0)
    return np.rint(np.clip(scaled, -LARGEST, LARGEST)) + 0.0


def undecided(word: np.uint64, u: np.uint64, v: np.uint64) -> Undecided:
    """What is to be worked out in the end."""
    return Undecided(int(word), (int(u), int(v)))


def within_strips(word: Words, std: float) -> tuple[Floats, NDArray[np.bool_]]:
    """(round(std * x), whether that is decided) of words (n,)."""
    strip, bits = (word & _STRIP_AND_SIGN).view(np.int64), ((word >> _NINE) & _POSITION).view(np.int64)
    scaled = bits.astype(np.float64)
    scaled *= _SIGNED.take(strip)
    scaled *= std
    value = np.rint(scaled)
    scaled -= value
    sure = bits < _INNER_OF_BOTH.take(strip)
    sure &= np.abs(scaled, out=scaled) < 0.5 - std * NEAR
    return value, sure


def at_edges(word: Words, uniforms: Words, std: float) -> tuple[Integers, Floats, Words]:
    """(fate, round(std * x) where it is `DONE`, the word with which it goes on) of words (n,) that are not decided
    alone, with three more, ``uniforms`` (n, 3)."""
    strip = (word & _STRIP).astype(np.intp)
    bits = ((word >> _NINE) & _POSITION).astype(np.int64)
    u, v = uniforms[:, 0].astype(np.float64) * _UNIT, uniforms[:, 1].astype(np.float64) * _UNIT
    edge = (bits >= INNER[strip]) & (strip > 0)

    x = (bits.astype(np.float64) + u) * WIDTH[strip]
    curve, low = np.exp(-0.5 * x * x), HEIGHT[strip]
    over = low + (HEIGHT[strip - 1] - low) * v - curve
    clear = edge & (np.abs(over) > NEAR_CURVE * curve)

    scaled = x * std
    value = np.rint(scaled)
    decided = np.abs(scaled - value) < 0.5 - std * NEAR
    fate = np.full(len(word), KEPT)
    fate[clear & (over < 0) & decided] = DONE
    np.negative(value, out=value, where=(word & _NEGATIVE) != 0)
    for n in np.flatnonzero(strip == 0):  # one in some 50: the logarithms of all would take longer
        fate[n], value[n] = at_edge(word[n], uniforms[n, 0], uniforms[n, 1], std)

    rejected = clear & (over > 0)
    fresh, sure = within_strips(uniforms[:, 2], std)
    fate[rejected] = np.where(sure[rejected], DONE, REJECTED)
    return fate, np.where(rejected, fresh, value), np.where(rejected, uniforms[:, 2], word)


def within_strip(word: np.uint64, std: float) -> tuple[float, bool]:
    """`within_strips` of one word; also compiled."""
    strip = word & _STRIP_AND_SIGN  # unsigned: compiled, a signed index is looked at for whether it counts from the end
    bits = np.int64((word >> _NINE) & _POSITION)
    scaled = (np.float64(bits) * _SIGNED[strip]) * std
    value = np.rint(scaled)
    # `&`: an `and` would be a second branch, which nothing foretells.
    return value, (bits < _INNER_OF_BOTH[strip]) & (abs(scaled - value) < 0.5 - std * NEAR)


def at_edge(word: np.uint64, first: np.uint64, second: np.uint64, std: float) -> tuple[int, float]:
    """(fate, value) of one word, as `at_edges`, but for what takes a rejected one's place; also compiled."""
    strip = np.int64(word & _STRIP)
    bits = np.int64((word >> _NINE) & _POSITION)
    u, v = np.float64(first) * _UNIT, np.float64(second) * _UNIT
    if bits < INNER[strip]:
        return KEPT, 0.0
    if strip > 0:
        x = (np.float64(bits) + u) * WIDTH[strip]
        curve = math.exp(-0.5 * x * x)
        over = HEIGHT[strip] + (HEIGHT[strip - 1] - HEIGHT[strip]) * v - curve
        if not abs(over) > NEAR_CURVE * curve:
            return KEPT, 0.0
        if over > 0:
            return REJECTED, 0.0
        near = NEAR
    else:
        if bits == _INNER_0 or first < _FEW_BITS or second < _FEW_BITS:
            return KEPT, 0.0
        t = -math.log(u) / R
        above = -2.0 * math.log(v) - t * t
        if not abs(above) > NEAR_CURVE * (1.0 + above + 2.0 * t * t):
            return KEPT, 0.0
        if above < 0:
            return RETRIED, 0.0
        x, near = R + t, NEAR_BEYOND
    scaled = x * std
    value = np.rint(scaled)
    if not abs(scaled - value) < 0.5 - std * near:
        return KEPT, 0.0
    return DONE, (-value if word & _NEGATIVE else value)


def _one_by_one(word: Words, uniforms: Words, std: float) -> tuple[Integers, Floats, Words]:
    """`at_edges`, sooner where there are few."""
    fate, value, word = np.empty(len(word), np.int64), np.empty(len(word)), word.copy()
    for n, (first, second, third) in enumerate(uniforms):
        fate[n], value[n] = at_edge(word[n], first, second, std)
        if fate[n] == REJECTED:
            word[n] = third
            value[n], sure = within_strip(third, std)
            fate[n] = DONE if sure else REJECTED
    return fate, value, word
