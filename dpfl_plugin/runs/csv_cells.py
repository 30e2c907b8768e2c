"""Tables as CSV that a spreadsheet may open: no cell of them is computed."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any


def csv_text(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as CSV with a header: the keys of all rows; None is an empty cell."""
    text = io.StringIO()
    columns = dict.fromkeys(key for row in rows for key in row)
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writerow({column: no_formula(column) for column in columns})
    writer.writerows({key: no_formula(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def no_formula(cell: Any) -> Any:
    """A cell that a spreadsheet does not compute: text that begins as a formula gets a ' before it; numbers stay."""
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell
