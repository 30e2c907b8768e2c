"""Numbers that are far from all others of a column: codes for no value, as -9 and 999, and slips, as an age of 430."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

FAR: Final = 4  # widths of all other numbers: no measurement of the same thing
MOST_FAR: Final = 5  # different numbers on one side, and
SHARE_FAR: Final = 0.05  # of all cells, at most: more are no slips
LEAST: Final = 5  # different numbers, from which others can be far
ENDS: Final = 12  # different numbers at each end that may be codes
APART: Final = 5  # steps between neighbours, from which a frequent number is apart
SPIKE: Final = 5  # times as often as numbers in the middle are
_DIGITS: Final = re.compile(r"9+[678]?|8+|7+")


class Isolated(NamedTuple):
    """Numbers that are far from the others, in order: ``codes`` for no value; ``slips``, of which nobody knows."""

    codes: list[float]
    slips: list[float]


def isolated(values: NDArray[Any], counts: NDArray[Any]) -> Isolated:
    """Of different ``values`` [k] in order, each of which occurs in ``counts`` cells.

    A number is a code by its digits (0, -1, 99, 999.9, -88), where it is beyond all numbers that are none: by half of
    their width below (a code above by all of it); or by a tenth of it and some steps, if it is much more frequent than
    they are; or where it is negative, and they are not.
    """
    coded = np.zeros(len(values), dtype=bool)
    for place in {*range(min(ENDS, len(values))), *range(max(0, len(values) - ENDS), len(values))}:
        coded[place] = _may_be_code(float(values[place]))
    if len(values) - coded.sum() < LEAST:
        return Isolated([], [])
    core, often = values[~coded], counts[~coded]
    first, last = _near(core, often)
    slips = [*core[:first].tolist(), *core[last:].tolist()]
    core, often = core[first:last], often[first:last]
    low, high, usual, step = float(core[0]), float(core[-1]), float(np.median(often)), float(np.median(np.diff(core)))
    beyond = [place for place in np.flatnonzero(coded).tolist() if not low <= values[place] <= high]
    codes = []
    for place in sorted(beyond, key=lambda place: max(low - values[place], values[place] - high)):
        value, width = float(values[place]), high - low
        gap, least = (low - value, width / 2) if value < low else (value - high, width)
        is_spike = counts[place] >= max(3, SPIKE * usual)
        only_negative = value < 0 <= low and (value < -1 or is_spike)
        if gap >= least or (is_spike and gap >= max(width / 10, APART * step)) or only_negative:
            codes.append(value)
        else:
            low, high = min(low, value), max(high, value)
    return Isolated(sorted(codes), slips)


def _may_be_code(value: float) -> bool:
    digits = f"{abs(value):.10g}".replace(".", "")
    return value in (0, -1) or ((len(digits) > 1 or value < 0) and _DIGITS.fullmatch(digits) is not None)


def _near(values: NDArray[Any], counts: NDArray[Any]) -> tuple[int, int]:
    """The places of the first number, and behind the last, that are not far from the others."""
    first, last, total = 0, len(values), counts.sum()
    gaps = np.diff(values)
    for place in range(max(len(values) - MOST_FAR, LEAST), len(values)):
        if gaps[place - 1] > FAR * (values[place - 1] - values[0]) and counts[place:].sum() <= SHARE_FAR * total:
            last = place
            break
    for place in range(min(MOST_FAR, last - LEAST), 0, -1):
        if gaps[place - 1] > FAR * (values[last - 1] - values[place]) and counts[:place].sum() <= SHARE_FAR * total:
            first = place
            break
    return first, last
