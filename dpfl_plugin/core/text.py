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


class Printed:
    """Shows in a notebook what ``print`` would."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"
