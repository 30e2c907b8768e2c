"""Adult (census income): two classes, numbers and categories."""

from __future__ import annotations

from typing import Final

import numpy as np

from dpfl_plugin.data.base import Dataset, Features, Integers
from dpfl_plugin.data.fetch import DataSource

URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
# Of the uncompressed files.
SHA256 = {
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
}

# Ranges and categories are written down here, not read from the records: encoding costs no privacy.
# The categories are those of the published description (adult.names); "?" is a missing value.
COLUMNS: Final[dict[str, tuple[float, float] | tuple[str, ...]]] = {
    "age": (17.0, 90.0),
    "workclass": (
        *("Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov", "Local-gov", "State-gov", "Without-pay"),
        *("Never-worked", "?"),
    ),
    "fnlwgt": (0.0, 1_500_000.0),
    "education": (
        *("Bachelors", "Some-college", "11th", "HS-grad", "Prof-school", "Assoc-acdm", "Assoc-voc", "9th", "7th-8th"),
        *("12th", "Masters", "1st-4th", "10th", "Doctorate", "5th-6th", "Preschool"),
    ),
    "education-num": (1.0, 16.0),
    "marital-status": (
        *("Married-civ-spouse", "Divorced", "Never-married", "Separated", "Widowed", "Married-spouse-absent"),
        "Married-AF-spouse",
    ),
    "occupation": (
        *("Tech-support", "Craft-repair", "Other-service", "Sales", "Exec-managerial", "Prof-specialty"),
        *("Handlers-cleaners", "Machine-op-inspct", "Adm-clerical", "Farming-fishing", "Transport-moving"),
        *("Priv-house-serv", "Protective-serv", "Armed-Forces", "?"),
    ),
    "relationship": ("Wife", "Own-child", "Husband", "Not-in-family", "Other-relative", "Unmarried"),
    "race": ("White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black"),
    "sex": ("Female", "Male"),
    "capital-gain": (0.0, 99_999.0),
    "capital-loss": (0.0, 5_000.0),
    "hours-per-week": (1.0, 99.0),
    "native-country": (
        *("United-States", "Cambodia", "England", "Puerto-Rico", "Canada", "Germany", "Outlying-US(Guam-USVI-etc)"),
        *("India", "Japan", "Greece", "South", "China", "Cuba", "Iran", "Honduras", "Philippines", "Italy", "Poland"),
        *("Jamaica", "Vietnam", "Mexico", "Portugal", "Ireland", "France", "Dominican-Republic", "Laos", "Ecuador"),
        *("Taiwan", "Haiti", "Columbia", "Hungary", "Guatemala", "Nicaragua", "Scotland", "Thailand", "Yugoslavia"),
        *("El-Salvador", "Trinadad&Tobago", "Peru", "Hong", "Holand-Netherlands", "?"),
    ),
}


def adult(source: DataSource, *, scale: bool = True) -> Dataset:
    """32,561 + 16,281 persons, label 1 for an income above 50,000 dollars; features [n, 108].

    B. Becker, R. Kohavi, "Adult", UCI 1996, doi:10.24432/C5XW20. Categories are one-hot, a missing one is a category
    of its own; numbers are mapped from fixed ranges to 0..1 (and clipped there) unless ``scale`` is false.
    """
    train, test = (_read(source, name, scale) for name in ("adult.data", "adult.test"))
    return Dataset(*train, num_classes=2, test=Dataset(*test, num_classes=2))


def _read(source: DataSource, name: str, scale: bool) -> tuple[Features, Integers]:
    text = source.file(f"adult/{name}", url=f"{URL}/{name}", sha256=SHA256[name], alternatives=(name,)).decode("ascii")
    rows = [line.split(", ") for line in text.splitlines() if line and not line.startswith("|")]
    *columns, income = zip(*rows, strict=True)
    parts = [encode(values, COLUMNS[column], scale) for column, values in zip(COLUMNS, columns, strict=True)]
    label = encode([value.rstrip(".") for value in income], ("<=50K", ">50K"), scale)[:, 1]
    return np.concatenate(parts, axis=1), label.astype(np.int64)


def encode(values: list[str] | tuple[str, ...], kind: tuple[float, float] | tuple[str, ...], scale: bool) -> Features:
    """One column as [n, 1] (a range) or [n, categories] (one-hot)."""
    if isinstance(kind[0], str):
        place = {category: index for index, category in enumerate(kind)}
        return np.eye(len(kind), dtype=np.float32)[[place[value] for value in values]]
    low, high = float(kind[0]), float(kind[1])
    numbers = np.array(values, dtype=np.float64)
    scaled = ((numbers - low) / (high - low)).clip(0, 1) if scale else numbers
    return scaled.astype(np.float32)[:, None]
