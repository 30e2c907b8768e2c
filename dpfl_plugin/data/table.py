"""A CSV file as a table of numbers, labels and silos."""

from __future__ import annotations

import csv as csv_module
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.data.base import Features, Integers
from dpfl_plugin.data.flaws import (
    Flaws,
    check_kind,
    check_names,
    is_decimal_comma,
    no_header,
    not_utf8,
    rename,
    with_point,
)
from dpfl_plugin.data.frame_rows import FRAME
from dpfl_plugin.data.thousands import Points, grouped, without_marks
from dpfl_plugin.errors import ConfigError, DataError, nearest

ROWS_AT_ONCE = 20_000  # text is turned into numbers in pieces, so that memory holds the table as float32 only
FILL_IN = "fill it in, or leave the record out"
FILL_ALL_IN = "fill them in, or leave the records out"
ENCODE = "Encode it as numbers, or name the column in ignore_columns."
READS_ALL = (
    "Words, gaps or mixed separators: `dpfl init NEW --from FOLDER --label COLUMN`, in Python `Federation.from_table`."
)
AS_TRAINED = "Encode it as numbers, as the training records have it."


Read = TypeVar("Read")


class Table(NamedTuple):
    """One file: features [n, *shape], labels [n] and silo names [n] as written there, names of the features.

    lines: of the records [n], and label_column: where they are known. unit: what "lines" are called. persons: whose
    records they are [n], as written there, or None. points: (column, what to say of its points, which may be marks of
    thousands).
    """

    path: Path
    features: Features
    labels: NDArray[Any]
    silos: NDArray[Any] | None
    columns: tuple[str, ...]
    lines: Integers | None = None
    label_column: str = ""
    unit: str = "line"
    persons: NDArray[Any] | None = None
    points: tuple[tuple[str, str], ...] = ()

    def place(self, record: int) -> str:
        """Where a record's label is, in words."""
        if self.lines is None:
            return f"{self.path}, record {record}, label"
        column = f"column {self.label_column!r}" if self.label_column else "label"
        return f"{self.path}, {self.unit} {self.lines[record]}, {column}"


@dataclass(frozen=True, slots=True)
class Columns:
    """How the columns of CSV files are to be read."""

    label: str
    silo: str | None
    ignored: tuple[str, ...]
    delimiter: str
    person: str | None = None

    def read(self, path: Path) -> Table:
        """One CSV file.

        Raises:
            DataError: it is not such a table; the message has all places that are wrong, by line and column.
            ConfigError: an option names no column of it.
        """
        return self._read(path, self.parse, by_table=True)

    def read_new(self, path: Path, columns: tuple[str, ...]) -> tuple[Table, tuple[str, ...]]:
        """Records that a model is asked about: features by the names of ``columns``, in their order; and the columns
        that were not asked for, and are no label, silo or ignored one.

        The label may be missing, as a column or in single records; it is "" then.

        Raises:
            DataError: it is not such a table, or lacks a column; the message has all places that are wrong.
        """
        return self._read(path, lambda path, reader: self.parse_new(path, reader, columns))

    def words(self, path: Path, name: str) -> tuple[list[str], list[str]]:
        """(names of the columns, the cells of this one as text; none where it is not there) of a file that was read."""

        def parse(path: Path, reader: Any) -> tuple[list[str], list[str]]:
            header = [name.strip() for name in next(reader, [])]
            place = header.index(name) if name in header else None
            pieces = () if place is None else _pieces(reader, len(header), Flaws(path))
            return header, [row[place].strip() for rows, _ in pieces for row in rows]  # type: ignore[index]

        return self._read(path, parse)

    def _read(self, path: Path, parse: Callable[[Path, Any], Read], *, by_table: bool = False) -> Read:
        check_kind(path, by_table=by_table)
        try:
            # -sig: spreadsheets begin a file with a byte order mark
            with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig", newline="") as text:
                return parse(path, csv_module.reader(text, delimiter=self.delimiter, strict=True))
        except UnicodeDecodeError as error:
            raise DataError(not_utf8(path, error, by_table=by_table)) from error
        except (csv_module.Error, EOFError, zlib.error, OSError) as error:
            raise DataError(f"{path} is not a CSV file in UTF-8: {error}.") from error

    def parse_new(
        self, path: Path, reader: Any, columns: tuple[str, ...], unit: str = "line"
    ) -> tuple[Table, tuple[str, ...]]:
        """As `read_new`, of rows of words as `parse` takes them."""
        first = f"{path}, line 1" if unit == "line" else str(path)
        header = [name.strip() for name in next(reader, [])]
        missing = [name for name in columns if name not in header]
        if missing:
            free = [name for name in header if name not in columns]
            mark = _other_delimiter(header)
            mend = rename(missing[0], free) if mark is None else f"Save it with {self.delimiter!r} instead of {mark!r}."
            raise DataError(
                f"{first}: there is no column {', '.join(map(repr, missing))}, which the model was trained on. "
                f"Columns: {', '.join(header[:30])}. {mend}"
            )
        twice = next((name for name in (*columns, self.label) if header.count(name) > 1), None)
        if twice is not None:
            raise DataError(f"{first}: two columns have the name {twice!r}.")
        places = [header.index(name) for name in columns]
        features, labels, at, flaws = [], [], [], Flaws(path, unit)
        for rows, lines in _pieces(reader, len(header), flaws):
            features.append(_numbers(header, places, rows, lines, flaws, AS_TRAINED))
            at.append(np.array(lines, dtype=np.int64))
            label = header.index(self.label) if self.label in header else None
            labels += ["" if label is None else row[label].strip() for row in rows]
        flaws.check()
        if not labels:
            raise DataError(f"{path} holds a header and no records.")
        known = {*columns, self.label, self.silo, self.person, *self.ignored, ""}
        places_at = np.concatenate(at)
        table = Table(path, np.concatenate(features), np.array(labels), None, columns, places_at, self.label, unit)
        return table, tuple(name for name in header if name not in known)

    def parse(self, path: Path, reader: Any, unit: str = "line") -> Table:
        """Rows of words, the header first; ``reader.line_num`` tells of which line, or other ``unit``, the last is."""
        header = [name.strip() for name in next(reader, [])]
        places = self._features(path, header)
        columns = tuple(header[place] for place in places)
        label, silo = header.index(self.label), header.index(self.silo) if self.silo is not None else None
        person = header.index(self.person) if self.person is not None else None
        features: list[Features] = []
        labels: list[str] = []
        silos: list[str] = []
        persons: list[str] = []
        at: list[Integers] = []
        points = {name: Points() for name in columns}
        flaws = Flaws(path, unit)
        for rows, lines in _pieces(reader, len(header), flaws):
            features.append(_numbers(header, places, rows, lines, flaws, ENCODE))
            _add_points(points, places, rows)
            at.append(np.array(lines, dtype=np.int64))
            labels += _words(header, label, rows, lines, flaws)
            if silo is not None:
                silos += _words(header, silo, rows, lines, flaws)
            if person is not None:
                persons += _words(header, person, rows, lines, flaws)
        flaws.check(READS_ALL)
        if not labels:
            raise DataError(f"{path} holds a header and no records.")
        return Table(
            path,
            np.concatenate(features),
            np.array(labels),
            np.array(silos) if silo is not None else None,
            columns,
            np.concatenate(at),
            self.label,
            unit,
            np.array(persons) if person is not None else None,
            tuple((name, told) for name, one in points.items() if (told := one.told) is not None),
        )

    def _features(self, path: Path, header: list[str]) -> list[int]:
        if not header or all(is_number(name) for name in header):
            raise DataError(no_header(path, repr(self.label), of_frame=path == FRAME))
        check_names(path, header, self.ignored)
        named = [name for name in header if name]
        if len(set(named)) != len(named):
            twice = next(name for name in named if named.count(name) > 1)
            raise DataError(f"{path}: two columns have the name {twice!r}.")
        special = {
            "label_column": (self.label,),
            "silo_column": (self.silo,),
            "person_column": (self.person,),
            "ignore_columns": self.ignored,
        }
        for key, names in special.items():
            for name in names:
                if name is not None and name not in header:
                    known = ", ".join(header[:30])
                    raise ConfigError(
                        f"{key}={name!r}{nearest(name, header)}: {path} has no such column. Columns: {known}."
                        f"{self._delimiter_advice(header)}"
                    )
        others = {self.label, self.silo, self.person, *self.ignored}
        places = [place for place, name in enumerate(header) if name not in others]
        if not places:
            raise DataError(f"{path} has no feature column besides {', '.join(header)}.")
        return places

    def _delimiter_advice(self, header: list[str]) -> str:
        other = _other_delimiter(header)
        if other is None:
            return ""
        return (
            f" They seem to be separated otherwise: if all files are, give delimiter: {json.dumps(other)}; if only "
            f"this one is, save it with {self.delimiter!r}. {READS_ALL}"
        )


def _other_delimiter(header: list[str]) -> str | None:
    """What separates columns, where all of the header has become one."""
    return next((mark for mark in ";\t|," if mark in header[0]), None) if len(header) == 1 else None


def _words(header: list[str], place: int, rows: list[list[str]], lines: list[int], flaws: Flaws) -> list[str]:
    found = [row[place].strip() for row in rows]
    if not all(found):
        for line, word in zip(lines, found, strict=True):
            if not word:
                flaws.add(line, header[place], f" is empty: {FILL_IN}.", f"are empty: {FILL_ALL_IN}")
    return found


def _pieces(reader: Any, width: int, flaws: Flaws) -> Iterator[tuple[list[list[str]], list[int]]]:
    rows: list[list[str]] = []
    lines: list[int] = []
    for row in reader:
        if not row:  # an empty line
            continue
        if len(row) != width:
            many = f"have another number of columns than the header, which has {width}"
            flaws.add(reader.line_num, None, f": {len(row)} columns, the header has {width}.", many)
            continue
        if not any(map(str.strip, row)):
            flaws.add_empty([reader.line_num])
            continue
        rows.append(row)
        lines.append(reader.line_num)
        if len(rows) == ROWS_AT_ONCE:
            yield rows, lines
            rows, lines = [], []
    if rows:
        yield rows, lines


def _add_points(points: Mapping[str, Points], places: list[int], rows: list[list[str]]) -> None:
    for one, place in zip(points.values(), places, strict=True):
        if not one.are_decimals:
            cells = {row[place].strip() for row in rows}
            if any("." in cell for cell in cells):
                one.add(sorted(cells))


def _numbers(
    header: list[str], places: list[int], rows: list[list[str]], lines: list[int], flaws: Flaws, encode: str
) -> Features:
    x = np.empty((len(rows), len(places)), dtype=np.float32)
    for j, place in enumerate(places):
        try:
            with np.errstate(over="ignore"):  # beyond float32 is infinite, found below
                x[:, j] = [float(row[place]) for row in rows]
        except ValueError:
            good = [is_number(row[place]) for row in rows]
            for row, line, fine in zip(rows, lines, good, strict=True):
                if not fine:
                    flaws.add(line, header[place], *_no_number(row[place], encode), repr(row[place]))
            with np.errstate(over="ignore"):
                x[:, j] = [float(row[place]) if fine else 0.0 for row, fine in zip(rows, good, strict=True)]
    for i, j in np.argwhere(~np.isfinite(x)).tolist():
        what = f": {rows[i][places[j]]!r} is not a finite number."
        mend, cell = "Remove the record or fill it in.", repr(rows[i][places[j]])
        flaws.add(lines[i], header[places[j]], what, "are not finite numbers", mend, cell)
    return x


def _no_number(text: str, encode: str) -> tuple[str, str, str]:
    """What is wrong with a feature, the same of several, and how to mend it; ``encode``: where it is a word."""
    if not text.strip():
        return f" is empty: {FILL_IN}.", f"are empty: {FILL_ALL_IN}", ""
    marks = grouped(text)
    if marks is not None and marks.sure and not is_decimal_comma(text):
        mend = f"Write it without, {without_marks(text)}, in all of the file."
        return f": {text!r} has marks of thousands.", "have marks of thousands", mend
    if marks is not None and not marks.sure:
        mend = f"Write {without_marks(text)}, without marks of thousands, or {with_point(text)}, if it is a decimal."
        many = "have a comma, of thousands or of decimals"
        return f": {text!r} has a comma, of thousands or of decimals.", many, mend
    if is_decimal_comma(text):
        mend = f"Write it with a point, {with_point(text)}, in all of the file."
        return f": {text!r} has a decimal comma.", "have a decimal comma", mend
    return f": {text!r} is not a number.", "are not numbers", encode


def is_number(text: str) -> bool:
    """Whether a cell would be read as a number."""
    if "_" in text:  # which Python takes for a mark of thousands
        return False
    try:
        float(text)
    except ValueError:
        return False
    return True
