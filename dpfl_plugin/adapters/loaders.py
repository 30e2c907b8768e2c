"""Which records a project's loader gives: these, each once, are a silo's, and no others.

Batches are drawn by the private oracle, so that of a loader its records are needed, not its batches. Amplification and
sensitivity are of the records that are read: if a sampler picks 40 of 180, then reading all 180 would claim for each of
these 40 less than it costs, and train on 140 that the project left out. So a loader is taken at its word where it is
known what it gives, and refused where it is not; nothing of it is ignored in silence.
"""

from __future__ import annotations

import bisect
import itertools
import logging
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils import data as torch_data

from dpfl_plugin.adapters.owner import say_once
from dpfl_plugin.errors import DataError, UnsupportedError, told
from dpfl_plugin.models.fields import LABELS, PackedDataset

INSTEAD: Final = (
    "Pass the records themselves, each once: torch.utils.data.Subset(dataset, indices), or a pair of tensors "
    "(features, labels). Batches are drawn by the private oracle, and weigh every record alike."
)
LOOKED_AT: Final = 8  # records that are read twice, to see whether they change


@dataclass(frozen=True, slots=True)
class Source:
    """What to read, in this order.

    Attributes:
        items: pairs (features, labels). one_by_one: of a record each; else of a batch.
        identities: one for each record, equal for the same one, also elsewhere in this process; None if unknown.
    """

    items: Iterable[Any]
    one_by_one: bool
    identities: Sequence[Hashable] | None


def source_of(data: Any) -> Source:
    """The records of a ``DataLoader``, a data set, a pair of arrays or an iterable of batches.

    Raises:
        DataError: a record is there twice.
        UnsupportedError: it cannot be told which records a loader gives, or they change from one time to the next.
    """
    if isinstance(data, torch_data.DataLoader):
        data, indices, one_by_one = _of_loader(data)
        found = _of_dataset(data, indices) if one_by_one else _of_batches([data[index] for index in indices])
    elif isinstance(data, torch_data.IterableDataset):
        raise _refused("the silo's data are an IterableDataset, whose items have no names")
    elif _is_pair(data):
        found = _of_batches([data])
    elif isinstance(data, list | tuple | Mapping):
        found = _of_batches([data] if isinstance(data, Mapping) else data)
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        found = _of_dataset(data, range(len(data)))
    elif hasattr(data, "__len__") or type(data).__module__.startswith("torch.utils.data"):
        raise _refused(
            f"the silo's data are a {type(data).__name__}, which reads a loader, or is one of its own making",
            "Give the DataLoader itself, a data set, or a list of batches, in which each row is a record. ",
        )
    else:
        found = Source(data, one_by_one=False, identities=None)
    _check_once(found.identities)
    return found


def check_apart(silos: Mapping[int, Any]) -> dict[int, int]:
    """Check that no record is at two silos, as far as this process can tell; their numbers of records, where known.

    Only the same object is the same record here: copies with equal values are not looked for.

    Raises:
        DataError: one is; UnsupportedError: as `source_of`.
    """
    owner: dict[Hashable, int] = {}
    counts: dict[int, int] = {}
    sources = {silo: source_of(data) for silo, data in silos.items() if data is not None}  # held: memory is not reused
    for silo, source in sources.items():
        if source.identities is None:
            continue
        counts[silo] = len(source.identities)
        for identity in source.identities:
            other = owner.setdefault(identity, silo)
            if other != silo:
                raise DataError(
                    f"silos {other} and {silo} have a record in common: each silo's epsilon is for its own, and of "
                    "that record they would add up, which no statement says. Give it to one of them."
                )
    return counts


def _is_pair(data: Any) -> bool:
    return isinstance(data, tuple) and len(data) == 2 and all(hasattr(part, "shape") for part in data)


# Loaders


def _of_loader(loader: torch_data.DataLoader[Any]) -> tuple[Any, Sequence[int], bool]:
    """(data set, the indices that it reads, ascending, whether its items are records and not batches)."""
    dataset = loader.dataset
    if isinstance(dataset, torch_data.IterableDataset):
        raise _refused("the silo's DataLoader reads an IterableDataset, whose items have no names")
    if type(loader).__iter__ is not torch_data.DataLoader.__iter__:
        raise _refused(f"the silo's loader is a {type(loader).__name__}, with batches of its own making")
    sampler, one_by_one = loader.sampler, loader.batch_sampler is not None
    drop_last = 0
    if one_by_one:
        batches = loader.batch_sampler
        if type(batches) is not torch_data.BatchSampler:
            raise _refused(f"the silo's DataLoader has the batch_sampler {type(batches).__name__}")
        sampler, drop_last = batches.sampler, batches.batch_size if batches.drop_last else 0
    plain = torch_data.default_collate if one_by_one else torch_data.default_convert
    if loader.collate_fn is not plain:
        name = getattr(loader.collate_fn, "__name__", type(loader.collate_fn).__name__)
        raise _refused(
            f"the silo's DataLoader has the collate_fn {name}, which may change records, mix them, or leave some out",
            "Do in the data set's __getitem__ what it does to one record. ",
        )
    if one_by_one:
        _check_by_item(dataset)
    size = len(dataset)  # type: ignore[arg-type]
    indices, shuffles = _indices(sampler, size)
    if drop_last and not shuffles and len(indices) % drop_last:
        raise _refused(
            f"the silo's DataLoader has drop_last=True, by which the last {len(indices) % drop_last} of its "
            f"{len(indices)} records are never read",
            "Use drop_last=False, or leave these out of the data set. ",
        )
    return dataset, indices, one_by_one


def _check_by_item(dataset: Any) -> None:
    """A loader reads whole batches by ``__getitems__``, where a data set has that; records are read here one by one."""
    while type(dataset) is torch_data.Subset:
        dataset = dataset.dataset
    if isinstance(dataset[0], Mapping):  # which is refused for what it is
        return
    if hasattr(dataset, "__getitems__"):
        raise _refused(
            f"the silo's data set {type(dataset).__name__} has __getitems__, which may give other records than "
            "__getitem__",
            "Leave it out. ",
        )


def _indices(sampler: Any, size: int) -> tuple[Sequence[int], bool]:
    """(indices that a sampler gives, ascending; whether in an order that changes)."""
    if type(sampler) is torch_data.SequentialSampler and len(sampler.data_source) == size:
        return range(size), False
    if type(sampler) is torch_data.RandomSampler:
        if sampler.replacement:
            raise _refused("the silo's DataLoader has a RandomSampler with replacement, which gives records repeatedly")
        if not len(sampler.data_source) == sampler.num_samples == size:
            raise _refused(
                f"the silo's DataLoader has a RandomSampler of {sampler.num_samples} records, of {size} that there are"
            )
        return range(size), True
    if type(sampler) is torch_data.SubsetRandomSampler:
        return _chosen(sampler.indices, size), True
    if isinstance(sampler, list | tuple | range | np.ndarray | Tensor):
        return _chosen(sampler, size), False
    raise _refused(
        f"the silo's DataLoader has the sampler {type(sampler).__name__}: which records it gives, and how often, "
        "cannot be determined"
    )


def _chosen(indices: Any, size: int) -> list[int]:
    found = sorted(int(index) for index in indices)
    if found and not 0 <= found[0] <= found[-1] < size:
        raise DataError(
            f"the silo's sampler names record {found[0] if found[0] < 0 else found[-1]}, of {size} that there are."
        )
    for one, following in itertools.pairwise(found):
        if one == following:
            raise _twice(one)
    return found


# Records


def _of_dataset(dataset: Any, indices: Sequence[int]) -> Source:
    root, rows = _root(dataset, indices)
    if type(root) is torch_data.TensorDataset and [type(x) for x in root.tensors] == [Tensor, Tensor]:
        chosen = rows if isinstance(rows, slice) else torch.tensor(rows, dtype=torch.int64)
        batch = tuple(x[chosen] for x in root.tensors)  # what it gives one by one, which nothing changes
        return Source([batch], False, _rows(root.tensors[0], rows) or [_identity(dataset, index) for index in indices])
    _check_steady(dataset, indices)
    return Source((dataset[index] for index in indices), True, [_identity(dataset, index) for index in indices])


def _of_batches(batches: Sequence[Any]) -> Source:
    identities: list[Hashable] | None = []
    for place, batch in enumerate(batches):
        batch = _pair_in(batch) if isinstance(batch, Mapping) else batch
        if isinstance(batch, list | tuple) and len(batch) == 2 and (wrong := _no_batch(*batch)):
            raise DataError(
                f"a list, or a loader with batch_size=None, is read as batches, and item {place} of the silo's data "
                f"{wrong}. If its items are records, give a torch Dataset of them, or a pair of arrays (features, "
                "labels); in a batch of one record, labels have the shape (1,)."
            )
        rows = _addresses(batch[0]) if isinstance(batch, list | tuple) and batch else None
        identities = None if rows is None or identities is None else [*identities, *rows]
    return Source(batches, False, identities)


def _no_batch(features: Any, labels: Any) -> str:
    """Why this is no batch but one record, as far as that shows; empty otherwise."""
    if not isinstance(labels, list | tuple) and getattr(labels, "ndim", 0) == 0:
        return "has one label, not an array of them"
    if getattr(features, "ndim", 0) == 1 and len(features) != len(labels):
        return f"has {len(features)} features in one row, and labels of length {len(labels)}"
    return ""


def _root(dataset: Any, indices: Sequence[int]) -> tuple[Any, Sequence[int] | slice]:
    """(the data set below nested subsets, its indices that are meant; all of them as a slice)"""
    rows: Sequence[int] | slice = slice(None) if isinstance(indices, range) else indices  # a range is of all
    while type(dataset) is torch_data.Subset:
        rows = [int(dataset.indices[index]) for index in (range(len(dataset)) if isinstance(rows, slice) else rows)]
        dataset = dataset.dataset
    return dataset, rows


def _identity(dataset: Any, index: int) -> Hashable:
    """Of the record at the root of nested subsets; of a row of memory, for tensors."""
    while True:
        if isinstance(dataset, torch_data.Subset) and type(dataset).__getitem__ is torch_data.Subset.__getitem__:
            dataset, index = dataset.dataset, int(dataset.indices[index])
        elif type(dataset) is PackedDataset:
            dataset = dataset.dataset
        elif type(dataset) is torch_data.ConcatDataset:
            index += len(dataset) if index < 0 else 0
            part = bisect.bisect_right(dataset.cumulative_sizes, index)
            index -= dataset.cumulative_sizes[part - 1] if part else 0
            dataset = dataset.datasets[part]
        else:
            break
    index += len(dataset) if index < 0 else 0
    if type(dataset) is torch_data.TensorDataset and dataset.tensors[0].numel():
        return _address(dataset.tensors[0], index)
    return id(dataset), index


def _address(x: Tensor, row: int) -> Hashable:
    place = x.data_ptr() + row * x.stride(0) * x.element_size()
    return place if x.device.type == "cpu" else ("memory", str(x.device), place)


def _rows(x: Tensor, chosen: Sequence[int] | slice) -> Sequence[Hashable]:
    """`_address` of many rows, of all of them as a range; none where they have no places."""
    if not x.numel():
        return []
    if isinstance(chosen, slice) and x.device.type == "cpu" and x.stride(0):
        step = x.stride(0) * x.element_size()
        return range(x.data_ptr(), x.data_ptr() + len(x) * step, step)
    return [_address(x, row) for row in (range(len(x)) if isinstance(chosen, slice) else [r % len(x) for r in chosen])]


def _addresses(x: Any) -> list[Hashable] | None:
    """Where each row lies in memory, the same of rows that are one (a row that was expanded); None where they have no
    places."""
    if isinstance(x, np.ndarray) and x.ndim and x.size:
        return [x.ctypes.data + row * x.strides[0] for row in range(len(x))]
    if isinstance(x, Tensor) and x.dim() and x.numel() and x.layout == torch.strided:
        return [_address(x, row) for row in range(len(x))]
    return None


def _check_once(identities: Sequence[Hashable] | None) -> None:
    if isinstance(identities, range):  # of rows at equal distances
        return
    seen: set[Hashable] = set()
    for place, identity in enumerate(identities or ()):
        if identity in seen:
            raise _twice(place)
        seen.add(identity)


def _twice(place: int) -> DataError:
    return DataError(
        f"record {place} of the silo is there twice: in the sum it would count twice, where the noise is for one. Give "
        "each record once; weights of records are not supported."
    )


def _check_steady(dataset: Any, indices: Sequence[int]) -> None:
    """Raise UnsupportedError where a record is another one when it is read again."""
    step = max(1, len(indices) // LOOKED_AT)
    for index in indices[::step][:LOOKED_AT]:
        if not _same(dataset[index], dataset[index]):
            raise UnsupportedError(
                f"the silo's data set gives a different record {index} when it is read again: it changes records at "
                "random (augmentation). Records are read once, and drawn again and again. Leave the augmentation out."
            )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    try:
        a, b = np.asarray(torch.as_tensor(one).cpu().double()), np.asarray(torch.as_tensor(other).cpu().double())
    except (TypeError, ValueError, RuntimeError):
        return True  # it will be refused for what it is
    return a.shape == b.shape and bool(np.array_equal(a, b, equal_nan=True))


def pair_of(item: Any) -> tuple[Tensor, Tensor]:
    """(features, labels) of a record or a batch.

    Raises:
        DataError: it is not such a pair.
    """
    if isinstance(item, Mapping):
        item = _pair_in(item)
    if not isinstance(item, list | tuple) or len(item) != 2:
        raise DataError(
            f"training data must be pairs of features and labels, and one is a {type(item).__name__}. Give Silo a pair "
            "of tensors, where yours are not."
        )
    try:
        return torch.as_tensor(item[0]), torch.as_tensor(item[1])
    except (TypeError, ValueError, RuntimeError) as error:
        kinds = " and ".join(type(part).__name__ for part in item)
        raise DataError(
            f"training data are pairs of {kinds}, which are not tensors ({told(error)}). Give them as tensors or "
            "arrays of numbers, and classes that are words by their numbers from 0."
        ) from error


def _pair_in(item: Mapping[Any, Any]) -> tuple[Any, Any]:
    """(features, labels) of a mapping, where its keys leave no doubt: one is a name of labels, and one is left.

    Raises:
        DataError: they do.
    """
    labels = [key for key in item if key in LABELS]
    if len(labels) != 1 or len(item) != 2:
        keys = ", ".join(map(repr, list(item)[:10]))
        raise DataError(
            f"training data are mappings with the keys {keys}: they must have two, one of which is "
            f"{' or '.join(map(repr, LABELS))}, or be pairs (features, label). Give Silo a list of batches [(features, "
            "labels), ...] or a data set that makes pairs of them; dpfl_plugin.Fields does, of records with several "
            "inputs (docs/models.md)."
        )
    (features,) = (key for key in item if key != labels[0])
    # Not what the other key is: of a file without a header, which a loader took its first line for, it is a record's.
    say_once(logging.INFO, f"training data are mappings: {labels[0]!r} has their labels, and the other key features")
    return item[features], item[labels[0]]


def _refused(what: str, first: str = "") -> UnsupportedError:
    return UnsupportedError(f"{what}. {first}{INSTEAD}")
