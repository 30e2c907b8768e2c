"""A column as who drafts a schema, or compares sites, sees it: its words, and where they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpfl_plugin.data.cells import censored_number, empty_records, is_text, kind_of, plain
from dpfl_plugin.data.error_collector import SHOWN, ErrorCollector, is_decimal_comma, with_point
from dpfl_plugin.data.names import of_files, tidy
from dpfl_plugin.data.schema import MISSING, Column
from dpfl_plugin.data.table_reader import TableReader
from dpfl_plugin.errors import DataError

STRAYS: Final = 20  # at most 1 in so many words may be something else: more are no slips, but a column of another kind
SPELLED: Final = frozenset(
    ("-", "--", "---", "n/a", "na", "n.a.", "none", "null", "nil", "nan", "missing", "unknown", "not available")
)
"""Words for no value, in any capitals, besides those that every schema takes for it (`MISSING`), among numbers."""
RECURS: Final = 3  # cells with one word, which then is no slip: in any language "unknown", if no other word recurs
Counts = Mapping[str, int]


class Sites(NamedTuple):
    """Tables, what they are called, and whose each record is: names of sites, and the place [n] among them."""

    tables: Sequence[TableReader]
    table_names: Sequence[str]
    names: Sequence[str]
    of_record: NDArray[np.int64]


@dataclass
class ColumnProfile:
    """One column: its cells, as words or typed, in pieces, each with the place of its table among all.

    Attributes:
        nothing: words that hold no value.
    """

    name: str
    parts: list[tuple[int, pa.Array]] = field(default_factory=list)
    nothing: Collection[str] = MISSING

    @cached_property
    def cells(self) -> pa.Array:
        """[n] words, null where there is no value."""
        return self._texts(part for _, part in self.parts)

    @cached_property
    def counts(self) -> Counts:
        """How often each word that is a value occurs."""
        return counts_of(self.cells)

    @cached_property
    def texts(self) -> Counts:
        """Those of ``counts`` that were written as text; numbers of Parquet files or frames have no marks."""
        written = [part for _, part in self.parts if is_text(part.type)]
        return self.counts if len(written) == len(self.parts) else counts_of(self._texts(written))

    @property
    def count(self) -> int:
        return sum(len(part) for _, part in self.parts)

    @property
    def is_time(self) -> bool:
        return any(kind_of(part.type).singular == "a date" for _, part in self.parts)

    @property
    def unread(self) -> str:
        """What cells of a Parquet file or frame are that no draft reads, or ""."""
        kinds = [kind_of(part.type) for _, part in self.parts]
        return next((kind.many for kind in kinds if not {"number", "date"} & kind.reads), "")

    def by_site(self, sites: Sites) -> Iterator[Counts]:
        """The ``counts`` of each site."""
        order = np.argsort(sites.of_record, kind="stable")
        cells, first = self.cells.take(pa.array(order)), 0
        for size in np.bincount(sites.of_record, minlength=len(sites.names)).tolist():
            yield counts_of(cells[first : first + size])
            first += size

    def values(self, sites: Sites, numbers: Mapping[str, float] | None = None) -> tuple[NDArray[Any], NDArray[Any]]:
        """(the value, the place of its site) [n] of each cell that is a word, or of those that are ``numbers``."""
        encoded = self.cells.dictionary_encode()
        index = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        words = encoded.dictionary.to_pylist()
        if numbers is None:
            values, kept = index, index >= 0
        else:
            values = np.array([*(numbers.get(word, np.nan) for word in words), np.nan])[index]
            kept = ~np.isnan(values)
        return values[kept], sites.of_record[kept]

    def numbers(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """(number, place of the record) [n] of each cell that is one."""
        rows = np.flatnonzero(self.cells.is_valid())
        cells = self.cells.drop_null()
        try:
            values = pc.cast(cells, pa.float64()).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid:
            encoded = cells.dictionary_encode()
            numbers = [_number(word) for word in encoded.dictionary.to_pylist()]
            values = np.array([np.nan if number is None else number for number in numbers])[encoded.indices.to_numpy()]
        nothing = [number for word in self.nothing if (number := _number(word)) is not None]
        kept = np.isfinite(values) & ~np.isin(values, nothing)
        return values[kept], rows[kept]

    def first(self, words: Collection[str], sites: Sites) -> list[str]:
        """Where the first few cells with one of these ``words`` are, and what they hold."""
        return self.at(np.flatnonzero(pc.is_in(self.cells, value_set=pa.array(sorted(words), pa.string()))), sites)

    def at(self, rows: NDArray[np.int64], sites: Sites) -> list[str]:
        """Where the first few of these cells are, and what they hold."""
        return [f"{self.line(row, sites)}: {self.cells[row].as_py()!r}" for row in rows[:SHOWN].tolist()]

    def line(self, row: int, sites: Sites) -> str:
        """E.g. "north.csv, line 7"."""
        ends = np.cumsum([len(part) for _, part in self.parts])
        table = self.parts[int(np.searchsorted(ends, row, side="right"))][0]
        record = row - sum(len(part) for other, part in self.parts if other < table)
        reader = sites.tables[table]
        return f"{sites.table_names[table]}, {reader.unit} {reader.lines([record])[record]}"

    def _texts(self, parts: Iterable[pa.Array]) -> pa.Array:
        texts = [pc.utf8_trim_whitespace(plain(part)) for part in parts]
        text = pa.chunked_array(texts, pa.string()).combine_chunks()
        nothing = pc.is_in(text, value_set=pa.array(sorted(self.nothing), pa.string()))
        return pc.if_else(nothing, pa.scalar(None, pa.string()), text)


def read_columns(
    tables: Sequence[TableReader], names: Sequence[str], columns: dict[str, ColumnProfile]
) -> dict[str, ColumnProfile]:
    """The cells of ``columns`` of all tables, which are closed then.

    Raises:
        DataError: a table has no records, or rows that are wrong.
    """
    for place, (reader, name) in enumerate(zip(tables, names, strict=True)):
        errors = ErrorCollector(Path(name), reader.unit)
        with closing(reader):
            count = 0
            for part in reader.rows(list(columns), errors):
                size = len(next(iter(part.values())))
                errors.add_empty((np.flatnonzero(empty_records(part.values(), size)) + count).tolist())
                count += size
                for column, cells in part.items():
                    columns[column].parts.append((place, cells))
        errors.move(reader.lines)
        errors.check()
        if not count:
            raise DataError(f"{name} holds a header and no records.")
    return columns


def sites_of(
    tables: Sequence[TableReader], names: Sequence[str], columns: Mapping[str, ColumnProfile], silo: str | None
) -> Sites:
    """Whose each record is: by the column ``silo``, or else the files."""
    if silo is not None:
        encoded = columns[silo].cells.fill_null("").dictionary_encode()
        return Sites(tables, names, encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64))
    parts = next(iter(columns.values())).parts  # all columns are of one length
    of_record = np.repeat([place for place, _ in parts], [len(cells) for _, cells in parts])
    return Sites(tables, names, of_files([Path(name) for name in names]), of_record)


def site_list(sites: Sites, places: Iterable[int]) -> str:
    """E.g. "north, south and 5 more"."""
    names = [tidy(sites.names[place]) for place in places]
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def counts_of(cells: pa.Array) -> Counts:
    """How often each word occurs; null is none."""
    counts = pc.value_counts(cells.drop_null())
    return dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True))


@dataclass(frozen=True, slots=True)
class Sorted:
    """The different words of a column of which nearly all are of one kind.

    Attributes:
        fit: of that kind, and count: in how many cells. nothing: that stand for no value. strays: something else.
        recurring: the one of ``nothing`` that is taken for it since it recurs, as no other word does.
    """

    fit: list[str]
    count: int
    nothing: list[str]
    strays: list[str]
    num_strays: int
    recurring: str | None = None


def nearly_all(counts: Counts, fits: Callable[[str], bool]) -> Sorted | None:
    """The words, if nearly all of those that are values fit (`STRAYS`)."""
    most = sum(counts.values())
    fit, nothing, count = [], [], 0
    strays: dict[str, int] = {}
    astray = often_most = 0  # in cells
    for word, often in counts.items():
        if fits(word):
            fit.append(word)
            count += often
        elif word.casefold() in SPELLED:
            nothing.append(word)
        else:
            strays[word] = often
            astray, often_most = astray + often, max(often_most, often)
            if STRAYS * (astray - often_most) > most:  # most columns of words end here, soon
                return None
    if (recurring := _recurring(strays)) is not None:
        nothing.append(recurring)
        astray -= strays.pop(recurring)
    if not fit or STRAYS * astray > count + astray:
        return None
    return Sorted(sorted(fit), count, sorted(nothing), sorted(strays), astray, recurring)


def _recurring(strays: Counts) -> str | None:
    """The only word that recurs, if there is one; with a digit it is a value."""
    often = [word for word, count in strays.items() if count >= RECURS]
    return often[0] if len(often) == 1 and not any(map(str.isdigit, often[0])) else None


def best(counts: Counts, kinds: Iterable[Callable[[str], bool]]) -> tuple[int, Sorted] | None:
    """(the place of the kind, the words by it): that of which the fewest words are strays; the first of several."""
    candidates: list[tuple[int, Sorted]] = []
    for place, fits in enumerate(kinds):
        if (candidate := nearly_all(counts, fits)) is not None:
            candidates.append((place, candidate))
            if not candidate.strays:
                break
    return min(candidates, key=lambda candidate: candidate[1].num_strays, default=None)


def is_number(word: str) -> bool:
    """Whether it is a finite number, with whichever mark, or below or above one, as <5."""
    number = _number(word)
    return number is not None and math.isfinite(number)


def _number(word: str) -> float | None:
    if "_" in word:  # which Python takes for a mark of thousands
        return None
    try:
        return float(with_point(word) if is_decimal_comma(word) else word)
    except ValueError:
        return censored_number(word)


def numbers_of(words: Sequence[str]) -> NDArray[Any] | None:
    """``words`` as numbers, if all are; a mark that the file has elsewhere is for the check to refuse, by its line."""
    numbers = [_number(word) for word in words]
    return None if not all(map(is_number, words)) else np.array(numbers, dtype=np.float64)


def marks(column: ColumnProfile) -> tuple[list[str], list[str]]:
    """(cells with a decimal comma, cells with a point); none of a column of words."""
    if not any("," in word for word in column.counts) or (result := nearly_all(column.counts, is_number)) is None:
        return [], []
    fit = set(result.fit)
    numbers = [word for word, count in column.counts.items() if word in fit for _ in range(count)]
    commas = list(filter(is_decimal_comma, numbers))
    return commas, [word for word in numbers if commas and "." in word and not is_decimal_comma(word)]


def is_date(form: str | None) -> Callable[[str], bool]:
    """Whether a word is a date as ``form``."""
    column = Column(type="date", range=("1900-01-01", "2100-01-01"), format=form)

    def fits(word: str) -> bool:
        try:
            column.days(word)
        except (ValueError, OverflowError):
            return False
        return True

    return fits


def outwards(numbers: NDArray[Any]) -> tuple[float, float]:
    """A range of round numbers that holds all; of numbers that are too close together for that, their own."""
    low, high = float(numbers.min()), float(numbers.max())
    step = 10.0 ** math.floor(math.log10(high - low))
    found = tuple(_round(end(bound / step) * step) for end, bound in ((math.floor, low), (math.ceil, high)))
    return found if found[0] < found[1] else (low, high)  # type: ignore[return-value]


def _round(value: float) -> float:
    short = float(f"{value:.12g}")
    return int(short) if short.is_integer() else short
