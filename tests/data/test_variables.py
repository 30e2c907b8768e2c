"""Variables read back from encoded records are those of the cells of the table."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import dpfl_plugin as dpfl
from dpfl_plugin.data.schema import TableSchema
from dpfl_plugin.data.variables import MISSING, NOWHERE, Variable, variables_of

N = 400
COLUMNS: dict[str, Any] = {
    "age": {"type": "number", "range": [0, 100], "unit": "years"},
    "lab": {"type": "number", "range": [-5, 5], "missing": "indicator"},
    "children": {"type": "integer", "range": [0, 6]},
    "visits": {"type": "integer", "range": [0, 90], "missing": "indicator"},
    "seen": {"type": "date", "range": ["2020-01-01", "2021-01-01"]},
    "sex": {"type": "category", "values": ["f", "m"]},
    "town": {"type": "category", "values": ["a", "b", "c"], "other": True, "missing": "category"},
    "ward": {"type": "category", "values": ["x", "y"], "missing": "most_frequent"},
    "stage": {"type": "ordinal", "values": ["I", "II", "III"], "missing": "indicator"},
    "note": {"type": "ignored"},
}


def made(seed: int = 0) -> pandas.DataFrame:
    rng = np.random.default_rng(seed)

    def holes(values: Any) -> Any:
        return pandas.Series(values, dtype=object).where(rng.random(N) > 0.2, None)

    days = [datetime.date(2020, 1, 1) + datetime.timedelta(int(day)) for day in rng.integers(0, 366, N)]
    return pandas.DataFrame(
        {
            "age": rng.uniform(0, 100, N).round(1),
            "lab": holes(rng.uniform(-5, 5, N).round(2)),
            "children": rng.integers(0, 7, N),
            "visits": holes(rng.integers(0, 91, N)),
            "seen": [day.isoformat() for day in days],
            "sex": rng.choice(["f", "m"], N),
            "town": holes(rng.choice(["a", "b", "c", "elsewhere"], N)),
            "ward": holes(rng.choice(["x", "y"], N)),
            "stage": holes(rng.choice(["I", "II", "III"], N)),
            "note": "-",
            "ill": rng.choice(["no", "yes"], N),
        }
    )


def cells_of(variable: Variable, frame: pandas.DataFrame) -> list[str | None]:
    """The cell of each record, from the table itself."""
    found: list[str | None] = []
    for value in frame[variable.name]:
        if value is None or value != value:
            found.append(MISSING if MISSING in variable.cells else None)
        elif variable.is_listed:
            found.append(value if value in variable.levels else "other")
        else:
            days = datetime.date.fromisoformat(value) - datetime.date(1970, 1, 1) if variable.type == "date" else None
            number = float(value) if days is None else float(days.days)
            place = int(np.searchsorted(variable.edges, number + 1e-4, side="right")) - 1
            found.append(variable.cells[min(place, variable.num_bins - 1)])
    return found


def test_codes_are_those_of_the_cells(tmp_path: Path) -> None:
    frame, path = made(), tmp_path / "table.csv"
    frame.to_csv(path, index=False)
    schema = {"label": {"column": "ill", "classes": ["no", "yes"]}, "columns": COLUMNS}
    table = dpfl.read_tables(str(path), schema)
    features, labels = table.features, table.labels
    variables = variables_of(TableSchema.parse(schema), 16)
    assert [variable.name for variable in variables] == [*[name for name in COLUMNS if name != "note"], "ill"]
    for variable in variables:
        codes = variable.codes(features, labels)
        shown = [None if code == NOWHERE else variable.cells[code] for code in codes]
        assert shown == cells_of(variable, frame), variable.name
        if not variable.is_listed and variable.type != "date":
            x, known = variable.scaled(features, labels), frame[variable.name].astype(float)
            assert variable.low + (variable.high - variable.low) * (x + 1) / 2 == pytest.approx(
                known, nan_ok=True, abs=1e-4
            )


def test_whole_numbers_of_few_values_have_a_bin_for_each() -> None:
    children, visits = (
        next(v for v in variables_of(_schema(label={"column": "ill", "classes": ["no", "yes"]}), 16) if v.name == name)
        for name in ("children", "visits")
    )
    assert children.edges == tuple(number - 0.5 for number in range(8)) and len(visits.edges) == 17


@pytest.mark.parametrize(
    ("label", "values", "codes"),
    [
        ({"outcome": "ordinal", "column": "y", "classes": ["a", "b", "c"]}, np.array([0, 2, 1]), [[0, 2, 1]]),
        ({"outcome": "regression", "column": "y", "range": [0, 8]}, np.array([0, 3.9, 8], np.float32), [[0, 1, 3]]),
        (
            {"outcome": "counts", "column": "y", "range": [0, 3]},
            np.array([[0, 1], [3, 2], [2, 1]], np.float32),
            [[0, 3, 2]],
        ),
        (
            {"outcome": "multi_label", "columns": ["y", "z"], "values": ["no", "yes"]},
            np.array([[0, 1], [1, 1], [0, 0]], np.float32),
            [[0, 1, 0], [1, 1, 0]],
        ),
        (
            {"outcome": "survival", "time": "y", "event": "z", "range": [0, 8]},
            np.array([[1, 1], [7.9, 0], [8, 1]], np.float32),
            [[0, 3, 3], [1, 0, 1]],
        ),
    ],
)
def test_labels_are_variables_too(label: dict[str, Any], values: Any, codes: list[list[int]]) -> None:
    of_label = [variable for variable in variables_of(_schema(label=label), 4) if variable.of_label]
    assert [variable.codes(np.zeros((3, 1), np.float32), values).tolist() for variable in of_label] == codes


def _schema(label: dict[str, Any]) -> TableSchema:
    return TableSchema.parse({"label": label, "columns": COLUMNS})
