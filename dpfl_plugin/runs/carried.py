"""A column of new records that predictions carry, such as patients' numbers; the model does not see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dpfl_plugin.data import tables
from dpfl_plugin.data.frame_rows import FRAME, FrameRows, is_frame
from dpfl_plugin.data.table import Columns
from dpfl_plugin.errors import ConfigError, nearest

OWN: Final = ("line", "record", "predicted", "probabilities", "survival")
"""What predictions have by themselves."""


def carried(data: Any, name: str, columns: Columns, options: Mapping[str, Any]) -> list[str]:
    """The cells [n] of the column ``name``, as text, "" where one is empty; of records that were read already.

    Args:
        data: the path of a table, or a data frame. columns: how tables without a schema are read. options: of the data
            set, for those with one.

    Raises:
        ConfigError: there is no such column, or predictions have one of this name themselves.
    """
    if name in OWN:
        raise ConfigError(f"predictions have a column {name!r} of their own: rename that of the records, to have both.")
    if is_frame(data):
        rows = FrameRows(data, (name,))
        header = [cell.strip() for cell in next(rows)]
        return [row[_place(name, header, str(FRAME))].strip() for row in rows]
    if "schema" in options:
        header, cells = tables.words(Path(data), name, options)
    else:
        header, cells = columns.words(Path(data), name)
    _place(name, header, str(data))
    return cells


def _place(name: str, header: Sequence[str], where: str) -> int:
    if name not in header:
        raise ConfigError(
            f"{where} has no column {name!r}{nearest(name, header)}, which predictions are to carry. Columns: "
            f"{', '.join(header[:30])}."
        )
    return header.index(name)


def doubts(name: str, cells: Sequence[str]) -> list[str]:
    """Notes where the column does not tell the records apart."""
    filled = [cell for cell in cells if cell]
    empty = len(cells) - len(filled)
    told = [f"column {name!r}: {empty} of {len(cells)} cells are empty."] if empty else []
    if len(set(filled)) < len(filled):
        told.append(f"column {name!r} has the same value in several records: tell them apart by the line.")
    return told
