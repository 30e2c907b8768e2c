"""Numbers with marks of thousands: 57,435 may be one, or a decimal of three digits."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

_GROUPED: Final = re.compile(
    r"[-+]?[1-9]\d{0,2}(?P<mark>[,.'’ \u00a0\u202f])\d{3}(?P<more>(?:(?P=mark)\d{3})*)(?P<rest>[,.]\d+)?"
)
_LIKE: Final = r"^[-+]?[1-9][0-9]{0,2}[,.'’ \x{a0}\x{202f}][0-9]{3}"
_THREE: Final = r"^[-+]?[1-9][0-9]{0,2}\.[0-9]{3}$"
_WITHOUT: Final = r"^[-+]?[1-9][0-9]{2}$"
_LONG: Final = r"^[-+]?[0-9]{4,}$"
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


def any_grouped(words: pa.Array) -> bool:
    """Whether one of the words begins as one with marks of thousands does."""
    return bool(pc.any(pc.match_substring_regex(words, _LIKE)).as_py())


class Points:
    """Whether the points of a column may be marks of thousands, as by 8.534 beside 385: a decimal of three digits in
    each cell with a point, where a number of three digits has none."""

    def __init__(self) -> None:
        self.shown: str | None = None
        self.beside: str | None = None
        self._others = False

    def add(self, text: pa.Array) -> None:
        """More of its cells, null where there is no value."""
        if self._others or not (dotted := _count(pc.match_substring(text, "."))):
            return
        three = pc.match_substring_regex(text, _THREE).fill_null(False)
        if _count(three) < dotted or _count(pc.match_substring_regex(text, _LONG)):
            self._others = True
            return
        self.shown = self.shown or text.filter(three)[0].as_py()
        alone = text.filter(pc.match_substring_regex(text, _WITHOUT).fill_null(False))
        self.beside = self.beside or (alone[0].as_py() if len(alone) else None)

    @property
    def told(self) -> str | None:
        """What to say of them; None where they are decimals."""
        if self._others or self.shown is None or self.beside is None:
            return None
        return (
            f"{self.shown!r} beside {self.beside!r} is read as {float(self.shown):g}: if its points are marks of "
            "thousands, write the numbers without them"
        )


def _count(mask: pa.Array) -> int:
    return pc.sum(mask).as_py() or 0
