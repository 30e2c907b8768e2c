"""Two draws from numpy's SFC64, and noise of words that another generator drew, to be compiled by numba: the same
numbers as without, bit for bit, in a fraction of the time.

`dpfl_plugin.core.draws` compares them with what numpy computes and decides when they are used. A ``state`` is that of
`numpy.random.SFC64`, (4,) uint64, and is moved on as numpy moves it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.core import kept_loops, rounded_normals, ziggurat
from dpfl_plugin.core.rounded_normals import CHUNK, DONE, KEPT, LARGEST, REJECTED

Words = NDArray[np.uint64]
Halves = NDArray[np.uint32]
Floats = NDArray[np.float64]

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """By numba at its first call, and kept on disk for other processes where there is a place for that."""
    return _compiled(function)


def _compiled(function: F, **options: Any) -> F:
    kept_loops.bind(function, rounded_normals, ziggurat)
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


_within_strip = inlined(rounded_normals.within_strip)
_at_edge = cast(Callable[..., Any], numba.njit(rounded_normals.at_edge))


@compiled
def add_rounded(
    state: Words,
    total: Floats,
    grid: float,
    std: float,
    out: NDArray[np.floating[Any]],
    kept: Words,
    at: NDArray[np.int64],
    words: Words,
) -> int:
    """Write to ``out`` (n,) the multiples of ``grid`` nearest to ``total`` (n,), plus round(std * x) times the grid, as
    `rounded_normals.by_numpy` draws them.

    Args:
        out: may be ``total``.
        kept: (m, 4) is filled with what is left undecided: index, word, uniforms.
        at, words: to work in, (c,), of the length of a chunk or all.

    Returns:
        How many those are; there ``out`` is as it was. -1 where there are more than m: all is then to be thrown away.
    """
    num_kept = 0
    for first in range(0, total.size, CHUNK):
        left = _by_words(state, total, grid, std, out, first, at, words)
        while left:
            left, num_kept = _at_edges(state, total, grid, std, out, left, at, words, kept, num_kept)
            if num_kept < 0:
                return -1
    return num_kept


@compiled
def _by_words(
    state: Words,
    total: Floats,
    grid: float,
    std: float,
    out: NDArray[np.floating[Any]],
    first: int,
    at: NDArray[np.int64],
    words: Words,
) -> int:
    """The first step of a chunk; ``at`` and ``words`` are of those that it leaves open. Returns how many."""
    # The state in registers: in memory, where ``out`` might be too, each number would wait for the one before.
    a, b, c, counter = state[0], state[1], state[2], state[3]
    per_grid = 1.0 / grid  # a power of two
    left = 0
    # Slices, so that places count from 0: others are looked at for whether they count from the end.
    values, rounded = total[first : first + CHUNK], out[first : first + CHUNK]
    for i in range(len(values)):
        word, a, b, c, counter = _mixed(a, b, c, counter)
        value, sure = _within_strip(word, std)
        if sure:
            rounded[i] = (_nearest(values[i] * per_grid) + value) * grid
        else:
            at[left], words[left] = first + i, word
            left += 1
    state[0], state[1], state[2], state[3] = a, b, c, counter
    return left


@compiled
def _at_edges(
    state: Words,
    total: Floats,
    grid: float,
    std: float,
    out: NDArray[np.floating[Any]],
    count: int,
    at: NDArray[np.int64],
    words: Words,
    kept: Words,
    num_kept: int,
) -> tuple[int, int]:
    """The second step, once, for ``count`` of ``at``. Returns how many are left and are kept (-1: too many)."""
    left = 0
    for n in range(count):
        i, word = at[n], words[n]
        u, v, other = _word(state), _word(state), _word(state)
        fate, value, word = _decided(word, u, v, other, std)
        if fate == DONE:
            out[i] = (_nearest(total[i] / grid) + value) * grid
        elif fate == KEPT:
            if num_kept == len(kept):
                return 0, -1
            kept[num_kept, 0], kept[num_kept, 1] = np.uint64(i), word
            kept[num_kept, 2], kept[num_kept, 3] = u, v
            num_kept += 1
        else:
            at[left], words[left] = i, word
            left += 1
    return left, num_kept


@compiled
def add_rounded_of(
    drawn: Words,
    total: Floats,
    grid: float,
    std: float,
    out: NDArray[np.floating[Any]],
    first: int,
    at: NDArray[np.int64],
    words: Words,
) -> int:
    """The first step of `add_rounded` for a chunk, of words (c,) that another generator has drawn; ``at`` and ``words``
    are of the numbers that it leaves open. Returns how many."""
    per_grid = 1.0 / grid
    left = 0
    values, rounded = total[first : first + CHUNK], out[first : first + CHUNK]
    for i in range(len(drawn)):
        value, sure = _within_strip(drawn[i], std)
        if sure:
            rounded[i] = (_nearest(values[i] * per_grid) + value) * grid
        else:
            at[left], words[left] = first + i, drawn[i]
            left += 1
    return left


@compiled
def at_edges_of(
    drawn: Words,
    total: Floats,
    grid: float,
    std: float,
    out: NDArray[np.floating[Any]],
    at: NDArray[np.int64],
    words: Words,
    kept: Words,
    num_kept: int,
) -> tuple[int, int]:
    """The second step, once, for the first n of ``at``, of three words (n, 3) for each. Returns how many are left and
    are kept (-1: too many)."""
    left = 0
    for n in range(len(drawn)):
        i, word, u, v = at[n], words[n], drawn[n, 0], drawn[n, 1]
        fate, value, word = _decided(word, u, v, drawn[n, 2], std)
        if fate == DONE:
            out[i] = (_nearest(total[i] / grid) + value) * grid
        elif fate == KEPT:
            if num_kept == len(kept):
                return 0, -1
            kept[num_kept, 0], kept[num_kept, 1] = np.uint64(i), word
            kept[num_kept, 2], kept[num_kept, 3] = u, v
            num_kept += 1
        else:
            at[left], words[left] = i, word
            left += 1
    return left, num_kept


@inlined
def _decided(word: np.uint64, u: np.uint64, v: np.uint64, other: np.uint64, std: float) -> tuple[int, float, np.uint64]:
    """(fate, value, the word with which it goes on) of a word at an edge, with the one that takes its place if it is
    rejected."""
    fate, value = _at_edge(word, u, v, std)
    if fate == REJECTED:
        word = other
        value, sure = _within_strip(word, std)
        if sure:
            fate = DONE
    return fate, value, word


@inlined
def _nearest(scaled: float) -> float:
    """The integer nearest to a sum in units of its grid. 0.0 is added because an integer has no -0.0: with noise that
    is -0.0, too, its sign would be that of the sum before it was rounded."""
    return np.rint(min(max(scaled, -LARGEST), LARGEST)) + 0.0 if scaled == scaled else 0.0


@inlined
def _half_word(state: Words, half: Halves) -> np.uint64:
    """The next 32 bits: the lower half of a word, then its upper half, which ``half`` keeps: (1 if it does, what)."""
    if half[0]:
        half[0] = 0
        return np.uint64(half[1])
    found = _word(state)
    half[0], half[1] = 1, found >> np.uint64(32)
    return found & np.uint64(0xFFFFFFFF)


@compiled
def _at_most(last: np.uint64, state: Words, half: Halves) -> np.uint64:
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
def subset(state: Words, half: Halves, count: int, out: NDArray[np.int64]) -> None:
    """Fill ``out`` (b,) with a uniform subset of 0, ..., count - 1. Floyd, in Bentley 1987, CACM 30(9), Alg. F2."""
    taken = np.zeros(count, np.bool_)
    first = count - out.size
    for i in range(out.size):
        found = np.int64(_at_most(np.uint64(first + i), state, half))
        if taken[found]:
            found = np.int64(first + i)
        taken[found] = True
        out[i] = found


@compiled
def subset_of(words: Words, count: int, out: NDArray[np.int64]) -> bool:
    """As `subset`, of ``words`` (n,) that another generator has drawn, of the upper half of each. False, and of no use,
    if they are too few: of a word none is made with a probability below count / 2^32."""
    taken = np.zeros(count, np.bool_)
    first = count - out.size
    at = 0
    for i in range(out.size):
        size = np.uint64(first + i + 1)
        while True:
            if at == len(words):
                return False
            product = (words[at] >> np.uint64(32)) * size
            at += 1
            low = product & np.uint64(0xFFFFFFFF)
            if low >= size or low >= np.uint64(2**32) % size:
                break
        found = np.int64(product >> np.uint64(32))
        if taken[found]:
            found = np.int64(first + i)
        taken[found] = True
        out[i] = found
    return True
