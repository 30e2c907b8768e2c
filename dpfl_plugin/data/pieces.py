"""Tables piece by piece: CSV by pyarrow, Parquet by pyarrow, xlsx by openpyxl, and data frames."""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import threading
import weakref
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from dpfl_plugin.data.cells import array_of
from dpfl_plugin.data.flaws import Flaws, not_utf8, utf_16
from dpfl_plugin.errors import ConfigError, DataError

DELIMITERS: Final = ",;\t|"
BLOCK: Final = 2**22  # bytes of text, and so many records of other tables:
RECORDS: Final = 2**16
LET_GO: Final = 1.0  # seconds for which Arrow's threads are waited for; they need thousandths of one
OTHER_KINDS: Final = {
    b"ARROW1": "a Feather file: write it as Parquet",
    b"\xd0\xcf\x11\xe0": "an old Excel file (xls): save it as xlsx or CSV",
    b"\x89HDF": "an HDF5 file: write it as Parquet",
}
Lines = Callable[[list[int]], Mapping[int, int]]


class NotUtf8Error(DataError):
    """A text is in another encoding, and nothing said in which."""


@dataclass(frozen=True, slots=True)
class TextFormat:
    """How tables are written: what CSV files and workbooks leave open.

    Attributes:
        delimiter: None for that of ``,;tab|`` by which the first line names most columns. decimal: "." or ",";
            None for "." as nothing was said of it. encoding: as Python names it; None for UTF-8, or UTF-16 where a file
            begins as one. header: names of the columns of files that have no line with them. sheet: of a
            workbook; None for the first.
    """

    delimiter: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    header: tuple[str, ...] | None = None
    sheet: str | None = None

    def __post_init__(self) -> None:
        where = "data.dataset"
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise ConfigError(f"{where}.delimiter={self.delimiter!r} must be one character.")
        if self.decimal not in (None, ".", ","):
            raise ConfigError(f"{where}.decimal={self.decimal!r} must be '.' or ','.")
        if self.decimal is not None and self.decimal == self.delimiter:
            raise ConfigError(f"{where}.delimiter and decimal are both {self.decimal!r}.")
        try:
            codecs.lookup(self.encoding or "utf-8")
        except LookupError as error:
            raise ConfigError(
                f"{where}.encoding={self.encoding!r} is not known, e.g. windows-1252, latin-1."
            ) from error


@dataclass(slots=True)
class Pieces:
    """An open table.

    Attributes:
        header: names of its columns, without blanks around them. unit: what its lines are called. rows: takes the
            columns that are wanted, and gives {column: cells} of the next records until there are no more; rows that
            have another number of cells are noted and left out. lines: where records, by number, are; after ``rows``.
            of_frame: it is a data frame. note: what to say of how it was opened.
    """

    header: list[str]
    unit: str
    rows: Callable[[Sequence[str], Flaws], Iterator[dict[str, pa.Array]]]
    lines: Lines
    close: Callable[[], None] = field(default=lambda: None)
    of_frame: bool = False
    note: str = ""


def sentence(note: str) -> str:
    """A `Pieces.note` where a sentence begins."""
    return note[:1].upper() + note[1:]


def open_table(path: Path, form: TextFormat, known: Sequence[str] = ()) -> Pieces:
    """The table in a file, by its first bytes.

    Args:
        known: names of columns, by which a delimiter is found.

    Raises:
        DataError: it cannot be read, or is of another kind.
    """
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    for magic, what in OTHER_KINDS.items():
        if start.startswith(magic):
            raise DataError(f"{path} is {what}.")
    if start.startswith(b"\x1f\x8b") and path.suffix != ".gz":
        raise DataError(f"{path} is compressed by gzip. Give it the name {path}.gz, or decompress it.")
    if start.startswith(b"PAR1"):
        return _parquet(path)
    if start.startswith(b"PK\x03\x04"):
        return _workbook(path, form)
    return _csv(path, form, known)


def frame_pieces(frame: Any) -> Pieces:
    """A data frame of pandas; its records are rows from 0."""
    header = [str(name).strip() for name in frame.columns]

    def rows(columns: Sequence[str], flaws: Flaws) -> Iterator[dict[str, pa.Array]]:
        places = {name: header.index(name) for name in columns}
        for first in range(0, len(frame), RECORDS):
            part = frame.iloc[first : first + RECORDS]
            yield {name: _of_frame(part.iloc[:, place]) for name, place in places.items()}

    return Pieces(header, "row", rows, lambda records: {record: record for record in records}, of_frame=True)


def _of_frame(column: Any) -> pa.Array:
    found = array_of(column.tolist() if column.dtype == object else column)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _noting(mark: str, flaws: Flaws, wrong_rows: list[int]) -> Callable[[Any], str]:
    """What Arrow asks about a row that has another number of cells than the header: it is noted and left out."""

    def note(row: Any) -> str:
        wrong_rows.append(row.number)
        other = next((one for one in DELIMITERS if (row.text or "").count(one) == row.expected_columns - 1 > 0), None)
        if other is not None and other != mark:
            said = f"divided by {other!r}, and the header by {mark!r}"
            flaws.add(-row.number, None, f": is {said}.", f"are {said}", "Divide all lines alike.")
            return "skip"
        what = f": {row.actual_columns} columns, the header has {row.expected_columns}."
        many = f"have another number of columns than the header, which has {row.expected_columns}"
        flaws.add(-row.number, None, what, many, "Is a mark inside a cell, which needs quotes?")
        return "skip"

    return note


def _batches(stream: Any, read: Any, convert: Any, mark: str, note: list[Callable[[Any], str]]) -> Iterator[Any]:
    """Batches of records, of a stream of Arrow's own making.

    Arrow reads in threads of its own, and one of them may be the last to hold a finished reader. If Python ends while
    a thread drops what is Python's in there, the process aborts, whatever it would have said. So nothing in there is
    Python's but what is asked about rows, and that is gone when this returns.

    Args:
        note: holds that alone, and is emptied.
    """
    gone = threading.Event()
    weakref.finalize(note[0], gone.set).atexit = False
    parse = pyarrow.csv.ParseOptions(delimiter=mark, newlines_in_values=True, invalid_row_handler=note.pop())
    reader = None
    try:
        with pyarrow.csv.open_csv(stream, read, parse, convert) as reader:
            yield from reader
    finally:
        del parse, reader
        gone.wait(LET_GO)


def _opened(path: Path, encoding: str | None) -> Any:
    """Bytes in UTF-8 of a file, decompressed where it is compressed by gzip, bzip2 or zstd and has that suffix."""
    kind = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}.get(path.suffix)
    stream = pa.input_stream(str(path), compression=kind)
    return stream if encoding is None else pa.transcoding_input_stream(stream, encoding, "utf-8")


def _of_arrow(path: Path, encoding: str | None) -> Any:
    """The same, of Arrow's own making throughout, for its threads (`_batches`)."""
    if encoding is None:
        return _opened(path, None)
    sink = pa.BufferOutputStream()
    for block in _blocks(path, encoding):
        sink.write(block)
    return pa.BufferReader(sink.getvalue())


def _blocks(path: Path, encoding: str | None) -> Iterator[bytes]:
    with closing(_opened(path, encoding)) as stream:
        while block := stream.read(BLOCK):
            yield block


def _num_lines(path: Path, encoding: str | None) -> int:
    count, last = 0, b"\n"
    for block in _blocks(path, encoding):
        count, last = count + block.count(b"\n"), block[-1:]
    return count + (last != b"\n")


def _encoding(path: Path, form: TextFormat) -> str | None:
    """None for UTF-8."""
    if form.encoding is not None:
        name = codecs.lookup(form.encoding).name
        return None if name in ("utf-8", "utf-8-sig", "ascii") else name
    with closing(_opened(path, None)) as stream:
        return utf_16(stream.read(8))


def _header(path: Path, encoding: str | None, form: TextFormat, known: Sequence[str]) -> tuple[str, list[str], int]:
    """(delimiter, names of columns, lines of the header)"""
    with closing(_opened(path, encoding)) as stream:
        block = stream.read(BLOCK)
    start = block.decode("utf-8-sig", errors="replace")
    marks = form.delimiter or DELIMITERS
    found = []
    for mark in marks:
        reader = csv.reader(io.StringIO(start, newline=""), delimiter=mark)
        row = [name.strip() for name in next((row for row in reader if row), [])]
        found.append((len({*row} & {*known}), len(row), mark, row))
    _, width, mark, row = max(found, key=lambda one: (one[0], one[1]))
    if any("\ufffd" in name for name in row):  # names in another encoding, which would be taken for other columns
        codecs.getincrementaldecoder("utf-8")().decode(block)
    if form.header is not None and 2 * len({*row} & {*form.header}) <= len(form.header):  # else it has names, after all
        if width != len(form.header):
            raise DataError(
                f"{path}, line 1: has {width} columns, data.dataset.header names {len(form.header)}. All have to be "
                "named, in their order."
            )
        return mark, list(form.header), 0
    return mark, row, 1


def _csv(path: Path, form: TextFormat, known: Sequence[str]) -> Pieces:
    try:
        encoding = _encoding(path, form)
        mark, header, above = _header(path, encoding, form, known)
    except (OSError, EOFError, UnicodeError, pa.ArrowException) as error:
        raise _no_csv(path, form, error) from error
    wrong_rows: list[int] = []  # numbers of rows, from 1, that have another number of cells
    plain = [False]  # whether each record is one line, and no line is empty

    def rows(columns: Sequence[str], flaws: Flaws) -> Iterator[dict[str, pa.Array]]:
        names = [f"{place}" for place in range(len(header))]  # two columns that are not read may have one name
        wanted = {name: str(header.index(name)) for name in columns}
        read = pyarrow.csv.ReadOptions(
            use_threads=False, block_size=BLOCK, column_names=names, skip_rows_after_names=above
        )
        convert = pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(wanted.values(), pa.string()),
            include_columns=list(wanted.values()),
            strings_can_be_null=False,
        )
        count = 0
        try:
            note = [_noting(mark, flaws, wrong_rows)]
            for batch in _batches(_of_arrow(path, encoding), read, convert, mark, note):
                count += len(batch)
                yield {name: batch.column(place) for name, place in wanted.items()}
        except (OSError, EOFError, UnicodeError, pa.ArrowException) as error:
            if "Empty CSV file" in str(error):
                return
            raise _no_csv(path, form, error) from error
        plain[0] = _num_lines(path, encoding) == count + len(wrong_rows) + above
        if not plain[0]:
            _check_quotes(path, encoding, mark, count + len(wrong_rows) + above)

    def lines(records: list[int]) -> dict[int, int]:
        rows_of = _rows_of([record for record in records if record >= 0], sorted(wrong_rows), above)
        rows_of |= {record: -record for record in records if record < 0}
        if plain[0]:
            return rows_of
        by_row = _lines_of(path, encoding, mark, set(rows_of.values()))
        return {record: by_row[rows_of[record]] for record in records}

    return Pieces(header, "line", rows, lines)


def _rows_of(records: list[int], wrong: list[int], above: int) -> dict[int, int]:
    """The numbers, from 1, of the rows in which records are: below the header, without those that are ``wrong``."""
    found, skipped = {}, 0
    for record in sorted(records):
        while skipped < len(wrong) and wrong[skipped] <= record + above + 1 + skipped:
            skipped += 1
        found[record] = record + above + 1 + skipped
    return found


def _text_rows(path: Path, encoding: str | None, mark: str) -> Iterator[tuple[int, list[str]]]:
    """(its last line, the cells) of all rows that are not empty, by Python's strict reader."""
    stream = _opened(path, encoding)
    with closing(stream):
        reader = csv.reader(codecs.iterdecode(_split(stream), "utf-8-sig"), delimiter=mark, strict=True)
        for row in reader:
            if row:
                yield reader.line_num, row


def _split(stream: Any) -> Iterator[bytes]:
    """Lines, with their ends (also those of \\r alone)."""
    rest = b""
    while block := stream.read(BLOCK):
        *whole, rest = (rest + block).splitlines(keepends=True)
        if rest.endswith(b"\n"):
            whole, rest = [*whole, rest], b""
        yield from whole
    if rest:
        yield rest


def _check_quotes(path: Path, encoding: str | None, mark: str, expected: int) -> None:
    """Raise DataError where a quote that is never closed has swallowed records."""
    last = count = 0
    try:
        for line, _ in _text_rows(path, encoding, mark):
            last, count = line, count + 1
    except csv.Error as error:
        raise DataError(
            f'{path}, after line {last}: {error}: a quote (") is opened there that is not closed, or not followed by '
            f"{mark!r}. Double quotes inside a cell, and put quotes around it."
        ) from error
    if count != expected:
        raise DataError(f'{path} has {count} rows to one reader and {expected} to another: look at its quotes (").')


def _lines_of(path: Path, encoding: str | None, mark: str, rows: set[int]) -> dict[int, int]:
    """The lines of rows, by their number from 1."""
    found = {}
    for number, (line, _) in enumerate(_text_rows(path, encoding, mark), 1):
        if number in rows:
            found[number] = line
    return found


def _no_csv(path: Path, form: TextFormat, error: Exception) -> DataError:
    """What to say of a file that is no CSV file, or one in another encoding."""
    said = str(error)
    if "UTF8" in said or isinstance(error, UnicodeError):
        if form.encoding is not None:
            return DataError(f"{path} is not text in {form.encoding}: {said}. Correct data.dataset.encoding.")
        with closing(_opened(path, None)) as stream:
            decoder = codecs.getincrementaldecoder("utf-8")()
            try:
                while block := stream.read(BLOCK):
                    decoder.decode(block)
                decoder.decode(b"", final=True)
            except UnicodeDecodeError as wrong:
                return NotUtf8Error(not_utf8(path, wrong))
    return DataError(f"{path} is not a CSV file: {said}.")


def _parquet(path: Path) -> Pieces:
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} is not a Parquet file, or is damaged: {error}.") from error
    names = list(file.schema_arrow.names)
    header = [name.strip() for name in names]

    def rows(columns: Sequence[str], flaws: Flaws) -> Iterator[dict[str, pa.Array]]:
        written = {name: names[header.index(name)] for name in columns}
        try:
            for batch in file.iter_batches(RECORDS, columns=list(written.values())):
                yield {name: batch.column(other) for name, other in written.items()}
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path} is damaged: {error}.") from error

    return Pieces(header, "row", rows, lambda records: {record: record for record in records}, file.close)


def _workbook(path: Path, form: TextFormat) -> Pieces:
    import openpyxl  # takes a tenth of a second

    try:
        # By its contents, whatever its name; what it is read from is closed with it.
        book = openpyxl.load_workbook(io.BytesIO(path.read_bytes()), read_only=True, data_only=True)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is not an xlsx workbook: {error}.") from error
    if form.sheet is not None and form.sheet not in book.sheetnames:
        raise DataError(
            f"{path} has no sheet {form.sheet!r} (data.dataset.sheet). Sheets: {', '.join(book.sheetnames)}."
        )
    sheet, note = book[form.sheet or book.sheetnames[0]], ""
    if form.sheet is None and len(book.sheetnames) > 1:
        others = ", ".join(map(repr, book.sheetnames[1:6])) + ", ..." * (len(book.sheetnames) > 6)
        note = f"the first sheet, {book.sheetnames[0]!r}, is read, not {others}: data.dataset.sheet names another"
    numbered: Iterator[tuple[int, Any]] = (
        (at, row) for at, row in enumerate(sheet.iter_rows(values_only=True), 1) if any(c is not None for c in row)
    )
    first = next(numbered, (0, ()))
    header = [str("" if name is None else name).strip() for name in first[1]]
    if form.header is not None:
        header, numbered = list(form.header), itertools.chain([first], numbered)
    while header and not header[-1]:
        header.pop()
    line_of: list[int] = []

    def rows(columns: Sequence[str], flaws: Flaws) -> Iterator[dict[str, pa.Array]]:
        places = {name: header.index(name) for name in columns}
        while part := list(itertools.islice(numbered, RECORDS)):
            line_of.extend(at for at, _ in part)
            yield {
                name: array_of([row[place] if place < len(row) else None for _, row in part])
                for name, place in places.items()
            }

    return Pieces(
        header, "row", rows, lambda records: {record: line_of[record] for record in records}, book.close, note=note
    )
