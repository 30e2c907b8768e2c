"""Records in memory: a data set as it was loaded, a silo, and a federation of silos."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.errors import DataError

Features = NDArray[np.float32]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set before it is dealt out to silos.

    features: [n, *shape]; labels: [n] in 0..num_classes - 1; groups: [n], the natural silo of each record, or None;
    test: the data set's own test part, whose groups mean the same silos; caveats: what a reader of the results,
    or of the privacy statement, has to know.
    """

    features: Features
    labels: Integers
    num_classes: int
    groups: Integers | None = None
    test: Dataset | None = None
    caveats: tuple[str, ...] = ()


@dataclass(slots=True)
class Silo:
    """The records of one silo: train_x [n, *shape], train_y [n], test_x [t, *shape], test_y [t]."""

    train_x: Features
    train_y: Integers
    test_x: Features
    test_y: Integers


@dataclass(slots=True)
class Federation:
    """The silos of an experiment; silo i is ``silos[i]``."""

    silos: list[Silo]
    num_classes: int
    feature_shape: tuple[int, ...]
    caveats: list[str] = field(default_factory=list)
    name: str = ""


def validate(dataset: Dataset, source: str) -> None:
    """Check a data set that was loaded from ``source``, its test part included.

    Raises:
        DataError: it is empty, the lengths or types disagree, a feature is not finite or a label is out of range;
            the message names the source, the row (counted from 0) and the value.
    """
    x, y, groups = dataset.features, dataset.labels, dataset.groups
    if x.dtype != np.float32 or y.dtype != np.int64 or (groups is not None and groups.dtype != np.int64):
        raise DataError(f"{source}: features must be float32, labels and groups int64; got {x.dtype} and {y.dtype}.")
    if x.ndim < 2 or x.shape[0] == 0 or 0 in x.shape:
        raise DataError(f"{source} holds no records: the features have shape {x.shape}, not [records, features].")
    if y.shape != (len(x),) or (groups is not None and groups.shape != (len(x),)):
        raise DataError(f"{source}: {len(x)} rows of features, but labels or groups of another length.")
    if dataset.num_classes < 2:
        raise DataError(f"{source} has {dataset.num_classes} class; a classifier needs 2 at least.")
    _check_finite(x, source)
    wrong = np.flatnonzero((y < 0) | (y >= dataset.num_classes))
    if len(wrong):
        row = int(wrong[0])
        raise DataError(f"{source}: the label of row {row} is {y[row]}, outside 0..{dataset.num_classes - 1}.")
    if dataset.test is not None:
        if dataset.test.features.shape[1:] != x.shape[1:] or dataset.test.num_classes != dataset.num_classes:
            raise DataError(f"{source}: the test part has other features or classes than the training part.")
        validate(dataset.test, f"{source} (test part)")


def _check_finite(x: Features, source: str) -> None:
    step = max(1, 2**22 // x[0].size)  # in pieces: a mask of the whole would be a quarter of the data again
    for start in range(0, len(x), step):
        finite = np.isfinite(x[start : start + step])
        if not finite.all():
            row, *column = (int(index) for index in np.argwhere(~finite)[0])
            value = x[(start + row, *column)]
            raise DataError(
                f"{source}: feature {tuple(column)} of row {start + row} is {value}. "
                "Remove the record or fill the value in."
            )
