"""The grid of a release: every coordinate is a whole number of steps, whatever the value is.

Let S be a value that arithmetic moves by at most Delta (1 + `SUM_SLACK`) where the sensitivity is Delta. Rounded to
multiples of g it moves by at most sqrt(d) g more, for each of its d coordinates moves by at most g more. So

    Delta' = Delta (1 + SUM_SLACK) + sqrt(d) g,    g = the largest power of two with sqrt(d) g <= 2^-10 Delta,

bounds how far the integers S / g move, times g, and noise of standard deviation sigma Delta' has the multiplier sigma
that is charged: what arithmetic costs is made up for by noise, by 2^-9 of it at most, and never by epsilon.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

SUM_SLACK: Final = 2.0**-10
"""Relative: how much further than the sensitivity a sum of clipped values may move, computed in floating point."""
_GRID_SLACK: Final = 2.0**-10
_ROUNDING: Final = 1 + 2.0**-40  # of this computation itself


class Grid(NamedTuple):
    """``step``: g, a power of two; ``sensitivity``: Delta' of what is rounded to it, in the value's units."""

    step: float
    sensitivity: float

    @classmethod
    def of(cls, sensitivity: float, dimension: int) -> Grid:
        """For values of ``dimension`` coordinates, of L2 sensitivity Delta in exact arithmetic.

        Raises:
            ValueError: the sensitivity is not positive, or so small or large that a step is no normal number.
        """
        root = math.sqrt(dimension)
        if not LEAST <= sensitivity / root <= MOST:
            raise ValueError(
                f"sensitivity={sensitivity!r}: over the root of d={dimension} it must be in [2^-900, 2^900]."
            )
        step = math.ldexp(1.0, math.frexp(_GRID_SLACK * sensitivity / root)[1] - 1)
        return cls(step, (sensitivity * (1 + SUM_SLACK) + root * step) * _ROUNDING)


def has_room(records: int, dimension: int) -> bool:
    """Whether any sum over so many records, each clipped, is within the integers that noise is added to.

    A sum of b of them is at most b Delta long, and a step more than 2^-12 Delta / sqrt(d): so with b sqrt(d) <= 2^39 no
    coordinate has more than 2^51 steps, `rounded_normals.LARGEST`, so none is cut.
    """
    return records**2 * dimension <= 2**78


LEAST: Final = 2.0**-900
MOST: Final = 2.0**900
