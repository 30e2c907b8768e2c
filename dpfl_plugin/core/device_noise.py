"""Noise drawn where it is needed, on any torch device, ahead of the steps that it is for.

A pair of words of `counter_words` gives two 64-bit uniforms and, by Box and Muller (1958), two normals in float64:

    r = sqrt(-2 ln u), u = (n + U) 2^-64;   r cos(2 pi v), r sin(2 pi v), v = (n' + V) 2^-64

with U and V uniform in [0, 1). A normal x is asked for as round(s x) (see `rounded_normals`, for why). The device
computes it with U = 1/2, V = 0 in float64 and knows by a bound on all errors whether that decides it. What it does not
decide, about one in 2^18 numbers for s = 2^24, is worked out on the host, with 256 bits of U and V and 80 digits. So
the law is that of rounded normals, without an error, whatever the words come from; of seeded ones the numbers are the
same on every device.

What is undecided has to be known before a number is used, and the noise does not depend on what it is added to. So a
thread of its own draws, and decides, the noise of the next steps while the gradients of this one are computed, on CUDA
in a stream of its own: no step waits for the host.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from decimal import Context, Decimal, localcontext
from typing import TYPE_CHECKING, Any, Final

from dpfl_plugin.core.counter_words import LOW, MOST_PAIRS, CounterWords, Place
from dpfl_plugin.core.devices import to_device, to_host
from dpfl_plugin.core.rounded_normals import LARGEST
from dpfl_plugin.late import torch

if TYPE_CHECKING:
    from torch import Tensor

MOST: Final = 2 * MOST_PAIRS  # normals of a stream
PAIRS: Final = {"cpu": 2**16}  # that are worked on at a time, in the processor's cache; changes no bit
MOST_PAIRS_AT_ONCE: Final = 2**21  # elsewhere; bounds memory
AHEAD_BYTES: Final = 2**25  # of noise that is drawn at a time: as many operations for fifty steps as for one


def normals(words: CounterWords, places: Sequence[Place], count: int, device: torch.device) -> Tensor:
    """(m, count) standard normals on ``device``, the first ``count`` of m streams: float64, `NEAR` to the exact ones;
    NaN where they may not be (one in 2^19).

    Raises:
        ValueError: ``count`` is more than a stream has.
    """
    if count > MOST:
        raise ValueError(f"{count} normals of one stream: it has {MOST}.")
    drawn = torch.empty(len(places), count + count % 2, dtype=torch.float64, device=device)
    size = max(4, PAIRS.get(device.type, MOST_PAIRS_AT_ONCE) // max(1, len(places)) // 4 * 4)
    for first in range(0, drawn.shape[1] // 2, size):
        last = min(first + size, drawn.shape[1] // 2)
        w0, w1, w2, w3 = words.words(places, first, last, device)
        r = _radius(w0, w1)
        angle = _scaled(w2, w3, 0.0).mul_(2 * math.pi * 2.0**-64)
        torch.mul(r, angle.cos(), out=drawn[:, 2 * first : 2 * last : 2])
        torch.mul(r, angle.sin_(), out=drawn[:, 2 * first + 1 : 2 * last : 2])
    return drawn[:, :count]


def _scaled(high: Tensor, low: Tensor, offset: float) -> Tensor:
    """2^32 high + low + offset, rounded to float64's 53 bits."""
    return torch.add(low, torch.tensor(offset, dtype=torch.float64)).add_(high, alpha=2**32)


def _radius(high: Tensor, low: Tensor) -> Tensor:
    """sqrt(-2 ln u); NaN for u below 2^-19 or within 2^-32 of 1, where 64 bits leave more than `NEAR` open."""
    below = _scaled(high, low, 0.5).mul_(2.0**-64).log_()
    above = _scaled(LOW - high, LOW - low, 0.5).mul_(-(2.0**-64)).log1p_()  # 1 - u with all its digits
    found = torch.where(high < 2**31, below, above).mul_(-2.0).sqrt_()
    return found.masked_fill_((high < _FEW) | (high == LOW), math.nan)


NEAR: Final = 2.0**-44
"""Bounds by how much a normal that `normals` gives is off. With r < 5.2: the bits that u has not yet move r by 2^-48
at most, those of v, and the rounding of 2 pi v, the normal by 2^-47; ln, cos and sin that are a few units in the last
place off by 2^-48. What remains, a factor of four and more, is for devices whose functions are less exact."""
MOST_STD: Final = 2.0**40
_FEW: Final = 2**13


def exact(words: CounterWords, place: Place, index: int, std: float) -> int:
    """round(std * x) of the normal at ``index`` of a stream, with 256 bits of each uniform number and 80 digits."""
    u, v = (2 * bits + 1 for bits in words.uniforms(place, index // 2))  # times 2^-257
    cosine, sine = _cos_and_sin(v)
    radius = math.isqrt(2 * _minus_ln(u) << _BITS)
    above, below = std.as_integer_ratio()
    scaled = radius * (sine if index % 2 else cosine) * above // below
    return (scaled >> 2 * _BITS - 1) + 1 >> 1


def rounded(words: CounterWords, places: Sequence[Place], values: Tensor, stds: Sequence[float]) -> Tensor:
    """(m, count) integers round(std * x) of ``values`` (m, count), the `normals` of m streams, which it overwrites;
    float64. Waits for the device.

    Raises:
        ValueError: a standard deviation, in steps, is not in (0, 2^40].
    """
    if not all(0 < std <= MOST_STD for std in stds):
        raise ValueError(f"stds={list(stds)!r} must be above 0 and at most 2^40 steps of the grid.")
    std = to_device(torch.tensor(stds, dtype=torch.float64), values.device).unsqueeze(1)
    scaled = values.mul_(std)
    integers = scaled.round()
    undecided = (scaled.sub_(integers).abs_() < 0.5 - std * NEAR).logical_not_()  # also where it is NaN
    if int(to_host(undecided.sum())):
        at = to_host(undecided).nonzero()
        solved = [exact(words, places[row], index, stds[row]) for row, index in at.tolist()]
        rows, columns = to_device(at, values.device).unbind(1)
        integers[rows, columns] = to_device(torch.tensor(solved, dtype=torch.float64), values.device)
    return integers


# Numbers of 80 digits: integers, times 2^-272. Rounding costs less than 2^-256.
_BITS: Final = 272
_ONE: Final = 1 << _BITS
with localcontext(Context(prec=100)):
    _LN_2: Final = int(Decimal(2).ln() * _ONE)
    _PI: Final = int(
        Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803") * _ONE
    )


def _cos_and_sin(v: int) -> tuple[int, int]:
    """Of 2 pi v 2^-257: Taylor's series of a 64th of the angle, doubled six times."""
    angle = _PI * v >> 256 + 6
    cosine, sine, term, n = 0, 0, _ONE, 0
    while term:
        if n % 2:
            sine += term if n % 4 == 1 else -term
        else:
            cosine += term if n % 4 == 0 else -term
        n += 1
        term = (term * angle >> _BITS) // n
    for _ in range(6):
        cosine, sine = cosine * cosine - sine * sine >> _BITS, 2 * cosine * sine >> _BITS
    return cosine, sine


def _minus_ln(u: int) -> int:
    """-ln(u 2^-257): what floats give, and the logarithm of u 2^-257 times its exponential, which is almost 1."""
    near = int(math.ldexp(257 * math.log(2) - math.log(u), 64)) << _BITS - 64
    doublings, rest = divmod(near, _LN_2)
    off = (u * _exp(rest) >> 257 - doublings) - _ONE
    power, found = _ONE, near
    for n in range(1, 8):  # 1e-12^8 is below the last digit
        power = power * off >> _BITS
        found += (power if n % 2 == 0 else -power) // n
    return found


def _exp(x: int) -> int:
    """Of a number in [0, 1): Taylor's series of its 256th, squared eight times."""
    part = x >> 8
    found, term, n = 0, _ONE, 0
    while term:
        found += term
        n += 1
        term = (term * part >> _BITS) // n
    for _ in range(8):
        found = found * found >> _BITS
    return found


Drawn = tuple["Tensor", list[tuple[float, ...]], Any]
"""(steps, rows, count); the deviations that they are rounded with, by step; the event after which they are there."""

_thread = ThreadPoolExecutor(1, thread_name_prefix="noise")


@functools.cache
def _cuda_stream(device: torch.device) -> torch.cuda.Stream:
    """Of the thread that draws: one, since memory that another stream used is not used again."""
    return torch.cuda.Stream(device, priority=-1)  # of the pool from which graphs take none


class DeviceNoise:
    """Noise of m rows and of some steps, on a device.

    Each place is handed out once, in order: steps one after another, and in a step the rows.

    Args:
        words: what it is made of; used by nobody else.
        count: numbers of each row.
        stds: of each row at a step, in steps of the grid, where they are known ahead: then the noise is drawn ahead.
    """

    def __init__(
        self,
        words: CounterWords,
        *,
        rows: int,
        count: int,
        steps: int,
        device: torch.device,
        stds: Callable[[int], Sequence[float]] | None = None,
    ) -> None:
        self._words, self._rows, self._count, self._steps, self._device = words, rows, count, steps, device
        self._stds, self._drawn_stds = stds, list[tuple[float, ...]]()
        self._steps_at_once = max(1, AHEAD_BYTES // max(1, 8 * rows * count))
        self._next_place = 0, 0
        self._first, self._values = 0, torch.empty(0, rows, count, dtype=torch.float64)
        self._cuda_stream = _cuda_stream(device) if device.type == "cuda" else None
        self._grids: dict[tuple[float, ...], tuple[Tensor, ...]] = {}
        self._ahead = self._begin(0, None)

    def _begin(self, first: int, after: torch.cuda.Event | None) -> Future[Drawn] | None:
        last = min(first + self._steps_at_once, self._steps)
        return _thread.submit(self._draw, first, last, after) if first < last else None

    def _draw(self, first: int, last: int, after: torch.cuda.Event | None) -> Drawn:
        """Noise, or normals where deviations are not known.

        Args:
            after: what the device has to have come to before: so no more is drawn ahead than memory was planned for.
        """
        if after is not None:
            after.synchronize()
        places = [(row, step) for step in range(first, last) for row in range(self._rows)]
        with torch.no_grad(), torch.cuda.stream(self._cuda_stream) if self._cuda_stream else nullcontext():
            values = normals(self._words, places, self._count, self._device)
            stds = [] if self._stds is None else [tuple(self._stds(step)) for step in range(first, last)]
            if stds:
                values = rounded(self._words, places, values, [std for of_step in stds for std in of_step])
            done = None if self._cuda_stream is None else self._cuda_stream.record_event()
        return values.view(last - first, self._rows, self._count), stds, done

    def integers(self, step: int, rows: slice, stds: Sequence[float]) -> Tensor:
        """(m, count) integers round(std * x) for some rows of a step, float64.

        Raises:
            ValueError: they were handed out, or a deviation is not the one that was known.
        """
        if (step, rows.start) < self._next_place:
            raise ValueError(f"noise of step {step} and row {rows.start} is used: each is handed out once.")
        self._next_place = step, rows.stop
        while step >= self._first + len(self._values):
            self._renew()
        values = self._values[step - self._first, rows]
        if self._stds is None:
            return rounded(self._words, [(row, step) for row in range(rows.start, rows.stop)], values, stds)
        if tuple(stds) != self._drawn_stds[step - self._first][rows]:
            raise ValueError(f"noise of step {step} was drawn ahead with other deviations than {list(stds)!r}.")
        return values

    def _renew(self) -> None:
        """Take what was drawn ahead, and begin to draw what follows.

        Nothing has moved where this raises: it raises again, and no noise is handed out twice.
        """
        if self._ahead is None:
            raise ValueError(f"noise of more than {self._steps} steps was asked for.")
        values, stds, done = self._ahead.result()
        self._ahead = None
        self._first, self._values, self._drawn_stds = self._first + len(self._values), values, stds
        after = None
        if done is not None:
            here = torch.cuda.current_stream(self._device)
            here.wait_event(done)
            values.record_stream(here)
            after = here.record_event()
        self._ahead = self._begin(self._first + len(values), after)

    def add_rounded(
        self, totals: Tensor, step: int, rows: slice, grids: Sequence[float], stds: Sequence[float], out: Tensor
    ) -> None:
        """Write to ``out`` (m, d) the multiples of each row's grid nearest to ``totals`` (m, d), float64, plus noise of
        whole steps of it; as `draws.add_rounded`."""
        grid, least, most, shift = self._grid(tuple(grids))
        # Where float64 has a unit of one step, a sum is rounded to steps, halves to even, and is never -0.0.
        nearest = totals.nan_to_num(0.0).clamp_(least, most).add_(shift).sub_(shift)
        torch.addcmul(nearest, self.integers(step, rows, stds), grid, out=out)

    def _grid(self, grids: tuple[float, ...]) -> tuple[Tensor, ...]:
        """(m, 1) each, moved to the device once: the grids, and the multiples of them that `add_rounded` needs."""
        if grids not in self._grids:
            multiples = torch.tensor([1.0, -LARGEST, LARGEST, 1.5 * 2.0**52], dtype=torch.float64)
            steps = torch.tensor(grids, dtype=torch.float64)
            self._grids[grids] = to_device(torch.outer(multiples, steps), self._device).unsqueeze(2).unbind(0)
        return self._grids[grids]
