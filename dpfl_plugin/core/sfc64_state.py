"""numpy's SFC64 with its state in reach, to be moved to a stream without what `BitGenerator.state` builds each time.

Between two gradients, whose numbers push all else out of the caches, reading and writing that attribute takes longer
than to draw the noise of a small model.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray


class OpenSFC64(np.random.SFC64):
    """It draws what `numpy.random.SFC64` draws.

    Attributes:
        is_open: whether numpy keeps its state as `_is_as_known` has it; else the others are copies, and of no use.
        words: (4,) uint64, its state, and half: (2,) uint32, whether half a word is left over and which.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.is_open = _is_as_known()
        memory = _memory(self) if self.is_open else np.zeros(5, np.uint64)
        self.words, self.half = memory[:4], memory[4:].view(np.uint32)

    def move(self, words: NDArray[np.uint64]) -> None:
        """To the state (4,), with no half of a word left over."""
        if self.is_open:
            self.words[:] = words
            self.half[:] = 0
        else:
            self.state = {
                "bit_generator": type(self).__name__,
                "state": {"state": words},
                "has_uint32": 0,
                "uinteger": 0,
            }

    def __reduce__(self) -> Any:
        """A copy has memory of its own. numpy 1 copies only generators that it knows by name."""
        return _with_state, (self.state,)


def _with_state(state: Any) -> OpenSFC64:
    made = OpenSFC64()
    made.state = state
    return made


def _memory(bits: np.random.SFC64) -> NDArray[np.uint64]:
    """(5,) the generator's state, to be written to, as long as it lives: numpy's ``struct {uint64_t s[4]; int
    has_uint32; uint32_t uinteger;}``."""
    return np.ctypeslib.as_array((ctypes.c_uint64 * 5).from_address(bits.ctypes.state_address))


@functools.cache
def _is_as_known() -> bool:
    """Whether this numpy has the structure that `_memory` takes for granted: by what it has after its state was set."""
    bits = np.random.SFC64(0)
    words, half = np.array([2**64 - 1, 2, 3 << 40, 4], np.uint64), np.array([1, 0x89ABCDEF], np.uint32)
    bits.state = {
        "bit_generator": "SFC64",
        "state": {"state": words},
        "has_uint32": int(half[0]),
        "uinteger": int(half[1]),
    }
    found = _memory(bits)
    return np.array_equal(found[:4], words) and np.array_equal(found[4:].view(np.uint32), half)
