"""Normals computed where they are needed, on any torch device, from the same names as the streams of `streams`.

Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3) maps a key
of 64 bits and a counter of 128 to a block of 128, so that any number of any stream is computed by itself, in any order
and all at once. Of the 256-bit key that names a stream (`streams.stream_key`), 160 bits are used: 64 as Philox' key and
96 as the upper words of the counter; the lowest word counts the stream's blocks. Two streams of other 160 bits have no
block's input in common. That two of 2^40 streams agree in them, keys being hashes, has probability 2^-81.

A block gives two 64-bit uniforms and, by Box and Muller (1958), two normals in float64:

    r = sqrt(-2 ln u), u = (n + U) 2^-64;   r cos(2 pi v), r sin(2 pi v), v = (n' + V) 2^-64

with U and V uniform in [0, 1). A normal x is asked for as round(s x) (see `rounded_normals`, for why). The device
computes it with U = 1/2, V = 0 in float64 and knows by a bound on all errors whether that decides it. What it does not
decide, about one in 2^18 numbers for s = 2^24, is worked out on the host, with 256 bits of U and V and 80 digits. So
the law is that of rounded normals, without an error, and the numbers are the same on every device. To know whether
something is left the host waits for the device once a release.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.core.rounded_normals import LARGEST
from dpfl_plugin.core.streams import Stream
from dpfl_plugin.late import torch

if TYPE_CHECKING:
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
    """(m, count) standard normals on ``device``, the first ``count`` of the stream of each of m keys: float64, `NEAR`
    to the exact ones; NaN where they may not be (one in 2^19).

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
        r = _radius(w0, w1)
        angle = _uniform(w2, w3, 0.0).mul_(2 * math.pi)
        torch.mul(r, angle.cos(), out=found[:, 2 * first : 2 * last : 2])
        torch.mul(r, angle.sin_(), out=found[:, 2 * first + 1 : 2 * last : 2])
    return found[:, :count]


def _uniform(high: Tensor, low: Tensor, offset: float) -> Tensor:
    """(2^32 high + low + offset) 2^-64, in [0, 1], rounded to float64's 53 bits."""
    return (low.double() + offset).mul_(2.0**-64).add_(high.double(), alpha=2.0**-32)


def _radius(high: Tensor, low: Tensor) -> Tensor:
    """sqrt(-2 ln u); NaN for u below 2^-19 or within 2^-32 of 1, where 64 bits leave more than `NEAR` open."""
    below = _uniform(high, low, 0.5).log_()
    above = _uniform(_LOW - high, _LOW - low, 0.5).neg_().log1p_()  # 1 - u with all its digits
    found = torch.where(high < 2**31, below, above).mul_(-2.0).sqrt_()
    return found.masked_fill_((high < _FEW) | (high == _LOW), math.nan)


class Normals:
    """Standard normals of m streams, to be added in whole steps.

    Args:
        keys: of the streams; values: (m, count), as `normals` gives them.
    """

    def __init__(self, keys: Sequence[bytes], values: Tensor) -> None:
        self.keys, self.values = keys, values

    def rows(self, rows: slice) -> Normals:
        """Those of some of the streams."""
        return Normals(self.keys[rows], self.values[rows])

    def integers(self, stds: Sequence[float]) -> Tensor:
        """(m, count) integers round(std * x), float64.

        Raises:
            ValueError: a standard deviation, in steps, is not in (0, 2^40].
        """
        if not all(0 < std <= MOST_STD for std in stds):
            raise ValueError(f"stds={list(stds)!r} must be above 0 and at most 2^40 steps of the grid.")
        std = torch.tensor(stds, dtype=torch.float64).to(self.values.device).unsqueeze(1)
        scaled = self.values * std
        found = scaled.round()
        decided = (scaled - found).abs() < 0.5 - std * NEAR  # not where it is NaN
        if not bool(decided.all()):
            for row, index in (~decided).nonzero().tolist():
                found[row, index] = exact(self.keys[row], index, stds[row])
        return found

    def add_rounded(self, totals: Tensor, steps: Sequence[float], stds: Sequence[float], out: Tensor) -> None:
        """Write to ``out`` (m, d) the multiples of each row's step nearest to ``totals`` (m, d), float64, plus noise
        of whole steps; as `draws.add_rounded`."""
        step = torch.tensor(steps, dtype=torch.float64).to(totals.device).unsqueeze(1)
        nearest = (totals / step).round_()
        nearest = torch.where(nearest.abs() <= LARGEST, nearest, 0.0)  # also where it is NaN
        nearest.add_(0.0)  # no -0.0: with noise that is -0.0, too, a release would have the sign of what was rounded
        out.copy_(nearest.add_(self.integers(stds)).mul_(step))


NEAR: Final = 2.0**-44
"""Bounds by how much a normal that `normals` gives is off. With r < 5.2: the bits that u has not yet move r by 2^-48
at most, those of v, and the rounding of 2 pi v, the normal by 2^-47; ln, cos and sin that are a few units in the last
place off by 2^-48. What remains, a factor of four and more, is for devices whose functions are less exact."""
MOST_STD: Final = 2.0**40
_FEW: Final = 2**13
_DIGITS: Final = Context(prec=80)
_MORE_WORDS: Final = 3  # beyond the first 64 bits


def exact(key: bytes, index: int, std: float) -> int:
    """round(std * x) of the normal at ``index`` of a stream, with 256 bits of each uniform number and 80 digits."""
    words = np.frombuffer(key, dtype="<u4")[:5].astype(np.int64)
    counter = [torch.tensor([number]) for number in (index // 2, *words[2:])]
    w0, w1, w2, w3 = (int(word) for word in philox(counter, [torch.tensor([number]) for number in words[:2]]))
    name = hashlib.blake2b(
        key + (index // 2).to_bytes(8, "little"), digest_size=32, person=b"dpfl.device.more"
    ).digest()
    more = Stream().seek(name).bit_generator.random_raw
    with localcontext(_DIGITS):
        u, v = (_long_uniform(high << 32 | low, more(_MORE_WORDS)) for high, low in ((w0, w1), (w2, w3)))
        cosine, sine = _cos_and_sin(v)
        x = (-2 * u.ln()).sqrt() * (sine if index % 2 else cosine)
        return int((x * Decimal(std)).to_integral_value(ROUND_HALF_EVEN))


def _long_uniform(first: int, rest: NDArray[np.uint64]) -> Decimal:
    number = first
    for word in rest:
        number = number << 64 | int(word)
    return (Decimal(number) + Decimal("0.5")) / Decimal(2) ** (64 * (1 + len(rest)))


def _cos_and_sin(turns: Decimal) -> tuple[Decimal, Decimal]:
    """Of 2 pi times so many turns, in [0, 1]: Taylor's series of a 64th of the angle, doubled six times."""
    angle = 2 * _PI * turns / 64
    cosine, sine, term = Decimal(0), Decimal(0), Decimal(1)
    for n in range(50):  # 0.1^50 / 50! is below the last digit
        if n % 2:
            sine += term if n % 4 == 1 else -term
        else:
            cosine += term if n % 4 == 0 else -term
        term *= angle / (n + 1)
    for _ in range(6):
        cosine, sine = cosine * cosine - sine * sine, 2 * cosine * sine
    return cosine, sine


_PI: Final = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803")


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
        self._keys: list[bytes] = []

    def at(self, step: int) -> Normals:
        """Those of a step."""
        if not self._first <= step < self._first + len(self._drawn):
            last = min(max(self._steps, step + 1), step + self._ahead)
            self._keys = [self._key(row, one) for one in range(step, last) for row in range(self._rows)]
            self._drawn = normals(self._keys, self._count, self._device).view(last - step, self._rows, self._count)
            self._first = step
        at = step - self._first
        return Normals(self._keys[at * self._rows : (at + 1) * self._rows], self._drawn[at])
