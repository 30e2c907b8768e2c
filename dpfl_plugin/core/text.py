"""Plain text for a terminal, and for a notebook."""

from __future__ import annotations

import html
import itertools
from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A table as text: the first row is the head; columns are as wide as their cells, and two spaces apart."""
    widths = [max(map(len, column)) for column in itertools.zip_longest(*rows, fillvalue="")]
    return "\n".join("  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=False)).rstrip() for row in rows)


def counted(count: int, what: str) -> str:
    """E.g. "1 round", "20 rounds"."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """ "42 s", "3 min 5 s" or "2 h 14 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class Printed:
    """Shows in a notebook what ``print`` would."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"
