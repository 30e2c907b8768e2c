"""Mushrooms (agaricus): two classes, binary features."""

from __future__ import annotations

import numpy as np

from dpfl_plugin.data.base import Dataset, Features, Integers
from dpfl_plugin.data.fetch import DataSource

URL = "https://raw.githubusercontent.com/dmlc/xgboost/379b29f0836b9dbc313b993d8e5743bd452d4117/demo/data"
SHA256 = {
    "agaricus.txt.train": "915c2def06e9b44a306ad097fe8b6652c7c477d9c1e605bd2130ad20a70a8ad6",
    "agaricus.txt.test": "765db79391141953d890ce197fe828a621d6487fbba4de5e4d2217bd140371c0",
}
NUM_FEATURES = 126


def mushrooms(source: DataSource) -> Dataset:
    """6,513 + 1,611 mushrooms, label 1 for a poisonous one; features [n, 126], 0 or 1.

    J. Schlimmer, "Mushroom", UCI 1981, doi:10.24432/C5959T; encoded and split as in XGBoost's demo.
    """
    train, test = (
        _parsed(source.file(f"mushrooms/{name}", url=f"{URL}/{name}", sha256=sha256, alternatives=(name,)))
        for name, sha256 in SHA256.items()
    )
    return Dataset(*train, num_classes=2, test=Dataset(*test, num_classes=2))


def _parsed(data: bytes) -> tuple[Features, Integers]:
    """Features [n, 126] and labels [n] of LIBSVM text, whose indices start at 1."""
    lines = data.splitlines()
    x, y = np.zeros((len(lines), NUM_FEATURES), dtype=np.float32), np.empty(len(lines), dtype=np.int64)
    for row, line in enumerate(lines):
        label, *entries = line.split()
        y[row] = int(label)
        for entry in entries:
            index, value = entry.split(b":")
            x[row, int(index) - 1] = float(value)
    return x, y
