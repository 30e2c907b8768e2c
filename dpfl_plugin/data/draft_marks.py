"""How the numbers of drafted tables are written: the decimal mark, and columns that no single mark can read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from dpfl_plugin.data.names import column_list
from dpfl_plugin.data.seen import Seen, is_number, marks, nearly_all
from dpfl_plugin.data.thousands import PANDAS, Points, grouped, without_marks

_LIKE: Final = r"^[-+]?[1-9][0-9]{0,2}[,.'’ \x{a0}\x{202f}][0-9]{3}"  # how a word with marks of thousands begins
NOT_USED: Final = "is not used (type: ignored)"


@dataclass(frozen=True, slots=True)
class Marks:
    """How numbers are written.

    Attributes:
        decimal: "." or ",". left_out: {column: why no number is read from it}. told: what to look at, of the others.
    """

    decimal: str
    left_out: Mapping[str, str]
    told: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Thousands:
    """Of a column that may have marks of thousands: which, whether it can be nothing else, a cell that has some."""

    mark: str
    sure: bool
    shown: str


def marks_of(columns: Mapping[str, Seen]) -> Marks:
    """Of all columns that may hold numbers, together.

    A file has one decimal mark: that of most cells of which it is certain. A column that may have marks of thousands
    (57,435 beside 950) says nothing of it, and is not read by a guess.
    """
    thousands = {name: found for name, one in columns.items() if (found := _thousands(one)) is not None}
    certain = {name: marks(one) for name, one in columns.items() if name not in thousands}
    commas = [name for name, (found, _) in certain.items() if found]
    if commas:
        certain = {name: (found, points or _points(columns[name])) for name, (found, points) in certain.items()}
    totals = [sum(len(found[mark]) for found in certain.values()) for mark in (0, 1)]
    decimal = "," if totals[0] > totals[1] else "."
    left_out, told = dict[str, str](), list[str]()
    if decimal == ",":
        told.append(
            f"decimal: ',', as the cells of {column_list(commas)} have it, such as {certain[commas[0]][0][0]!r}."
        )
    for name, found in thousands.items():
        if found.sure or found.mark != decimal:
            left_out[name] = _told_of_thousands(name, found)
        elif decimal == ",":
            told.append(
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
        told += [line for name, one in columns.items() if name not in left_out for line in _told_of_points(one)]
    return Marks(decimal, left_out, tuple(told))


def _points(column: Seen) -> list[str]:
    """Cells of text with a decimal point, of a column of numbers."""
    words = column.texts
    words = words.filter(pc.match_substring(words, "."))
    found = nearly_all(words, is_number)
    return (
        [] if found is None else words.filter(pc.is_in(words, value_set=pa.array(found.fit, pa.string()))).to_pylist()
    )


def _thousands(column: Seen) -> _Thousands | None:
    words = column.texts
    if not pc.any(pc.match_substring_regex(words, _LIKE)).as_py():
        return None
    different = pc.unique(words).to_pylist()
    by_word = {word: found for word in different if (found := grouped(word)) is not None}
    if not by_word:
        return None
    mark = Counter(found.mark for found in by_word.values()).most_common(1)[0][0]
    sure = any(found.sure for found in by_word.values() if found.mark == mark)
    plain = re.compile(r"[-+]?\d+([,.]\d+)?" if sure else r"[-+]?\d+")

    def fits(word: str) -> bool:
        found = by_word.get(word)
        return plain.fullmatch(word) is not None if found is None or found.mark != mark else True

    if nearly_all(words, fits) is None:
        return None
    return _Thousands(mark, sure, next(word for word, found in by_word.items() if found.mark == mark))


def _told_of_thousands(name: str, found: _Thousands) -> str:
    whole = without_marks(found.shown)
    write = (
        f"Write {whole}, without marks: {PANDAS.format(mark=found.mark)} reads such numbers, and to_csv writes them so"
    )
    if found.sure or found.mark not in ",.":
        return f"{name} {NOT_USED}: its numbers have marks of thousands, as {found.shown!r}. {write}."
    decimal = found.shown.replace(",", ".")
    mends = "write them with a comma, as the other numbers"
    if found.mark == ",":
        mends = "write them with a point; or data.dataset.decimal: ',', with the column's type: number and range"
    return (
        f"{name} {NOT_USED}: is {found.shown!r} {whole}, with a mark of thousands, or {decimal}? {write}. If they are "
        f"decimals, {mends}."
    )


def _told_of_points(column: Seen) -> list[str]:
    points = Points()
    if pc.any(pc.match_substring(column.texts, ".")).as_py():
        points.add(pc.unique(column.texts).to_pylist())
    return [] if points.told is None else [f"{column.name}: {points.told}."]
