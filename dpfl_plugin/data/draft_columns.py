"""What a column of a drafted schema is, by its words at each site, and what to look at."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from dpfl_plugin.data.cells import censored_number
from dpfl_plugin.data.column_profile import (
    ColumnProfile,
    Counts,
    Sites,
    Sorted,
    best,
    is_date,
    is_number,
    marks,
    nearly_all,
    numbers_of,
    outwards,
)
from dpfl_plugin.data.draft_marks import Marks
from dpfl_plugin.data.error_collector import SHOWN
from dpfl_plugin.data.identifiers import KEEPS, are_different, are_identifiers, are_persons, whose
from dpfl_plugin.data.isolated_values import isolated
from dpfl_plugin.data.names import column_list
from dpfl_plugin.data.schema import Column
from dpfl_plugin.data.site_dates import DATES, SERIALS
from dpfl_plugin.data.thousands import unit_of

MOST_LEVELS: Final = 10  # whole numbers of which so few are different are a category
MOST_VALUES: Final = 50  # of a category
LEAST_SHARED: Final = 4  # records with the same word, in the mean, of a category with more than MOST_LEVELS
LONG: Final = 1e11  # of 12 digits: no measurement
KINDS: Final = (is_number, *map(is_date, DATES))
TIME: Final = re.compile(r"survival|follow[ _-]?up|duration|(?<![a-z])(time|days|weeks|months)(?![a-z])", re.IGNORECASE)
EVENT: Final = re.compile("event|status|death|dead|died|censor", re.IGNORECASE)
DAY: Final = re.compile(r"(.*[^a-z])?(date|day|dob|born|birth|admi|discharge|visit|death|seen)", re.IGNORECASE)
OR_MISSING: Final = (
    "Correct the file, widen the range, or, where it is no value, list it in missing_values, with missing: indicator."
)
_CODE: Final = re.compile(r"[-+]?0\d")
_PERSON: Final = " If one of them says whose record it is, name it as the person."

SAME, UNIQUE, PERSON, NUMBER_LIKE = "same", "unique", "person", "number_like"
REASONS: Final = {
    # why a column is not used: what is said of it
    SAME: "every record has the same value, or none.",
    UNIQUE: "every value is unique within its site, so it looks like an identifier.",
    "long": f"whole numbers of 12 digits or more are identifiers or times, no measurements.{_PERSON}",
    "shared": f"few records share a word, as with numbers of patients.{_PERSON}",
    "many": f"more than {MOST_VALUES} different words.",
}


class Drafted(NamedTuple):
    """A column of a schema; why it is not used (a key of `REASONS`), and what to look at; is_code: its numbers are
    spelt as codes."""

    entry: dict[str, Any]
    why: str = ""
    notes: tuple[str, ...] = ()
    is_code: bool = False


def draft_column(column: ColumnProfile, sites: Sites, written: Marks, person: str | None) -> Drafted:
    """``person``: the column that says whose record it is, if it was named."""
    counts = column.counts
    if len(counts) < 2:
        return Drafted({"type": "ignored"}, SAME)
    lacking = sum(counts.values()) < column.count
    if column.is_time:
        return Drafted(_date(list(counts), None) | _missing(lacking, ()))
    found = best(counts, KINDS)
    drafted = None
    if found is not None and found[0]:
        drafted = _dates(column, sites, DATES[found[0] - 1], found[1], lacking=lacking)
    elif found is not None:
        drafted = _numbers(column, sites, found[1], written, person, lacking=lacking)
    return drafted or _words(column, sites, person, lacking=lacking)


def _dates(column: ColumnProfile, sites: Sites, form: str | None, found: Sorted, *, lacking: bool) -> Drafted | None:
    if len(found.fit) < 2:
        return None
    entry = _date(found.fit, form) | _missing(lacking, found.nothing)
    what = f"{'a date' if found.num_strays == 1 else 'dates'} as {form or '2020-01-31'}"
    return Drafted(
        entry, notes=(*_missing_notes(column.name, found.nothing), *_stray_notes(column, found, what, sites))
    )


def _numbers(
    column: ColumnProfile, sites: Sites, found: Sorted, written: Marks, person: str | None, *, lacking: bool
) -> Drafted | None:
    """Of a column nearly all of whose words are numbers; None where all of its words are better listed."""
    name, fit = column.name, found.fit
    every = numbers_of(fit)
    assert every is not None
    numbers = dict(zip(fit, every.tolist(), strict=True))
    limits = [word for word in fit if censored_number(word) is not None]
    values, where = column.values(sites, numbers)
    different, often = np.unique(values, return_counts=True)
    if len(different) < 2 or len(limits) == len(fit):
        return None
    if _are_codes(column, numbers, sites):
        return _words(column, sites, person, lacking=lacking, is_code=True)
    whole = bool((different == np.floor(different)).all())
    if whole and not limits:
        if np.abs(different).max() >= LONG:
            return Drafted({"type": "ignored"}, "long")
        if are_identifiers(name, values, where):
            return Drafted({"type": "identifier"}, UNIQUE)
        if are_persons(name, values, where):
            return _person(name, person)
    mark = written.thousands.get(name)
    few = mark is None and whole and len(different) <= MOST_LEVELS
    if few and (found.strays or found.recurring or limits):
        return None
    codes, slips = ([], []) if few else isolated(different, often)
    rest = different[~np.isin(different, [*codes, *slips])]
    whole = bool((rest == np.floor(rest)).all())
    nothing = [*found.nothing, *(word for word in fit if numbers[word] in codes)]
    notes = [
        *_missing_notes(name, nothing),
        *slip_notes(column, [word for word in fit if numbers[word] in slips], rest, sites, OR_MISSING),
        *_stray_notes(column, found, "a number" if found.num_strays == 1 else "numbers", sites),
    ]
    if few or (mark is None and whole and len(rest) <= MOST_LEVELS and not (slips or limits or found.strays)):
        words = spelt({word: number for word, number in numbers.items() if word not in nothing})
        if not {word.removesuffix(".0") for word in numbers if word not in nothing} <= set(words):
            return _words(column, sites, person, lacking=lacking, is_code=True)
        return Drafted(_category(words) | _missing(lacking, nothing, "category"), notes=tuple(notes))
    entry: dict[str, Any] = {"type": "integer" if whole else "number", "range": list(outwards(rest))}
    entry |= _missing(lacking, nothing) | ({} if mark is None else {"thousands": mark})
    notes += _mark_notes(column, written.decimal)
    if limits:
        cells = sum(column.counts[word] for word in limits)
        notes.append(
            f"{name}: {cells} cells, such as {limits[0]!r}, are below or above a limit: each is read as that limit."
        )
    if whole and are_different(values, where):
        notes.append(
            f"another whole number in every record: {column_list([name])}. Of a column that says which record it is, "
            "and measures nothing, write type: identifier."
        )
    if whole and DAY.match(name) and SERIALS[0] <= rest[0] and rest[-1] <= SERIALS[1]:
        notes.append(
            f"{name}: whole numbers from {rest[0]:g} to {rest[-1]:g} may be days as spreadsheets count them. If so, "
            "write dates in the files."
        )
    return Drafted(entry, notes=tuple(notes))


def _words(column: ColumnProfile, sites: Sites, person: str | None, *, lacking: bool, is_code: bool = False) -> Drafted:
    counts, name = column.counts, column.name
    values, where = column.values(sites)
    why = "many" if len(counts) > MOST_VALUES else ""
    if MOST_LEVELS < len(counts) <= MOST_VALUES and len(values) < LEAST_SHARED * len(counts):
        why = "shared"
    if are_different(values, where):
        why = UNIQUE
    if why and not is_code and (shown := _number_and_more(counts)) is not None:
        notes = (
            f"not used: {column_list([name])}: its cells, such as {shown!r}, are no plain numbers. If they are meant "
            "as numbers, write digits, a sign and a decimal mark alone.",
        )
        return Drafted({"type": "ignored"}, NUMBER_LIKE, notes)
    if why != UNIQUE and are_persons(name, values, where, numeric=False):
        return _person(name, person)
    if why:
        return Drafted({"type": "identifier" if why == UNIQUE else "ignored"}, why, is_code=is_code)
    words = sorted(counts)
    if len(words) > 2 and not any(map(is_number, words)):  # numbers keep their order
        words.remove(reference := max(words, key=counts.__getitem__))  # with which coefficients compare
        words.insert(0, reference)
    entry = _category(words) | _missing(lacking, (), "category")
    return Drafted(entry, notes=alike(name, entry["values"]), is_code=is_code)


def _person(name: str, person: str | None) -> Drafted:
    name_it = "" if person is not None else f"If so, name it as the person (person={name!r}), {KEEPS}. "
    return Drafted({"type": "ignored"}, PERSON, (whose(name, f"{name_it}It is not used."),))


def _are_codes(column: ColumnProfile, numbers: Mapping[str, float], sites: Sites) -> bool:
    """Whether numbers are spelt as codes: with leading zeros, or one in two ways at a site, as 10.1 and 10.10."""
    if any(_CODE.match(word) for word in numbers):
        return True
    decimals = {word for word in numbers if "." in word}
    if len({numbers[word] for word in decimals}) == len(decimals) or len(set(numbers.values())) > MOST_VALUES:
        return False
    at_sites = ([numbers[word] for word in counts if word in decimals] for counts in column.by_site(sites))
    return any(len(set(spelt)) < len(spelt) for spelt in at_sites)


def _number_and_more(counts: Counts) -> str | None:
    """A cell of a column of numbers that are written with something beside them, the same unit, if any, in all."""
    units = set[str]()
    shown: list[str] = []

    def fits(word: str) -> bool:
        if is_number(word):
            return True
        if (unit := unit_of(word)) is None:
            return False
        units.add(unit)
        shown.append(word)
        return len(units - {""}) <= 1

    found = nearly_all(counts, fits)
    return shown[0] if found is not None and shown else None


def spelt(numbers: Mapping[str, float]) -> list[str]:
    """A word for each different whole number, in order: the shortest, and 3 for 3.0."""
    words = sorted(numbers, key=lambda word: (len(word), word), reverse=True)
    by_number = {numbers[word]: word for word in words}
    return [by_number[number].removesuffix(".0") for number in sorted(by_number)]


def _category(values: Sequence[str]) -> dict[str, Any]:
    return {"type": "category", "values": [plain_value(value) for value in values]}


def plain_value(value: str) -> int | str:
    """A whole number as YAML has it; other words as they are, which YAML quotes where it would read something else."""
    return int(value) if value.isdigit() and str(int(value)) == value else value


def _date(words: Collection[str], form: str | None) -> dict[str, Any]:
    """From the first of January of the first year to that after the last."""
    column = Column(type="date", range=("1900-01-01", "2100-01-01"), format=form)
    days = [column.days(word) for word in words]
    first, last = (datetime.date(1970, 1, 1) + datetime.timedelta(math.floor(day)) for day in (min(days), max(days)))
    entry: dict[str, Any] = {"type": "date", "range": [f"{first.year:04d}-01-01", f"{last.year + 1:04d}-01-01"]}
    return entry | ({} if form is None else {"format": form})


def _missing(lacking: bool, words: Collection[str], how: str = "indicator") -> dict[str, Any]:
    missing = {"missing": how} if lacking or words else {}
    return missing | ({"missing_values": sorted(words)} if words else {})


def _missing_notes(name: str, words: Collection[str]) -> list[str]:
    if not words:
        return []
    verb = "stands" if len(words) == 1 else "stand"
    shown = ", ".join(map(repr, sorted(words)))
    return [f"{name}: {shown} {verb} for no value in this draft: if not so, correct its missing_values."]


def _stray_notes(column: ColumnProfile, found: Sorted, what: str, sites: Sites) -> list[str]:
    """Which words are none of the kind, and where the first of them are."""
    if not found.strays:
        return []
    where = column.first(found.strays, sites)
    listed = ", ".join(map(repr, found.strays[:SHOWN])) + ", ..." * (len(found.strays) > SHOWN)
    cells = "1 cell is" if found.num_strays == 1 else f"{found.num_strays} cells are"
    more = ", ..." if found.num_strays > len(where) else ""
    return [
        f"{column.name}: {cells} not {what} ({'; '.join(where)}{more}); dpfl check refuses that. Correct the file, or, "
        f"where it is no value, list it in missing_values: [{listed}] of the column, with missing: indicator."
    ]


def slip_notes(column: ColumnProfile, words: Sequence[str], rest: Any, sites: Sites, fix: str) -> list[str]:
    """Which numbers are far from the ``rest``, and where they are."""
    if not words:
        return []
    where, verb = "; ".join(column.first(words, sites)), "is" if len(words) == 1 else "are"
    return [
        f"{column.name}: {', '.join(map(repr, words))} ({where}) {verb} far from all others, {rest[0]:g} to "
        f"{rest[-1]:g}, and outside the drafted range. {fix}"
    ]


def _mark_notes(column: ColumnProfile, decimal: str) -> list[str]:
    commas, points = marks(column)
    other = points if decimal == "," else commas
    if not other:
        return []
    return [
        f"{column.name}: {len(other)} cells, such as {other[0]!r}, are written with the other decimal mark than most "
        "numbers. dpfl check lists their lines."
    ]


def alike(name: str | None, words: Sequence[int | str]) -> tuple[str, ...]:
    """Words that differ only in capitalization, which a schema takes for different ones."""
    same: dict[str, list[str]] = {}
    for word in map(str, words):
        same.setdefault(word.casefold(), []).append(word)
    return tuple(
        f"{name}: {', '.join(map(repr, group))} differ only in capitalization and are treated as different. If they "
        "mean the same, correct the files, and keep one of them in the schema."
        for group in same.values()
        if len(group) > 1
    )


def kinds_of(drafted: Mapping[str, Drafted]) -> list[str]:
    """Which columns are what, and why some are not used."""
    kinds, why = dict[str, list[str]](), dict[str, list[str]]()
    for name, one in drafted.items():
        if one.why:
            why.setdefault(one.why, []).append(name)
        elif one.entry["type"] != "ignored":
            kinds.setdefault(one.entry["type"], []).append(name)
    notes = [f"{kind}: {column_list(names)}." for kind, names in kinds.items()]
    notes += [f"not used: {column_list(why[key])}: {text}" for key, text in REASONS.items() if key in why]
    whole = [name for name in kinds.get("category", ()) if _are_counts(drafted[name])]
    if whole:
        notes.append(
            f"whole numbers as categories: {column_list(whole)}. Other numbers than those listed are refused later: of "
            "a column that counts or measures something, write type: integer and its range, such as range: [0, 10]."
        )
    if codes := [name for name, one in drafted.items() if one.is_code]:
        notes.append(
            f"codes, by leading zeros or several spellings of a number: {column_list(codes)}. Each spelling is a value "
            "of its own. Of a column that counts or measures something, write type: number and its range."
        )
    return notes


def _are_counts(drafted: Drafted) -> bool:
    values = drafted.entry["values"]
    return len(values) > 2 and all(isinstance(value, int) for value in values)


def times(label: str, columns: Mapping[str, Drafted]) -> tuple[str, ...]:
    """What to say of features that by their names are times until an event that the label of two words may be."""
    numbers = [name for name, one in columns.items() if one.entry["type"] in ("number", "integer")]
    return tuple(
        f"If {name} is the time until {label}, or until a record was last seen, this is survival, and {name} as a "
        f"feature gives {label} away: name them as time and event in place of the label, as by time={name!r} "
        f"event={str(label)!r}."
        for name in filter(TIME.search, numbers)
    )


def events(label: str, columns: Mapping[str, Drafted]) -> tuple[str, ...]:
    """What to say of features of 0 and 1 that by their names are events that the label may be the time until."""
    binary = [name for name, column in columns.items() if column.entry.get("values") == [0, 1]]
    return tuple(
        f"If {label} is the time until {name}, or until a record was last seen, this is survival, and {name} is no "
        f"feature: name them as time and event in place of the label, --time={label!r} --event={name!r}."
        for name in filter(EVENT.search, binary)
    )
