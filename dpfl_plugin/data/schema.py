"""The schema of a table: what its columns hold, and how they become numbers, by public facts alone.

Nothing is read from the records to make features of them: categories and ranges are written down, so encoding a record
depends on that record only, and no epsilon is spent. scikit-learn's names for the features: ``age``, ``sex=female``.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import pydantic
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from dpfl_plugin.core.outcomes import Outcome, bins_of
from dpfl_plugin.core.scaling import Measured
from dpfl_plugin.data.thousands import Mark
from dpfl_plugin.errors import ConfigError, nearest
from dpfl_plugin.registry import describe

WHERE: Final = "data.schema"
MISSING: Final = ("", "NA", "N/A", "#N/A", "n/a", "<NA>", "NaN", "nan", "NULL", "null", "None", "?", ".")
"""Cells that hold no value, as pandas, R, spreadsheets, SAS and Stata write it, unless a column has such a value."""

DRAFTED: Final = "categories and ranges were read from the records (drafted: true): epsilon does not cover that."
"""What a schema says of itself until whoever knows them without the records removes the key."""

Kinds = Literal["classes", "ordinal", "regression", "counts", "multi_label", "survival"]


def _word(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(
            f"{str(value).lower()} without quotes is no word: write it in quotes, as the cells have it (YAML reads yes "
            "and on as true, no and off as false; cells of truth values are 'True' and 'False')"
        )
    return str(value).strip() if isinstance(value, int | float | str) else value


def _code(value: object) -> object:
    if isinstance(value, float):
        raise ValueError(
            f"{value!r} without quotes is a number, and values are compared as they are written (10.1 is not 10.10): "
            "write it in quotes, as the cells have it"
        )
    return _word(value)


Word = Annotated[str, BeforeValidator(_word)]
Words = list[Word]
Range = tuple[float, float]


def _written(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime.date) else value


Bound = Annotated[float | str, BeforeValidator(_written)]
Cell = Annotated[bool | int | float | str, BeforeValidator(_written)]
"""Dates may be Python's, as YAML and pandas (Timestamp) have them."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Column(_Strict):
    """What one column holds.

    Attributes:
        type: number or integer: scaled from its range to [-1, 1]; one below or above a limit, as <5, is read as the
            limit. category: 0 or 1 for each of its values; one feature
            of two values. ordinal: its values, least first, evenly from -1 to 1. date: as a number of days. identifier,
            ignored: no feature.
        range: the least and the largest value, public: what lies outside is clipped to it, or refused.
        unit: for readers. values: of a category. format: of a date, as Python's strptime; ISO 8601 by default.
        scale: range: from the public range to [-1, 1]. mean: by the mean and standard deviation, quantiles: by the
            median and interquartile range (over 1.349), which are noisy releases (``private_statistics``); a missing
            value then is the mean or median.
        missing: a cell without value is refused; indicator: is the middle of the range (or ``default``), and 1 in a
            feature of its own; category: a category of its own; default: is ``default``, a public value;
            most_frequent: the category that most records have, by noisy counts (``private_statistics``).
        missing_values: cells that hold no value, besides the schema's; of numbers and integers in any spelling.
        other: a category of its own for values that are not listed; else they are refused.
        thousands: the mark of thousands of numbers that are written with one, as 76,600; the decimal mark of a column
            with "." is ",", of one with "," it is ".".
    """

    type: Literal["number", "integer", "category", "ordinal", "date", "identifier", "ignored"]
    range: tuple[Bound, Bound] | None = None
    outside: Literal["clip", "refuse"] = "clip"
    unit: str | None = None
    thousands: Mark | None = None
    scale: Literal["range", "mean", "quantiles"] = "range"
    values: list[Annotated[str, BeforeValidator(_code)]] | None = None
    other: bool = False
    format: str | None = None
    missing: Literal["refuse", "indicator", "category", "default", "most_frequent"] = "refuse"
    default: Cell | None = None
    missing_values: Words = []

    @model_validator(mode="before")
    @classmethod
    def _default_means_default(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("default") is not None and "missing" not in values:
            return {**values, "missing": "default"}
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Column:
        for key in sorted(self.model_fields_set - _COLUMN_KEYS[self.type] - {"type", "unit"}):
            if getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{key} has no meaning for type: {self.type}")
        if self.type in _SCALED:
            if self.range is None:
                raise ValueError(f"type: {self.type} needs a public range, e.g. range: [0, 100]")
            low, high = self.bounds
            _check_range(f"range: [{', '.join(self.ends)}]", low, high)
        if self.type in _LISTED:
            _check_values("values", self.values)
        if self.missing == "default" and self.default is None:
            raise ValueError("missing: default needs default, a public value")
        if self.missing in ("category", "most_frequent") and self.type != "category":
            raise ValueError(f"missing: {self.missing} is for type: category; use indicator or default for {self.type}")
        if self.default is not None:
            self.number_of(self.default)
        return self

    @property
    def bounds(self) -> Range:
        """The range as numbers; of dates in days."""
        assert self.range is not None
        low, high = (self._plain(end) for end in self.range)
        return low, high

    @property
    def ends(self) -> tuple[str, str]:
        """The range as it is written."""
        low, high = (f"{end:.15g}" if isinstance(end, float) else str(end) for end in self.range or ("", ""))
        return low, high

    @property
    def listed(self) -> list[str]:
        """The values, none for a type that has none."""
        return self.values or []

    def days(self, text: str) -> float:
        """Days since 1970-01-01. Raises ValueError for a text that is no such date."""
        date = datetime.datetime.strptime(text, self.format) if self.format else datetime.datetime.fromisoformat(text)
        return date.replace(tzinfo=datetime.UTC).timestamp() / 86400

    def _plain(self, value: Cell) -> float:
        """A bound or default, in the schema's own notation: dates as ISO 8601."""
        if self.type == "date":
            try:
                return datetime.datetime.fromisoformat(str(value)).replace(tzinfo=datetime.UTC).timestamp() / 86400
            except ValueError as error:
                raise ValueError(f"{value!r} is not a date as 2020-01-31") from error
        try:
            return float(value)
        except ValueError as error:
            raise ValueError(f"{value!r} is not a number") from error

    def number_of(self, default: Cell) -> float:
        """The default as a number: of a listed type its place in ``values``.

        Raises:
            ValueError: it is none of the values, or outside the range.
        """
        if self.type in _LISTED:
            if str(default) not in self.listed:
                raise ValueError(f"default={default!r} is not one of the values {', '.join(self.listed)}")
            return float(self.listed.index(str(default)))
        value, (low, high) = self._plain(default), self.bounds
        if not low <= value <= high:
            raise ValueError(f"default={default!r} is outside the range {' to '.join(self.ends)}")
        return value

    def measured(self, name: str, first: int) -> Measured | None:
        """Which statistics of it are to be released; ``first``: the place of its first feature."""
        if self.type == "category" and self.missing == "most_frequent":
            values = (*self.listed, *["other"] * self.other)
            return Measured(name, "counts", first, len(self.features(name)), values=values)
        if self.scale == "range":
            return None
        low, high = self.bounds
        missing = first + 1 if self.missing == "indicator" else -1
        return Measured(name, self.scale, first, missing=missing, low=low, high=high)

    def features(self, name: str) -> list[str]:
        """The names of what it becomes."""
        if self.type in ("identifier", "ignored"):
            return []
        if self.type != "category":
            return [name] + [f"{name}=missing"] * (self.missing == "indicator")
        extra = ["other"] * self.other + ["missing"] * (self.missing in ("category", "indicator"))
        values = self.listed[1:] if len(self.listed) == 2 and not extra else self.listed
        return [f"{name}={value}" for value in (*values, *extra)]


_SCALED: Final = ("number", "integer", "date")
_LISTED: Final = ("category", "ordinal")
_MISSING_KEYS: Final = {"missing", "default", "missing_values"}
_COLUMN_KEYS: Final = {
    "number": {"range", "outside", "scale", "thousands"} | _MISSING_KEYS,
    "integer": {"range", "outside", "scale", "thousands"} | _MISSING_KEYS,
    "date": {"range", "outside", "scale", "format"} | _MISSING_KEYS,
    "category": {"values", "other"} | _MISSING_KEYS,
    "ordinal": {"values"} | _MISSING_KEYS,
    "identifier": set(),
    "ignored": set(),
}


def _check_range(key: str, low: float, high: float) -> None:
    if not (
        math.isfinite(low + high) and math.isfinite(high - low)
    ):  # its middle and width, by which values are scaled
        raise ValueError(f"{key} must be two finite numbers, whose sum and difference are finite, too")
    if not low < high:
        raise ValueError(f"{key} must have its least value first, and a larger one after it")


def _check_values(key: str, values: list[str] | None) -> None:
    if values is None or len(values) < 2:
        raise ValueError(f"{key} must list at least 2 values: the list is public, and not read from the records")
    twice = sorted({value for value in values if values.count(value) > 1})
    if twice or "" in values:
        quotes = ": in quotes, '007' and '7' are two" * (twice != [] and twice[0].isdecimal())
        raise ValueError(f"{key} names {twice[0]!r} twice{quotes}" if twice else f"{key} holds an empty word")


class Label(_Strict):
    """What is to be predicted, and from which columns it is read.

    Attributes:
        outcome: classes, ordinal (of ``column``, into ``classes``, least first); regression, counts (of ``column``,
            within the public ``range``; counts by ``exposure``, 1 where no column is named); multi_label (of
            ``columns`` of two ``values``, the second for yes); survival (of ``time`` from 0 within ``range``, and
            ``event``, of two ``event_values``, the second for an event; a time beyond the range is censored there).
        class_values: the cells that mean each class, where they are not its name: [["0"], ["1", "2"]] for two classes.
        bins: of survival, how many bins of time the range is cut into, or where they end; 10 by default.
        huber_delta: of regression with ``loss: huber``, in the column's unit; a tenth of the range by default.
    """

    outcome: Kinds = "classes"
    column: str | None = None
    columns: list[str] | None = None
    classes: Words | None = None
    class_values: list[Words] | None = None
    values: Words = ["0", "1"]
    range: Range | None = None
    unit: str | None = None
    exposure: str | None = None
    time: str | None = None
    event: str | None = None
    event_values: Words = ["0", "1"]
    bins: int | list[float] | None = None
    huber_delta: float | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Label:
        needs, may = _LABEL_KEYS[self.outcome]
        missing = [key for key in needs if getattr(self, key) is None]
        if missing:
            raise ValueError(f"outcome: {self.outcome} needs {' and '.join(missing)}")
        for key in sorted(self.model_fields_set - {*needs, *may, "outcome", "unit"}):
            if getattr(self, key) is not None:
                raise ValueError(f"{key} has no meaning for outcome: {self.outcome}")
        if self.classes is not None:
            _check_values("classes", self.classes)
        if self.class_values is not None:
            _check_values("class_values", [cell for cells in self.class_values for cell in cells])
            if len(self.class_values) != len(self.classes or ()) or not all(self.class_values):
                raise ValueError(
                    f"class_values has {len(self.class_values)} lists of cells for {len(self.classes or ())} classes: "
                    "give one for each, in the order of classes, with a cell at least"
                )
        for key in ("values", "event_values"):
            _check_values(key, getattr(self, key))
            if len(getattr(self, key)) != 2:
                raise ValueError(f"{key} must be two words: for no, and for yes")
        low, high = self.range or (0.0, 1.0)
        _check_range(f"range={[low, high]!r}", low, high)
        if self.range is not None and self.outcome in ("counts", "survival") and self.range[0] != 0:
            raise ValueError(f"range={list(self.range)!r} must begin at 0 for outcome: {self.outcome}")
        if self.columns is not None and not 0 < len(set(self.columns)) == len(self.columns):
            raise ValueError("columns must name different columns")
        if self.huber_delta is not None and not 0 < self.huber_delta < math.inf:
            raise ValueError(f"huber_delta={self.huber_delta!r} must be positive and finite")
        if self.outcome == "survival" and self.range is not None:
            bins_of(self.range, self.bins)
        return self

    @property
    def known(self) -> Outcome:
        """What is public of the labels."""
        edges = bins_of(self.range, self.bins) if self.outcome == "survival" and self.range is not None else ()
        return Outcome(self.outcome, self.range, edges, self.huber_delta)

    @property
    def cells(self) -> list[list[str]]:
        """The cells that mean each class; none for an outcome without classes."""
        return self.class_values or [[name] for name in self.classes or ()]

    @property
    def named(self) -> dict[str, str]:
        """{column: the key that names it}."""
        keys = ("column", "exposure", "time", "event")
        single = {name: key for key in keys if (name := getattr(self, key)) is not None}
        return single | dict.fromkeys(self.columns or (), "columns")


_LABEL_KEYS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "classes": (("column", "classes"), ("class_values",)),
    "ordinal": (("column", "classes"), ("class_values",)),
    "regression": (("column", "range"), ("huber_delta",)),
    "counts": (("column", "range"), ("exposure",)),
    "multi_label": (("columns",), ("values",)),
    "survival": (("time", "event", "range"), ("event_values", "bins")),
}


class TableSchema(_Strict):
    """All columns of a table.

    Attributes:
        label: what is to be predicted. columns: {name: what it holds}, whose order is that of the features.
        silo: the column that names a record's silo; without it each file is one. person: the column that names whose
            record it is. missing_values: cells that hold no value, in all columns.
        other_columns: what becomes of columns that the schema does not name.
        drafted: whether categories and ranges were read from the records, which epsilon does not cover. Remove it once
            you have checked that they are known without the records.
    """

    label: Label
    columns: dict[str, Column] = Field(min_length=1)
    silo: str | None = None
    person: str | None = None
    missing_values: Words = list(MISSING)
    other_columns: Literal["refuse", "ignore"] = "refuse"
    drafted: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> TableSchema:
        roles = {f"label.{key}": name for name, key in self.label.named.items()}
        roles |= {key: name for key in ("silo", "person") if (name := getattr(self, key)) is not None}
        seen: dict[str, str] = {}
        for key, name in roles.items():
            if (other := seen.setdefault(name, key)) != key and {key, other} != {"silo", "person"}:
                raise ValueError(f"{key}={name!r} is {other}, too: a column has one meaning")
            if name in self.columns and self.columns[name].type not in ("identifier", "ignored"):
                raise ValueError(f"columns.{name} is {key}, too: it would be a feature as well. Remove it from columns")
        if len(set(self.features)) != len(self.features):
            twice = next(name for name in self.features if self.features.count(name) > 1)
            raise ValueError(f"two features would have the name {twice!r}: rename a column or a value")
        if not self.features:
            raise ValueError("columns names no feature: all are identifiers or ignored")
        return self

    @classmethod
    def parse(cls, given: object, where: str = WHERE) -> TableSchema:
        """The schema that a configuration or a program gives.

        Raises:
            ConfigError: it is none; the message names each key that is wrong, below ``where``.
        """
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            raise ConfigError(f"{where}={given!r} must be a mapping with label and columns (docs/configuration.md).")
        try:
            return cls.model_validate(dict(given))
        except pydantic.ValidationError as error:
            raise ConfigError("; ".join(_problem(problem, where) for problem in error.errors()) + ".") from error

    @property
    def caveats(self) -> tuple[str, ...]:
        """What epsilon does not cover of how it was made."""
        return (DRAFTED,) if self.drafted else ()

    @property
    def features(self) -> tuple[str, ...]:
        """The names of what a record becomes, in order."""
        return tuple(feature for name, column in self.columns.items() for feature in column.features(name))

    @property
    def measured(self) -> tuple[Measured, ...]:
        """The columns whose statistics are to be released."""
        columns, first = [], 0
        for name, column in self.columns.items():
            columns.append(column.measured(name, first))
            first += len(column.features(name))
        return tuple(column for column in columns if column is not None)

    @property
    def used(self) -> dict[str, str]:
        """{column that is read: the key of the schema that names it}."""
        used = {name: f"columns.{name}" for name, column in self.columns.items() if column.features(name)}
        used |= {name: f"label.{key}" for name, key in self.label.named.items()}
        used |= {name: key for key in ("silo", "person") if (name := getattr(self, key)) is not None}
        return used

    @property
    def class_names(self) -> tuple[str, ...]:
        """Of the labels 0, 1, ..., where the outcome has classes; of the labels that hold or not, of multi_label."""
        return tuple(self.label.classes or self.label.columns or ())


def _problem(problem: Any, where: str) -> str:
    """One of pydantic's as "data.schema.columns.age: what is wrong", with the key that may be meant."""
    path = ".".join(str(part) for part in (where, *problem["loc"]))
    if problem["type"] == "extra_forbidden":
        levels: dict[int, type[_Strict]] = {1: TableSchema, 2: Label, 3: Column}
        known = list(levels[min(3, len(problem["loc"]))].model_fields)
        return f"{path} is not a known key{nearest(str(problem['loc'][-1]), known)}: {', '.join(known)}"
    if problem["type"] == "value_error":
        return f"{path}: {problem['ctx']['error']!s}"
    return describe({**problem, "loc": (where, *problem["loc"])})
