"""What sites' tables hold, compared with each other and with the schema, by whoever has the files; at a site, its own.

Nothing here is private: it is for the eyes of those who hold the records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.data.cells import written_otherwise
from dpfl_plugin.data.column_profile import ColumnProfile, Sites, read_columns, site_list, sites_of
from dpfl_plugin.data.draft_marks import without_thousands
from dpfl_plugin.data.error_collector import SHOWN
from dpfl_plugin.data.isolated_values import isolated
from dpfl_plugin.data.reading import MANY_OUTSIDE
from dpfl_plugin.data.schema import WHERE, Column, Label, TableSchema
from dpfl_plugin.data.site_dates import are_dates, forms_of, written
from dpfl_plugin.data.table_reader import TableReader, TextFormat, open_table

LEAST: Final = 10  # cells of a site that are compared
NEARLY: Final = 0.2  # of a site's cells: as few are nearly none, and all but as few nearly all
TIMES: Final = 1.8  # as much in the median, where the middles are apart: kg and lb are 2.2
FACTOR: Final = 9  # times the median elsewhere, where middles overlap: centres of one study differ up to 7 times
RECORDS: Final = 20  # of a site whose median is compared with the others' so
BY_CHANCE: Final = 0.01  # pairs of equal rows that would be expected of independent columns
NUMBERS: Final = frozenset(("number", "integer"))
LISTED: Final = frozenset(("category", "ordinal"))


class Comparison(NamedTuple):
    """One thing that sites may state of a column.

    Attributes:
        types: of columns that are compared. facts: of each site, None of one that has too little. stated: by the
            schema. differ: whether two facts do; shown: facts of sites that do not differ. fix: what to do.
    """

    types: frozenset[str]
    facts: Callable[[ColumnProfile, Column, Sites], list[Any]]
    stated: Callable[[Column], Any]
    differ: Callable[[Any, Any], bool]
    shown: Callable[[Sequence[Any]], str]
    fix: str


def _filled(column: ColumnProfile, _: Column, sites: Sites) -> list[Any]:
    """Whether a site has nearly all values, or nearly none; None where it has some."""
    values = np.bincount(column.values(sites)[1], minlength=len(sites.names))
    counts = np.bincount(sites.of_record, minlength=len(sites.names))
    pairs = [(value / max(1, count), count >= LEAST) for value, count in zip(values, counts, strict=True)]
    return [None if not enough or NEARLY < share < 1 - NEARLY else share > 0.5 for share, enough in pairs]


def _middles(column: ColumnProfile, _: Column, sites: Sites) -> list[Any]:
    """(10 %, 50 %, 90 %) of its numbers, and the `_scales` of the site."""
    values, rows = column.numbers()
    where = sites.of_record[rows]
    order = np.argsort(where, kind="stable")
    parts = np.split(values[order], np.cumsum(np.bincount(where, minlength=len(sites.names)))[:-1])
    return [
        (*np.quantile(part, (0.1, 0.5, 0.9)).tolist(), scale) if len(part) >= LEAST else None
        for part, scale in zip(parts, _scales(parts), strict=True)
    ]


def _scales(parts: Sequence[NDArray[np.float64]]) -> list[int]:
    """1 for a site whose positive numbers are far larger than the other sites', -1 for far smaller ones, else 0."""
    compared = [site for site, part in enumerate(parts) if len(part) >= RECORDS]
    medians = np.array([np.median(parts[site]) for site in compared])
    scales = [0] * len(parts)
    if len(compared) > 1 and medians.min() > 0 and all(part.min() >= 0 for part in parts if len(part)):
        logs = np.log(medians)
        for place, site in enumerate(compared):
            difference = logs[place] - np.median(np.delete(logs, place))
            scales[site] = int(np.sign(difference)) if abs(difference) > np.log(FACTOR) else 0
    return scales


def _are_apart(first: Sequence[float], second: Sequence[float]) -> bool:
    (low, middle, _, scale), (_, other_middle, other_high, other_scale) = sorted(
        (first, second), key=lambda fact: fact[1], reverse=True
    )
    return scale != other_scale or (low > other_high and abs(middle) > TIMES * abs(other_middle))


def _words(column: ColumnProfile, stated: Column, sites: Sites) -> list[Any]:
    """Those that are listed, as they are listed there."""
    listed = {written_otherwise(word): word for word in stated.listed} | {word: word for word in stated.listed}
    return [
        frozenset(listed.get(word, word) for word in counts) if sum(counts.values()) >= LEAST else None
        for counts in column.by_site(sites)
    ]


def _are_other_words(first: frozenset[str], second: frozenset[str]) -> bool:
    """Whether they share none, or are two each and not the same, as 0, 1 and 1, 2."""
    return (not first & second and max(len(first), len(second)) > 1) or (
        len(first) == len(second) == 2 and first != second
    )


def _forms(column: ColumnProfile, _: Column, sites: Sites) -> list[Any]:
    return [forms_of(counts) or None for counts in column.by_site(sites)] if are_dates(column) else []


COMPARISONS: Final = {
    "values at all": Comparison(
        NUMBERS | LISTED | {"date"},
        _filled,
        lambda _: None,
        lambda one, other: one != other,
        lambda facts: "nearly all filled" if facts[0] else "nearly all empty",
        "add the values, or leave the column out: that it is empty tells the site",
    ),
    "unit": Comparison(
        NUMBERS,
        _middles,
        lambda column: (column.bounds[0], sum(column.bounds) / 2, column.bounds[1], 0),
        _are_apart,
        lambda facts: f"mostly {min(fact[0] for fact in facts):.4g} to {max(fact[2] for fact in facts):.4g}",
        "are these different units? Convert the numbers of one of the sites",
    ),
    "categories": Comparison(
        LISTED,
        _words,
        lambda column: frozenset(column.listed),
        _are_other_words,
        lambda facts: ", ".join(map(repr, sorted(frozenset().union(*facts))[: 2 * SHOWN])),
        "if they mean the same, write them alike in the files",
    ),
    "dates": Comparison(
        LISTED | {"date", "ignored"},
        _forms,
        lambda column: frozenset([column.format]) if column.type == "date" else None,
        lambda one, other: one != other,
        lambda facts: f"dates as {written(facts[0])}",
        "write all dates alike, as 2020-01-31; where either number may be the day, check which it is",
    ),
}
"""What is compared of each column."""


def compare_files(paths: Sequence[Path], schema: TableSchema, form: TextFormat) -> tuple[str, ...]:
    """Notes on tables that are right by their schema, which end without a full stop; one file is held to the schema."""
    tables = [open_table(path, form, list(schema.used)) for path in paths]
    return compare(tables, [str(path) for path in paths], schema)


def compare(tables: Sequence[TableReader], names: Sequence[str], schema: TableSchema) -> tuple[str, ...]:
    """As `compare_files`, of open tables."""
    stated = schema.columns | _labels(schema.label)
    stated = {name: column for name, column in stated.items() if all(name in table.header for table in tables)}
    roles = [name for name in (schema.silo, schema.person) if name is not None]
    kept = [name for name, column in stated.items() if column.type != "identifier" and name not in roles]
    profiles = {
        name: ColumnProfile(
            name, nothing=[*schema.missing_values, *(stated[name].missing_values if name in kept else ())]
        )
        for name in dict.fromkeys((*kept, *roles, *schema.label.named))
    }
    sites = sites_of(tables, names, read_columns(tables, names, profiles), schema.silo)
    notes = []
    for name in kept:
        if profiles[name].unread:
            continue
        column = profiles[name] if (mark := stated[name].thousands) is None else without_thousands(profiles[name], mark)
        key = f"columns.{name}" if name in schema.columns else "label"
        notes += _compared(column, stated[name], sites) + _outside(column, stated[name], sites, key)
        notes += _isolated(column, stated[name], sites, key)
    return (
        *notes,
        *_copies(
            [profile for profile in profiles.values() if profile.name != schema.silo and not profile.unread], sites
        ),
    )


def _labels(label: Label) -> dict[str, Column]:
    """What is predicted, as columns."""
    if label.outcome in ("classes", "ordinal"):
        return {str(label.column): Column(type="category", values=[cell for cells in label.cells for cell in cells])}
    name = label.time or label.column
    return {} if name is None or label.range is None else {name: Column(type="number", range=label.range)}


def _compared(column: ColumnProfile, stated: Column, sites: Sites) -> list[str]:
    """Sites whose facts differ, those that do not together; or those that differ from what the schema states."""
    notes = []
    for comparison in COMPARISONS.values():
        if stated.type not in comparison.types:
            continue
        facts = {site: fact for site, fact in enumerate(comparison.facts(column, stated, sites)) if fact is not None}
        groups = _groups(facts, comparison.differ)
        shown = [(site_list(sites, group), [facts[site] for site in group]) for group in groups]
        by_schema = comparison.stated(stated)
        if (
            len(groups) == 1
            and by_schema is not None
            and all(comparison.differ(by_schema, fact) for _, known in shown for fact in known)
        ):
            shown.append(("the schema", [by_schema]))
        if len(shown) > 1:
            each = "; ".join(f"{who}: {comparison.shown(known)}" for who, known in shown)
            notes.append(f"column {column.name!r} differs: {each}. {comparison.fix[0].upper()}{comparison.fix[1:]}")
    return notes


def _groups(facts: Mapping[int, Any], differ: Callable[[Any, Any], bool]) -> list[list[int]]:
    """Sites, together with all whose facts do not differ from those of one of them."""
    left, groups = list(facts), []
    while left:
        group = [left.pop(0)]
        for site in group:  # which grows meanwhile
            near = [other for other in left if not differ(facts[site], facts[other])]
            group += near
            left = [other for other in left if other not in near]
        groups.append(sorted(group))
    return groups


def _outside(column: ColumnProfile, stated: Column, sites: Sites, key: str) -> list[str]:
    """Sites many of whose numbers are outside the range, where other sites' are not."""
    if stated.type not in NUMBERS:
        return []
    (low, high), (values, rows) = stated.bounds, column.numbers()
    where = sites.of_record[rows]
    counts = np.bincount(where, minlength=len(sites.names))
    outside = np.bincount(where[(values < low) | (values > high)], minlength=len(sites.names))
    many = (counts >= LEAST) & (outside > MANY_OUTSIDE * counts)
    if not many.any() or many.all():
        return []
    share, rest = outside[many].sum() / counts[many].sum(), outside[~many].sum() / max(1, counts[~many].sum())
    return [
        f"column {column.name!r}: {share:.0%} of the cells of {site_list(sites, np.flatnonzero(many).tolist())} are "
        f"outside {WHERE}.{key}.range, and {rest:.0%} elsewhere. Is this another unit? Convert the numbers"
    ]


def _isolated(column: ColumnProfile, stated: Column, sites: Sites, key: str) -> list[str]:
    """Numbers that are far from all others."""
    if stated.type not in NUMBERS:
        return []
    values, rows = column.numbers()
    different, counts = np.unique(values, return_counts=True)
    far = [number for numbers in isolated(different, counts) for number in numbers]
    if not far:
        return []
    rest = different[~np.isin(different, far)]
    where = "; ".join(column.at(rows[np.isin(values, far)], sites))
    shown, verb = ", ".join(f"{number:g}" for number in far), "is" if len(far) == 1 else "are"
    fix = "leave the record out" if key == "label" else f"list it in {WHERE}.{key}.missing_values"
    return [
        f"column {column.name!r}: {shown} {verb} far from all other numbers, {rest[0]:g} to {rest[-1]:g} ({where}). "
        f"Correct it, or, if it stands for no value, {fix}"
    ]


def _copies(columns: Sequence[ColumnProfile], sites: Sites) -> list[str]:
    """Rows that are the same in all columns, where so many columns would not be so by chance."""
    if not columns or (size := len(columns[0].cells)) < 2:
        return []
    rows, chance = np.zeros(size, np.uint64), size * (size - 1) / 2
    for column in columns:
        places = column.cells.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False) + 1
        often = np.bincount(places).astype(float)
        chance *= float((often * (often - 1)).sum() / (size * (size - 1)))
        rows = (rows ^ places.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        rows ^= rows >> np.uint64(32)
    _, first, which = np.unique(rows, return_index=True, return_inverse=True)
    copies = np.flatnonzero(first[which] != np.arange(size))
    if chance > BY_CHANCE or not len(copies):
        return []
    at = columns[0].line
    pairs = "; ".join(f"{at(row, sites)} is {at(int(first[which[row]]), sites)}" for row in copies[:SHOWN].tolist())
    several = "1 row is a copy" if len(copies) == 1 else f"{len(copies)} rows are copies"
    more = "; ..." if len(copies) > SHOWN else ""
    return [
        f"{several} of another in all columns ({pairs}{more}). Remove what is there twice, or name the column that "
        "says whose record it is: epsilon protects a record, not a person who has two"
    ]
