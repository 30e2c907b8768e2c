"""Bounds as text: rounded away from what they bound, so that what is printed is a bound, too.

Upper ones are rounded up; those of which something is `left`, or proven to be at least so much, down.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

_EVERY_DIGIT = Context(prec=400)  # of the largest float


def places(bound: float, count: int) -> str:
    """``bound`` with ``count`` decimal places; with two significant digits where it is so small that these hide it."""
    if 0 < bound < 10.0 ** (1 - count):
        return digits(bound, 2)
    if not math.isfinite(bound):
        return f"{bound}"
    exact = Decimal(repr(float(bound)))  # what a person would take the float for, and not its 53 bits
    return f"{exact.quantize(Decimal(1).scaleb(-count), ROUND_CEILING, _EVERY_DIGIT):f}"


def digits(bound: float, count: int) -> str:
    """``bound`` with at most ``count`` significant digits."""
    return _rounded(bound, count, ROUND_CEILING)


def digits_down(bound: float, count: int) -> str:
    """A lower bound with at most ``count`` significant digits."""
    return _rounded(bound, count, ROUND_FLOOR)


def _rounded(bound: float, count: int, how: str) -> str:
    if not math.isfinite(bound):
        return f"{bound}"
    rounded = Context(prec=count, rounding=how).create_decimal(repr(float(bound)))
    text = f"{float(rounded):.{count}g}"  # 3 for 3.0, and 1e-05
    return text if Decimal(text) == rounded else f"{rounded:g}"


def odds(epsilon: float) -> str:
    """How many times as likely epsilon allows something seen to become: e^epsilon in plain digits, rounded up."""
    if epsilon >= 13.8:  # e^13.8 is 985,000
        return "about a million times, or more"
    factor = math.exp(epsilon)
    if factor < 10:
        return f"about {places(factor, 2)} times"
    unit = 1 if factor < 100 else 10 ** (len(str(int(factor))) - 2)
    return f"about {math.ceil(factor / unit) * unit:,} times"
