"""Heart disease: 920 patients of four hospitals, which come with the package: no file, no network."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import resources
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.core.exact import floor_share
from dpfl_plugin.data.base import Dataset, Features, Integers
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.data.record_order import OrderKeys
from dpfl_plugin.data.schema import Column
from dpfl_plugin.errors import ConfigError, require

# Files, their rows, and what the hospitals are called; in the order of their ids.
HOSPITALS: Final = ("cleveland", "hungarian", "switzerland", "va")
MISSING: Final = ("NaN", "?", "")
CLASSES: Final = ("healthy", "ill")

# Ranges and categories are those of the published description (heart-disease.names) and of medicine, not read from the
# records: encoding costs no privacy. A number outside is brought to the nearest end.
COLUMNS: Final[dict[str, tuple[float, float] | tuple[int, ...]]] = {
    "age": (20.0, 90.0),
    "sex": (0, 1),
    "cp": (1, 2, 3, 4),
    "trestbps": (80.0, 200.0),
    "chol": (80.0, 480.0),
    "fbs": (0, 1),
    "restecg": (0, 1, 2),
    "thalach": (60.0, 210.0),
    "exang": (0, 1),
    "oldpeak": (-3.0, 7.0),
    "slope": (1, 2, 3),
    "ca": (0, 1, 2, 3),
    "thal": (3, 6, 7),
}
UNITS: Final = {"age": "years", "trestbps": "mmHg", "chol": "mg/dL", "thalach": "beats/min", "oldpeak": "mm"}
ZERO_IS_MISSING: Final = ("trestbps", "chol")  # nobody's blood pressure or cholesterol is 0
SELDOM: Final = ("slope", "ca", "thal")  # hardly ever measured outside Cleveland
NEVER_MISSING: Final = ("age", "sex")


def heart_disease(
    source: DataSource,
    *,
    hospitals: list[str] | None = None,
    missing: Literal["indicator", "drop"] = "indicator",
    held_out: float | None = None,
) -> Dataset:
    """Four hospitals' patients, label 1 for one with heart disease (stages 1 to 4); natural silos by hospital.

    A. Janosi, W. Steinbrunn, M. Pfisterer, R. Detrano, "Heart Disease", UCI 1988, doi:10.24432/C52P4X, CC BY 4.0.
    Numbers are mapped from fixed ranges to -1..1, categories are one-hot.

    hospitals: some of cleveland (303 patients), hungarian (294), switzerland (123) and va (200), by default all.
    missing: "indicator" keeps all patients, a value that is missing is 0 and has a feature that says so: [920, 36];
    "drop" leaves out slope, ca and thal, takes a cholesterol of 0 as it is, and uses no patient with another missing
    value: 740 of [920, 15], the patients of FLamby's Fed-Heart-Disease (du Terrail et al., NeurIPS 2022), can be used.
    held_out: a test part of the data's own (`data.test: own`): that share of each hospital's patients, by a hash of
    their values and the seed, and the same whichever other hospitals are chosen.

    Raises:
        ConfigError: there is no such hospital, or held_out is not between 0 and 1.
    """
    chosen = list(HOSPITALS) if hospitals is None else hospitals
    if not chosen or len(set(chosen)) < len(chosen) or set(chosen) - set(HOSPITALS):
        raise ConfigError(f"hospitals={chosen!r}: must name one or more of {', '.join(HOSPITALS)}, each once.")
    require(missing in ("indicator", "drop"), "missing", missing, "be 'indicator' or 'drop'")
    require(held_out is None or 0 < held_out < 1, "held_out", held_out, "be between 0 and 1, both excluded")
    names = [name for name in HOSPITALS if name in chosen]
    whole: list[Dataset] = []
    for group, name in enumerate(names):
        x, y, usable, columns = encode(_read(name), keep_all=missing == "indicator")
        groups = np.full(len(y), group, dtype=np.int64)
        whole.append(Dataset(x, y, 2, groups, columns=columns, class_names=CLASSES, usable=usable))
    if held_out is None:
        return replace(_joined(whole), silo_names=tuple(names))
    train, test = [], []
    for name, data in zip(names, whole, strict=True):
        rows = OrderKeys(source.seed).order(HOSPITALS.index(name), data, np.arange(len(data.labels))).rows
        num_test = -floor_share(-held_out, len(rows))
        test.append(_some(data, rows[:num_test]))
        train.append(_some(data, rows[num_test:]))
    return replace(_joined(train), test=_joined(test), silo_names=tuple(names))


def _some(data: Dataset, rows: Integers) -> Dataset:
    assert data.groups is not None and data.usable is not None
    return replace(
        data,
        features=data.features[rows],
        labels=data.labels[rows],
        groups=data.groups[rows],
        usable=data.usable[rows],
    )


def _joined(parts: list[Dataset]) -> Dataset:
    usable = np.concatenate([part.usable for part in parts if part.usable is not None])
    return replace(
        parts[0],
        features=np.concatenate([part.features for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        groups=np.concatenate([part.groups for part in parts if part.groups is not None]),
        usable=None if usable.all() else usable,
    )


def _read(hospital: str) -> NDArray[np.float64]:
    """A hospital's table [patients, 14], with NaN where a value is missing."""
    file = resources.files("dpfl_plugin.data") / "shipped" / "heart_disease" / f"processed.{hospital}.data"
    rows = [line.split(",") for line in file.read_text(encoding="ascii").splitlines()]
    return np.array([[math.nan if value in MISSING else float(value) for value in row] for row in rows])


def encode(
    table: NDArray[np.float64], *, keep_all: bool
) -> tuple[Features, Integers, NDArray[np.bool_], tuple[str, ...]]:
    """Features, labels, which records can be used, and names of features, of a table [n, 14]; see `heart_disease` for
    ``keep_all``. Features and label of a record that cannot be used are 0."""
    columns = [name for name in COLUMNS if keep_all or name not in SELDOM]
    values = {name: table[:, place].copy() for place, name in enumerate(COLUMNS) if name in columns}
    usable = np.ones(len(table), dtype=bool)
    if not keep_all:
        usable = np.isfinite(np.stack(list(values.values()), axis=1).sum(axis=1))
    parts: list[NDArray[np.float64]] = []
    names: list[str] = []
    for name in columns:
        cells = values[name]
        if keep_all and name in ZERO_IS_MISSING:
            cells[cells == 0] = math.nan
        encoded, called = _encode(cells, name)
        if keep_all and name not in NEVER_MISSING:
            encoded, called = [*encoded, np.isnan(cells).astype(float)], [*called, f"{name}_missing"]
        parts += encoded
        names += called
    features, label = np.stack(parts, axis=1).astype(np.float32), (table[:, -1] > 0).astype(np.int64)
    features[~usable], label[~usable] = 0.0, 0
    return features, label, usable, tuple(names)


def _encode(values: NDArray[np.float64], name: str) -> tuple[list[NDArray[np.float64]], list[str]]:
    """A column as features [n] and their names; 0 where the value is missing."""
    kind = COLUMNS[name]
    if isinstance(kind[0], int):
        if kind == (0, 1):
            return [np.nan_to_num(values)], [name]
        return [(values == category).astype(float) for category in kind], [f"{name}_{category}" for category in kind]
    low, high = kind
    return [np.nan_to_num((2 * (values - low) / (high - low) - 1).clip(-1, 1))], [name]


def columns(*, keep_all: bool) -> dict[str, Column]:
    """The schema by which a table becomes the features of `encode`."""
    names = [name for name in COLUMNS if keep_all or name not in SELDOM]
    return {name: Column.model_validate(_described(name, keep_all and name not in NEVER_MISSING)) for name in names}


def _described(name: str, indicated: bool) -> dict[str, Any]:
    """A column of a schema. One of two categories with an indicator, of which a schema makes three features, is a
    number that stays what it is."""
    kind, missing = COLUMNS[name], {"missing": "indicator"} if indicated else {}
    if isinstance(kind[0], float):
        return {"type": "number", "range": kind, "unit": UNITS[name], **missing}
    if indicated and kind == (0, 1):
        return {"type": "integer", "range": (-1, 1), **missing}
    return {"type": "category", "values": [*map(str, kind)], **missing}
