"""The option `outcome` of data sets without a schema, and labels that are read by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pydantic

from dpfl_plugin.core.outcomes import CLASSES, KINDS, Outcome
from dpfl_plugin.data.labels import Labels, shape_of
from dpfl_plugin.data.schema import Label
from dpfl_plugin.data.table import Table
from dpfl_plugin.errors import ConfigError, DataError, nearest
from dpfl_plugin.registry import describe

Option = str | Mapping[str, Any] | None
WHERE: Final = "data.dataset.outcome"
KEYS: Final = ("kind", "range", "bins", "huber_delta", "labels")
# What a schema's label needs besides, where arrays say by their shape what they hold.
_COLUMNS: Final[dict[str, dict[str, Any]]] = {
    "regression": {"column": "label"},
    "counts": {"column": "label"},
    "survival": {"time": "time", "event": "event"},
}


def parse(given: Option, classes: Sequence[object] | None) -> tuple[Outcome, tuple[str, ...]]:
    """(the outcome, names of the labels of multi_label) of the option: a kind, or {kind: ..., range: ..., ...}.

    Raises:
        ConfigError: it is none, or lacks what is to be public: a range, levels, labels.
    """
    if given is None:
        return CLASSES, ()
    if not isinstance(given, str | Mapping):
        raise ConfigError(f"{WHERE}={given!r} must be a mapping, e.g. {{kind: regression, range: [0, 100]}}.")
    block = {"kind": given} if isinstance(given, str) else dict(given)
    for key in block:
        if key not in KEYS:
            raise ConfigError(f"{WHERE}.{key} is not a known key{nearest(str(key), KEYS)}: {', '.join(KEYS)}.")
    kind = block.pop("kind", None)
    if kind not in KINDS:
        raise ConfigError(f"{WHERE}.kind={kind!r} must be one of {', '.join(KINDS)}.")
    if kind in ("classes", "ordinal"):
        if block:
            raise ConfigError(f"{WHERE}.{next(iter(block))} has no meaning for kind: {kind}.")
        if kind == "ordinal" and classes is None:
            raise ConfigError(
                f"{WHERE}.kind='ordinal': levels are public, and their order is not that of their names: give classes, "
                "the least first."
            )
        return (Outcome("ordinal") if kind == "ordinal" else CLASSES), ()
    if classes is not None:
        raise ConfigError(f"data.dataset.classes has no meaning for an outcome of {kind}. Leave it out.")
    names = block.pop("labels", None)
    if (names is None) == (kind == "multi_label"):
        raise ConfigError(
            f"{WHERE}.labels must name the labels, in order."
            if kind == "multi_label"
            else f"{WHERE}.labels has no meaning for kind: {kind}."
        )
    written = {"outcome": kind, **_COLUMNS.get(kind, {}), **({} if names is None else {"columns": names}), **block}
    try:
        return Label.model_validate(written).known, tuple(names or ())
    except pydantic.ValidationError as error:
        messages = [
            f"{WHERE}: {item['ctx']['error']!s}"
            if item["type"] == "value_error"
            else describe({**item, "loc": (WHERE, *item["loc"])})
            for item in error.errors()
        ]
        raise ConfigError("; ".join(messages) + ".") from error


def labels_of(tables: Sequence[Table], outcome: Outcome, names: Sequence[str]) -> tuple[list[Labels], list[str]]:
    """(labels of each table, what their owner should know): numbers within the public range, others clipped to it.

    Raises:
        DataError: a label is no number, not finite, or not what its outcome is; the message names its place and value.
    """
    labels, clipped = [], 0
    for table in tables:
        values = _numbers(table, outcome, len(names))
        first = values if values.ndim == 1 else values[:, 0]
        if outcome.kind == "counts":
            _refuse(table, first, (first < 0) | (first != np.floor(first)), "is not a count (0, 1, 2, ...)")
            _refuse(table, values[:, 1], values[:, 1] <= 0, "is not an exposure, which is above 0")
        if outcome.kind == "multi_label":
            for column in values.T:
                _refuse(table, column, (column != 0) & (column != 1), "is neither 0 nor 1")
        if outcome.kind == "survival":
            _refuse(table, first, first < 0, "is a time before the beginning")
            _refuse(table, values[:, 1], (values[:, 1] != 0) & (values[:, 1] != 1), "is neither 1, for an event, nor 0")
        if outcome.range is not None:
            outside = (first < outcome.range[0]) | (first > outcome.range[1])
            clipped += int(outside.sum())
            if outcome.kind == "survival":
                values[:, 1] *= ~outside  # who is there beyond the range is censored at its end
            np.clip(first, *outcome.range, out=first)
        labels.append(values.astype(np.float32))
    become = "censored at its end" if outcome.kind == "survival" else "clipped to it"
    total = sum(map(len, labels))
    notes = [f"{clipped} of {total} labels are outside {WHERE}.range, and {become}"] if clipped else []
    return labels, notes


def _numbers(table: Table, outcome: Outcome, num_labels: int) -> Labels:
    """[n] or [n, k], float64."""
    written = table.labels
    if written.dtype.kind in "US":
        if outcome.kind not in ("regression", "counts"):
            raise ConfigError(
                f"{WHERE}.kind={outcome.kind!r}: its labels are in several columns: use a table with a schema "
                "(docs/outcomes.md)."
            )
        values = np.array([_number(table, row, word) for row, word in enumerate(written.tolist())])
    elif written.dtype.kind in "fiub":
        values = written.astype(np.float64)
    else:
        raise DataError(f"{table.path}: labels must be numbers, got {written.dtype}.")
    if outcome.kind == "counts" and values.ndim == 1:
        values = np.stack([values, np.ones(len(values))], axis=1)
    shape = shape_of(outcome, num_labels)
    if values.shape != (len(table.features), *shape):
        raise DataError(
            f"{table.path}: labels of an outcome of {outcome.kind} must have shape {(len(table.features), *shape)}, "
            f"got {written.shape}."
        )
    for column in values.reshape(len(values), -1).T:
        _refuse(table, column, ~np.isfinite(column), "is not finite")
    return values


def _number(table: Table, row: int, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise DataError(f"{table.place(row)}: {word!r} is not a number. Correct it, or leave the record out.") from None


def _refuse(table: Table, values: Labels, wrong: Any, why: str) -> None:
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise DataError(f"{table.place(row)}: {values[row]:.15g} {why}. Correct it, or leave the record out.")
