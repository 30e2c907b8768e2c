"""Two draws from numpy's SFC64, to be compiled by numba: numpy's numbers, bit for bit, in a third of its time.

`dpfl_plugin.core.draws` compares them with numpy and decides when they are used. A ``state`` is that of
`numpy.random.SFC64`, (4,) uint64, and is moved on as numpy moves it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numba
import numpy as np
from numba.np.random._constants import fi_double, ki_double, wi_double, ziggurat_nor_inv_r, ziggurat_nor_r
from numpy.typing import NDArray

Words = NDArray[np.uint64]

# The ziggurat under the normal density: 256 strips of equal area, with numpy's roundings. WIDTH: of a strip, over 2^52;
# SURE: 2^52 times the share of it that is under the curve for certain; HEIGHT: of the curve at a strip's end, where the
# lowest strip ends at R and goes on as the tail. Recomputed, they would differ in last bits.
WIDTH, SURE, HEIGHT = wi_double, ki_double, fi_double
R, OVER_R = float(ziggurat_nor_r), float(ziggurat_nor_inv_r)
UNIT: Final = 2.0**-53


F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """By numba at its first call, and kept on disk for other processes where there is a place for that."""
    return _compiled(function)


def contracted(function: F) -> F:
    """As `compiled`, with a product and a sum in one operation, rounded once, where the processor has it; as torch."""
    return _compiled(function, fastmath={"contract"})


def _compiled(function: F, **options: Any) -> F:
    try:
        return cast(F, numba.njit(cache=True, **options)(function))
    except RuntimeError:  # neither beside this file nor in the user's cache
        return cast(F, numba.njit(function, **options))


def inlined(function: F) -> F:
    """Into the compiled functions that call it."""
    return cast(F, numba.njit(inline="always")(function))


@inlined
def _word(state: Words) -> np.uint64:
    """The next 64 bits: SFC64 of PractRand, three words that are mixed and a counter."""
    found, state[0], state[1], state[2], state[3] = _mixed(state[0], state[1], state[2], state[3])
    return found


@inlined
def _mixed(
    a: np.uint64, b: np.uint64, c: np.uint64, counter: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64, np.uint64]:
    """64 bits, and the next state."""
    found = a + b + counter
    rotated = (c << np.uint64(24)) | (c >> np.uint64(40))
    return found, b ^ (b >> np.uint64(11)), c + (c << np.uint64(3)), rotated + found, counter + np.uint64(1)


@inlined
def _uniform(state: Words) -> float:
    """In [0, 1), of 53 bits."""
    return np.float64(_word(state) >> np.uint64(11)) * UNIT


@inlined
def _in_the_strip(found: np.uint64) -> tuple[np.int64, np.uint64, float]:
    """(which of the strips, how far in it in 52 bits, what number that is) by a word."""
    strip = np.int64(found & np.uint64(0xFF))
    bits = (found >> np.uint64(9)) & np.uint64(2**52 - 1)
    x = np.float64(bits) * WIDTH[strip]
    return strip, bits, -x if found & np.uint64(0x100) else x


@compiled
def _at_the_edge(state: Words, strip: np.int64, bits: np.uint64, x: float) -> float:
    """A normal, from a point of a strip that is not under the curve for certain: it, or one of those after it."""
    while not bits < SURE[strip]:
        if strip > 0:
            height = (HEIGHT[strip - 1] - HEIGHT[strip]) * _uniform(state) + HEIGHT[strip]
            if height < math.exp(-0.5 * x * x):
                return x
        else:
            while True:  # Marsaglia 1964: beyond R, an exponential that is taken in proportion to the density
                beyond = -OVER_R * math.log1p(-_uniform(state))
                height = -math.log1p(-_uniform(state))
                if height + height > beyond * beyond:
                    return -(R + beyond) if (bits >> np.uint64(8)) & np.uint64(1) else R + beyond
        strip, bits, x = _in_the_strip(_word(state))
    return x


@compiled
def normals(state: Words, out: NDArray[np.float64]) -> None:
    """Fill ``out`` (n,) with standard normals, rounded to its type. Marsaglia, Tsang 2000, J. Stat. Softw. 5(8)."""
    # The state in registers: in memory, where ``out`` might be too, each number would wait for the one before.
    a, b, c, counter = state[0], state[1], state[2], state[3]
    for i in range(out.size):
        found, a, b, c, counter = _mixed(a, b, c, counter)
        strip, bits, x = _in_the_strip(found)
        if not bits < SURE[strip]:  # one of 100
            state[0], state[1], state[2], state[3] = a, b, c, counter
            x = _at_the_edge(state, strip, bits, x)
            a, b, c, counter = state[0], state[1], state[2], state[3]
        out[i] = x
    state[0], state[1], state[2], state[3] = a, b, c, counter


@contracted
def add_normals(state: Words, scale: np.float32, value: NDArray[np.float32]) -> None:
    """Add to ``value`` (n,) ``scale`` times the standard normals that `normals` would draw, in float32."""
    a, b, c, counter = state[0], state[1], state[2], state[3]
    for i in range(value.size):
        found, a, b, c, counter = _mixed(a, b, c, counter)
        strip, bits, x = _in_the_strip(found)
        if not bits < SURE[strip]:
            state[0], state[1], state[2], state[3] = a, b, c, counter
            x = _at_the_edge(state, strip, bits, x)
            a, b, c, counter = state[0], state[1], state[2], state[3]
        value[i] += scale * np.float32(x)
    state[0], state[1], state[2], state[3] = a, b, c, counter


@inlined
def _half_word(state: Words, half: Words) -> np.uint64:
    """The next 32 bits: the lower half of a word, then its upper half, which ``half`` keeps: (1 if it does, what)."""
    if half[0]:
        half[0] = 0
        return half[1]
    found = _word(state)
    half[0], half[1] = 1, found >> np.uint64(32)
    return found & np.uint64(0xFFFFFFFF)


@compiled
def _at_most(last: np.uint64, state: Words, half: Words) -> np.uint64:
    """Uniform in 0, ..., last < 2^32 - 1. Lemire 2019, arXiv:1805.10941v4, Alg. 5."""
    if last == 0:
        return last
    size = last + np.uint64(1)
    product = _half_word(state, half) * size
    if product & np.uint64(0xFFFFFFFF) < size:
        least = (np.uint64(2**32) - size) % size
        while product & np.uint64(0xFFFFFFFF) < least:
            product = _half_word(state, half) * size
    return product >> np.uint64(32)


@compiled
def subset(state: Words, half: Words, count: int, out: NDArray[np.int64]) -> None:
    """Fill ``out`` (b,) with a uniform subset of 0, ..., count - 1. Floyd, in Bentley 1987, CACM 30(9), Alg. F2."""
    taken = np.zeros(count, np.bool_)
    first = count - out.size
    for i in range(out.size):
        found = np.int64(_at_most(np.uint64(first + i), state, half))
        if taken[found]:
            found = np.int64(first + i)
        taken[found] = True
        out[i] = found
