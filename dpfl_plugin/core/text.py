"""Plain text for a terminal."""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A table as text: the first row is the head; columns are as wide as their cells, and two spaces apart."""
    widths = [max(map(len, column)) for column in itertools.zip_longest(*rows, fillvalue="")]
    return "\n".join("  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=False)).rstrip() for row in rows)
