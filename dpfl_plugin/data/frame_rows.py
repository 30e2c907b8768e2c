"""A data frame of pandas as the rows of words that a CSV file of it would have."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pandas

FRAME: Final = Path("the data frame")
"""What stands in messages for a file's path."""


def is_frame(given: object) -> bool:
    """Whether it is a data frame, as pandas has them."""
    return hasattr(given, "columns") and hasattr(given, "iloc")


class FrameRows:
    """A frame's rows, the header first; ``line_num``, as readers of CSV files have it, is the row that was last.

    Truth values are 1 and 0, but for those of ``named`` columns: there they are names.
    """

    def __init__(self, frame: pandas.DataFrame, named: Collection[str | None] = ()) -> None:
        self.line_num = -2  # after the header -1, after the first record 0
        self._header = [str(name) for name in frame.columns]
        columns = (frame.iloc[:, place] for place in range(frame.shape[1]))
        columns = (one.astype(int) if one.dtype == bool and one.name not in named else one for one in columns)
        self._rows = zip(*map(_words, columns), strict=True)

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        row = self._header if self.line_num == -2 else list(next(self._rows))
        self.line_num += 1
        return row


def _words(column: pandas.Series[Any]) -> list[str]:
    """Cells as text, from which a float is read back to the bit; missing ones are empty."""
    missing = column.isna().tolist()
    return ["" if gone else str(cell) for cell, gone in zip(column.tolist(), missing, strict=True)]
