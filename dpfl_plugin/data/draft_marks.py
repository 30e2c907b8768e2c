"""How the numbers of drafted tables are written: the decimal mark, and columns that no single mark can read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpfl_plugin.data.cells import is_text
from dpfl_plugin.data.column_profile import ColumnProfile, is_number, marks, nearly_all, outwards
from dpfl_plugin.data.names import column_list
from dpfl_plugin.data.thousands import Mark, Points, decimal_beside, grouped, ungrouped, without_marks

_LIKE: Final = re.compile(r"[-+]?[1-9][0-9]{0,2}[,.'’ \u00a0\u2009\u202f][0-9]{3}")  # how words with marks begin
_WHOLE: Final = re.compile(r"[-+]?\d+")
NOT_USED: Final = "is not used (type: ignored)"


@dataclass(frozen=True, slots=True)
class Marks:
    """How numbers are written.

    Attributes:
        decimal: "." or ",". left_out: {column: why no number is read from it}. notes: what to look at, of the others.
        thousands: {column: its mark of thousands}, of those whose numbers have some for certain. plain: these without.
    """

    decimal: str
    left_out: Mapping[str, str]
    notes: tuple[str, ...]
    thousands: Mapping[str, Mark]
    plain: Mapping[str, ColumnProfile]


@dataclass(frozen=True, slots=True)
class _Thousands:
    """Of a column that may have marks of thousands: which, whether it can be nothing else, a cell that has some."""

    mark: Mark
    sure: bool
    shown: str


def marks_of(columns: Mapping[str, ColumnProfile], labels: Collection[str]) -> Marks:
    """Of all columns that may hold numbers, together.

    A file has one decimal mark: that of most cells of which it is certain. A column that may have marks of thousands
    (57,435 beside 950) says nothing of it, and is not read by a guess; one that has some for certain (1,234,567) is
    read with them, unless it is one of ``labels``, which have no such option.
    """
    thousands = {name: found for name, one in columns.items() if (found := _thousands(one)) is not None}
    grouped_by = {name: found.mark for name, found in thousands.items() if found.sure and name not in labels}
    columns = {
        name: without_thousands(one, grouped_by[name]) if name in grouped_by else one for name, one in columns.items()
    }
    certain = {
        name: marks(one)
        for name, one in columns.items()
        if name not in thousands or (name in grouped_by and decimal_beside(grouped_by[name]) is None)
    }
    commas = [name for name, (found, _) in certain.items() if found]
    if commas:
        certain = {name: (found, points or _points(columns[name])) for name, (found, points) in certain.items()}
    totals = [sum(len(found[mark]) for found in certain.values()) for mark in (0, 1)]
    decimal = "," if totals[0] > totals[1] else "."
    left_out, notes = dict[str, str](), list[str]()
    if decimal == ",":
        notes.append(
            f"decimal: ',', as the cells of {column_list(commas)} have it, such as {certain[commas[0]][0][0]!r}."
        )
    for name, found in thousands.items():
        if name in grouped_by:
            continue
        if found.sure or found.mark != decimal:
            left_out[name] = _thousands_note(columns[name], found, name in labels)
        elif decimal == ",":
            notes.append(
                f"{name}: {found.shown!r} is read as a decimal, since other columns have decimal commas. If it is "
                f"{without_marks(found.shown)}, write it so, without marks of thousands."
            )
    for name, (with_comma, with_point) in certain.items():
        fit, other = (with_comma, with_point) if decimal == "," else (with_point, with_comma)
        if len(other) > len(fit):
            left_out[name] = (
                f"{name} {NOT_USED}: most of its numbers, such as {other[0]!r}, have another decimal "
                f"mark than those of other columns, {decimal!r}. Write all of the files' numbers alike."
            )
    if decimal == ".":
        notes += [line for name, one in columns.items() if name not in left_out for line in _point_notes(one)]
    for name in [name for name in grouped_by if name not in left_out]:
        found = thousands[name]
        notes.append(
            f"{name}: thousands: {found.mark!r}, as in {found.shown!r}, which is {without_marks(found.shown)}."
        )
    return Marks(decimal, left_out, tuple(notes), grouped_by, {name: columns[name] for name in grouped_by})


def without_thousands(column: ColumnProfile, mark: Mark) -> ColumnProfile:
    """A column whose cells of text have no marks of thousands, and a point where these say the decimal mark."""
    decimal = decimal_beside(mark)

    def plain(part: pa.Array) -> pa.Array:
        if not is_text(part.type):
            return part
        words = pc.unique(part).drop_null().cast(pa.string()).to_pylist()
        by_word = {word: ungrouped(word, mark) for word in words if (one := grouped(word)) and one.mark == mark}
        if decimal == ",":
            by_word |= {word: by_word.get(word, word).replace(",", ".") for word in words if "," in word}
        if not by_word:
            return part
        text = part.dictionary_decode() if pa.types.is_dictionary(part.type) else part
        at = pc.index_in(text.cast(pa.string()), value_set=pa.array(list(by_word), pa.string()))
        return pc.coalesce(pa.array(list(by_word.values()), pa.string()).take(at), text.cast(pa.string()))

    return replace(column, parts=[(place, plain(part)) for place, part in column.parts])


def _points(column: ColumnProfile) -> list[str]:
    """Cells of text with a decimal point, of a column of numbers."""
    words = {word: count for word, count in column.texts.items() if "." in word}
    found = nearly_all(words, is_number)
    return [] if found is None else [word for word, count in words.items() if word in found.fit for _ in range(count)]


def _thousands(column: ColumnProfile) -> _Thousands | None:
    by_word = {word: found for word in column.texts if _LIKE.match(word) and (found := grouped(word)) is not None}
    if not by_word:
        return None
    mark = Counter(found.mark for found in by_word.values()).most_common(1)[0][0]
    sure = any(found.sure for found in by_word.values() if found.mark == mark)
    plain = re.compile(r"[-+]?\d+([,.]\d+)?" if sure else r"[-+]?\d+")

    def fits(word: str) -> bool:
        found = by_word.get(word)
        return plain.fullmatch(word) is not None if found is None or found.mark != mark else True

    if nearly_all(column.texts, fits) is None:
        return None
    return _Thousands(mark, sure, next(word for word, found in by_word.items() if found.mark == mark))


def _thousands_note(column: ColumnProfile, found: _Thousands, is_label: bool) -> str:
    """Of one whose cells may be something else; or of what is to be predicted."""
    name, whole = column.name, without_marks(found.shown)
    if found.sure or found.mark not in ",.":
        return (
            f"{name} {NOT_USED}: its numbers have marks of thousands, as {found.shown!r}. Write {whole}, without marks."
        )
    decimal = found.shown.replace(",", ".")
    fix = f"Write {whole}, without marks"
    wholes = [without_marks(word) for word in column.texts]
    numbers = np.unique([float(word) for word in wholes if _WHOLE.fullmatch(word)])
    if not is_label and len(numbers) > 1:
        low, high = outwards(numbers)
        fix = f"If it is {whole}: {{type: integer, range: [{low}, {high}], thousands: {found.mark!r}}}"
    mends = "write them with a comma, as the other numbers"
    if found.mark == ",":
        mends = "write them with a point; or data.dataset.decimal: ',', with the column's type: number and range"
    return (
        f"{name} {NOT_USED}: is {found.shown!r} {whole}, with a mark of thousands, or {decimal}? {fix}. If they are "
        f"decimals, {mends}."
    )


def _point_notes(column: ColumnProfile) -> list[str]:
    points = Points()
    if any("." in word for word in column.texts):
        points.add(column.texts)
    return [] if points.message is None else [f"{column.name}: {points.message}."]
