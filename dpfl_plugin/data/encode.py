"""Records of a table as features, labels, silos and persons, by a schema; piece by piece, so that no text is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpfl_plugin.data.base import Features
from dpfl_plugin.data.cells import NOTHING, UNKNOWN, Cells, Codes, Doubles, Findings, Mask, empty_records
from dpfl_plugin.data.labels import unlabelled
from dpfl_plugin.data.schema import WHERE, Column, Label, TableSchema
from dpfl_plugin.data.table import Table
from dpfl_plugin.data.thousands import Mark
from dpfl_plugin.errors import DataError

CORRECT: Final = "Correct the file, or leave the record out."
IN_ALL: Final = " in all columns that are read"


@dataclass(slots=True)
class Encoder:
    """Takes the pieces of one table.

    Attributes:
        with_labels: False for records that a model is asked about: labels may be missing, and silos and persons are
            not read.
    """

    schema: TableSchema
    findings: Findings
    decimal: str | None = None
    with_labels: bool = True
    count: int = 0
    _empty: Mask | None = None  # records of this piece
    _features: Features = field(default_factory=lambda: np.empty((0, 0), dtype=np.float32))
    _labels: list[NDArray[Any]] = field(default_factory=list)
    _known: list[Mask] = field(default_factory=list)
    _names: dict[str, list[pa.Array]] = field(default_factory=dict)

    def add(self, columns: Mapping[str, pa.Array]) -> None:
        """The next records: {column: cells [n]}, all that the schema names."""
        size = len(next(iter(columns.values())))
        if not size:
            return
        self._note_empty(columns, size)
        if self.count + size > len(self._features):  # grown in place, so that no second copy is ever there
            self._features.resize(((self.count + size) * 5 // 4, len(self.schema.features)), refcheck=False)
        x = self._features[self.count : self.count + size]
        place = 0
        for name, column in self.schema.columns.items():
            width = len(column.features(name))
            if width:
                x[:, place : place + width] = self._column(name, column, columns[name])
                place += width
        self._known.append(np.ones(size, dtype=bool))
        self._labels.append(self._label(self.schema.label, columns))
        for key, named in {"silo": self.schema.silo, "person": self.schema.person}.items():
            if named is not None and self.with_labels:
                self._names.setdefault(key, []).append(self._name(named, key, columns[named]))
        self.count += size

    def result(self) -> Table:
        """All that was added; to be called once.

        Labels are by the schema's outcome: int64 [n] (classes, ordinal), float32 [n] (regression), [n, 2] (counts:
        count and exposure; survival: time and event) or [n, k] (multi_label).

        Raises:
            DataError: nothing was.
        """
        if not self.count:
            raise DataError(f"{self.findings.errors.path} holds a header and no records.")
        features, self._features = self._features, np.empty((0, 0), dtype=np.float32)
        features.resize((self.count, len(self.schema.features)), refcheck=False)
        names = {key: _joined(parts) for key, parts in self._names.items()}
        labels, known = np.concatenate(self._labels), np.concatenate(self._known)
        if self.with_labels and not known.all():
            features[~known], labels[~known] = 0.0, self._placeholder
        path, persons = self.findings.errors.path, names.get("person")
        return Table(path, features, labels, names.get("silo"), (), persons=persons, known=known)

    @property
    def _placeholder(self) -> Any:
        """The label in the place of one that is not given, the same for each."""
        label = self.schema.label
        if label.outcome == "counts":
            return 0.0, 1.0  # exposures are positive
        return np.clip(0.0, *label.range) if label.outcome == "regression" and label.range is not None else 0

    def _note_empty(self, columns: Mapping[str, pa.Array], size: int) -> None:
        """Where a record without any value would be refused in one column after another, it is refused as a whole."""
        self._empty = None
        if self.with_labels or any(
            column.missing == "refuse" and column.features("") for column in self.schema.columns.values()
        ):
            self._empty = empty_records(columns.values(), size)
            self.findings.errors.add_empty((np.flatnonzero(self._empty) + self.count).tolist(), IN_ALL)

    def _cells(
        self, name: str, key: str, array: pa.Array, extra: tuple[str, ...] = (), thousands: Mark | None = None
    ) -> Cells:
        missing = frozenset((*self.schema.missing_values, *extra))
        new_records = not self.with_labels
        return Cells(
            name, key, array, self.count, self.findings, missing, self.decimal, new_records, self._empty, thousands
        )

    def _column(self, name: str, column: Column, array: pa.Array) -> Doubles:
        """[n, features]"""
        cells = self._cells(name, f"columns.{name}", array, tuple(column.missing_values), column.thousands)
        if column.type == "category":
            return self._category(cells, column)
        if column.type == "ordinal":
            codes, nothing = self._listed(cells, column)
            low, high = 0.0, len(column.listed) - 1.0
            values = codes / high * 2 - 1
        else:
            numbers, nothing = cells.days(column) if column.type == "date" else cells.numbers()
            if column.type == "integer":
                fix = cells.fix(f"Correct it, or {WHERE}.{cells.key}.type: number.")
                cells.flag((numbers != np.floor(numbers)) & ~nothing, ": {} is not whole.", "are not whole", fix)
            values = self._scaled(cells, column, numbers, nothing)
            low, high = column.bounds
        self._missing(cells, column, nothing)
        fill = 0.0 if column.default is None else (column.number_of(column.default) - low) / (high - low) * 2 - 1
        values = np.asarray(np.where(nothing, fill, values), dtype=np.float64)
        return np.stack([values, nothing], axis=1) if column.missing == "indicator" else values[:, None]

    def _scaled(self, cells: Cells, column: Column, numbers: Doubles, nothing: Mask) -> Doubles:
        """From the public range to [-1, 1]."""
        low, high = column.bounds
        outside = ((numbers < low) | (numbers > high)) & ~nothing
        shown = " to ".join(column.ends)
        if column.outside == "refuse":
            fix = f"Correct the file, or widen {WHERE}.{cells.key}.range, or set outside: clip there."
            fix = cells.fix(fix)
            cells.flag(
                outside, f": {{}} is outside the range {shown}.", f"are outside the range {shown}", fix, cells.cell
            )
        elif outside.any():
            self.findings.clipped[cells.name] += int(outside.sum())
        return (np.clip(numbers, low, high) - low) / (high - low) * 2 - 1

    def _missing(self, cells: Cells, column: Column, nothing: Mask) -> None:
        """Refuse what holds no value, or count it."""
        if not nothing.any():
            return
        if column.missing != "refuse":
            self.findings.missing[cells.name] += int(nothing.sum())
            return
        ways = "category" if column.type == "category" else "indicator"
        cells.flag(
            nothing,
            " holds no value ({}).",
            "hold no value",
            cells.fix(
                f"Say what that means: {WHERE}.{cells.key}.missing: {ways} (or default: VALUE, which is public).",
                "The model was trained without gaps there: fill it in, or leave the record out.",
            ),
            cells.word_for_nothing,
        )

    def _listed(self, cells: Cells, column: Column) -> tuple[Codes, Mask]:
        """(place among the values, which are no value) [n] each; 0 where a cell was flagged."""
        codes = cells.codes(column.listed)
        unknown, nothing = codes == UNKNOWN, codes == NOTHING
        if column.other:
            self.findings.other[cells.name] += int(unknown.sum())
            codes = np.where(unknown, len(column.listed), codes)
        else:
            shown = ", ".join(column.listed[:10]) + ", ..." * (len(column.listed) > 10)
            ways = f"add it to {WHERE}.{cells.key}.values"
            ways += ", or set other: true there" if column.type == "category" else ""
            fix = cells.fix(f"Correct the file, or {ways}.")
            cells.flag(unknown, f": {{}} is not one of {shown}.", f"are not one of {shown}", fix)
        return np.where(nothing | (codes == UNKNOWN), 0, codes), nothing

    def _category(self, cells: Cells, column: Column) -> Doubles:
        """One-hot [n, features]; one feature, of the second, where there are two values and nothing else.

        Where the most frequent category is filled in later, a missing one is none of them; of one feature 1/2.
        """
        codes, nothing = self._listed(cells, column)
        self._missing(cells, column, nothing)
        if column.missing == "default":
            assert column.default is not None
            codes = np.where(nothing, int(column.number_of(column.default)), codes)
        width = len(column.listed) + column.other
        if column.missing in ("category", "indicator"):
            codes = np.where(nothing, width, codes)
            width += 1
        hot = np.zeros((len(codes), width))
        hot[np.arange(len(codes)), codes] = 1
        if column.missing == "most_frequent":
            hot[nothing] = 0.5 if width == 2 else 0.0
        return hot[:, 1:] if width == 2 == len(column.listed) else hot

    def _name(self, name: str, key: str, array: pa.Array) -> pa.Array:
        """Who, or where: a word for each record."""
        cells = self._cells(name, key, array)
        words, nothing = cells.words()
        what = "whose record it is" if key == "person" else "whose silo it is in"
        cells.flag(nothing, f" is empty: it has to say {what}.", f"are empty: they have to say {what}", CORRECT)
        return words

    def _classes(self, cells: Cells, label: Label) -> Codes:
        """The class of each cell [n], `UNKNOWN` or `NOTHING`."""
        words = [word for group in label.cells for word in group]
        of_class = np.repeat(np.arange(len(label.cells)), [len(group) for group in label.cells])
        codes = cells.codes(words)
        shown = ", ".join(words[:10]) + ", ..." * (len(words) > 10)
        key, what = ("class_values", "values") if label.class_values else ("classes", "classes")
        fix = cells.fix(f"Correct the file, leave the record out, or add it to {WHERE}.label.{key}.")
        wrong = codes == UNKNOWN
        cells.flag(wrong, f": {{}} is not one of the {what} {shown}.", f"are not one of the {what} {shown}", fix)
        return np.where(codes < 0, codes, of_class[codes])

    def _label(self, label: Label, columns: Mapping[str, pa.Array]) -> NDArray[Any]:
        """Of one piece. Where labels are not needed, and not all of their columns are there, none is known."""
        if not self.with_labels and not all(name in columns for name in label.named):
            values, self._known[-1] = unlabelled(label.known, len(self.schema.class_names), len(self._known[-1]))
            return values
        if label.outcome in ("classes", "ordinal"):
            assert label.column is not None and label.classes is not None
            cells = self._cells(label.column, "label.column", columns[label.column])
            codes = self._classes(cells, label)
            self._no_label(cells, codes == NOTHING)
            return np.maximum(codes, 0)
        if label.outcome == "multi_label":
            parts = [self._yes(name, "label.values", label.values, columns) for name in label.columns or ()]
            return np.stack(parts, axis=1).astype(np.float32)
        if label.outcome == "survival":
            return self._survival(label, columns)
        values = self._amount(str(label.column), "label.column", columns)
        if label.outcome == "counts":
            cells = self._cells(str(label.column), "label.column", columns[str(label.column)])
            wrong = (values < 0) | (values != np.floor(values))
            cells.flag(wrong, ": {} is not a count.", "are not counts (0, 1, 2, ...)", cells.fix(CORRECT))
        values = self._within(str(label.column), values, label)
        if label.outcome == "regression":
            return values.astype(np.float32)
        exposure = np.ones(len(values))
        if label.exposure is not None:
            exposure = self._amount(label.exposure, "label.exposure", columns)
            cells = self._cells(label.exposure, "label.exposure", columns[label.exposure])
            wrong = (exposure <= 0) & self._known[-1]
            cells.flag(wrong, ": an exposure of {}.", "are exposures of 0 or less", cells.fix(CORRECT))
        return np.stack([values, exposure], axis=1).astype(np.float32)

    def _survival(self, label: Label, columns: Mapping[str, pa.Array]) -> NDArray[Any]:
        """[n, 2]: time, and 1 for an event; whoever is there beyond the range is censored at its end."""
        assert label.time is not None and label.event is not None and label.range is not None
        event = self._yes(label.event, "label.event_values", label.event_values, columns)
        cells = self._cells(label.time, "label.time", columns[label.time])
        time, nothing = cells.numbers()
        without = nothing & (event == 1) & self.with_labels
        what, word = " holds no value ({}): an event without time.", cells.word_for_nothing
        cells.flag(without, what, "hold no time of their event", CORRECT, word)
        self._no_label(cells, nothing & ~without)
        fix = cells.fix(CORRECT)
        cells.flag(time < 0, ": a time of {} is before the beginning.", "are before the beginning", fix)
        late = time > label.range[1]
        if late.any():
            self.findings.clipped[label.time] += int(late.sum())
        return np.stack([np.minimum(time, label.range[1]), event * ~late], axis=1).astype(np.float32)

    def _yes(self, name: str, key: str, values: list[str], columns: Mapping[str, pa.Array]) -> Doubles:
        """1 for the second of two values, 0 for the first [n]."""
        cells = self._cells(name, key, columns[name])
        codes = cells.codes(values)
        shown = " or ".join(map(repr, values))
        fix = cells.fix(
            f"Correct the file, or write the two words of the file, for no and for yes: {WHERE}.{key}: [...]."
        )
        cells.flag(codes == UNKNOWN, f": {{}} is neither {shown}.".replace(" or ", " nor "), f"are not {shown}", fix)
        self._no_label(cells, codes == NOTHING)
        return np.maximum(codes, 0).astype(np.float64)

    def _amount(self, name: str, key: str, columns: Mapping[str, pa.Array]) -> Doubles:
        cells = self._cells(name, key, columns[name])
        values, nothing = cells.numbers()
        self._no_label(cells, nothing)
        return values

    def _within(self, name: str, values: Doubles, label: Label) -> Doubles:
        assert label.range is not None
        outside = ((values < label.range[0]) | (values > label.range[1])) & self._known[-1]
        if outside.any():
            self.findings.clipped[name] += int(outside.sum())
        return np.clip(values, *label.range)

    def _no_label(self, cells: Cells, nothing: Mask) -> None:
        """A record without a label keeps its place and adds nothing to what is learnt."""
        self._known[-1] &= ~nothing
        if self.with_labels and nothing.any():
            self.findings.unlabelled[cells.name] += int(nothing.sum())


def _joined(parts: list[pa.Array]) -> NDArray[Any]:
    """Words [n] as objects, each different one once in memory."""
    encoded = pc.dictionary_encode(pa.chunked_array(parts)).combine_chunks()
    words = np.array(encoded.dictionary.to_pylist() or [""], dtype=object)
    names: NDArray[Any] = words[encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)]
    return names
