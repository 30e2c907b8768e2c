"""Columns that say which record it is, or whose: by their values within each site, and by what they are called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.data.base import Features, Integers
from dpfl_plugin.data.error_collector import LEAST_RECORDS
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
    columns, features = tables[0].columns, np.concatenate([table.features for table in tables])
    sites = np.repeat(np.arange(len(tables)), [len(table.features) for table in tables])
    named = "" if tables[0].persons is not None else f"name it as person_column (from_frame: person), {KEEPS}; or "
    notes = [
        whose(name, f"If so, {named}leave it out: ignore_columns") for name in person_columns(columns, features, sites)
    ]
    names = identifier_columns(columns, features, sites)
    if not names:
        return tuple(notes)
    which = f"columns {', '.join(map(repr, names))} have" if len(names) > 1 else f"column {names[0]!r} has"
    where = f"each of the {len(sites)} records{' of its file' if len(tables) > 1 else ''}"
    return (
        f"{which} another whole number in {where}, as identifiers have: the model would learn from them who it is. If "
        "so, name them in ignore_columns",
        *notes,
    )


def identifier_columns(columns: Sequence[str], features: Features, sites: Integers) -> list[str]:
    """The columns of ``features`` [n, columns] whose values are whole numbers and differ in every record of a site."""
    return [name for name, values in _whole(columns, features) if are_different(values, sites)]


def person_columns(columns: Sequence[str], features: Features, sites: Integers) -> list[str]:
    """The columns of whole numbers that are probably persons' (`are_persons`)."""
    return [name for name, values in _whole(columns, features) if are_persons(name, values, sites)]


def record_columns(columns: Sequence[str], features: Features, sites: Integers) -> list[str]:
    """Those of `identifier_columns` that are no measurements (`are_identifiers`)."""
    return [name for name, values in _whole(columns, features) if are_identifiers(name, values, sites)]


def _whole(columns: Sequence[str], features: Features) -> list[tuple[str, Features]]:
    every = ((name, features[:, place]) for place, name in enumerate(columns))
    return [(name, values) for name, values in every if (values == np.floor(values)).all()]


def are_different(values: NDArray[Any], sites: Integers) -> bool:
    """Whether values [n], of enough records, differ in every record of a site, as values that are at several sites
    would not by chance."""
    if len(values) < LEAST_RECORDS or len(_by_site(values, sites)[0]) < len(values):
        return False
    shares = np.unique(values, return_counts=True)[1] / len(values)
    return bool(_pairs(sites) * (shares**2).sum() >= SURELY)


def _pairs(sites: Integers) -> float:
    """How many pairs of records are at one site."""
    sizes = np.bincount(sites).astype(float)
    return float((sizes * (sizes - 1)).sum() / 2)


def are_identifiers(name: str, values: NDArray[Any], sites: Integers) -> bool:
    """Whether whole numbers [n], another in each record of a site, are those of records and no measurements: the
    column's name says so; or they are so close together that measurements would recur, if they were spread evenly, and
    more so else.

    Numbers that are far apart, as incomes are, may be either.
    """
    if not are_different(values, sites):
        return False
    if NAMES.fullmatch(name):
        return True
    return _pairs(sites) >= SURELY * (float(values.max()) - float(values.min()) + 1)


def are_persons(name: str, values: NDArray[Any], sites: Integers, *, numeric: bool = True) -> bool:
    """Whether values [n], in the order of the records, are probably numbers or codes of persons, some of whom have
    several records: the column's name says so; or they are very many, and within each site equal ones are next to each
    other, or no whole number between the first and the last is left out."""
    site, each = _by_site(values, sites)
    different, num_sites = len(np.unique(each)), len(np.unique(site))
    if not (different > LEAST_NAMED and len(each) < len(values)):
        return False
    if NAMES.fullmatch(name):
        return True
    if len(each) <= LEAST_PERSONS or len(values) >= MOST_RECORDS * len(each):
        return False
    order = np.argsort(sites, kind="stable")
    runs = 1 + np.count_nonzero((np.diff(values[order]) != 0) | (np.diff(sites[order]) != 0))
    first = np.flatnonzero(np.diff(site, prepend=-1))
    widths = np.maximum.reduceat(each, first) - np.minimum.reduceat(each, first) + 1
    return bool(
        (runs == len(each) and different > LEAST_PERSONS)
        or (numeric and widths.sum() == len(each) and len(each) > LEAST_NAMED * num_sites)
    )


def _by_site(values: NDArray[Any], sites: Integers) -> tuple[Integers, NDArray[Any]]:
    """(site, value) of the different values of each site, in order."""
    different, place = np.unique(values, return_inverse=True)
    pairs = np.unique(sites.astype(np.int64) * len(different) + place)
    return pairs // len(different), different[pairs % len(different)]


def whose(name: str, fix: str) -> str:
    """A note on a column that `are_persons`."""
    return f"column {name!r} looks like whose record it is: its values recur. {fix}"
