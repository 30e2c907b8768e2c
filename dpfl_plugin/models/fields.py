"""Records of several inputs, and models that take them by name: `forward(input_ids=..., attention_mask=...)`.

A record is one row of numbers everywhere in this package. `Fields` says which columns of the row are which input, makes
rows of records with several inputs, and `FieldsModel` turns rows back into them inside the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from dpfl_plugin.errors import ConfigError, DataError, PluginError, require, told

EXACT: Final = 2**24
"""float32, in which rows are kept, holds all whole numbers up to it."""
MEND: Final = "Correct the record, or give the Field a larger below, and the model as many words or categories."
WIDTH: Final = "Give each record one number for each of the fields' places, or declare the shapes that records have."
LABELS: Final = ("label", "labels", "target", "targets", "y")  # keys of mappings


def _outside(values: Tensor, below: int) -> Tensor:
    """Which are no whole numbers from 0 to ``below`` - 1."""
    return (values < 0) | (values >= below) | (values != values.round() if values.is_floating_point() else False)


@dataclass(frozen=True, slots=True)
class Field:
    """One input of a model.

    Args:
        shape: of one record's value; () is one number.
        below: for whole numbers (words, masks, positions): they are from 0 to below - 1, and the model gets int64. None
            for floats.

    Raises:
        ConfigError: a size is no whole number above 0, or ``below`` is above 2^24.
    """

    shape: tuple[int, ...] = ()
    below: int | None = None

    def __post_init__(self) -> None:
        sizes = isinstance(self.shape, tuple) and all(isinstance(size, int) and size > 0 for size in self.shape)
        require(sizes, "shape", self.shape, "be a tuple of sizes, e.g. (128,), and () for one number")
        known = self.below is None or (isinstance(self.below, int) and 1 <= self.below <= EXACT)
        require(known, "below", self.below, f"be a whole number from 1 to 2^24 = {EXACT}")

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def told(self) -> str:
        """Which numbers it holds."""
        many = "s" * (self.size != 1)
        what = f"number{many}" if self.below is None else f"whole number{many} from 0 to {self.below - 1}"
        return f"{self.size} {what}"


class Fields:
    """The inputs of a model, in the order of their columns: ``Fields(input_ids=Field((16,), below=1000), ...)``."""

    def __init__(self, **fields: Field) -> None:
        """
        Raises:
            ConfigError: there is none, or one is not a `Field`.
        """
        if not fields:
            raise ConfigError("Fields needs one input at least, e.g. Fields(input_ids=Field((16,), below=1000)).")
        for name, field in fields.items():
            require(isinstance(field, Field), name, field, "be a Field, e.g. Field((16,), below=1000)")
        self.fields = dict(fields)

    @property
    def width(self) -> int:
        """Columns of a row."""
        return sum(field.size for field in self.fields.values())

    def wrong_width(self, numbers: int, who: str = "a record") -> str | None:
        """What is wrong with records of so many numbers, and how to mend it; None if the fields have as many."""
        if numbers == self.width:
            return None
        each = ", ".join(f"{name} {field.size}" for name, field in self.fields.items())
        return f"{who} has {numbers} number{'s' * (numbers != 1)}, and the fields have {self.width} ({each}). {WIDTH}"

    @property
    def told(self) -> str:
        """What the columns of a row are, in order, and what a model makes of other numbers (`unpack`)."""
        each = [f"{name} ({field.told})" for name, field in self.fields.items()]
        whole = any(field.below is not None for field in self.fields.values())
        others = " Any other number counts as the nearest of these." if whole else ""
        return f"The {self.width} numbers of a record, in order: {'; '.join(each)}.{others}"

    def unpack(self, x: Tensor) -> dict[str, Tensor]:
        """The inputs (n, *shape) of rows ``x`` (n, width) by name; whole numbers are int64.

        Rows that no record has become whole numbers in their range: models are tried, traced and exported on made-up
        ones. What is trained on or predicted for is checked before (`wrong`); inside, under vmap, values cannot be.
        """
        found = {}
        for (name, field), part in zip(self.fields.items(), self._split(x), strict=True):
            values = part if field.below is None else part.round().clamp(0, field.below - 1).long()
            found[name] = values.reshape(x.shape[0], *field.shape)  # len() would make of it a number, in an export
        return found

    def wrong(self, rows: Tensor, mend: str = MEND) -> tuple[int, str] | None:
        """(its number, what is wrong with it and how to mend it) of the first of ``rows`` (n, width) that is none;
        None if all are as the fields say. Of float rows, that they are finite is checked elsewhere.

        Args:
            mend: for a number that the field does not have.
        """
        if (wrong := self.wrong_width(math.prod(rows.shape[1:]), "it")) is not None:
            return 0, wrong
        for (name, field), part in zip(self.fields.items(), self._split(rows), strict=True):
            if field.below is None:
                continue
            bad = _outside(part, field.below)
            if bool(bad.any()):
                row, place = (int(one) for one in bad.nonzero()[0])
                return row, f"{told_value(name, field, float(part[row, place]))}. {mend}"
        return None

    def wrong_rows(self, rows: Tensor) -> Tensor:
        """(n,) which of ``rows`` (n, width) have a number that a field does not have."""
        parts = zip(self.fields.values(), self._split(rows), strict=True)
        bad = [_outside(part, one.below).any(dim=1) for one, part in parts if one.below is not None]
        return torch.stack(bad).any(dim=0) if bad else torch.zeros(len(rows), dtype=torch.bool)

    def at_ends(self, x: Tensor) -> Iterator[tuple[str, int, Tensor]]:
        """(name of a field of whole numbers, the least or the greatest that it has, rows with it in all of that field)
        of made-up rows ``x`` (n, width), which elsewhere stay as they are."""
        place = 0
        for name, field in self.fields.items():
            for value in () if field.below is None else (0, field.below - 1):
                rows = x.flatten(1).clone()
                rows[:, place : place + field.size] = value
                yield name, value, rows.reshape(x.shape)
            place += field.size

    def stretched(self, rows: Tensor) -> Tensor:
        """Rows (n, width) of made-up records: numbers from 0 to 1, and in their place all words and categories."""
        parts = zip(self.fields.values(), self._split(rows), strict=True)
        return torch.cat([part if one.below is None else (part * one.below).floor() for one, part in parts], dim=1)

    def pack(self, inputs: Mapping[str, Any] | Sequence[Any]) -> Tensor:
        """One record's inputs, by name or in order, as a row (width,) of float32.

        Raises:
            DataError: one is missing or unknown, or has another shape or range; the message names it.
        """
        values = self._named(inputs)
        return torch.cat([self._row(name, field, values[name]) for name, field in self.fields.items()])

    def dataset(self, data: Any, label: str | None = None) -> PackedDataset:
        """``data`` as pairs (row, label), for `Federation.from_datasets`, a ``DataLoader`` or an adapter's `Silo`.

        Args:
            data: a map-style data set whose items are mappings with the inputs and a label, tuples (input, ..., label),
                or pairs (inputs, label) with inputs as a mapping or a tuple.
            label: the label's key, where items are mappings; None: label, labels, target, targets or y.
        """
        return PackedDataset(data, self, label)

    def _split(self, rows: Tensor) -> tuple[Tensor, ...]:
        rows = rows.flatten(1) if rows.dim() > 1 else rows.unsqueeze(1)
        return torch.split(rows, [field.size for field in self.fields.values()], dim=1)

    def _named(self, inputs: Any) -> Mapping[str, Any]:
        if isinstance(inputs, Mapping):
            if inputs.keys() != self.fields.keys():
                raise DataError(
                    f"a record has the inputs {', '.join(map(str, inputs)) or 'none'}, and the fields are "
                    f"{', '.join(self.fields)}. Declare a Field for each input, or leave the others out of the records."
                )
            return inputs
        values = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        if len(values) != len(self.fields):
            raise DataError(f"a record has {len(values)} inputs, and there are {len(self.fields)} fields.")
        return dict(zip(self.fields, values, strict=True))

    @staticmethod
    def _row(name: str, field: Field, value: Any) -> Tensor:
        try:
            given = torch.as_tensor(value).detach().cpu()
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"{name} is a {type(value).__name__}, not numbers ({told(error)}).") from error
        if tuple(given.shape) != field.shape:
            raise DataError(
                f"{name} has shape {tuple(given.shape)}, and its field {field.shape}. Pad or cut all records to one "
                "length, and declare that."
            )
        row = given.reshape(-1).double()
        if field.below is not None:
            wrong = row[(row != row.round()) | (row < 0) | (row >= field.below)]
            if len(wrong):
                raise DataError(f"{told_value(name, field, float(wrong[0]))}. {MEND}")
        return row.float()


def told_value(name: str, field: Field, value: float) -> str:
    """That a field cannot have a value, in words."""
    return f"{name} has the value {value:.10g}, which is not a whole number from 0 to {(field.below or 0) - 1}"


def fields_of(module: nn.Module) -> Fields | None:
    """Of a `FieldsModel` that gets the records as they are, by itself or first in a Sequential; else None."""
    while isinstance(module, nn.Sequential) and len(module):
        module = module[0]
    return module.fields if isinstance(module, FieldsModel) else None


class PackedDataset(Dataset[tuple[Tensor, Tensor]]):
    """Records of another data set as pairs (row, label), see `Fields.dataset`."""

    def __init__(self, dataset: Any, fields: Fields, label: str | None) -> None:
        """
        Raises:
            ConfigError: ``dataset`` is not map-style.
        """
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")) or hasattr(dataset, "batch_sampler"):
            raise ConfigError(
                f"fields make rows of data sets with __getitem__ and __len__, not of a {type(dataset).__name__}. Give "
                "the data set itself; to load it otherwise, DataLoader(fields.dataset(data), ...)."
            )
        self.dataset, self._fields, self._label = dataset, fields, label

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, label = self._split(self.dataset[index])
        try:
            return self._fields.pack(inputs), torch.as_tensor(label)
        except DataError as error:
            raise DataError(f"record {index}: {error}") from error

    def _split(self, item: Any) -> tuple[Any, Any]:
        """(inputs, label) of a record."""
        if isinstance(item, Mapping):
            keys = [key for key in item if key == self._label or (self._label is None and key in LABELS)]
            if len(keys) != 1:
                raise DataError(
                    f"records are mappings with the keys {', '.join(map(repr, item))}: which is the label is not "
                    "clear. Name it: label=..."
                )
            return {key: value for key, value in item.items() if key != keys[0]}, item[keys[0]]
        if not isinstance(item, list | tuple) or len(item) < 2:
            raise DataError(f"records must be mappings or tuples with a label, and one is a {type(item).__name__}.")
        return item[0] if len(item) == 2 else item[:-1], item[-1]


class FieldsModel(nn.Module):
    """A model of several inputs as one of rows: (n, width) in, one tensor out.

    Args:
        module: called as ``module(input_ids=..., attention_mask=...)``.
        fields: its inputs.
        output: which part of what it returns: a key of a mapping, an attribute ("logits"), or a number of a tuple's
            part. None if it returns a tensor.
        positional: pass inputs in the order of ``fields`` and not by name.
    """

    def __init__(
        self, module: nn.Module, fields: Fields, *, output: str | int | None = None, positional: bool = False
    ) -> None:
        super().__init__()
        self.module, self.fields, self.output, self.positional = module, fields, output, positional

    def forward(self, x: Tensor) -> Tensor:
        inputs = self.fields.unpack(x)
        found = self.module(*inputs.values()) if self.positional else self.module(**inputs)
        if self.output is not None:
            found = self._part(found)
        if not isinstance(found, Tensor):
            raise PluginError(
                f"the model returns a {type(found).__name__}: say which part of it holds the outputs, e.g. "
                "FieldsModel(module, fields, output='logits')."
            )
        return found

    def _part(self, found: Any) -> Any:
        try:
            if isinstance(self.output, int) or isinstance(found, Mapping):
                return found[self.output]
            return getattr(found, str(self.output))
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise PluginError(
                f"output={self.output!r}: the model returns a {type(found).__name__} that has no such part."
            ) from error
