"""Numbers with marks of thousands: 57,435 may be one, or a decimal of three digits. Read where a schema says so."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple, cast

_GROUPED: Final = re.compile(
    r"[-+]?[1-9]\d{0,2}(?P<mark>[,.'’ \u00a0\u2009\u202f])\d{3}(?P<more>(?:(?P=mark)\d{3})*)(?P<rest>[,.]\d+)?"
)
_THREE: Final = re.compile(r"[-+]?[1-9]\d{0,2}\.\d{3}")
_ALONE: Final = re.compile(r"[-+]?[1-9]\d{2}")
_LONG: Final = re.compile(r"[-+]?\d{4,}")
Mark = Literal[",", ".", "'", " "]
"""As a schema names them; a blank stands for those that do not break a line, too."""
_SAME: Final = {"’": "'", "\u00a0": " ", "\u2009": " ", "\u202f": " "}


class Grouped(NamedTuple):
    """How a word may have marks of thousands: which; and whether it can be nothing else, as 1,234,567 and 1,234.5."""

    mark: Mark
    sure: bool


def grouped(word: str) -> Grouped | None:
    """None of a word that has no marks of thousands; 0,534 and 12,5 have none."""
    match = _GROUPED.fullmatch(word.strip())
    if match is None or (match["rest"] or "")[:1] == match["mark"]:
        return None
    mark = cast(Mark, _SAME.get(match["mark"], match["mark"]))
    return Grouped(mark, bool(match["more"] or match["rest"]) or mark not in ",.")


def has_mark(word: str, mark: Mark) -> bool:
    """Whether it is somewhere in a word, before three digits or not."""
    return any(_SAME.get(letter, letter) == mark for letter in word)


def decimal_beside(mark: Mark) -> str | None:
    """The decimal mark of numbers with this mark of thousands; None for that of the file."""
    return {".": ",", ",": "."}.get(mark)


def without_marks(word: str) -> str:
    """The number that a word is if its marks are those of thousands."""
    number = grouped(word)
    return word if number is None else ungrouped(word.strip(), number.mark).replace(",", ".")


def ungrouped(word: str, mark: Mark) -> str:
    """A word without any of these marks."""
    return "".join(letter for letter in word if _SAME.get(letter, letter) != mark)


_BESIDE: Final = re.compile(
    r"[(<>≤≥~]?\s*[-+−]?\s*[€$£¥₹]?\s*[-+−]?\d[\d.,'’_ \u00a0\u2009\u202f]*"
    r"(?P<unit>[^\W\d_]{0,4}(/[^\W\d_]{1,3})?|[%‰€$£¥₹])\s*\)?-?"
)


def unit_of(word: str) -> str | None:
    """What is behind a number that is written with something beside it ("" for nothing): €33932, (71), 33 kg, 34_932,
    43,29,348. None of other words."""
    match = _BESIDE.fullmatch(word.strip())
    return None if match is None else str(match["unit"])


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
    def message(self) -> str | None:
        """What to say of them; None where they are decimals."""
        if self.are_decimals or self.shown is None or self.beside is None:
            return None
        return (
            f"{self.shown!r} beside {self.beside!r} is read as {float(self.shown):g}: if its points are marks of "
            "thousands, write the numbers without them"
        )
