"""Floors of exact decimals."""

from __future__ import annotations

import functools
from decimal import ROUND_FLOOR, Decimal


@functools.lru_cache(maxsize=65536)  # asked twice for every private gradient
def floor_share(rate: float, count: int) -> int:
    """floor(rate * count) with ``rate`` read as the decimal that a person wrote.

    In binary floating point 0.29 * 100 is 28.999999999999996, whose floor loses one; here it is 29.
    """
    return int((Decimal(repr(float(rate))) * count).to_integral_value(ROUND_FLOOR))
