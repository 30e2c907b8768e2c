"""Handwritten digits that come with scikit-learn: no file, no network."""

from __future__ import annotations

import numpy as np

from dpfl_plugin.data.base import Dataset
from dpfl_plugin.data.fetch import DataSource


def digits(source: DataSource, *, flatten: bool = True) -> Dataset:
    """1,797 grey images of 8 x 8 pixels in 0..1, ten classes, no test part of their own.

    E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI 1998, doi:10.24432/C50P49 (test half), as
    in sklearn.datasets.load_digits. features: [1797, 64], or [1797, 1, 8, 8] unless ``flatten``.
    """
    from sklearn.datasets import load_digits  # imported late: it takes half a second

    x, y = load_digits(return_X_y=True)
    features = (x / 16).astype(np.float32)
    return Dataset(features if flatten else features.reshape(-1, 1, 8, 8), y.astype(np.int64), num_classes=10)
