"""Handwritten digits that come with scikit-learn: no file, no network."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.data.base import Dataset
from dpfl_plugin.data.fetch import DataSource


def digits(source: DataSource, *, flatten: bool = True) -> Dataset:
    """1,797 grey images of 8 x 8 pixels in 0..1, ten classes, no test part of their own.

    E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI 1998, doi:10.24432/C50P49 (test half), as
    in sklearn.datasets.load_digits. features: [1797, 64], or [1797, 1, 8, 8] unless ``flatten``.
    """
    x, y = _read()
    features = (x / 16).astype(np.float32)
    return Dataset(features if flatten else features.reshape(-1, 1, 8, 8), y.astype(np.int64), num_classes=10)


def _read() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """From scikit-learn's file where it lies as expected: importing scikit-learn takes seconds of a run's start."""
    for folder in getattr(find_spec("sklearn"), "submodule_search_locations", None) or ():
        file = Path(folder, "datasets", "data", "digits.csv.gz")
        if file.is_file():
            table = np.loadtxt(file, delimiter=",")
            return table[:, :-1], table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return x, y
