"""Tables of numbers without a schema: all columns are features, but the label, the silo, the person, ignored ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.data.base import Features
from dpfl_plugin.data.error_collector import (
    AS_IT_IS,
    SAVE_AS_UTF_8,
    ErrorCollector,
    NotUtf8Error,
    check_names,
    no_header,
    rename,
)
from dpfl_plugin.errors import ConfigError, DataError, nearest

if TYPE_CHECKING:
    from dpfl_plugin.data.cells import Cells, Findings
    from dpfl_plugin.data.table_reader import TableReader

FILL_IN = "fill it in, or leave the record out"
FILL_ALL_IN = "fill them in, or leave the records out"
ENCODE = "Encode it as numbers, or name the column in ignore_columns."
READS_ALL = (
    "Words, gaps or mixed separators: `dpfl init NEW --from FOLDER --label COLUMN`, in Python `Federation.from_table`."
)
NOTHING = frozenset(("",))
AS_TRAINED = "Encode it as numbers, as the training records have it."


class Table(NamedTuple):
    """One file: features [n, *shape], labels [n] and silo names [n] as written there, names of the features.

    lines: where records, by number, are, and label_column: where they are known. unit: what "lines" are called.
    persons: whose records they are [n], as written there, or None. notes: what its owner should look at, by what it is
    about. known: [n], False where a label is not given; None where all are.
    """

    path: Path
    features: Features
    labels: NDArray[Any]
    silos: NDArray[Any] | None
    columns: tuple[str, ...]
    lines: Callable[[list[int]], Mapping[int, int]] | None = None
    label_column: str = ""
    unit: str = "line"
    persons: NDArray[Any] | None = None
    notes: tuple[tuple[str, str], ...] = ()
    known: NDArray[np.bool_] | None = None

    @property
    def has_label(self) -> NDArray[np.bool_]:
        """Which records have one [n]."""
        return np.ones(len(self.labels), bool) if self.known is None else self.known

    def place(self, record: int) -> str:
        """Where a record's label is, in words."""
        if self.lines is None:
            return f"{self.path}, record {record}, label"
        column = f"column {self.label_column!r}" if self.label_column else "label"
        return f"{self.path}, {self.unit} {self.lines([record])[record]}, {column}"


@dataclass(frozen=True, slots=True)
class Columns:
    """How the columns of tables are to be read."""

    label: str
    silo: str | None
    ignored: tuple[str, ...]
    delimiter: str
    person: str | None = None

    def read(self, path: Path) -> Table:
        """One file.

        Raises:
            DataError: it is not such a table; the message has all places that are wrong, by line and column.
            ConfigError: an option names no column of it.
        """
        with self._opened(path, []) as reader:
            return self.parse(path, reader)

    def read_new(self, path: Path, columns: tuple[str, ...]) -> tuple[Table, tuple[str, ...]]:
        """Records that a model is asked about: features by the names of ``columns``, in their order; and the columns
        that were not asked for, and are no label, silo or ignored one.

        The label may be missing, as a column or in single records; it is "" then.

        Raises:
            DataError: it is not such a table, or lacks a column; the message has all places that are wrong.
        """
        with self._opened(path, columns) as reader:
            return self.parse_new(path, reader, columns)

    def words(self, path: Path, name: str) -> tuple[list[str], list[str]]:
        """(names of the columns, the cells of this one as text; none where it is not there) of a file that was read."""
        with self._opened(path, [name]) as reader:
            return reader.header, reader.words(name)

    @contextmanager
    def _opened(self, path: Path, known: Sequence[str]) -> Iterator[TableReader]:
        from dpfl_plugin.data.table_reader import TextFormat, open_table

        names = [self.label, self.silo, self.person, *known]
        try:
            form = TextFormat(delimiter=self.delimiter)
            with closing(open_table(path, form, [name for name in names if name is not None])) as reader:
                yield reader
        except NotUtf8Error as error:
            by_table = " `dataset: table` reads it as it is, by encoding: windows-1252 (docs/configuration.md)."
            raise DataError(str(error).replace(AS_IT_IS, SAVE_AS_UTF_8 + by_table)) from error

    def parse_new(self, path: Path, reader: TableReader, columns: tuple[str, ...]) -> tuple[Table, tuple[str, ...]]:
        """As `read_new`, of an open table."""
        header = reader.header
        first = f"{path}, line 1" if reader.unit == "line" else str(path)
        missing = [name for name in columns if name not in header]
        if missing:
            free = [name for name in header if name not in columns]
            mark = _other_delimiter(header)
            fix = rename(missing[0], free) if mark is None else f"Save it with {self.delimiter!r} instead of {mark!r}."
            raise DataError(
                f"{first}: there is no column {', '.join(map(repr, missing))}, which the model was trained on. "
                f"Columns: {', '.join(header[:30])}. {fix}"
            )
        twice = next((name for name in (*columns, self.label) if header.count(name) > 1), None)
        if twice is not None:
            raise DataError(f"{first}: two columns have the name {twice!r}.")
        table = _table(path, reader, columns, {"label": self.label if self.label in header else None}, AS_TRAINED)
        known = {*columns, self.label, self.silo, self.person, *self.ignored, ""}
        return table, tuple(name for name in header if name not in known)

    def parse(self, path: Path, reader: TableReader) -> Table:
        """As `read`, of an open table."""
        columns = self._features(path, reader)
        return _table(path, reader, columns, {"label": self.label, "silo": self.silo, "person": self.person}, ENCODE)

    def _features(self, path: Path, reader: TableReader) -> tuple[str, ...]:
        header = reader.header
        if not header or all(is_number(name) for name in header):
            raise DataError(no_header(path, repr(self.label), of_frame=reader.of_frame))
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
        columns = tuple(name for name in header if name not in others)
        if not columns:
            raise DataError(f"{path} has no feature column besides {', '.join(header)}.")
        return columns

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


def _table(
    path: Path, reader: TableReader, columns: tuple[str, ...], names: Mapping[str, str | None], encode: str
) -> Table:
    """All records.

    Args:
        columns: of the features. names: {"label", "silo" or "person": its column, if any}. encode: what to do with a
            word; where it is `AS_TRAINED`, labels may be missing.
    """
    from dpfl_plugin.data.cells import Cells, Findings, empty_records

    needed = encode != AS_TRAINED
    findings = Findings(ErrorCollector(path, reader.unit), of_frame=reader.of_frame)
    features: list[Features] = []
    words: dict[str, list[str]] = {key: [] for key in names}
    count = 0
    for piece in reader.rows(list(dict.fromkeys((*columns, *filter(None, names.values())))), findings.errors):
        size = len(next(iter(piece.values())))
        empty = empty_records(piece.values(), size)
        findings.errors.add_empty((np.flatnonzero(empty) + count).tolist())
        cells = {
            name: Cells(name, f"columns.{name}", array, count, findings, NOTHING, empty=empty, encode=encode)
            for name, array in piece.items()
        }
        x = np.empty((size, len(columns)), dtype=np.float32)
        for place, name in enumerate(columns):
            x[:, place] = _numbers(cells[name])
        features.append(x)
        for key, column in names.items():
            words[key] += [""] * size if column is None else _words(cells[column], needed=needed)
        count += size
    findings.errors.move(reader.lines)
    findings.errors.check(READS_ALL if needed else "")
    if not count:
        raise DataError(f"{path} holds a header and no records.")
    label, silo, person = (names.get(key) for key in ("label", "silo", "person"))
    return Table(
        path,
        np.concatenate(features),
        np.array(words["label"]),
        None if silo is None else np.array(words["silo"]),
        columns,
        reader.lines,
        label or "",
        reader.unit,
        None if person is None else np.array(words["person"]),
        tuple(_notes(path, findings, count, reader.note)),
    )


def _notes(path: Path, findings: Findings, count: int, of_file: str) -> Iterator[tuple[str, str]]:
    from dpfl_plugin.data.cells import of_limits

    if of_file:
        yield str(path), f"{path}: {of_file}"
    for name, cells in findings.limits.items():
        yield f"{path}: {name}", of_limits(name, cells, count)
    for name, points in findings.points.items():
        if (text := points.message) is not None:
            yield name, f"column {name!r}: {text}"


def _numbers(cells: Cells) -> Features:
    values, nothing = cells.numbers()
    cells.flag(nothing, f" is empty: {FILL_IN}.", f"are empty: {FILL_ALL_IN}", "")
    with np.errstate(over="ignore"):  # beyond float32 is infinite
        x = values.astype(np.float32)
    cells.flag(~np.isfinite(x), *cells.not_finite)
    return x


def _words(cells: Cells, *, needed: bool) -> list[str]:
    words, nothing = cells.words()
    if needed:
        cells.flag(nothing, f" is empty: {FILL_IN}.", f"are empty: {FILL_ALL_IN}", "")
    texts: list[str] = words.fill_null("").to_pylist()
    return texts


def is_frame(given: object) -> bool:
    """Whether it is a data frame, as pandas has them."""
    return hasattr(given, "columns") and hasattr(given, "iloc")


def is_number(text: str) -> bool:
    """Whether a cell would be read as a number."""
    if "_" in text:  # which Python takes for a mark of thousands
        return False
    try:
        float(text)
    except ValueError:
        return False
    return True
