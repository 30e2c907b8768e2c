"""Labels as arrays, by what they are: their shapes, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.core.outcomes import Outcome
from dpfl_plugin.errors import DataError

Integers = NDArray[np.int64]
Labels = NDArray[Any]
"""int64 [n] of classes, float32 [n] or [n, k] of other outcomes: see `Outcome`."""


LabelType = Literal["bool", "float", "int", "text"]
"""What a class is in Python; where classes have names, and in files, it is their text."""


_KINDS: Final[dict[str, LabelType]] = {"b": "bool", "f": "float", "i": "int", "u": "int"}  # of numpy's types
_WHOLE: Final = re.compile(r"(-?(?:0|[1-9][0-9]{0,15}))(?:\.0)?")
_EXACT: Final = 2**53  # below it each whole number is a float of its own
BYTES: Final = (
    "are bytes. Decode them to words: .astype(str) where they are ASCII, numpy.char.decode(..., 'utf-8') else"
)
NO_FLOATS: Final = (
    "are floats. Make them whole numbers by .astype(int), where that cuts nothing off, or words by .astype(str)"
)
QUANTITY: Final = ", if they are classes; a quantity is another outcome, such as regression (docs/outcomes.md)"


def type_of(columns: Iterable[Any]) -> LabelType:
    """What labels are, by numpy's or pandas' types of all columns [n] that hold some, or by the items of objects."""
    types = {_type_of(column) for column in columns}
    return types.pop() if len(types) == 1 else "text"


def _type_of(column: Any) -> LabelType:
    if column.dtype.kind != "O":
        return _KINDS.get(column.dtype.kind, "text")
    kinds = {_kind_of(item) for item in column.tolist()}
    return _KINDS.get(kinds.pop(), "text") if len(kinds) == 1 else "text"


def _kind_of(item: object) -> str:
    """As numpy's types have it: b, i, f, U, S, and O for anything else."""
    kinds = {"b": bool | np.bool_, "i": int | np.integer, "f": float | np.floating, "U": str, "S": bytes}
    return next((kind for kind, type_ in kinds.items() if isinstance(item, type_)), "O")


def is_mixed(given: object) -> bool:
    """Whether it is a list of words and of others, which numpy would make words in silence."""
    return isinstance(given, list | tuple) and len({isinstance(item, str | bytes) for item in given}) == 2


def of_objects(array: NDArray[Any]) -> NDArray[Any]:
    """An array of objects that are all words, all whole numbers or all truth values as an array of these; any other
    array, and one of other or mixed objects, as it is."""
    if array.dtype.kind != "O":
        return array
    kinds = {_kind_of(item) for item in array.reshape(-1).tolist()}
    if len(kinds) != 1 or not kinds <= set("biU"):
        return array
    made = np.array(array.tolist())
    return made if made.shape == array.shape and made.dtype.kind in "biuU" else array


def plain_names(array: NDArray[Any], count: int, what: str, *, classes: bool = True) -> NDArray[Any]:
    """Names of ``classes``, or other ones: as they are, or of objects as `of_objects` makes them.

    Raises:
        DataError: they are not one word, whole number or truth value for each of ``count`` records.
    """
    array = of_objects(array)
    must = f"{what} must be one whole number, truth value or word for each of the {count} rows of features"
    if array.shape != (count,):
        raise DataError(f"{must}, got {array.dtype} {array.shape}.")
    if array.dtype.kind in "iubU":
        return array
    kinds = {_kind_of(item) for item in array.tolist()}
    if kinds == {"S"}:
        wrong = BYTES
    elif kinds == {"f"}:
        wrong = NO_FLOATS + QUANTITY * classes
    else:
        named = sorted({type(item).__name__ for item in array.tolist()})
        are = f"are of several types ({', '.join(named)})" if len(named) > 1 else f"are of type {named[0]}"
        wrong = f"{are}. Make all of them words, or all of them whole numbers; leave out records without one"
    raise DataError(f"{must}, and these, {array.dtype}, {wrong}.")


def whole(name: str) -> int | None:
    """The whole number that a label is written for, as 1 or 1.0; None of any other, and of one beyond 2^53."""
    match = _WHOLE.fullmatch(name)
    number = int(match[1]) if match else _EXACT
    return number if abs(number) < _EXACT else None


def found_names(written: Collection[str]) -> set[str]:
    """What classes are called that are read from the records: of a whole number that is also written as a float, 1."""
    numbers = {name: whole(name) for name in set(written)}
    return {name for name, value in numbers.items() if value is None or name == str(value) or str(value) not in numbers}


def numbers_of(classes: Sequence[str], written: Iterable[str]) -> dict[str, int]:
    """{label: number of its class}, of all classes and of those of ``written`` that are one.

    A name is that class; besides, 1.0 is 1, as pandas writes whole numbers where some value of a column is missing.
    """
    number = {name: index for index, name in enumerate(classes)}
    wholes = [whole(name) for name in classes]
    by_value = {value: index for index, value in enumerate(wholes) if value is not None and wholes.count(value) == 1}
    for name in set(written) - number.keys():
        value = whole(name)
        if value is not None and value in by_value:
            number[name] = by_value[value]
    return number


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
    _refuse(values, (values < low) | (values > high), f"outside the public range {low:.15g} to {high:.15g}", source)
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
