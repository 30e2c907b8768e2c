"""Large draws from a stream: by numpy, or the same bits sooner by kernels compiled by numba, where it is installed.

Which of them draws shows in nothing but time: before their first use the kernels are compared with numpy on this
machine, and not used if a bit differs. The generator of `streams.Stream` they move on themselves; from others they are
given the words that they work on: by numpy, or from AES (`FreshGenerator`).
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.core import rounded_normals
from dpfl_plugin.core.fresh import FreshGenerator
from dpfl_plugin.core.sfc64_state import OpenSFC64
from dpfl_plugin.core.terminal import keep_stdout_plain
from dpfl_plugin.core.ziggurat import Words, decide
from dpfl_plugin.late import torch

if TYPE_CHECKING:
    from torch import Tensor

MOST_USUAL_STD: Final = 2.0**28
"""Up to it one number in 2^20 or fewer is left undecided."""

WORTH: Final = 2**24
"""Numbers that numpy draws in about half a second: what it takes to load the kernels."""
# Fewer normals cost numpy less than moving the generator's state there and back.
FEW: Final = 4
# Where kernels leave more undecided than this, and one in so many, something is wrong with them.
KEPT_LEAST, KEPT_SHARE = 64, 2.0**-12
# A member of a subset takes numpy as long as so many normals.
A_MEMBER: Final = 3
# Words beyond one for each member of a subset: of a word none is made with a probability below 10^-5.
MORE_WORDS: Final = 16
# Of more than these, numpy draws large subsets in another way.
MOST: Final = 10_000


class Kernels:
    """The module `sfc64` where it is of use, None where it is not.

    Args:
        worth: numbers to be drawn without it before it is loaded, so that short runs do not wait for it.
    """

    def __init__(self, worth: int = WORTH) -> None:
        self._left = worth
        self._sfc64: types.ModuleType | None = None

    def of(self, count: int) -> types.ModuleType | None:
        """What draws ``count`` numbers."""
        if count < FEW:
            return None
        if self._left > 0:
            self._left -= count
            if self._left <= 0:
                self._sfc64 = load()
        return self._sfc64


kernels = Kernels()


def add_rounded(total: Tensor, grid: float, std: float, rng: np.random.Generator, out: Tensor) -> None:
    """Write to ``out`` (n,) the multiples of ``grid`` nearest to ``total`` (n,) plus ``grid`` times round(N(0, std^2)).

    The sums are exact; those that ``out`` has too few digits for are rounded once, afterwards. See `rounded_normals`.

    Args:
        total: float64; moved to the host where it is elsewhere. It is cut to `rounded_normals.LARGEST` steps, and NaN
            counts as 0.
        grid: a power of two. std: in units of it.
        out: any float type; may be ``total``.

    Raises:
        ValueError: ``std`` is not in (0, 2^45].
    """
    rounded_normals.check_std(std)
    values = total.cpu().contiguous().numpy()
    sfc64 = kernels.of(len(values))
    if sfc64 is not None:
        add = _add_rounded if _is_ours(rng) else _add_rounded_of
        known = torch.float32, torch.float64  # to kernels
        plain = out.is_cpu and out.is_contiguous() and out.dtype in known
        # Of float64 what is copied is rounded once, as here; of float32 half as much goes to a device.
        found = out if plain else torch.empty(len(values), dtype=out.dtype if out.dtype in known else torch.float64)
        add(sfc64, rng, values, grid, std, found.numpy())
        if found is not out:
            out.copy_(found)
        return
    if isinstance(rng, FreshGenerator):
        noise = rng.rounded(len(values), std)
    else:
        noise = rounded_normals.by_numpy(len(values), std, _words_of(rng))
    out.copy_(torch.from_numpy((rounded_normals.nearest(values, grid) + noise) * grid))


def subset(rng: np.random.Generator, num_all: int, size: int) -> NDArray[np.int64]:
    """(size,) different ones of 0, ..., num_all - 1: a uniform subset, in an order that is not uniform."""
    if isinstance(rng, FreshGenerator):
        return _fresh_subset(rng, num_all, size)
    sfc64 = kernels.of(A_MEMBER * size) if num_all <= MOST and _is_ours(rng) else None
    if sfc64 is None:
        return rng.choice(num_all, size, replace=False, shuffle=False)
    return _subset(sfc64, rng, num_all, np.empty(size, np.int64))


def shuffled(rng: np.random.Generator, index: NDArray[np.int64]) -> NDArray[np.int64]:
    """``index`` (n,) in a uniform order."""
    if not isinstance(rng, FreshGenerator):
        return rng.permutation(index)
    while True:
        words = rng.words(len(index))
        order = np.argsort(words)
        found = words[order]
        if bool((found[1:] != found[:-1]).all()):  # equal ones would keep some order
            return np.asarray(index[order], np.int64)


def uniform(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """(count,) numbers uniform on the multiples of 2^-53 in [0, 1)."""
    if not isinstance(rng, FreshGenerator):
        return rng.random(count)
    found = (rng.words(count) >> np.uint64(11)).astype(np.float64)
    found *= 2.0**-53
    return found


def _fresh_subset(rng: FreshGenerator, num_all: int, size: int) -> NDArray[np.int64]:
    """As `subset`, of words: by a kernel, or the first ``size`` different ones of a sequence of independent numbers."""
    if not 0 <= size <= num_all < 2**32:
        raise ValueError(f"a subset of {size} cannot be larger than all {num_all}, which must be below 2^32.")
    if 2 * size > num_all:
        left_out = np.ones(num_all, np.bool_)
        left_out[_fresh_subset(rng, num_all, num_all - size)] = False
        return np.flatnonzero(left_out)
    if num_all <= MOST and (sfc64 := kernels.of(A_MEMBER * size)) is not None:
        found = np.empty(size, np.int64)
        while not sfc64.subset_of(rng.words(size + MORE_WORDS), num_all, found):
            pass
        return found
    sequence = np.empty(0, np.int64)
    while True:
        sequence = np.concatenate([sequence, _below(rng.words(size + size // 4 + MORE_WORDS), num_all)])
        first_place = np.empty(num_all, np.int64)  # only places of what is in the sequence are written, and read
        first_place[sequence[::-1]] = np.arange(len(sequence) - 1, -1, -1)
        different: NDArray[np.int64] = sequence[first_place[sequence] == np.arange(len(sequence))]
        if len(different) >= size:
            return np.asarray(different[:size], np.int64)


def _below(words: Words, count: int) -> NDArray[np.int64]:
    """Uniform in 0, ..., count - 1 < 2^32, of each word or of none. Lemire 2019, arXiv:1805.10941v4, section 4."""
    product = (words >> np.uint64(32)) * np.uint64(count)
    kept = (product & np.uint64(2**32 - 1)) >= np.uint64(2**32 % count)
    product >>= np.uint64(32)
    return (product if kept.all() else product[kept]).view(np.int64)


def _words_of(rng: np.random.Generator) -> Callable[[int], Words]:
    return rng.words if isinstance(rng, FreshGenerator) else rng.bit_generator.random_raw


def _add_rounded(
    sfc64: types.ModuleType,
    rng: np.random.Generator,
    total: NDArray[np.float64],
    grid: float,
    std: float,
    out: NDArray[np.floating[Any]],
) -> None:
    kept = _room_for_kept(len(total), std)
    state = cast(OpenSFC64, rng.bit_generator).words
    count = sfc64.add_rounded(state, total, grid, std, out, kept, *_workspace(len(total)))
    _decide_kept(kept, count, rng, total, grid, std, out)


def _add_rounded_of(
    sfc64: types.ModuleType,
    rng: np.random.Generator,
    total: NDArray[np.float64],
    grid: float,
    std: float,
    out: NDArray[np.floating[Any]],
) -> None:
    """`_add_rounded` for any generator of 64-bit words, as `rounded_normals.by_numpy` draws from it."""
    draw, size, count = _words_of(rng), min(len(total), rounded_normals.CHUNK), 0
    kept, (at, words) = _room_for_kept(len(total), std), _workspace(len(total))
    for first in range(0, len(total), size):
        left = sfc64.add_rounded_of(draw(min(size, len(total) - first)), total, grid, std, out, first, at, words)
        while left:
            drawn = draw(3 * left).reshape(-1, 3)
            left, count = sfc64.at_edges_of(drawn, total, grid, std, out, at, words, kept, count)
        if count < 0:
            break
    _decide_kept(kept, count, rng, total, grid, std, out)


def _room_for_kept(count: int, std: float) -> NDArray[np.uint64]:
    """(m, 4), for all of ``count`` numbers that may be left undecided."""
    room = count if std > MOST_USUAL_STD else min(count, KEPT_LEAST + int(KEPT_SHARE * count))
    return np.empty((room, 4), np.uint64)


def _decide_kept(
    kept: NDArray[np.uint64],
    count: int,
    rng: np.random.Generator,
    total: NDArray[np.float64],
    grid: float,
    std: float,
    out: NDArray[np.floating[Any]],
) -> None:
    """The third step, for the first ``count`` of ``kept``; -1: there was no room for them."""
    if count < 0:
        out[:] = 0.0
        raise RuntimeError("compiled noise is wrong: it leaves too much undecided. Uninstall numba, and report this.")
    for index, *left in kept[:count].tolist():  # as Python has them: NumPy 1 makes a float of a word and 1
        nearest = rounded_normals.nearest(total[index : index + 1], grid)
        drawn = decide(rounded_normals.undecided(*left), std, _words_of(rng))
        out[index] = (nearest[0] + drawn) * grid


class _Scratch(threading.local):
    """Of each thread: a kernel that another one's shorter arrays were slipped to would write beyond their end."""

    def __init__(self) -> None:
        self.arrays: tuple[NDArray[np.int64], Words] = np.empty(0, np.int64), np.empty(0, np.uint64)


_scratch = _Scratch()


def _workspace(count: int) -> tuple[NDArray[np.int64], Words]:
    """Two arrays of the length of a chunk, kept: new pages of memory would take as long as the numbers."""
    size = min(count, rounded_normals.CHUNK)
    if len(_scratch.arrays[0]) < size:
        _scratch.arrays = np.empty(size, np.int64), np.empty(size, np.uint64)
    return _scratch.arrays


def _subset(
    sfc64: types.ModuleType, rng: np.random.Generator, num_all: int, out: NDArray[np.int64]
) -> NDArray[np.int64]:
    bits = cast(OpenSFC64, rng.bit_generator)
    sfc64.subset(bits.words, bits.half, num_all, out)
    return out


def _is_ours(rng: np.random.Generator) -> bool:
    """Whether kernels can draw from it, and move it on, themselves."""
    bits = rng.bit_generator
    return type(rng) is np.random.Generator and type(bits) is OpenSFC64 and bits.is_open


def load() -> types.ModuleType | None:
    """`sfc64`, compiled; None where numba is not installed, cannot compile it, or does not draw what numpy draws."""
    try:
        from dpfl_plugin.core import sfc64

        return sfc64 if equals_numpy(sfc64) else None
    except Exception:  # whatever is wrong with numba: numpy draws the same
        return None
    finally:
        keep_stdout_plain()


def equals_numpy(sfc64: types.ModuleType) -> bool:
    """Whether the kernels draw numpy's numbers and leave its generator where numpy leaves it.

    Compared are 2^16 normals of each precision, some 17 of them from the tail and some 16 undecided, and subsets of
    several sizes.
    """
    for seed, (dtype, std) in enumerate(((np.float64, 2.0**34), (np.float32, 1234.5), (np.float64, 0.3))):
        ours, numpys = _generators(seed)
        total, found = np.linspace(-3, 3, 2**16 + 7), np.empty(2**16 + 7, dtype)
        _add_rounded(sfc64, ours, total, 2.0**-10, std, found)
        noise = rounded_normals.by_numpy(len(total), std, numpys.bit_generator.random_raw)
        expected = ((rounded_normals.nearest(total, 2.0**-10) + noise) * 2.0**-10).astype(dtype)
        # By bytes: -0.0 is equal to 0.0.
        if found.tobytes() != expected.tobytes() or not _same(ours, numpys):
            return False
        _, given = _generators(seed)
        _add_rounded_of(sfc64, given, total, 2.0**-10, std, found)
        if found.tobytes() != expected.tobytes():
            return False
    for seed, (num_all, size) in enumerate(((4000, 801), (MOST, 300), (1000, 1000), (3000, 2999))):
        ours, numpys = _generators(seed)
        for _ in range(2):  # the second begins where the first may have left half a word
            index = _subset(sfc64, ours, num_all, np.empty(size, np.int64))
            if not np.array_equal(index, numpys.choice(num_all, size, replace=False, shuffle=False)):
                return False
        if not _same(ours, numpys):
            return False
    return True


def _generators(seed: int) -> tuple[np.random.Generator, np.random.Generator]:
    """Two of the same state: ours, and numpy's."""
    return np.random.Generator(OpenSFC64(seed)), np.random.Generator(np.random.SFC64(seed))


def _same(one: np.random.Generator, other: np.random.Generator) -> bool:
    """Whether what they draw next is the same, a left-over half of a word included."""
    return bool(one.integers(2**32, dtype=np.uint32) == other.integers(2**32, dtype=np.uint32)) and bool(
        one.random() == other.random()
    )
