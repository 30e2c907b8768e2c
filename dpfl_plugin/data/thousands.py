"""Numbers with marks of thousands: 57,435 may be one, or a decimal of three digits."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

_GROUPED: Final = re.compile(
    r"[-+]?[1-9]\d{0,2}(?P<mark>[,.'’ \u00a0\u202f])\d{3}(?P<more>(?:(?P=mark)\d{3})*)(?P<rest>[,.]\d+)?"
)
_THREE: Final = re.compile(r"[-+]?[1-9]\d{0,2}\.\d{3}")
_ALONE: Final = re.compile(r"[-+]?[1-9]\d{2}")
_LONG: Final = re.compile(r"[-+]?\d{4,}")
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


class Points:
    """Whether the points of a column may be marks of thousands, as by 8.534 beside 385: a decimal of three digits in
    each cell with a point, where a number of three digits has none."""

    def __init__(self) -> None:
        self.shown: str | None = None
        self.beside: str | None = None
        self.are_decimals = False

    def add(self, words: Iterable[str]) -> None:
        """More of its cells."""
        for word in words:
            if self.are_decimals:
                break
            if _THREE.fullmatch(word):
                self.shown = self.shown or word
            elif _ALONE.fullmatch(word):
                self.beside = self.beside or word
            else:
                self.are_decimals = "." in word or _LONG.fullmatch(word) is not None

    @property
    def told(self) -> str | None:
        """What to say of them; None where they are decimals."""
        if self.are_decimals or self.shown is None or self.beside is None:
            return None
        return (
            f"{self.shown!r} beside {self.beside!r} is read as {float(self.shown):g}: if its points are marks of "
            "thousands, write the numbers without them"
        )
