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
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from dpfl_plugin.core.text import counted
from dpfl_plugin.data.cells import ERRORS, array_of, plain, simple
from dpfl_plugin.data.error_collector import ErrorCollector, not_utf8, utf_16
from dpfl_plugin.errors import ConfigError, DataError

DELIMITERS: Final = ",;\t|"
BLOCK: Final = 2**22  # bytes of text, and so many records of other tables:
RECORDS: Final = 2**16
LET_GO: Final = 1.0  # seconds for which Arrow's threads are waited for; they need thousandths of one
LINES_ABOVE: Final = 30  # of a header, at most, as titles and comments
OTHER_KINDS: Final = (
    # first bytes, what it is, pandas's function
    (b"<stata_dta>", "a Stata file", "read_stata"),
    *((bytes([version, order]), "a Stata file", "read_stata") for version in range(105, 116) for order in (1, 2)),
    (b"$FL2", "an SPSS file", "read_spss"),
    (b"$FL3", "an SPSS file", "read_spss"),
    (b"HEADER RECORD", "a SAS transport file", "read_sas"),
    (b"\0\0\0\0\0\0\0\0\0\0\0\0\xc2\xea\x81\x60", "a SAS file", "read_sas"),
    (b"ARROW1", "a Feather file", "read_feather"),
    (b"\x89HDF", "an HDF5 file", "read_hdf"),
)
CORRECT_ERROR: Final = "Correct it there, or empty the cell."
STORE_VALUES: Final = "Open the file in a spreadsheet program and save it there, which stores the values."
Lines = Callable[[list[int]], Mapping[int, int]]


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
class TableReader:
    """An open table.

    Attributes:
        header: names of its columns, without blanks around them. unit: what its lines are called. rows: takes the
            columns that are wanted, and gives {column: cells} of the next records until there are no more; rows that
            have another number of cells are noted and left out. lines: where records, by number, are; after ``rows``.
            of_frame: it is a data frame. note: what to say of how it was opened. delimiter: of text.
    """

    header: list[str]
    unit: str
    rows: Callable[[Sequence[str], ErrorCollector], Iterator[dict[str, pa.Array]]]
    lines: Lines
    close: Callable[[], None] = field(default=lambda: None)
    of_frame: bool = False
    note: str = ""
    delimiter: str = ""

    def words(self, name: str) -> list[str]:
        """The cells of a column as text, "" for none; [] where there is no such column."""
        parts = self.rows([name], ErrorCollector(Path())) if name in self.header else ()
        return [cell or "" for part in parts for cell in pc.utf8_trim_whitespace(plain(part[name])).to_pylist()]


def sentence(note: str) -> str:
    """A `TableReader.note` where a sentence begins."""
    return note[:1].upper() + note[1:]


def open_table(path: Path, form: TextFormat, known: Sequence[str] = ()) -> TableReader:
    """The table in a file, by its first bytes.

    Args:
        known: names of columns, by which the header is found, below a title or comments, and the delimiter.

    Raises:
        DataError: it cannot be read, or is of another kind.
    """
    try:
        with path.open("rb") as file:
            start = file.read(16)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    for magic, what, reader in OTHER_KINDS:
        if start.startswith(magic):
            frame, other = f"pandas.{reader}({str(path)!r})", str(path.with_suffix(".parquet"))
            needs = " (pandas needs pyreadstat for it)" * (reader == "read_spss")
            raise DataError(
                f"{path} is {what}{needs}. Write it as Parquet, {frame}.to_parquet({other!r}), and name that file; or "
                f"pass the frame: Federation.from_table({frame}, schema)."
            )
    if start.startswith(b"\xd0\xcf\x11\xe0"):
        raise DataError(f"{path} is an old Excel file (xls), or has a password: save it as xlsx or CSV.")
    if start.startswith(b"\x1f\x8b") and path.suffix != ".gz":
        raise DataError(f"{path} is compressed by gzip. Give it the name {path}.gz, or decompress it.")
    if start.startswith(b"PAR1"):
        return _parquet(path)
    if start.startswith(b"PK\x03\x04"):
        return _workbook(path, form, known)
    return _csv(path, form, known)


def frame_reader(frame: Any) -> TableReader:
    """A data frame of pandas; its records are rows from 0."""
    header = [str(name).strip() for name in frame.columns]

    def rows(columns: Sequence[str], errors: ErrorCollector) -> Iterator[dict[str, pa.Array]]:
        places = {name: header.index(name) for name in columns}
        for first in range(0, len(frame), RECORDS):
            part = frame.iloc[first : first + RECORDS]
            yield {name: _of_frame(part.iloc[:, place]) for name, place in places.items()}

    return TableReader(header, "row", rows, lambda records: {record: record for record in records}, of_frame=True)


def _of_frame(column: Any) -> pa.Array:
    return array_of(column.tolist() if column.dtype == object else column)


def _noting(mark: str, errors: ErrorCollector, wrong_rows: list[int]) -> Callable[[Any], str]:
    """What Arrow asks about a row that has another number of cells than the header: it is noted and left out."""

    def note(row: Any) -> str:
        wrong_rows.append(row.number)
        text, divisions = row.text or "", row.expected_columns - 1
        other = next((delimiter for delimiter in DELIMITERS if text.count(delimiter) == divisions > 0), None)
        if other is not None and other != mark:
            how = f"divided by {other!r}, and the header by {mark!r}"
            errors.add(-row.number, None, f": is {how}.", f"are {how}", "Divide all lines alike.")
            return "skip"
        if text.startswith("#"):
            errors.add(-row.number, None, " is a comment: remove it.", "are comments: remove them")
            return "skip"
        what = f": {row.actual_columns} columns, the header has {row.expected_columns}."
        many = f"have another number of columns than the header, which has {row.expected_columns}"
        errors.add(-row.number, None, what, many, "Is a mark inside a cell, which needs quotes?")
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


@dataclass(frozen=True, slots=True)
class _Text:
    """A text file from its header on.

    Attributes:
        encoding: None for UTF-8. lines_above: of the header, and bytes_above: how long they are in UTF-8.
    """

    path: Path
    encoding: str | None
    lines_above: int = 0
    bytes_above: int = 0

    def opened(self) -> Any:
        """Bytes in UTF-8, decompressed where the file is compressed by gzip, bzip2 or zstd and has that suffix."""
        kind = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}.get(self.path.suffix)
        stream = pa.input_stream(str(self.path), compression=kind)
        if self.encoding is not None:
            stream = pa.transcoding_input_stream(stream, self.encoding, "utf-8")
        stream.read(self.bytes_above)
        return stream

    def of_arrow(self) -> Any:
        """The same, of Arrow's own making throughout, for its threads (`_batches`)."""
        if self.encoding is None:
            return self.opened()
        sink = pa.BufferOutputStream()
        for block in self.blocks():
            sink.write(block)
        return pa.BufferReader(sink.getvalue())

    def blocks(self) -> Iterator[bytes]:
        with closing(self.opened()) as stream:
            while block := stream.read(BLOCK):
                yield block

    def num_lines(self) -> int:
        """Raises UnicodeDecodeError where it is not UTF-8."""
        count, last, decoder = 0, b"\n", codecs.getincrementaldecoder("utf-8")()
        for block in self.blocks():
            count, last = count + block.count(b"\n"), block[-1:]
            if not block.isascii() or decoder.getstate()[0]:
                decoder.decode(block)
        decoder.decode(b"", final=True)
        return count + (last != b"\n")

    def rows(self, mark: str) -> Iterator[tuple[int, list[str]]]:
        """(its last line, the cells) of all rows that are not empty, by Python's strict reader."""
        with closing(self.opened()) as stream:
            reader = csv.reader(codecs.iterdecode(_split(stream), "utf-8-sig"), delimiter=mark, strict=True)
            for row in reader:
                if row:
                    yield reader.line_num + self.lines_above, row


def _encoding(path: Path, form: TextFormat) -> str | None:
    """None for UTF-8."""
    if form.encoding is not None:
        name = codecs.lookup(form.encoding).name
        return None if name in ("utf-8", "utf-8-sig", "ascii") else name
    with closing(_Text(path, None).opened()) as stream:
        return utf_16(stream.read(8))


def _header(
    path: Path, encoding: str | None, form: TextFormat, known: Sequence[str]
) -> tuple[_Text, str, list[str], int]:
    """(the text from its header on, the delimiter, names of columns, lines of the header)"""
    with closing(_Text(path, encoding).opened()) as stream:
        block = stream.read(BLOCK)
    lines = block.splitlines(keepends=True)
    readings = []
    for mark in form.delimiter or DELIMITERS:
        row, above = _first_row(block, mark), 0
        if form.header is None and not {*row} & {*known}:
            above = _row_of_names([_first_row(line, mark) for line in lines[:LINES_ABOVE]], known)
            row = _first_row(b"".join(lines[above:]), mark) if above else row
        readings.append((len({*row} & {*known}), len(row), mark, row, above))
    _, width, mark, row, above = max(readings, key=lambda reading: (reading[0], reading[1]))
    if any("\ufffd" in name for name in row):  # names in another encoding, which would be taken for other columns
        codecs.getincrementaldecoder("utf-8")().decode(block)
    text = _Text(path, encoding, above, sum(map(len, lines[:above])))
    if form.header is not None and 2 * len({*row} & {*form.header}) <= len(form.header):  # else it has names, after all
        if width != len(form.header):
            raise DataError(
                f"{path}, line 1: has {width} columns, data.dataset.header names {len(form.header)}. All have to be "
                "named, in their order."
            )
        return text, mark, list(form.header), 0
    return text, mark, row, 1


def _first_row(text: bytes, mark: str) -> list[str]:
    """Of the rows that are not empty."""
    reader = csv.reader(io.StringIO(text.decode("utf-8-sig", errors="replace"), newline=""), delimiter=mark)
    return [name.strip() for name in next((row for row in reader if row), [])]


def _row_of_names(rows: Sequence[Sequence[str]], known: Sequence[str]) -> int:
    """Which row names the columns: the first that has half of the ``known`` names, below rows that are shorter or
    comments; if there is none, the first of all."""
    for place, row in enumerate(rows):
        above = (len(other) < len(row) or other[0].startswith("#") for other in rows[:place])
        if known and 2 * len({*row} & {*known}) >= len({*known}) and all(above):
            return place
    return 0


def _left_out(above: int) -> str:
    """A note on so many lines above the header."""
    verb = "is" if above == 1 else "are"
    return f"{counted(above, 'line')} above the names of the columns {verb} not read"


def _csv(path: Path, form: TextFormat, known: Sequence[str]) -> TableReader:
    try:
        source, mark, header, above = _header(path, _encoding(path, form), form, known)
    except (OSError, EOFError, UnicodeError, csv.Error, pa.ArrowException) as error:
        raise _no_csv(path, form, error) from error
    wrong_rows: list[int] = []  # numbers of rows, from 1, that have another number of cells
    plain = [False]  # whether each record is one line, and no line is empty

    def rows(columns: Sequence[str], errors: ErrorCollector) -> Iterator[dict[str, pa.Array]]:
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
            num_lines = source.num_lines()
            note = [_noting(mark, errors, wrong_rows)]
            for batch in _batches(source.of_arrow(), read, convert, mark, note):
                count += len(batch)
                yield {name: batch.column(place) for name, place in wanted.items()}
        except (OSError, EOFError, UnicodeError, pa.ArrowException) as error:
            if "Empty CSV file" in str(error):
                return
            raise _no_csv(path, form, error) from error
        plain[0] = num_lines == count + len(wrong_rows) + above
        if not plain[0]:
            _check_quotes(source, mark, count + len(wrong_rows) + above)

    def lines(records: list[int]) -> dict[int, int]:
        rows_of = _rows_of([record for record in records if record >= 0], sorted(wrong_rows), above)
        rows_of |= {record: -record for record in records if record < 0}
        if plain[0]:
            return {record: row + source.lines_above for record, row in rows_of.items()}
        by_row = _lines_of(source, mark, set(rows_of.values()))
        return {record: by_row[rows_of[record]] for record in records}

    note = _left_out(source.lines_above) if source.lines_above else ""
    return TableReader(header, "line", rows, lines, note=note, delimiter=mark)


def _rows_of(records: list[int], wrong: list[int], above: int) -> dict[int, int]:
    """The numbers, from 1, of the rows in which records are: below the header, without those that are ``wrong``."""
    rows, skipped = {}, 0
    for record in sorted(records):
        while skipped < len(wrong) and wrong[skipped] <= record + above + 1 + skipped:
            skipped += 1
        rows[record] = record + above + 1 + skipped
    return rows


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


def _check_quotes(source: _Text, mark: str, expected: int) -> None:
    """Raise DataError where a quote that is never closed has swallowed records."""
    path, last, count = source.path, source.lines_above, 0
    try:
        for line, _ in source.rows(mark):
            last, count = line, count + 1
    except csv.Error as error:
        raise DataError(
            f'{path}, after line {last}: {error}: a quote (") is opened there that is not closed, or not followed by '
            f"{mark!r}. Double quotes inside a cell, and put quotes around it."
        ) from error
    if count != expected:
        raise DataError(f'{path} has {count} rows to one reader and {expected} to another: look at its quotes (").')


def _lines_of(source: _Text, mark: str, rows: set[int]) -> dict[int, int]:
    """The lines of rows, by their number from 1."""
    lines = {}
    for number, (line, _) in enumerate(source.rows(mark), 1):
        if number in rows:
            lines[number] = line
    return lines


def _no_csv(path: Path, form: TextFormat, error: Exception) -> DataError:
    """What to say of a file that is no CSV file, or one in another encoding."""
    if isinstance(error, UnicodeDecodeError) and form.encoding is None:
        return not_utf8(path, error)
    if isinstance(error, UnicodeError) or "UTF8" in str(error):
        return DataError(f"{path} is not text in {form.encoding}: {error}. Correct data.dataset.encoding.")
    return DataError(f"{path} is not a CSV file: {error}.")


def _parquet(path: Path) -> TableReader:
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} is not a Parquet file, or is damaged: {error}.") from error
    names = list(file.schema_arrow.names)
    header = [name.strip() for name in names]

    def rows(columns: Sequence[str], errors: ErrorCollector) -> Iterator[dict[str, pa.Array]]:
        written = {name: names[header.index(name)] for name in columns}
        try:
            for batch in file.iter_batches(RECORDS, columns=list(written.values())):
                batch.validate(full=True)  # text is UTF-8
                yield {name: simple(batch.column(other)) for name, other in written.items()}
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path} is damaged: {error}.") from error

    return TableReader(header, "row", rows, lambda records: {record: record for record in records}, file.close)


def _workbook(path: Path, form: TextFormat, known: Sequence[str]) -> TableReader:
    with _workbook_errors(path):
        values, formulas = _sheets_of(path, path.read_bytes(), form)
    notes = []
    if form.sheet is None and len(values.parent.worksheets) > 1:
        first, *others = (sheet.title for sheet in values.parent.worksheets)
        listed = ", ".join(map(repr, others[:5])) + ", ..." * (len(others) > 5)
        notes.append(f"the first sheet, {first!r}, is read, not {listed}: data.dataset.sheet names another")
    numbered = _filled_rows(path, values, formulas)
    first_rows = list(itertools.islice(numbered, LINES_ABOVE))
    words = [[("" if cell is None else str(cell)).strip() for cell in row] for _, row, _ in first_rows]
    words = [row[: max((place + 1 for place, word in enumerate(row) if word), default=0)] for row in words]
    filled = [[word for word in row if word] for row in words]
    has_names = bool(filled) and bool({*filled[0]} & {*known})
    of_names = 0 if form.header is not None or has_names else _row_of_names(filled, known)
    left, header = 0, list(form.header or ())
    if form.header is None and first_rows:  # a table may begin below and beside A1
        left = next(place for place, word in enumerate(words[of_names]) if word)
        header, above = words[of_names][left:], first_rows[of_names][0] - first_rows[0][0]
        notes += [_left_out(first_rows[of_names][0] - 1)] * (above > 0)
        first_rows = first_rows[of_names + 1 :]
    numbered = itertools.chain(first_rows, numbered)
    line_of: list[int] = []

    def rows(columns: Sequence[str], errors: ErrorCollector) -> Iterator[dict[str, pa.Array]]:
        places = {name: header.index(name) + left for name in columns}
        inside = range(left, left + len(header))
        while part := list(itertools.islice(numbered, RECORDS)):
            for record, (number, row, formula) in enumerate(part, len(line_of)):
                _note_cells(number, row, formula, places, inside, record, errors)
            line_of.extend(at for at, _, _ in part)
            yield {
                name: array_of([row[place] if place < len(row) else None for _, row, _ in part])
                for name, place in places.items()
            }

    def close() -> None:
        for sheet in (values, formulas):
            if sheet is not None:
                sheet.parent.close()

    def lines(records: list[int]) -> dict[int, int]:
        return {record: line_of[record] for record in records}

    return TableReader(header, "row", rows, lines, close, note="; ".join(notes))


@contextmanager
def _workbook_errors(path: Path) -> Iterator[None]:
    """What openpyxl raises of a damaged file, whose XML it takes for granted, as DataError."""
    try:
        yield
    except (DataError, MemoryError):
        raise
    except Exception as error:
        raise DataError(f"{path} is not an xlsx workbook, or is damaged: {error}.") from error


def _sheets_of(path: Path, content: bytes, form: TextFormat) -> tuple[Any, Any]:
    """(the sheet of a workbook with the values of its cells, the same with formulas, None where it has none)"""
    import openpyxl  # takes a tenth of a second

    with zipfile.ZipFile(io.BytesIO(content)) as members:
        has_formulas = any(
            b"<f>" in text or b"<f " in text
            for name in members.namelist()
            if name.startswith("xl/worksheets/") and (text := members.read(name))
        )
    sheets = []
    for data_only in (True, False)[: 1 + has_formulas]:
        # By its contents, whatever its name; what it is read from is closed with it.
        book = openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=data_only)
        names = [sheet.title for sheet in book.worksheets]
        if not names or (form.sheet is not None and form.sheet not in names):
            raise DataError(f"{path} has no sheet {form.sheet!r} (data.dataset.sheet). Sheets: {', '.join(names)}.")
        sheets.append(book[form.sheet or names[0]])
        sheets[-1].reset_dimensions()  # which some programs write wrongly
    return sheets[0], sheets[1] if has_formulas else None


def _filled_rows(path: Path, values: Any, formulas: Any) -> Iterator[tuple[int, Sequence[Any], Sequence[Any]]]:
    """(its number, the values, the formulas) of each row that is not empty."""
    if formulas is None:
        rows: Iterator[Any] = ((row, ()) for row in values.iter_rows(values_only=True))
    else:
        pair = (sheet.iter_rows(values_only=True) for sheet in (values, formulas))
        rows = zip(*pair, strict=True)
    with _workbook_errors(path):
        for number, (row, formula) in enumerate(rows, 1):
            if any(cell is not None for cell in row) or any(cell is not None for cell in formula):
                yield number, row, formula


def _note_cells(
    number: int,
    row: Sequence[Any],
    formula: Sequence[Any],
    columns: Mapping[str, int],
    inside: range,
    record: int,
    errors: ErrorCollector,
) -> None:
    """Note what of a workbook's row is beside its table, an error, or a formula whose value the file does not have."""
    for place, cell in enumerate(row):
        if cell is not None and place not in inside:
            errors.add(
                record,
                None,
                f": the cell in column {_letters(place)} is beside the table.",
                "have cells beside the table",
                "Remove it, or name its column in the header.",
                repr(str(cell)),
            )
    for name, place in columns.items():
        cell = row[place] if place < len(row) else None
        where = f" (cell {_letters(place)}{number})"
        if cell in ERRORS:
            what, many, fix = (
                f"{where}: {cell!r} is an error of a spreadsheet.",
                "are errors of a spreadsheet",
                CORRECT_ERROR,
            )
        elif cell is None and place < len(formula) and formula[place] is not None:
            cell = formula[place]
            what, many, fix = f"{where} is a formula without a value.", "are formulas without values", STORE_VALUES
        else:
            continue
        errors.add(record, name, what, many, fix, repr(str(cell)))
        errors.cells.add((record, name))


def _letters(place: int) -> str:
    """A column as spreadsheets call it: A, ..., Z, AA, ..."""
    return (_letters(place // 26 - 1) if place >= 26 else "") + chr(ord("A") + place % 26)
