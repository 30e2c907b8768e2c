"""Dates of drafted tables that may be read in two ways: 07/01/2015 is 7 January or July 1."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import pyarrow.compute as pc

from dpfl_plugin.data.draft_marks import NOT_USED
from dpfl_plugin.data.schema import Column
from dpfl_plugin.data.seen import Seen, is_date, nearly_all

DAY_FIRST: Final = "%d/%m/%Y"
MONTH_FIRST: Final = "%m/%d/%Y"


def in_doubt(columns: Mapping[str, Seen], known: Collection[str]) -> dict[str, str]:
    """{column: why no date is read from it}, where all dates of a column have a day that may be a month.

    Args:
        known: columns of which more is known already.
    """
    found = {}
    for name, column in columns.items():
        if name in known or column.is_time or not pc.any(pc.match_substring(column.texts, "/")).as_py():
            continue
        by_day, by_month = (nearly_all(column.texts, is_date(form)) for form in (DAY_FIRST, MONTH_FIRST))
        if by_day is None or by_month is None or by_day.fit != by_month.fit:
            continue
        if shown := next((word for word in by_day.fit if _days(word, DAY_FIRST) != _days(word, MONTH_FIRST)), None):
            found[name] = (
                f"{name} {NOT_USED}: in {shown!r} either number may be the day. Write {{type: date, range: [first, "
                f"last], format: '{DAY_FIRST}'}}, or format: '{MONTH_FIRST}'."
            )
    return found


def _days(word: str, form: str) -> float:
    return Column(type="date", range=("1900-01-01", "2100-01-01"), format=form).days(word)
