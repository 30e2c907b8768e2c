"""Normals computed where they are needed, on any torch device, from the same names as the streams of `streams`.

Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3) maps a key
of 64 bits and a counter of 128 to a block of 128, so that any number of any stream is computed by itself, in any order
and all at once. Of the 256-bit key that names a stream (`streams.stream_key`), 160 bits are used: 64 as Philox' key and
96 as the upper words of the counter; the lowest word counts the stream's blocks. Two streams of other 160 bits have no
block's input in common. That two of 2^40 streams agree in them, keys being hashes, has probability 2^-81.

A block gives two 64-bit uniforms and, by Box and Muller (1958), two normals in float64:

    r = sqrt(-2 ln u), u = (n + 1/2) 2^-64;   r cos(2 pi v), r sin(2 pi v), v = n' 2^-64

No r is above sqrt(2 * 65 ln 2) = 9.49, which an exact one is with probability 2^-65. Cutting off the tails there moves
a release of d numbers by at most d / 2 * 2^-65 in total variation, and its delta by 1 + e^epsilon times that: 5e-13 for
10^7 numbers at epsilon 1. What rounding to floating point does is another matter, here as on the host.

The integers are exact, the same on every device. Devices compute ln, cos and sin to a few units in the last place, not
to the same bits: normals of two devices agree to about 1e-15, and are never said to be equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

ROUNDS: Final = 10
MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)  # Random123, philox.h: PHILOX_M4x32_0 and _1
WEYL: Final = (0x9E3779B9, 0xBB67AE85)  # PHILOX_W32_0 and _1
MOST: Final = 2**33  # normals of a stream: two for each of 2^32 blocks
BLOCKS: Final = {"cpu": 2**15}  # that are worked on at a time, in the processor's cache; changes no bit
MOST_BLOCKS: Final = 2**20  # elsewhere; bounds memory
AHEAD_BYTES: Final = 2**25  # of normals that are drawn before they are asked for
_LOW: Final = 2**32 - 1


def philox(counter: Sequence[Tensor], key: Sequence[Tensor]) -> list[Tensor]:
    """Philox4x32-10: four words of output for each counter and key.

    Args:
        counter: four words, key: two, int64 tensors of numbers in [0, 2^32) that broadcast against each other.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = _product(c0, MULTIPLIERS[0])
        high1, low1 = _product(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + WEYL[0]) & _LOW, (k1 + WEYL[1]) & _LOW
    return [c0, c1, c2, c3]


def _product(a: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    """High and low word of a * multiplier, for a < 2^32 <= 2 * multiplier.

    Nothing exceeds 63 bits on the way, since what a signed number does then is nobody's promise: with
    multiplier = 2^31 + rest and a * rest = p, the product is (p // 2^31 + a) * 2^31 + p % 2^31.
    """
    p = a * (multiplier - 2**31)
    upper = (p >> 31).add_(a)
    low = p.bitwise_and_(2**31 - 1).bitwise_or_((upper & 1).bitwise_left_shift_(31))
    return upper.bitwise_right_shift_(1), low


def normals(keys: Sequence[bytes], count: int, device: torch.device) -> Tensor:
    """(m, count) standard normals in float64 on ``device``: the first ``count`` of the stream of each of m keys.

    Raises:
        ValueError: ``count`` is more than a stream has.
    """
    if count > MOST:
        raise ValueError(f"{count} normals of one stream: it has {MOST}.")
    # Of 32 bytes: words 0 and 1 are Philox' key, 2 to 4 the upper words of its counter.
    words = np.frombuffer(b"".join(keys), dtype="<u4").reshape(len(keys), 8)[:, :5].astype(np.int64)
    named = torch.from_numpy(words).to(device).t().unsqueeze(2)  # (5, m, 1)
    found = torch.empty(len(keys), count + count % 2, dtype=torch.float64, device=device)
    size = max(1, BLOCKS.get(device.type, MOST_BLOCKS) // max(1, len(keys)))
    for first in range(0, found.shape[1] // 2, size):
        last = min(first + size, found.shape[1] // 2)
        block = torch.arange(first, last, device=device).expand(len(keys), -1)
        w0, w1, w2, w3 = philox((block, *named[2:]), (named[0], named[1]))
        r = _uniform(w0, w1, 0.5).log_().mul_(-2.0).sqrt_()
        angle = _uniform(w2, w3, 0.0).mul_(2 * math.pi)
        torch.mul(r, angle.cos(), out=found[:, 2 * first : 2 * last : 2])
        torch.mul(r, angle.sin_(), out=found[:, 2 * first + 1 : 2 * last : 2])
    return found[:, :count]


def _uniform(high: Tensor, low: Tensor, offset: float) -> Tensor:
    """(2^32 high + low + offset) 2^-64, in [0, 1], rounded to float64's 53 bits."""
    return (low.double() + offset).mul_(2.0**-64).add_(high.double(), alpha=2.0**-32)


class DeviceNormals:
    """The normals of m streams a step, on a device. Those of several steps are computed at once: they are many small
    operations, and as many for one step as for fifty.

    Args:
        key: the stream of row and step; count: normals of each; steps: how many steps there may be.
    """

    def __init__(
        self, key: Callable[[int, int], bytes], *, rows: int, count: int, steps: int, device: torch.device
    ) -> None:
        self._key, self._rows, self._count, self._steps, self._device = key, rows, count, steps, device
        self._ahead = max(1, AHEAD_BYTES // max(1, 8 * rows * count))
        self._first, self._drawn = 0, torch.empty(0, rows, count, dtype=torch.float64)

    def at(self, step: int) -> Tensor:
        """(m, count) normals of a step, in float64."""
        if not self._first <= step < self._first + len(self._drawn):
            last = min(max(self._steps, step + 1), step + self._ahead)
            keys = [self._key(row, one) for one in range(step, last) for row in range(self._rows)]
            self._drawn = normals(keys, self._count, self._device).view(last - step, self._rows, self._count)
            self._first = step
        return self._drawn[step - self._first]
