"""Numbers with marks of thousands: 57,435 may be one, or a decimal of three digits."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_GROUPED: Final = re.compile(
    r"[-+]?[1-9]\d{0,2}(?P<mark>[,.'’ \u00a0\u202f])\d{3}(?P<more>(?:(?P=mark)\d{3})*)(?P<rest>[,.]\d+)?"
)
PANDAS: Final = "pandas.read_csv(..., thousands={mark!r})"


class Grouped(NamedTuple):
    """How a word may have marks of thousands: which; and whether it can be nothing else, as 1,234,567 and 1,234.5."""

    mark: str
    sure: bool


def grouped(word: str) -> Grouped | None:
    """None of a word that has no marks of thousands; 0,534 and 12,5 have none."""
    found = _GROUPED.fullmatch(word.strip())
    if found is None or (found["rest"] or "")[:1] == found["mark"]:
        return None
    mark = str(found["mark"])
    return Grouped(mark, bool(found["more"] or found["rest"]) or mark not in ",.")


def without_marks(word: str) -> str:
    """The number that a word is if its marks are those of thousands."""
    found = grouped(word)
    return word if found is None else word.strip().replace(found.mark, "").replace(",", ".")
