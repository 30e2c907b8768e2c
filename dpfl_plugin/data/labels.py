"""Labels as arrays, by what they are: their shapes, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.core.outcomes import Outcome
from dpfl_plugin.errors import DataError

Integers = NDArray[np.int64]
Labels = NDArray[Any]
"""int64 [n] of classes, float32 [n] or [n, k] of other outcomes: see `Outcome`."""


LabelType = Literal["bool", "float", "int", "text"]
"""What a class is in Python; where classes have names, and in files, it is their text."""


def type_of(kinds: Iterable[str]) -> LabelType:
    """What labels are, by the kinds of numpy's or pandas' types of all columns that hold some."""
    of: dict[str, LabelType] = {"b": "bool", "f": "float", "i": "int", "u": "int"}
    found = {of.get(kind, "text") for kind in kinds}
    return found.pop() if len(found) == 1 else "text"


def typed(name: str, label_type: LabelType) -> bool | float | int | str:
    """The label that is called so; its name, if no label of this type is."""
    if label_type == "bool":
        return {"True": True, "False": False}.get(name, name)
    try:
        return float(name) if label_type == "float" else int(name) if label_type == "int" else name
    except ValueError:
        return name


class KnownLabels(NamedTuple):
    """Labels of records that a model is asked about, of which some may have none.

    values: [n, ...] as of training records; 0 where none is given. known: [n], where one is given.
    """

    values: Labels
    known: NDArray[np.bool_]


def shape_of(outcome: Outcome, num_outputs: int) -> tuple[int, ...]:
    """The shape of one record's label."""
    if outcome.kind in ("counts", "survival"):
        return (2,)
    return (num_outputs,) if outcome.kind == "multi_label" else ()


def no_labels(outcome: Outcome, names: int) -> Labels:
    """Of no records; ``names``: how many classes or labels have one."""
    return unlabelled(outcome, names, 0).values


def unlabelled(outcome: Outcome, names: int, count: int) -> KnownLabels:
    """Of so many records, none of which has one."""
    kind = np.int64 if outcome.has_classes else np.float32
    shape = (count, *shape_of(outcome, outcome.num_outputs(names)))
    return KnownLabels(np.zeros(shape, kind), np.zeros(count, bool))


def check_labels(y: Labels, outcome: Outcome, num_outputs: int, source: str) -> None:
    """Raise DataError unless labels are what their outcome says; the message names the row, from 0, and the value."""
    if y.shape[1:] != shape_of(outcome, num_outputs):
        raise DataError(
            f"{source}: labels of an outcome of {outcome.kind} must have shape "
            f"{('records', *shape_of(outcome, num_outputs))}, got {y.shape}."
        )
    if outcome.has_classes:
        _refuse(y, (y < 0) | (y >= num_outputs), f"outside 0..{num_outputs - 1}", source)
        return
    _refuse(y, ~np.isfinite(y), "not finite", source)
    if outcome.kind == "multi_label":
        _refuse(y, (y != 0) & (y != 1), "neither 0 nor 1", source)
        return
    assert outcome.range is not None
    low, high = np.float32(outcome.range[0]), np.float32(outcome.range[1])
    values = y if y.ndim == 1 else y[:, 0]
    _refuse(values, (values < low) | (values > high), f"outside the public range {low:g} to {high:g}", source)
    if outcome.kind == "counts":
        _refuse(values, values != np.floor(values), "not a count (0, 1, 2, ...)", source)
        _refuse(y[:, 1], y[:, 1] <= 0, "not an exposure, which is above 0", source)
    if outcome.kind == "survival":
        _refuse(y[:, 1], (y[:, 1] != 0) & (y[:, 1] != 1), "neither 1, for an event, nor 0", source)


def _refuse(values: Labels, wrong: NDArray[np.bool_], why: str, source: str) -> None:
    if wrong.any():
        row, *column = (int(index) for index in np.argwhere(wrong)[0])
        at = f", label {column[0]}," if column else ""
        raise DataError(f"{source}: the label of row {row}{at} is {values[(row, *column)]!s}, {why}.")
