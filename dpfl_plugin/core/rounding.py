"""Upper bounds as text: rounded up, so that what is printed is an upper bound, too."""

from __future__ import annotations

from decimal import ROUND_CEILING, Context, Decimal


def places(bound: float, count: int) -> str:
    """``bound`` with ``count`` decimal places."""
    exact = Decimal(repr(bound))  # what a person would take the float for, and not its 53 bits
    return str(exact.quantize(Decimal(1).scaleb(-count), rounding=ROUND_CEILING))


def digits(bound: float, count: int) -> str:
    """``bound`` with at most ``count`` significant digits."""
    return f"{Context(prec=count, rounding=ROUND_CEILING).create_decimal(repr(bound)):g}"
