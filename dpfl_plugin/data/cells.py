"""What a cell may be, how it is read, and what is said where it cannot be read.

`KINDS` is the table of Arrow's types; `Cells._word_kinds` that of text among numbers. Text stays text unless the schema
says that it is a number: codes are compared as they are written, so 10.1 is not 10.10 and 007 is not 7.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpfl_plugin.data.error_collector import SHOWN, ErrorCollector, is_decimal_comma, with_point
from dpfl_plugin.data.schema import WHERE, Column
from dpfl_plugin.data.thousands import Mark, Points, decimal_beside, grouped, has_mark, ungrouped, without_marks

Doubles = NDArray[np.float64]
Codes = NDArray[np.int64]
Mask = NDArray[np.bool_]

UNKNOWN, NOTHING = -1, -2
"""Codes of a cell: a value that is not listed; no value."""

NOT_KNOWN: Final = "The model knows nothing else: correct this file, or leave the record out."
LEAVE_EMPTY: Final = "Correct it, or leave it empty."
NO_NEED: Final = "Correct it, or leave the cell empty: a label is not needed."

_NUMBER: Final = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?(inf|infinity|nan)", re.IGNORECASE)
_SERIAL: Final = re.compile(r"[2-5]\d{4}(\.\d*)?")
_LIMIT: Final = re.compile(r"(?:<=|>=|[<>≤≥])\s*(?=[-+.\d])")
_WHOLE: Final = re.compile(r"(-?(?:0|[1-9]\d{0,14}))(\.0)?")
EXACT: Final = 2**53  # below it each whole number is a float of its own
ERRORS: Final = frozenset(("#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#NULL!"))
"""What spreadsheets write where a formula has no result; their #N/A is a cell without value."""


class Kind(NamedTuple):
    """What a column of one of Arrow's types holds.

    Attributes:
        one, many: in words. holds: whether a type is of this kind. reads: as what such cells can be read, of "number",
            "text" and "date". fix: what to do where they are to be read as something else.
    """

    singular: str
    many: str
    holds: Callable[[pa.DataType], bool]
    reads: frozenset[str]
    fix: str = "Write numbers or words"


def _any_of(*tests: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    return lambda kind: any(test(kind) for test in tests)


def is_text(kind: pa.DataType) -> bool:
    """Whether cells of this type of Arrow's are words."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


_ANY: Final = frozenset(("number", "text", "date"))
KINDS: Final = (
    Kind("text", "text", is_text, _ANY),
    Kind("empty", "empty", pa.types.is_null, _ANY),
    Kind("a number", "numbers", _any_of(pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal), _ANY),
    Kind("a truth value", "truth values", pa.types.is_boolean, frozenset(("number", "text"))),
    Kind(
        "a date",
        "dates",
        _any_of(pa.types.is_date, pa.types.is_timestamp),
        frozenset(("text", "date")),
        "Write a number, of days for instance",
    ),
    Kind(
        "a time of day",
        "times of day",
        pa.types.is_time,
        frozenset(("text",)),
        "Write a number, of hours for instance",
    ),
    Kind(
        "a duration",
        "durations",
        pa.types.is_duration,
        frozenset(),
        "Write a number, of days for instance",
    ),
    Kind(
        "bytes",
        "bytes",
        _any_of(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view),
        frozenset(),
        "Decode them to text",
    ),
    Kind("of a nested or special type", "of a nested or special type", lambda kind: True, frozenset()),
)


def kind_of(array_type: pa.DataType) -> Kind:
    """The kind of cells of one of Arrow's types."""
    return next(kind for kind in KINDS if kind.holds(array_type))


@dataclass(slots=True)
class Findings:
    """What was found while one file was read.

    Attributes:
        errors: by the number of the record; `ErrorCollector.move` makes lines of them. clipped, missing, other: how
            many cells of each column were outside the range, held no value, or count as "other". limits: {column: how
            many cells say that a number is below or above a limit, by cell}. unlabelled: {column of the label: how many
            cells hold no value}. points: of each column that is text, unless its decimal mark was given. of_frame: it
            is a data frame, of which no file can be mended.
    """

    errors: ErrorCollector
    clipped: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    other: Counter[str] = field(default_factory=Counter)
    limits: dict[str, Counter[str]] = field(default_factory=dict)
    unlabelled: Counter[str] = field(default_factory=Counter)
    points: dict[str, Points] = field(default_factory=dict)
    of_frame: bool = False


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of one column in one piece of a file.

    Attributes:
        name: of the column. key: of the schema, that says what it holds. array: [n]. first: the number of the first
            record. missing: words that are no value. decimal: "." or ",". new_records: of a record that a
            model is asked about; another schema would be another model, so that only the file can be mended.
        empty: records [n] of which no cell is filled, which are told of by themselves. thousands: the mark of thousands
            that the schema names. encode: of a table without a schema, what to do with a word among numbers.
    """

    name: str
    key: str
    array: pa.Array
    first: int
    findings: Findings
    missing: frozenset[str]
    decimal: str | None = None
    new_records: bool = False
    empty: Mask | None = None
    thousands: Mark | None = None
    encode: str = ""

    def fix(self, by_schema: str, by_model: str = NOT_KNOWN, plain: str = "") -> str:
        """How to fix a cell: of training records also by the configuration; ``plain``: where there is no schema."""
        if self.encode:
            return plain or self.encode
        if not self.new_records:
            return by_schema
        return by_model if self.is_column else NO_NEED

    def flag(self, wrong: Mask, what: str, many: str, fix: str, cells: Callable[[int], str] | None = None) -> None:
        """Note all records of ``wrong`` [n]; "{}" in ``what`` is the cell; " ({})" nothing where that shows none."""
        rows = np.flatnonzero(wrong if self.empty is None else wrong & ~self.empty)
        if known := self.findings.errors.cells:
            rows = np.array(
                [row for row in rows.tolist() if (row + self.first, self.name) not in known], dtype=np.int64
            )
        if len(rows):
            shown = [(int(row) + self.first, (cells or self.cell)(int(row))) for row in rows[:3]]
            first = [
                (record, what.replace(" ({})", cell and f" ({cell})").replace("{}", cell), cell)
                for record, cell in shown
            ]
            self.findings.errors.add_all(len(rows), first, self.name, many, fix)

    def cell(self, row: int) -> str:
        try:
            return repr(str(self.array[row].as_py()))
        except (ValueError, OverflowError):  # of Python's dates
            return "a date beyond the year 9999"

    def word_for_nothing(self, row: int) -> str:
        """The cell, of one without a value; "" where it is empty."""
        value = self.array[row].as_py()
        return "" if value is None or value != value or not str(value).strip() else self.cell(row)

    def reads(self, what: str) -> bool:
        """Whether the cells can be read as a "number", "text" or "date"; if not, all are flagged."""
        kind = kind_of(self.array.type)
        if what not in kind.reads:
            entry, plainly = f"{WHERE}.{self.key}:", f"{kind.fix}."
            by_schema = f"{kind.fix}, or leave the column out: {entry} {{type: ignored}}."
            if "date" in kind.reads:
                by_schema = f"{entry} {{type: date, range: [2000-01-01, 2030-12-31]}} reads dates."
            fix = self.fix(by_schema if self.is_column else plainly, plain=plainly)
            self.flag(_mask(pc.is_valid(self.array)), f": {{}} is {kind.singular}.", f"are {kind.many}", fix)
        return what in kind.reads

    def words(self) -> tuple[pa.Array, Mask]:
        """(text without blanks around it, which of them are no value) [n] each; null where a cell was flagged."""
        if not self.reads("text"):
            return pa.nulls(len(self.array), pa.string()), _mask(pc.is_null(self.array))
        text = pc.utf8_trim_whitespace(plain(self.array))
        nothing = pc.or_(pc.is_null(text), pc.is_in(text, value_set=pa.array(sorted(self.missing), pa.string())))
        return text, np.asarray(nothing.to_numpy(zero_copy_only=False), dtype=bool)

    def codes(self, values: Sequence[str]) -> Codes:
        """The place in ``values`` [n], `UNKNOWN` or `NOTHING`; 0 where a cell was flagged.

        Cells are compared as they are written. Only a whole number may have one zero behind its point, as pandas writes
        it where a cell of the column is empty: 1.0 is 1, unless both are listed.
        """
        if not self.reads("text"):
            return np.where(_mask(pc.is_null(self.array)), NOTHING, 0)
        text = pc.utf8_trim_whitespace(plain(self.array)).dictionary_encode()
        words = text.dictionary.to_pylist()
        place = {value: index for index, value in enumerate(values)}
        place = {written_otherwise(value): index for value, index in place.items()} | place
        nothing = {written_otherwise(word) for word in self.missing} | self.missing
        table = np.array([place.get(word, NOTHING if word in nothing else UNKNOWN) for word in words] + [NOTHING])
        at = text.indices.fill_null(len(words)).to_numpy(zero_copy_only=False)
        errors = np.array([word in ERRORS and code == UNKNOWN for word, code in zip([*words, ""], table, strict=True)])
        if errors.any():
            self.flag(errors[at], *self._error)
        codes: Codes = np.where(errors, 0, table)[at]
        return codes

    def numbers(self) -> tuple[Doubles, Mask]:
        """(values, which are no value) [n] each; 0 where a cell was flagged, or holds no value.

        A number below or above a limit, as <0.5 or >90, is read as the limit.
        """
        if not self.reads("number"):
            return np.zeros(len(self.array)), _mask(pc.is_null(self.array))
        if is_text(self.array.type):
            values, nothing = self._parsed()
        else:
            values = _doubles(pc.cast(self.array, pa.float64(), safe=False))
            nothing = np.isnan(values)
        if codes := _numbers_among(self.missing):
            nothing |= np.isin(values, np.array(codes, np.float32) if self.array.type == pa.float32() else codes)
        infinite = ~np.isfinite(values) & ~nothing
        self.flag(infinite, *self.not_finite)
        return np.where(infinite | nothing, 0.0, values), nothing

    @property
    def not_finite(self) -> tuple[str, str, str]:
        """What `flag` says of a number that is none."""
        fix = self.fix(LEAVE_EMPTY, LEAVE_EMPTY, "Remove the record or fill it in.") if self.is_column else LEAVE_EMPTY
        return ": {} is not a finite number.", "are not finite numbers", fix

    def _parsed(self) -> tuple[Doubles, Mask]:
        if self.decimal != "," and self.thousands is None and (plain_numbers := self._plain_numbers()) is not None:
            return plain_numbers, np.zeros(len(plain_numbers), dtype=bool)
        text, nothing = self.words()
        text = pc.if_else(pa.array(nothing), pa.scalar(None, text.type), text)
        decimal = self.decimal
        if self.thousands is not None:
            text, decimal = self._without_thousands(text, self.thousands), decimal_beside(self.thousands) or decimal
        if decimal == ",":
            text = self._without_points(text)
        elif decimal is None:
            self._note_points(text)
        try:
            values = _doubles(pc.cast(text, pa.float64()))
        except pa.ArrowInvalid:
            values = self._one_by_one(text)
        # "nan" that is no missing value is an infinite one here: flagged by the caller, never taken for missing.
        return np.where(np.isnan(values) & ~nothing, np.inf, values), nothing

    def _plain_numbers(self) -> Doubles | None:
        """Of cells that hold nothing but digits, signs, points and exponents, as most columns of numbers do."""
        text = plain(self.array)
        try:
            values = _doubles(pc.cast(text, pa.float64()))
        except pa.ArrowInvalid:
            return None
        if np.isnan(values).any():
            return None
        self._note_points(text)
        return values

    def _note_points(self, text: pa.Array) -> None:
        """Gather whether points may be marks of thousands, where nothing was said of the decimal mark."""
        if self.decimal is None and not self.new_records:
            points = self.findings.points.setdefault(self.name, Points())
            if not points.are_decimals and pc.any(pc.match_substring(text, ".")).as_py():
                points.add(pc.unique(text.drop_null()).to_pylist())

    def _without_thousands(self, text: pa.Array, mark: Mark) -> pa.Array:
        """Cells without marks of thousands; 0 where one is not before three digits, which is flagged here."""
        different = pc.unique(text.drop_null()).to_pylist()
        marked = [word for word in different if has_mark(word, mark)]
        if not marked:
            return text
        good = [word for word in marked if (number := grouped(without_limit(word))) is not None and number.mark == mark]
        odd = _mask(pc.is_in(text, value_set=pa.array(sorted({*marked} - {*good}), pa.string())))
        self.flag(
            odd,
            f": {{}} has {mark!r} elsewhere than before three digits, and it is the mark of thousands.",
            f"have {mark!r}, the mark of thousands, elsewhere than before three digits",
            self.fix(
                "Write all numbers of the column alike; if it is their decimal mark, leave out "
                f"{WHERE}.{self.key}.thousands."
            ),
        )
        plainly = pa.array([ungrouped(word, mark) for word in good], pa.string())
        at = pc.index_in(text, value_set=pa.array(good, pa.string()))
        return pc.if_else(pa.array(odd), "0", pc.coalesce(plainly.take(at), text))

    def _without_points(self, text: pa.Array) -> pa.Array:
        """Cells with a decimal comma as Python has them; 0 where a number has a point, which is flagged here."""
        dotted = _mask(pc.match_substring(text, "."))
        words = pc.unique(text.filter(pa.array(dotted))).to_pylist() if dotted.any() else []
        numbers = [word for word in words if is_point_number(rest := without_limit(word)) or is_decimal_comma(rest)]
        points = _mask(pc.is_in(text, value_set=pa.array(numbers, pa.string())))
        self.flag(
            points,
            ": {} has a point, where the decimal mark is a comma.",
            "have a point, where the decimal mark is a comma",
            self.fix(
                "Write all numbers of the files alike, without marks of thousands; if all have a point: "
                "data.dataset.decimal: '.'.",
                "Write it with a comma, as the training records have it, and without marks of thousands.",
            ),
        )
        return pc.if_else(pa.array(points), "0", pc.replace_substring(text, ",", "."))

    def _one_by_one(self, text: pa.Array) -> Doubles:
        """Of cells some of which are no plain numbers, each different one once; nan where there is none."""
        encoded = text.dictionary_encode()
        words = encoded.dictionary.to_pylist()
        kinds = self._word_kinds(words)
        values = [
            float(without_limit(word)) if kind in ("number", "limit") else 0.0
            for word, kind in zip(words, kinds, strict=True)
        ]
        at = encoded.indices.fill_null(len(words)).to_numpy(zero_copy_only=False)
        if "limit" in kinds:
            often = np.bincount(at, minlength=len(words) + 1).tolist()
            limits = self.findings.limits.setdefault(self.name, Counter())
            limits.update({words[i]: often[i] for i, kind in enumerate(kinds) if kind == "limit"})
        for kind, (what, many, fix) in self._fixes(words, kinds).items():
            if kind in kinds:
                self.flag(np.array([each == kind for each in kinds] + [False])[at], what, many, fix)
        numbers: Doubles = np.array([*values, np.nan])[at]
        return numbers

    def _word_kinds(self, words: Sequence[str]) -> list[str]:
        """What each word among numbers is: a number, one below or above a limit, a spreadsheet's error, one with a
        decimal comma, with marks of thousands, with either of the two; or a word."""
        kinds = []
        for word in words:
            rest = without_limit(word)
            marks = grouped(rest)
            if _NUMBER.fullmatch(rest):
                kinds.append("number" if rest == word else "limit" if self.is_column else "limited label")
            elif word in ERRORS:
                kinds.append("error")
            elif marks is not None and marks.sure:
                kinds.append("thousands")
            elif self.decimal != "," and is_decimal_comma(rest):
                kinds.append("comma" if marks is None else "either")
            elif marks is not None:
                kinds.append("thousands")
            else:
                kinds.append("word")
        # Of a column with commas that are decimal for certain, others are, too.
        return ["comma" if kind == "either" and "comma" in kinds else kind for kind in kinds]

    @property
    def _error(self) -> tuple[str, str, str]:
        named = f", or name it as no value: {WHERE}.{self.key}.missing_values: [...]." if self.is_column else "."
        fix = self.fix(f"Correct the file{named}", plain="Correct the file.")
        return ": {} is an error of a spreadsheet.", "are errors of a spreadsheet", fix

    def _fixes(self, words: Sequence[str], kinds: Sequence[str]) -> dict[str, tuple[str, str, str]]:
        """{kind: (what is wrong, the same of several, how to fix it)}"""
        whole, mark = "76600", ","
        of_comma = (word for word, kind in zip(words, kinds, strict=True) if kind in ("comma", "either"))
        point = with_point(without_limit(next(of_comma, "1,5")))
        for word, kind in zip(words, kinds, strict=True):
            if kind in ("thousands", "either") and (marks := grouped(without_limit(word))) is not None:
                whole, mark = without_marks(word), marks.mark
                break
        all_alike = "Write all numbers of the files alike; if all have a comma: data.dataset.decimal: ','."
        decimals = "if they are decimals, with a point; if all numbers of the files are so: data.dataset.decimal: ','."
        if self.findings.of_frame:
            all_alike = "Make numbers of them, as pandas.read_csv(..., decimal=',') does."
            decimals = "if they are decimals, pandas.read_csv(..., decimal=',')."
        as_trained = "Write it with a point, as the training records have it."
        plainly = f"Write it without marks of thousands, {whole}"
        reads = f"{WHERE}.{self.key}.thousands: {mark!r} reads it as {whole}" if self.is_column else plainly
        no_number = f"Correct the file, or name them: {WHERE}.{self.key}: {{type: category, values: [...]}}"
        no_number += f"; if it is no value, {WHERE}.{self.key}.missing_values: [...]." if self.is_column else "."
        return {
            "comma": (
                ": {} has a decimal comma.",
                "have a decimal comma",
                self.fix(all_alike, as_trained, f"Write it with a point, {point}, in all of the file."),
            ),
            "thousands": (
                ": {} has marks of thousands.",
                "have marks of thousands",
                self.fix(f"{reads}.", f"{plainly}.", f"Write it without, {whole}, in all of the file."),
            ),
            "either": (
                ": {} has a comma, of thousands or of decimals.",
                "have a comma, of thousands or of decimals",
                self.fix(
                    f"{reads}; {decimals}",
                    f"{plainly}, or with a point if they are decimals.",
                    f"Write {whole}, without marks of thousands, or {point}, if it is a decimal.",
                ),
            ),
            "limited label": (
                ": {} is below or above a limit, and a label has to be a number.",
                "are below or above a limit, and labels have to be numbers",
                self.fix("Correct the file, or leave the cell empty."),
            ),
            "error": self._error,
            "word": (": {} is not a number.", "are not numbers", self.fix(no_number)),
        }

    @property
    def is_column(self) -> bool:
        """Whether it is of the schema's ``columns``: not a label, a silo or a person."""
        return self.key.startswith("columns.")

    def days(self, column: Column) -> tuple[Doubles, Mask]:
        """(days since 1970-01-01, which are no date) [n] each; 0 where a cell was flagged, or holds no value."""
        if not self.reads("date"):
            return np.zeros(len(self.array)), _mask(pc.is_null(self.array))
        if pa.types.is_temporal(self.array.type):
            stamps = pc.cast(self.array, pa.timestamp("us"), safe=False)
            nothing = _mask(pc.is_null(stamps))
            return np.asarray(pc.cast(stamps, pa.int64()).fill_null(0), dtype=np.float64) / 86_400e6, nothing
        text, nothing = self.words()
        encoded = text.dictionary_encode()
        days, bad = [], []
        for word in encoded.dictionary.to_pylist():
            try:
                days.append(0.0 if word in self.missing else column.days(word))
                bad.append(False)
            except ValueError:
                days.append(0.0)
                bad.append(True)
        at = encoded.indices.fill_null(len(days)).to_numpy(zero_copy_only=False)
        wanted = column.format or "2020-01-31 (ISO 8601)"
        fix = self.fix(
            f"Correct the file, or say how dates are written, e.g. {WHERE}.{self.key}.format: '%d.%m.%Y'.",
            "Write it so, or leave the record out.",
        )
        many = f"are not dates as {wanted}"
        words = zip(encoded.dictionary.to_pylist(), bad, strict=True)
        if serial := next((word for word, wrong in words if wrong and _SERIAL.fullmatch(word)), None):
            day = datetime.date(1899, 12, 30) + datetime.timedelta(int(float(serial)))
            fix = f"As spreadsheets count days, {serial} is {day}. {fix}"
        self.flag(np.array([*bad, False])[at], f": {{}} is not a date as {wanted}.", many, fix)
        return np.array([*days, 0.0])[at], nothing


def of_limits(name: str, cells: Counter[str], count: int) -> str:
    """A note on cells of a column that are numbers below or above a limit."""
    shown = ", ".join(map(repr, sorted(cells)[:SHOWN])) + ", ..." * (len(cells) > SHOWN)
    return (
        f"column {name!r}: {cells.total()} of {count} cells are below or above a limit ({shown}), and are read as the "
        "limit"
    )


def plain(array: pa.Array) -> pa.Array:
    """As text; as a CSV file of it would have it, but whole numbers without a point. Null where it is no text."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return plain(array.dictionary_decode())
    if pa.types.is_boolean(kind):
        return pc.if_else(array, "True", "False")
    if pa.types.is_floating(kind):  # pandas has whole numbers so, where one of them is missing
        encoded = array.dictionary_encode()
        return pa.array(map(_spelt, encoded.dictionary), pa.string()).take(encoded.indices)
    if "text" in kind_of(kind).reads:
        text = array if kind == pa.string() else pc.cast(array, pa.string())
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind):  # later than any date of Python's
            return pc.if_else(pc.match_substring_regex(text, "^[0-9]{4}-"), text, pa.scalar(None, pa.string()))
        return text
    return pa.nulls(len(array), pa.string())


def _spelt(number: Any) -> str | None:
    value = number.as_py()
    if value != value:
        return None
    if value.is_integer():
        return f"{value + 0.0:.0f}" if abs(value) < EXACT else repr(value)
    word: str = pc.cast(number, pa.string()).as_py()
    return word


def written_otherwise(word: str) -> str:
    """A whole number as pandas writes it where a cell of the column is empty, 1.0 for 1, and the other way round; any
    other word as it is."""
    match = _WHOLE.fullmatch(word)
    return word if match is None else match[1] if match[2] else f"{word}.0"


def without_limit(word: str) -> str:
    """What is below or above: 0.5 of <0.5; any other word as it is."""
    return _LIMIT.sub("", word, count=1) if _LIMIT.match(word) else word


def censored_number(word: str) -> float | None:
    """The limit of a number that is below or above one, as <5 and >90; None of any other word."""
    number = without_limit(word)
    return float(number) if number != word and is_point_number(number) else None


def is_point_number(word: str) -> bool:
    """Whether it is a number with digits, a sign, a decimal point and an exponent alone."""
    return _NUMBER.fullmatch(word) is not None


@cache
def _numbers_among(words: frozenset[str]) -> tuple[float, ...]:
    """The words that are finite numbers."""
    numbers = (float(word) for word in words if _NUMBER.fullmatch(word))
    return tuple(number for number in numbers if np.isfinite(number))


def empty_records(columns: Iterable[pa.Array], size: int) -> Mask:
    """Which records [size] have no cell that is filled, as the last lines that spreadsheets write."""
    rows = np.arange(size)
    for array in columns:
        if not len(rows):
            break
        cells = array if len(rows) == size else array.take(pa.array(rows))
        if pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type) or pa.types.is_dictionary(cells.type):
            unfilled = pc.equal(pc.utf8_trim_whitespace(plain(cells)), "").fill_null(True)
        else:
            unfilled = pc.is_null(cells, nan_is_null=True)
        rows = rows[_mask(unfilled)]
    empty = np.zeros(size, dtype=bool)
    empty[rows] = True
    return empty


def _doubles(array: pa.Array) -> Doubles:
    """[n], nan for null."""
    values: Doubles = array.to_numpy(zero_copy_only=False)
    return values


def _mask(array: pa.Array) -> Mask:
    return np.asarray(array.fill_null(False).to_numpy(zero_copy_only=False), dtype=bool)


def array_of(values: Any) -> pa.Array:
    """Python's or pandas' values as an array; of several kinds, as text."""
    try:
        made = pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        import pandas

        cells = values.tolist() if hasattr(values, "tolist") else values
        words = [None if pandas.isna(value) is True else str(value) for value in cells]
        made = pa.array([word and word.encode(errors="replace").decode() for word in words], pa.string())
    return simple(made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made)


def simple(array: pa.Array) -> pa.Array:
    """An array that is encoded by a dictionary of something else than words, without the dictionary."""
    coded = pa.types.is_dictionary(array.type) and not is_text(array.type)
    return array.dictionary_decode() if coded else array
