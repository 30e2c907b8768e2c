"""Users' own training data as the records of a silo."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpfl_plugin.adapters.loaders import pair_of, source_of
from dpfl_plugin.core.outcomes import CLASSES, Outcome
from dpfl_plugin.data.base import Silo
from dpfl_plugin.data.outcome_option import labels_of
from dpfl_plugin.data.table import Table
from dpfl_plugin.errors import DataError, RecordKindError


def silo_of(data: Any, model: nn.Module, outcome: Outcome = CLASSES, label_names: Sequence[str] = ()) -> Silo:
    """A silo's training records, each once and in a fixed order.

    Features become floats, except where they are integers and the model takes integers: then they are word numbers,
    for an Embedding, and become int64. Integers of 8 or 16 bits, as pixels are, become floats wherever the model takes
    floats, too.

    Args:
        data: a ``DataLoader`` (the records that its sampler gives, in the order of the data set: batches are drawn
            here), a data set of pairs (features, label), a pair of arrays or tensors, or an iterable of batches of such
            pairs, of which nothing may be random: shares of the records are cut from their order.
        outcome: what labels are. label_names: of the labels of multi_label.

    Raises:
        DataError: it holds no records, one of them twice, they are not alike, or the model has no such word.
        RecordKindError: labels are not classes, or features are not numbers.
        UnsupportedError: it cannot be told which records a loader gives.
    """
    return silo_for(data, lambda: model, outcome, label_names)


def silo_for(
    data: Any, model: Callable[[], nn.Module], outcome: Outcome = CLASSES, label_names: Sequence[str] = ()
) -> Silo:
    """As `silo_of`; the model is asked for only where it decides what becomes of integers."""
    features, labels = all_records(data)
    if len(features) == 0:
        raise DataError("the silo has no training records.")
    if outcome.has_classes and (labels.is_floating_point() or labels.is_complex()):
        raise RecordKindError(
            f"labels are {labels.dtype}: they must be classes, as integers from 0. dpfl run, also on MPI ranks, and "
            "PrivateOracle.of(outcome=...) have other outcomes (docs/outcomes.md); platforms do not.",
            "labels are not classes, as integers from 0",
        )
    if features.is_complex() or features.dtype == torch.bool:
        raise RecordKindError(
            f"features are {features.dtype}: they must be floats or integers.",
            "features are neither floats nor integers",
        )
    features = features.detach().cpu()
    x: NDArray[Any] = (features.float() if features.dtype == torch.bfloat16 else features).numpy()
    y = labels.detach().cpu().numpy()
    if outcome.has_classes:
        y = y.reshape(-1).astype(np.int64)
    if len(x) != len(y):
        raise DataError(f"{len(x)} rows of features, but {len(y)} labels.")
    if not outcome.has_classes:
        (y,), notes = labels_of([Table(Path("the data set"), x, y, None, ())], outcome, label_names)
        for note in notes:
            warnings.warn(note, stacklevel=2)
    x = np.ascontiguousarray(_numbers(x, model))
    if not np.isfinite(x).all():
        raise DataError("a feature is not finite. Remove the record, or fill the value in.")
    return Silo(x, y, x[:0], y[:0])


def _numbers(x: NDArray[Any], model_of: Callable[[], nn.Module]) -> NDArray[Any]:
    """As float32, float64 or int64; nothing is rounded that is not rounded by the model's own number format."""
    if x.dtype in (np.float32, np.float64):
        return x
    if x.dtype.kind == "f":
        return x.astype(np.float32)
    model, small = model_of(), x.dtype.itemsize <= 2
    floats = np.float32 if small else np.float64  # float32 holds integers to 2^24
    if x.dtype == np.uint64 and x.max(initial=0) > np.iinfo(np.int64).max:
        raise DataError(
            f"a feature is {x.max()}, above the greatest of int64, 2^63 - 1. Give them as floats, scaled, or as word "
            "numbers from 0, for an Embedding."
        )
    words = x[:2].astype(np.int64)
    if _fails(model, np.zeros_like(words)) or (small and not _fails(model, np.zeros_like(words, dtype=_floats(model)))):
        return x.astype(floats)
    x = x.astype(np.int64)
    least, most = x.min(axis=0), x.max(axis=0)
    why = _fails(model, np.stack([least, most]))
    if why:
        raise DataError(
            f"features are integers, from {least.min()} to {most.max()}, which the model takes as they are; and it "
            f"fails on the least or the greatest of them ({why}). Is its Embedding large enough?"
        )
    return x


def _floats(model: nn.Module) -> type[np.floating[Any]]:
    """Of the model's parameters."""
    return np.float64 if any(p.dtype == torch.float64 for p in model.parameters()) else np.float32


def _fails(model: nn.Module, x: NDArray[Any]) -> str:
    """The error that the model raises for records; empty if it raises none."""
    device = next((parameter.device for parameter in model.parameters()), None)
    try:
        with torch.no_grad():
            model(torch.from_numpy(x).to(device))
    except Exception as error:  # a stranger's model may fail in any way
        return f"{type(error).__name__}: {error}"
    return ""


def all_records(data: Any) -> tuple[Tensor, Tensor]:
    """All records' features [n, *shape] and labels [n], or [n, k] of k numbers; arguments and errors as `silo_of`."""
    source = source_of(data)
    features, labels = [], []
    for item in source.items:
        x, y = pair_of(item)
        features.append(x)
        labels.append(y)
    if not features:
        raise DataError("the silo has no training records.")
    try:
        join = torch.stack if source.one_by_one else torch.cat
        x, y = join(features), join(labels)
        return x, y if y.dim() == 2 and y.shape[1] > 1 else y.reshape(-1)
    except (RuntimeError, TypeError) as error:
        raise DataError(f"training records are not alike: {str(error).splitlines()[0]}") from error
