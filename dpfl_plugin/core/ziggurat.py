"""A normal law from random words, without any rounding: what the noise on releases is rounded from.

Marsaglia and Tsang 2000 (J. Stat. Softw. 5(8)): the area under f(x) = exp(-x^2 / 2), x >= 0, is covered by 256 strips
of one area v. Strip i = 1, ..., 255 is [0, X_i] times [F_i, F_(i-1)], F_i = f(X_i), F_0 = 1; strip 0 is [0, R] times
[0, F_255], R = X_255, and the tail beyond R. A point that is uniform in a random strip and lies under f has the
density f in x. With real numbers U, U', ... uniform in [0, 1):

    a word gives a strip i, a sign, and 52 bits n;      x = (n + U) W_i, W_i = X_i 2^-52
    x < X_(i-1) (i = 0: x < R):                         x is taken
    i > 0:   F_i + (F_(i-1) - F_i) U' < f(x):           x is taken, else another word is drawn
    i = 0:   t = -ln(U) / R; -2 ln(U') > t^2:           R + t is taken, else the tail is tried again (Marsaglia 1964)

In one cell n of strip 0, which holds R, it takes U to tell whether x < R. If it is not, U is no longer uniform, and
the tail draws another.

U and U' have as many bits as a decision needs: most need none (`dpfl_plugin.core.rounded_normals`). What is compared
and multiplied are real numbers: X_i, F_i and R have 60 digits, and `Tables`, rounded to 53 bits, only serves for
finding out quickly what holds for the real ones, too. So the law is the normal one but for what the sixtieth digits
and the 256th bits may move: the logarithm of no probability by more than 1e-50, which is 1e-40 of epsilon for 10^10
numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Words = NDArray[np.uint64]

STRIPS: Final = 256
BITS: Final = 52  # of the position in a strip
_R: Final = Decimal(
    "3.654152885361008771645429720399515762974854599746273885968676"
)  # where strip 1 closes: X_0 would be 0
_AREA: Final = Decimal(
    "0.004928673233974655347361775402336028069135384702856501808589365"
)  # R f(R) + integral of f from R on
R: Final = float(_R)

_DIGITS: Final = Context(prec=60)
_EXACT: Final = Context(prec=130, Emin=-(10**6), Emax=10**6)
_MORE_WORDS: Final = 3  # that lengthen a uniform number to 256 bits, when its first 64 do not decide


class Tables(NamedTuple):
    """``width`` W_i, (256,), and ``height`` F_i, (256,), rounded; ``inner``, (256,): for n below it (n + U) W_i is
    left of X_(i-1) whatever U is, and for n above it right of that."""

    width: Floats
    inner: NDArray[np.int64]
    height: Floats


def _exact() -> tuple[list[Decimal], list[Decimal], list[Decimal]]:
    """W_i, X_(i-1) (for strip 0: R) and F_i, i = 0, ..., 255."""
    with localcontext(_DIGITS):
        edges = [_R]  # from the right: X_255, ..., X_1
        while len(edges) < STRIPS - 1:
            edges.append((-2 * (_curve(edges[-1]) + _AREA / edges[-1]).ln()).sqrt())
        edges.reverse()
        whole = [_AREA / _curve(_R), *edges]  # strip 0 is as wide as if it had its tail at its side
        heights = [Decimal(1), *map(_curve, edges)]
        return [edge / 2**BITS for edge in whole], [_R, Decimal(0), *edges[:-1]], heights


def _curve(x: Decimal) -> Decimal:
    return (-x * x / 2).exp()


_WIDTH, _LEFT, _HEIGHT = _exact()
TABLES: Final = Tables(
    np.array([float(width) for width in _WIDTH]),
    np.array([int(left / width) for left, width in zip(_LEFT, _WIDTH, strict=True)]),
    np.array([float(height) for height in _HEIGHT]),
)


class Undecided(NamedTuple):
    """What is known of a normal whose rounding, or whose fate, the bits that were drawn so far do not decide.

    Attributes:
        word: its strip, sign and position.
        uniforms: the first 64 bits of U and U', where they were drawn.
    """

    word: int
    uniforms: tuple[int, ...] = ()


def decide(found: Undecided, std: float, draw: Callable[[int], Words]) -> int:
    """round(std * x), with as many more bits as that takes: 256 of each uniform number in all.

    Computed with 130 digits. That 256 bits do not decide has a probability of 2^-200; then their middle does.

    Args:
        std: of the normal that is rounded, in units of the integers.
        draw: the next words of the stream, so many.
    """
    word, given = found
    with localcontext(_EXACT):
        while True:
            strip, bits, negative = parts(word)
            in_tail = strip == 0 and bits > int(TABLES.inner[0])  # whatever U is
            while True:  # ends by a value or by another word
                u, v = (_uniform(given[n : n + 1], draw) for n in (0, 1))
                given = ()
                if in_tail:
                    beyond = -u.ln() / _R
                    if -2 * v.ln() > beyond * beyond:
                        return _rounded(_R + beyond, std, negative)
                    continue
                x = (bits + u) * _WIDTH[strip]
                if x < _LEFT[strip]:
                    return _rounded(x, std, negative)
                if strip > 0:
                    low, high = _HEIGHT[strip], _HEIGHT[strip - 1]
                    if low + (high - low) * v < _curve(x):
                        return _rounded(x, std, negative)
                    word = int(draw(1)[0])
                    break
                in_tail = True  # with new uniforms: what is known of this U by now would show in the tail


def parts(word: int) -> tuple[int, int, bool]:
    """(strip, position in it, whether it is negative) of a word."""
    return word & (STRIPS - 1), (word >> 9) & (2**BITS - 1), bool(word & STRIPS)


def _uniform(given: tuple[int, ...], draw: Callable[[int], Words]) -> Decimal:
    """In (0, 1), of 256 bits, the first of them ``given``."""
    words = [*given, *(int(word) for word in draw(_MORE_WORDS + 1 - len(given)))]
    number = 0
    for word in words:
        number = number << 64 | word
    return (Decimal(number) + Decimal("0.5")) / Decimal(2) ** (64 * len(words))


def _rounded(x: Decimal, std: float, negative: bool) -> int:
    found = int((x * Decimal(std)).to_integral_value(ROUND_HALF_EVEN))
    return -found if negative else found
