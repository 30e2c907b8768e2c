"""What to say of a drafted schema: which columns are what, and what of their values is probably not meant."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpfl_plugin.data.draft_marks import Marks
from dpfl_plugin.data.flaws import LEAST_RECORDS
from dpfl_plugin.data.identifiers import KEEPS, are_persons, whose
from dpfl_plugin.data.names import column_list
from dpfl_plugin.data.pieces import Pieces
from dpfl_plugin.data.seen import Seen, is_date, is_number, marks, nearly_all, numbers_of, told_of
from dpfl_plugin.data.thousands import unit_of

MOST_VALUES: Final = 50  # of a category
CODES: Final = frozenset(sign * int(digit * count) for digit in "89" for count in range(1, 6) for sign in (-1, 1))
"""Numbers that tables of hospitals and surveys write where there is no value: -9, -99, 999, ..."""
TIME: Final = re.compile(r"survival|follow[ _-]?up|duration|(?<![a-z])(time|days|weeks|months)(?![a-z])", re.IGNORECASE)
FAR: Final = 3  # times the next largest number: no measurement of the same thing


class Places(NamedTuple):
    """Tables, and what they are called."""

    tables: Sequence[Pieces]
    names: Sequence[str]


def notes(
    label: Mapping[str, Any],
    columns: Mapping[str, dict[str, Any]],
    seen: Mapping[str, Seen],
    written: Marks,
    places: Places,
    *,
    person: str | None,
) -> tuple[str, ...]:
    """What to look at in a drafted schema.

    Args:
        label, columns: of the draft. written: how numbers are. person: the column that says whose record it is, if it
            was named.
    """
    odd = [line for name, entry in columns.items() for line in _odd(name, seen[name], entry, written.decimal)]
    odd += [line for name, entry in columns.items() for line in _strays(seen[name], entry, places)]
    told = _alike(label.get("column"), label.get("classes", ()))
    told += _times(label["column"], columns) if len(label.get("classes", ())) == 2 else ()
    told += (*kinds_of(columns, seen, written), *_counts(columns), *_unlike(columns, seen))
    return (*told, *written.told, *written.left_out.values(), *_persons(columns, seen, written, person), *odd)


def kinds_of(columns: Mapping[str, dict[str, Any]], seen: Mapping[str, Seen], written: Marks) -> tuple[str, ...]:
    """Which columns are what, and why some are not used."""
    kinds: dict[str, list[str]] = {}
    for name, entry in columns.items():
        if name in written.left_out:
            continue
        kinds.setdefault(entry["type"], []).append(name)
    told = [f"{kind}: {column_list(names)}." for kind, names in kinds.items() if kind not in ("identifier", "ignored")]
    for kind in ("identifier", "ignored"):
        for name in list(kinds.get(kind, ())):
            if (shown := _number_and_more(seen[name])) is not None:
                kinds[kind].remove(name)
                told.append(
                    f"not used, as its cells, such as {shown!r}, are no plain numbers: {name}. If they are meant as "
                    "numbers, write digits, a sign and a decimal mark alone."
                )
    if names := kinds.get("identifier"):
        told.append(f"not used, as every record has another value, as identifiers do: {column_list(names)}.")
    ignored = kinds.get("ignored", [])
    same = [name for name in ignored if len(pc.unique(seen[name].words)) < 2]
    if same:
        told.append(f"not used, as every record has the same value, or none: {column_list(same)}.")
    unique = {name: pc.unique(seen[name].words) for name in ignored if name not in same}
    if names := [name for name, words in unique.items() if len(words) <= MOST_VALUES]:
        told.append(
            f"not used, as few records share a word, as with numbers of patients: {column_list(names)}. If one of them "
            "says whose record it is, name it as the person."
        )
    if names := [name for name, words in unique.items() if len(words) > MOST_VALUES]:
        told.append(f"not used, as they hold more than {MOST_VALUES} different words: {column_list(names)}.")
    return tuple(told)


def _number_and_more(column: Seen) -> str | None:
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

    found = nearly_all(column.words, fits)
    return shown[0] if found is not None and shown else None


def _counts(columns: Mapping[str, dict[str, Any]]) -> list[str]:
    """What to say of whole numbers that are categories, as numbers of complaints may be."""
    names = [
        name
        for name, entry in columns.items()
        if entry["type"] == "category" and len(entry["values"]) > 2 and all(isinstance(v, int) for v in entry["values"])
    ]
    if not names:
        return []
    return [
        f"whole numbers as categories: {column_list(names)}. Other numbers than those listed are refused later: of a "
        "column that counts or measures something, write type: integer and its range, such as range: [0, 10]."
    ]


def _unlike(columns: Mapping[str, dict[str, Any]], seen: Mapping[str, Seen]) -> list[str]:
    """What to say of whole numbers that differ in every record and are features all the same."""
    names = [
        name
        for name, entry in columns.items()
        if entry["type"] == "integer"
        and len(words := seen[name].words) >= LEAST_RECORDS
        and len(pc.unique(words)) == len(words)
    ]
    if not names:
        return []
    return [
        f"another whole number in every record: {column_list(names)}. Of a column that says which record it is, and "
        "measures nothing, write type: identifier."
    ]


def _persons(
    columns: Mapping[str, dict[str, Any]], seen: Mapping[str, Seen], written: Marks, person: str | None
) -> list[str]:
    """Which columns seem to say whose record it is, of those that `kinds_of` does not say it of."""
    told = []
    for name, entry in columns.items():
        if name in written.left_out:
            continue
        unused = entry["type"] == "ignored" and len(pc.unique(seen[name].words)) > MOST_VALUES
        if not (unused or entry["type"] in ("integer", "category")):
            continue
        if are_persons(name, _values(seen[name], entry, written.decimal)):
            mends = [f"name it as the person (person={name!r}), {KEEPS}"] * (person is None)
            mends += ["leave it out (type: ignored)"] * (not unused)
            told += [whose(name, f"If so, {'; or '.join(mends)}.")] * bool(mends)
    return told


def _values(column: Seen, entry: Mapping[str, Any], decimal: str) -> NDArray[Any]:
    """[n], in the order of the records: numbers of a column of whole numbers, else words."""
    words = column.words
    if entry["type"] != "integer":
        return np.array(words.to_pylist(), dtype=object)
    found = nearly_all(words, is_number)
    numbers = None if found is None else numbers_of(found.fit, decimal)
    assert found is not None and numbers is not None
    places = pc.index_in(words, value_set=pa.array(found.fit, pa.string())).drop_null()
    in_order: NDArray[np.float64] = numbers[places.to_numpy()]
    return in_order


def _alike(name: str | None, words: Sequence[int | str]) -> tuple[str, ...]:
    """Words that differ in capitals only, which a schema takes for different ones."""
    same: dict[str, list[str]] = {}
    for word in map(str, words):
        same.setdefault(word.casefold(), []).append(word)
    return tuple(
        f"{name}: {', '.join(map(repr, group))} differ in capitals only, and count as different. If they mean the "
        "same, correct the files, and keep one of them in the schema."
        for group in same.values()
        if len(group) > 1
    )


def _times(label: str | None, columns: Mapping[str, dict[str, Any]]) -> tuple[str, ...]:
    """What to say of features that by their names are times until an event that the label of two words may be."""
    times = [name for name, entry in columns.items() if entry["type"] in ("number", "integer") and TIME.search(name)]
    return tuple(
        f"If {name} is the time until {label}, or until a record was last seen, this is survival, and {name} as a "
        f"feature gives {label} away: name them as time and event in place of the label, as by time={name!r} "
        f"event={str(label)!r}."
        for name in times
    )


def _odd(name: str, column: Seen, entry: Mapping[str, Any], decimal: str) -> tuple[str, ...]:
    """What of a column's values is probably not meant."""
    if entry["type"] == "category":
        return _alike(name, entry["values"])
    if entry["type"] not in ("number", "integer"):
        return ()
    told = []
    commas, points = marks(column)
    if other := points if decimal == "," else commas:
        told.append(
            f"{name}: {len(other)} cells, such as {other[0]!r}, are written with the other decimal mark than most "
            "numbers. dpfl check lists their lines."
        )
    found = nearly_all(column.words, is_number)
    numbers = None if found is None else numbers_of(found.fit, decimal)
    assert numbers is not None
    if (code := _code(np.unique(numbers))) is not None:
        told.append(
            f"{name}: {code} may stand for no value. If it does, add missing_values: ['{code}'] and missing: indicator "
            "to the column, and correct its range."
        )
    return tuple(told)


def _strays(column: Seen, entry: Mapping[str, Any], places: Places) -> tuple[str, ...]:
    """Which words of a column of numbers or dates are none, and where they are."""
    is_category = entry["type"] == "category" and "missing_values" in entry
    if column.is_time or not (entry["type"] in ("number", "integer", "date") or is_category):
        return ()
    form = entry.get("format")
    found = nearly_all(column.words, is_date(form) if entry["type"] == "date" else is_number)
    assert found is not None
    what = f"{'a date' if found.num_strays == 1 else 'dates'} as {form or '2020-01-31'}"
    if entry["type"] != "date":
        what = "a number" if found.num_strays == 1 else "numbers"
    return told_of(column.name, found, what, column.first(found.strays, *places))


def _code(numbers: np.ndarray[Any, Any]) -> int | None:
    """The number that is far from all others and often a code for no value; ``numbers`` are different, in order."""
    low, high = float(numbers[0]), float(numbers[-1])
    if low < 0 <= numbers[1] and low in CODES:
        return int(low)
    return int(high) if high in CODES and high > FAR * max(abs(numbers[-2]), 10) else None
