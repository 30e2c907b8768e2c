"""Columns that say which record it is, or whose: by their values, and by what they are called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.data.base import Features
from dpfl_plugin.data.flaws import LEAST_RECORDS
from dpfl_plugin.data.table import Table

LEAST_NAMED: Final = 10  # as few different values are categories, whatever they are called
LEAST_PERSONS: Final = 120  # different numbers: more than ages in years
MOST_RECORDS: Final = 4  # of a person, in the mean
SURELY: Final = 5  # equal pairs that would be expected of measurements: that there is none happens once in 150 columns
NAMES: Final = re.compile(
    r"(.*[^a-z])?(patient|person|subject|participant|proband|customer|member|client|case|pat|subj|mrn|pid|id)s?"
    r"([ _.-]?(id|nr|no|num|number|nummer|code|key))?",
    re.IGNORECASE,
)
KEEPS: Final = "which keeps a person's records together, and lets privacy.unit: person protect them all at once"


def identifiers(tables: Sequence[Table]) -> tuple[str, ...]:
    """Notes, which end without a full stop, on columns of whole numbers that say which record it is, or whose."""
    if not tables:
        return ()
    columns, features = tables[0].columns, [table.features for table in tables]
    named = "" if tables[0].persons is not None else f"name it as person_column (from_frame: person), {KEEPS}; or "
    told = [whose(name, f"If so, {named}leave it out: ignore_columns") for name in person_columns(columns, features)]
    found = identifier_columns(columns, features)
    if not found:
        return tuple(told)
    count = sum(map(len, features))
    which = f"columns {', '.join(map(repr, found))} have" if len(found) > 1 else f"column {found[0]!r} has"
    return (
        f"{which} another whole number in each of the {count} records, as identifiers have: the model would learn from "
        "them who it is. If so, name them in ignore_columns",
        *told,
    )


def identifier_columns(columns: Sequence[str], features: Sequence[Features]) -> list[str]:
    """The columns of ``features``, [n, columns] each, whose values are whole numbers and differ in every record."""
    count = sum(map(len, features))
    if count < LEAST_RECORDS:
        return []
    return [name for name, values in _whole(columns, features) if len(np.unique(values)) == count]


def are_identifiers(name: str, values: NDArray[Any]) -> bool:
    """Whether whole numbers [n], another in each record, are those of records and no measurements: the column's name
    says so; or they are so close together that measurements would recur, if they were spread evenly, and more so else.

    Numbers that are far apart, as incomes are, may be either.
    """
    if len(values) < LEAST_RECORDS:
        return False
    if NAMES.fullmatch(name):
        return True
    width = float(values.max()) - float(values.min()) + 1
    return len(values) * (len(values) - 1) / 2 >= SURELY * width


def person_columns(columns: Sequence[str], features: Sequence[Features]) -> list[str]:
    """The columns of whole numbers that are probably persons' (`are_persons`)."""
    return [name for name, values in _whole(columns, features) if are_persons(name, values)]


def record_columns(columns: Sequence[str], features: Sequence[Features]) -> list[str]:
    """Those of `identifier_columns` that are no measurements (`are_identifiers`)."""
    different = identifier_columns(columns, features)
    return [name for name, values in _whole(columns, features) if name in different and are_identifiers(name, values)]


def _whole(columns: Sequence[str], features: Sequence[Features]) -> list[tuple[str, Features]]:
    every = ((name, np.concatenate([x[:, j] for x in features])) for j, name in enumerate(columns))
    return [(name, values) for name, values in every if (values == np.floor(values)).all()]


def are_persons(name: str, values: NDArray[Any]) -> bool:
    """Whether values [n], in the order of the records, are probably numbers or codes of persons, some of whom have
    several records: the column's name says so; or they are very many, and equal ones are next to each other, or no
    whole number between the first and the last is left out."""
    each = np.unique(values)
    if not LEAST_NAMED < len(each) < len(values):
        return False
    if NAMES.fullmatch(name):
        return True
    if len(each) <= LEAST_PERSONS or len(values) >= MOST_RECORDS * len(each):
        return False
    runs = 1 + np.count_nonzero(values[1:] != values[:-1])
    return bool(runs == len(each) or (each.dtype.kind in "fi" and each[-1] - each[0] == len(each) - 1))


def whose(name: str, mend: str) -> str:
    """A note on a column that `are_persons`."""
    return f"column {name!r} looks like whose record it is: its values recur. {mend}"
