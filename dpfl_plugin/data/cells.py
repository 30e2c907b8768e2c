"""Cells of one column as numbers: Arrow arrays to float64, by what the schema says of it; what is wrong is gathered."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpfl_plugin.data.flaws import Flaws, is_decimal_comma
from dpfl_plugin.data.schema import WHERE, Column
from dpfl_plugin.data.thousands import Mark, Points, decimal_beside, grouped, has_mark, ungrouped, without_marks

Doubles = NDArray[np.float64]
Codes = NDArray[np.int64]
Mask = NDArray[np.bool_]

UNKNOWN, NOTHING = -1, -2
"""Codes of a cell: a value that is not listed; no value."""

NOT_KNOWN: Final = "The model knows nothing else: correct this file, or leave the record out."
NO_NEED: Final = "Correct it, or leave the cell empty: a label is not needed."

_NUMBER: Final = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?(inf|infinity|nan)", re.IGNORECASE)
_LIMIT: Final = re.compile(r"^[<>≤≥]=? *(?=[-+.\d])")


@dataclass(slots=True)
class Found:
    """What was found while one file was read.

    Attributes:
        flaws: by the number of the record; `Flaws.move` makes lines of them. clipped, missing, other: how many cells of
            each column were outside the range, held no value, or count as "other". points: of each column that is text,
            unless its decimal mark was given. of_frame: it is a data frame, of which no file can be mended.
    """

    flaws: Flaws
    clipped: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    other: Counter[str] = field(default_factory=Counter)
    points: dict[str, Points] = field(default_factory=dict)
    of_frame: bool = False


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of one column in one piece of a file.

    Attributes:
        name: of the column. key: of the schema, that says what it holds. array: [n]. first: the number of the first
            record. missing: words that are no value. decimal: "." or ",". asked: of a record that a
            model is asked about; another schema would be another model, so that only the file can be mended.
        empty: records [n] of which no cell is filled, which are told of by themselves. thousands: the mark of thousands
            that the schema names.
    """

    name: str
    key: str
    array: pa.Array
    first: int
    found: Found
    missing: frozenset[str]
    decimal: str | None = None
    asked: bool = False
    empty: Mask | None = None
    thousands: Mark | None = None

    def mend(self, by_schema: str, asked: str = NOT_KNOWN) -> str:
        """How to mend a cell: of training records also by the configuration."""
        if not self.asked:
            return by_schema
        return asked if self.is_column else NO_NEED

    def flag(self, wrong: Mask, what: str, many: str, mend: str, cells: Callable[[int], str] | None = None) -> None:
        """Note all records of ``wrong`` [n]; "{}" in ``what`` is the cell; " ({})" nothing where that shows none."""
        rows = np.flatnonzero(wrong if self.empty is None else wrong & ~self.empty)
        if len(rows):
            shown = [(int(row) + self.first, (cells or self.cell)(int(row))) for row in rows[:3]]
            told = [
                (record, what.replace(" ({})", cell and f" ({cell})").replace("{}", cell), cell)
                for record, cell in shown
            ]
            self.found.flaws.add_all(len(rows), told, self.name, many, mend)

    def cell(self, row: int) -> str:
        return repr(str(self.array[row].as_py()))

    def word_for_nothing(self, row: int) -> str:
        """The cell, of one without a value; "" where it is empty."""
        value = self.array[row].as_py()
        return "" if value is None or value != value or not str(value).strip() else self.cell(row)

    def words(self) -> tuple[pa.Array, Mask]:
        """(text without blanks around it, which of them are no value) [n] each."""
        array = plain(self.array)
        text = pc.utf8_trim_whitespace(array)
        nothing = pc.or_(pc.is_null(text), pc.is_in(text, value_set=pa.array(sorted(self.missing), pa.string())))
        return text, np.asarray(nothing.to_numpy(zero_copy_only=False), dtype=bool)

    def codes(self, values: Sequence[str]) -> Codes:
        """The place in ``values`` [n], `UNKNOWN` or `NOTHING`. Numbers are compared as numbers: 1.0 is 1."""
        text = pc.utf8_trim_whitespace(plain(self.array)).dictionary_encode()
        place = {value: index for index, value in enumerate(values)}
        numeric = {number: index for value, index in place.items() if (number := _as_number(value)) is not None}
        table = np.empty(len(text.dictionary) + 1, dtype=np.int64)
        for index, word in enumerate(text.dictionary.to_pylist()):
            code = place.get(word)  # a listed value first: "NA" may be one
            if code is None:
                number = None if word in self.missing else _as_number(word)
                code = numeric.get(number, UNKNOWN) if number is not None else None
            table[index] = code if code is not None else (NOTHING if word in self.missing else UNKNOWN)
        table[-1] = NOTHING
        found: Codes = table[text.indices.fill_null(len(text.dictionary)).to_numpy(zero_copy_only=False)]
        return found

    def numbers(self) -> tuple[Doubles, Mask]:
        """(values, which are no value) [n] each; 0 where a cell was flagged, or holds no value."""
        kind = self.array.type
        if pa.types.is_dictionary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
            values, nothing = self._parsed()
        elif pa.types.is_temporal(kind):
            self.flag(
                np.ones(len(self.array), bool),
                ": {} is a date.",
                "are dates",
                self.mend(f"{WHERE}.{self.key}: {{type: date, range: [2000-01-01, 2030-12-31]}} reads dates."),
            )
            return np.zeros(len(self.array)), np.zeros(len(self.array), bool)
        else:
            values = _doubles(pc.cast(self.array, pa.float64(), safe=False))
            codes = [number for word in self.missing if (number := _as_number(word)) is not None]
            nothing = np.isnan(values) | np.isin(values, codes)
        infinite = ~np.isfinite(values) & ~nothing
        self.flag(infinite, ": {} is not a finite number.", "are not finite numbers", "Correct it, or leave it empty.")
        return np.where(infinite | nothing, 0.0, values), nothing

    def _parsed(self) -> tuple[Doubles, Mask]:
        text, nothing = self.words()
        text = pc.if_else(pa.array(nothing), pa.scalar(None, text.type), text)
        decimal = self.decimal
        if self.thousands is not None:
            text, decimal = self._without_thousands(text, self.thousands), decimal_beside(self.thousands) or decimal
        if decimal == ",":
            text = self._without_points(text)
        elif decimal is None and not self.asked:
            points = self.found.points.setdefault(self.name, Points())
            if not points.are_decimals and pc.any(pc.match_substring(text, ".")).as_py():
                points.add(pc.unique(text.drop_null()).to_pylist())
        try:
            values = _doubles(pc.cast(text, pa.float64()))
        except pa.ArrowInvalid:
            values = self._one_by_one(text)
        # "nan" that is no missing value is an infinite one here: flagged by the caller, never taken for missing.
        return np.where(np.isnan(values) & ~nothing, np.inf, values), nothing

    def _without_thousands(self, text: pa.Array, mark: Mark) -> pa.Array:
        """Cells without marks of thousands; 0 where one is not before three digits, which is flagged here."""
        different = pc.unique(text.drop_null()).to_pylist()
        marked = [word for word in different if has_mark(word, mark)]
        if not marked:
            return text
        good = [word for word in marked if (found := grouped(word)) is not None and found.mark == mark]
        odd = _mask(pc.is_in(text, value_set=pa.array(sorted({*marked} - {*good}), pa.string())))
        self.flag(
            odd,
            f": {{}} has {mark!r} elsewhere than before three digits, and it is the mark of thousands.",
            f"have {mark!r}, the mark of thousands, elsewhere than before three digits",
            self.mend(
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
        numbers = [word for word in words if _NUMBER.fullmatch(word) or is_decimal_comma(word)]
        points = _mask(pc.is_in(text, value_set=pa.array(numbers, pa.string())))
        self.flag(
            points,
            ": {} has a point, where the decimal mark is a comma.",
            "have a point, where the decimal mark is a comma",
            self.mend(
                "Write all numbers of the files alike, without marks of thousands; if all have a point: "
                "data.dataset.decimal: '.'.",
                "Write it with a comma, as the training records have it, and without marks of thousands.",
            ),
        )
        return pc.if_else(pa.array(points), "0", pc.replace_substring(text, ",", "."))

    def _one_by_one(self, text: pa.Array) -> Doubles:
        """Of cells some of which are no numbers, each different one once."""
        encoded = text.dictionary_encode()
        words = encoded.dictionary.to_pylist()
        limits = {word: limit for word in words if (limit := censored_number(word)) is not None}
        numbers = [limits.get(word, float(word) if _NUMBER.fullmatch(word) else np.nan) for word in words]
        table = np.array([*numbers, np.nan])
        at = encoded.indices.fill_null(len(words)).to_numpy(zero_copy_only=False)
        kinds = self._kinds(words)
        for kind, (what, many, mend) in self._mends(words, kinds).items():
            self.flag(np.array([one == kind for one in kinds] + [False])[at], what, many, mend)
        return np.where(np.isnan(table[at]), 0.0, table[at])

    def _kinds(self, words: Sequence[str]) -> list[str]:
        """What each word is: a number, one with a decimal comma, with marks of thousands, either of the two, a word."""
        found = []
        for word in words:
            marks = grouped(word)
            if _NUMBER.fullmatch(word) or censored_number(word) is not None:
                found.append("number")
            elif marks is not None and marks.sure:
                found.append("thousands")
            elif self.decimal != "," and is_decimal_comma(word):
                found.append("comma" if marks is None else "either")
            elif marks is not None:
                found.append("thousands")
            else:
                found.append("word")
        # Of a column with commas that are decimal for certain, others are, too.
        return ["comma" if one == "either" and "comma" in found else one for one in found]

    def _mends(self, words: Sequence[str], kinds: Sequence[str]) -> dict[str, tuple[str, str, str]]:
        """{kind: (what is wrong, the same of several, how to mend it)}"""
        whole, mark = "76600", ","
        for word, kind in zip(words, kinds, strict=True):
            if kind in ("thousands", "either") and (marks := grouped(word)) is not None:
                whole, mark = without_marks(word), marks.mark
                break
        all_alike = "Write all numbers of the files alike; if all have a comma: data.dataset.decimal: ','."
        decimals = "if they are decimals, with a point; if all numbers of the files are so: data.dataset.decimal: ','."
        if self.found.of_frame:
            all_alike = "Make numbers of them, as pandas.read_csv(..., decimal=',') does."
            decimals = "if they are decimals, pandas.read_csv(..., decimal=',')."
        as_trained = "Write it with a point, as the training records have it."
        plainly = f"Write it without marks of thousands, {whole}"
        reads = f"{WHERE}.{self.key}.thousands: {mark!r} reads it as {whole}" if self.is_column else plainly
        no_number = f"Correct the file, or name them: {WHERE}.{self.key}: {{type: category, values: [...]}}"
        no_number += f"; if it is no value, {WHERE}.{self.key}.missing_values: [...]." if self.is_column else "."
        return {
            "comma": (": {} has a decimal comma.", "have a decimal comma", self.mend(all_alike, as_trained)),
            "thousands": (
                ": {} has marks of thousands.",
                "have marks of thousands",
                self.mend(f"{reads}.", f"{plainly}."),
            ),
            "either": (
                ": {} has a comma, of thousands or of decimals.",
                "have a comma, of thousands or of decimals",
                self.mend(f"{reads}; {decimals}", f"{plainly}, or with a point if they are decimals."),
            ),
            "word": (": {} is not a number.", "are not numbers", self.mend(no_number)),
        }

    @property
    def is_column(self) -> bool:
        """Whether it is of the schema's ``columns``: not a label, a silo or a person."""
        return self.key.startswith("columns.")

    def days(self, column: Column) -> tuple[Doubles, Mask]:
        """(days since 1970-01-01, which are no date) [n] each; 0 where a cell was flagged, or holds no value."""
        if pa.types.is_temporal(self.array.type):
            stamps = pc.cast(self.array, pa.timestamp("us"), safe=False)
            nothing = _mask(pc.is_null(stamps))
            return _doubles(pc.cast(pc.cast(stamps, pa.int64()), pa.float64()).fill_null(0.0)) / 86_400e6, nothing
        text, nothing = self.words()
        encoded = text.dictionary_encode()
        found, bad = [], []
        for word in encoded.dictionary.to_pylist():
            try:
                found.append(0.0 if word in self.missing else column.days(word))
                bad.append(False)
            except ValueError:
                found.append(0.0)
                bad.append(True)
        at = encoded.indices.fill_null(len(found)).to_numpy(zero_copy_only=False)
        wanted = column.format or "2020-01-31 (ISO 8601)"
        mend = self.mend(
            f"Correct the file, or say how dates are written, e.g. {WHERE}.{self.key}.format: '%d.%m.%Y'.",
            "Write it so, or leave the record out.",
        )
        many = f"are not dates as {wanted}"
        self.flag(np.array([*bad, False])[at], f": {{}} is not a date as {wanted}.", many, mend)
        return np.array([*found, 0.0])[at], nothing


def plain(array: pa.Array) -> pa.Array:
    """As text; as a CSV file of it would have it."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_boolean(array.type):
        return pc.if_else(array, "True", "False")
    if pa.types.is_floating(array.type):  # pandas has whole numbers so, where one of them is missing
        array = pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
    return array if array.type == pa.string() else pc.cast(array, pa.string())


def censored_number(text: str) -> float | None:
    """The limit of a number that is below or above one, as <5 and >90; None of other text."""
    number = _LIMIT.sub("", text)
    return float(number) if number != text and _NUMBER.fullmatch(number) else None


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
    found = np.zeros(size, dtype=bool)
    found[rows] = True
    return found


def _as_number(word: str) -> float | None:
    if _NUMBER.fullmatch(word) is None:
        return None
    value = float(word)
    return value if np.isfinite(value) else None


def _doubles(array: pa.Array) -> Doubles:
    """[n], nan for null."""
    found: Doubles = array.to_numpy(zero_copy_only=False)
    return found


def _mask(array: pa.Array) -> Mask:
    return np.asarray(array.fill_null(False).to_numpy(zero_copy_only=False), dtype=bool)


def array_of(values: Sequence[Any]) -> pa.Array:
    """Python's values as an array; of several kinds, as text."""
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array([None if value is None or value != value else str(value) for value in values], pa.string())
