"""Points in numbers that may be marks of thousands, where they are read as decimal points."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_THREE: Final = r"^[-+]?[1-9][0-9]{0,2}\.[0-9]{3}$"
_WITHOUT: Final = r"^[-+]?[1-9][0-9]{2}$"
_LONG: Final = r"^[-+]?[0-9]{4,}$"


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
