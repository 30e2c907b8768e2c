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
    try:
        return cast(F, numba.njit(cache=True)(function))
    except RuntimeError:  # neither beside this file nor in the user's cache
        return cast(F, numba.njit(function))


def inlined(function: F) -> F:
    """Into the compiled functions that call it."""
    return cast(F, numba.njit(inline="always")(function))


@inlined
def _word(state: Words) -> np.uint64:
    """The next 64 bits: SFC64 of PractRand, three words that are mixed and a counter."""
    a, b, c, counter = state[0], state[1], state[2], state[3]
    found = a + b + counter
    state[0] = b ^ (b >> np.uint64(11))
    state[1] = c + (c << np.uint64(3))
    state[2] = ((c << np.uint64(24)) | (c >> np.uint64(40))) + found
    state[3] = counter + np.uint64(1)
    return found


@inlined
def _uniform(state: Words) -> float:
    """In [0, 1), of 53 bits."""
    return np.float64(_word(state) >> np.uint64(11)) * UNIT


@compiled
def _at_the_edge(state: Words, strip: np.int64, bits: np.uint64, x: float) -> tuple[bool, float]:
    """(whether to take it, a normal) for a point that may lie above the curve, or in the tail."""
    if strip > 0:
        height = (HEIGHT[strip - 1] - HEIGHT[strip]) * _uniform(state) + HEIGHT[strip]
        return height < math.exp(-0.5 * x * x), x
    while True:  # Marsaglia 1964: beyond R, an exponential that is taken in proportion to the density
        beyond = -OVER_R * math.log1p(-_uniform(state))
        height = -math.log1p(-_uniform(state))
        if height + height > beyond * beyond:
            return True, -(R + beyond) if (bits >> np.uint64(8)) & np.uint64(1) else R + beyond


@compiled
def normals(state: Words, out: NDArray[np.float64]) -> None:
    """Fill ``out`` (n,) with standard normals, rounded to its type. Marsaglia, Tsang 2000, J. Stat. Softw. 5(8)."""
    for i in range(out.size):
        while True:
            found = _word(state)
            strip = np.int64(found & np.uint64(0xFF))
            bits = (found >> np.uint64(9)) & np.uint64(2**52 - 1)
            x = np.float64(bits) * WIDTH[strip]
            if found & np.uint64(0x100):
                x = -x
            if bits < SURE[strip]:  # 99 of 100
                break
            taken, x = _at_the_edge(state, strip, bits, x)
            if taken:
                break
        out[i] = x


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
