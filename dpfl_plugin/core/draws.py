"""Large draws from a stream: by numpy, or the same bits sooner by kernels compiled by numba, where it is installed.

Which of them draws shows in nothing but time: before their first use the kernels are compared with numpy on this
machine, and not used if a bit differs. They know SFC64, the generator of `streams.Stream`; others are left to numpy.
"""

from __future__ import annotations

import types
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Normals = NDArray[np.float32] | NDArray[np.float64]

WORTH: Final = 2**26
"""Numbers that numpy draws in about half a second: what it takes to load the kernels."""
# Fewer normals cost numpy less than moving the generator's state there and back.
FEW: Final = 256
# A member of a subset takes numpy as long as so many normals.
A_MEMBER: Final = 3
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
        self.adds = False  # whether they may add the normals, too

    def of(self, rng: np.random.Generator, count: int) -> types.ModuleType | None:
        """What draws ``count`` numbers from ``rng``."""
        if count < FEW or type(rng) is not np.random.Generator or type(rng.bit_generator) is not np.random.SFC64:
            return None
        if self._left > 0:
            self._left -= count
            if self._left <= 0:
                self._sfc64 = load()
                self.adds = self._sfc64 is not None and adds_as_torch(self._sfc64)
        return self._sfc64


kernels = Kernels()


def normals(rng: np.random.Generator, count: int, *, single: bool = False) -> Normals:
    """(count,) standard normals, drawn in float64 whatever they are rounded to.

    Args:
        single: float32 will do, rounded once: they may be float32 or float64.
    """
    sfc64 = kernels.of(rng, count)
    if sfc64 is None:
        return rng.standard_normal(count)
    return _normals(sfc64, rng, np.empty(count, np.float32) if single else np.empty(count))


def add_normals(value: Tensor, scale: float, rng: np.random.Generator) -> None:
    """Add to ``value`` (n,) ``scale`` times standard normals, drawn in float64 and rounded once."""
    plain = value.dtype is torch.float32 and value.is_cpu and value.is_contiguous()
    sfc64 = kernels.of(rng, value.numel()) if plain else None
    if sfc64 is None or not kernels.adds:
        drawn = torch.from_numpy(normals(rng, value.numel(), single=value.dtype is torch.float32))
        value.add_(drawn.to(value), alpha=scale)
    else:
        _add_normals(sfc64, rng, scale, value.numpy())


def subset(rng: np.random.Generator, num_all: int, size: int) -> NDArray[np.int64]:
    """(size,) different ones of 0, ..., num_all - 1: a uniform subset, in an order that is not uniform."""
    sfc64 = kernels.of(rng, A_MEMBER * size) if num_all <= MOST else None
    if sfc64 is None:
        return rng.choice(num_all, size, replace=False, shuffle=False)
    return _subset(sfc64, rng, num_all, np.empty(size, np.int64))


def _normals(sfc64: types.ModuleType, rng: np.random.Generator, out: Normals) -> Normals:
    state: Any = rng.bit_generator.state
    sfc64.normals(state["state"]["state"], out)
    rng.bit_generator.state = state
    return out


def _add_normals(sfc64: types.ModuleType, rng: np.random.Generator, scale: float, value: NDArray[np.float32]) -> None:
    state: Any = rng.bit_generator.state
    sfc64.add_normals(state["state"]["state"], np.float32(scale), value)
    rng.bit_generator.state = state


def _subset(
    sfc64: types.ModuleType, rng: np.random.Generator, num_all: int, out: NDArray[np.int64]
) -> NDArray[np.int64]:
    state: Any = rng.bit_generator.state
    half = np.array([state["has_uint32"], state["uinteger"]], np.uint64)
    sfc64.subset(state["state"]["state"], half, num_all, out)
    state["has_uint32"], state["uinteger"] = map(int, half)
    rng.bit_generator.state = state
    return out


def load() -> types.ModuleType | None:
    """`sfc64`, compiled; None where numba is not installed, cannot compile it, or does not draw what numpy draws."""
    try:
        from dpfl_plugin.core import sfc64

        return sfc64 if equals_numpy(sfc64) else None
    except Exception:  # whatever is wrong with numba: numpy draws the same
        return None


def equals_numpy(sfc64: types.ModuleType) -> bool:
    """Whether the kernels draw numpy's numbers and leave its generator where numpy leaves it.

    Compared are 2^16 normals of each precision, some 17 of them from the tail, and subsets of several sizes.
    """
    for seed, single in ((0, False), (1, True)):
        ours, numpys = _generators(seed)
        found = _normals(sfc64, ours, np.empty(2**16, np.float32) if single else np.empty(2**16))
        expected = numpys.standard_normal(2**16).astype(found.dtype)
        if not np.array_equal(found, expected) or not _same(ours, numpys):
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


def adds_as_torch(sfc64: types.ModuleType) -> bool:
    """Whether the kernel that draws and adds in one pass gives the bits of drawing and then adding by torch."""
    for seed, scale in enumerate((0.3, 7e-5, 123.4)):
        ours, numpys = _generators(seed)
        found, expected = (torch.linspace(-3, 3, 2**16 + 7) for _ in range(2))
        _add_normals(sfc64, ours, scale, found.numpy())
        drawn = _normals(sfc64, numpys, np.empty(len(expected), np.float32))
        if not torch.equal(found, expected.add_(torch.from_numpy(drawn), alpha=scale)) or not _same(ours, numpys):
            return False
    return True


def _generators(seed: int) -> tuple[np.random.Generator, np.random.Generator]:
    """Two of the same state."""
    return np.random.Generator(np.random.SFC64(seed)), np.random.Generator(np.random.SFC64(seed))


def _same(one: np.random.Generator, other: np.random.Generator) -> bool:
    """Whether what they draw next is the same, a left-over half of a word included."""
    return bool(one.integers(2**32, dtype=np.uint32) == other.integers(2**32, dtype=np.uint32)) and bool(
        one.random() == other.random()
    )
