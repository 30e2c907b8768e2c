"""The variables of a table by its schema, read back from encoded records: which cell of a public grid a value is in.

Levels, ranges and bins come from the schema alone. A value of one record depends on that record only.
"""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.data.base import Features, Integers, Labels
from dpfl_plugin.data.schema import Column, Label, TableSchema

MISSING: Final = "missing"
NOWHERE: Final = -1  # the code of a value that is in no cell

Doubles = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Variable:
    """A column, or a part of the label.

    Attributes:
        name: of the column. type: number, integer, date, category or ordinal, as the schema's.
        levels: of a listed type: its values, and what else a cell may be. edges: of another: where bins end, in its
            unit (dates: days since 1970-01-01), from the least to the largest value.
        first, width: which features are its values; of the label: which of its columns, and ``of_label`` is set.
        missing: the place of the feature that is 1 where the value is missing; -1 for none.
        low, high: the range that became -1 to 1. unit: for readers.
    """

    name: str
    type: str
    levels: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()
    first: int = 0
    width: int = 1
    missing: int = -1
    low: float = 0.0
    high: float = 1.0
    unit: str = ""
    of_label: bool = False

    @property
    def is_listed(self) -> bool:
        return not self.edges

    @property
    def num_bins(self) -> int:
        """Cells that are values, without that of missing ones."""
        return len(self.levels) if self.is_listed else len(self.edges) - 1

    @property
    def cells(self) -> tuple[str, ...]:
        """What each cell is called."""
        if self.is_listed:
            return self.levels
        ends = [self.shown(edge) for edge in self.edges]
        bins = (f"{low} to {high}" for low, high in itertools.pairwise(ends))
        return (*bins, *[MISSING] * (self.missing >= 0))

    def shown(self, value: float) -> str:
        """A value as people write it."""
        if self.type != "date":
            return f"{value:.6g}"
        moment = datetime.datetime.fromtimestamp(value * 86400, datetime.UTC)
        return moment.date().isoformat()

    def scaled(self, features: Features, labels: Labels) -> Doubles:
        """Its value from -1 to 1 (n,), and nan where it is missing."""
        if self.of_label:
            values = labels if labels.ndim == 1 else labels[:, self.first]
            x = (values.astype(np.float64) - self.low) / (self.high - self.low) * 2 - 1
        else:
            x = features[:, self.first].astype(np.float64)
        x = np.clip(np.nan_to_num(x), -1.0, 1.0)
        return x if self.missing < 0 else np.where(features[:, self.missing] > 0.5, np.nan, x)

    def codes(self, features: Features, labels: Labels) -> Integers:
        """The cell of each record (n,); `NOWHERE` where none is."""
        if self.of_label and self.is_listed:
            values = labels if labels.ndim == 1 else labels[:, self.first]
            return np.nan_to_num(values, nan=NOWHERE).astype(np.int64)
        if self.type == "category":
            x = features[:, self.first : self.first + self.width]
            if self.width == 1:  # of two values: 0, 1, and 1/2 where it is missing
                x = np.concatenate([1 - x, x], axis=1)
            return np.where(x.max(axis=1) > 0.75, x.argmax(axis=1), NOWHERE).astype(np.int64)
        share = (np.nan_to_num(self.scaled(features, labels)) + 1) / 2
        if self.type == "ordinal":
            last = len(self.levels) - 1 - (self.missing >= 0)
            codes = np.rint(share * last)
        else:
            value = self.low + share * (self.high - self.low)
            codes = np.floor((value - self.edges[0]) / (self.edges[-1] - self.edges[0]) * self.num_bins + 1e-6)
            codes = np.clip(codes, 0, self.num_bins - 1)
        codes = codes.astype(np.int64)
        if self.missing < 0:
            return codes
        return np.where(features[:, self.missing] > 0.5, len(self.cells) - 1, codes)


def variables_of(schema: TableSchema, bins: int) -> tuple[Variable, ...]:
    """The columns that are features, in order, and then the label.

    Args:
        bins: of a number, cut at equal distances from its least to its largest public value. Whole numbers of no more
            values than that have a bin for each.
    """
    variables, first = [], 0
    for name, column in schema.columns.items():
        width = len(column.features(name))
        if width:
            variables.append(_of_column(name, column, first, width, bins))
        first += width
    return (*variables, *_of_label(schema.label, bins))


def _of_column(name: str, column: Column, first: int, width: int, bins: int) -> Variable:
    common: dict[str, Any] = {"name": name, "type": column.type, "first": first, "unit": column.unit or ""}
    if column.type == "category":
        extra = ["other"] * column.other + [MISSING] * (column.missing in ("category", "indicator"))
        return Variable(**common, levels=(*column.listed, *extra), width=width)
    missing = first + 1 if column.missing == "indicator" else -1
    if column.type == "ordinal":
        return Variable(**common, levels=(*column.listed, *[MISSING] * (missing >= 0)), missing=missing)
    return Variable(**common, **_grid(column.type, *column.bounds, bins), missing=missing)


def _grid(type: str, low: float, high: float, bins: int) -> dict[str, Any]:
    """Bins of a range."""
    values = math.floor(high) - math.ceil(low) + 1
    if type == "integer" and values <= bins:
        edges = tuple(math.ceil(low) - 0.5 + number for number in range(values + 1))
    else:
        edges = tuple(low + (high - low) * number / bins for number in range(bins + 1))
    return {"edges": edges, "low": low, "high": high}


def _of_label(label: Label, bins: int) -> Iterator[Variable]:
    if label.outcome in ("classes", "ordinal"):
        type = "category" if label.outcome == "classes" else "ordinal"
        yield Variable(str(label.column), type, tuple(label.classes or ()), of_label=True)
    elif label.outcome == "multi_label":
        for number, name in enumerate(label.columns or ()):
            yield Variable(name, "category", tuple(label.values), first=number, of_label=True)
    else:
        assert label.range is not None
        type = "integer" if label.outcome == "counts" else "number"
        named = label.time if label.outcome == "survival" else label.column
        yield Variable(str(named), type, **_grid(type, *label.range, bins), unit=label.unit or "", of_label=True)
        if label.outcome == "survival":
            yield Variable(str(label.event), "category", tuple(label.event_values), first=1, of_label=True)
