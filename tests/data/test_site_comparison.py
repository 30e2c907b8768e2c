"""What `dpfl check` says of sites whose tables differ, and of a site by itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfl_plugin.api.tables import check_tables
from dpfl_plugin.data.schema import TableSchema
from dpfl_plugin.data.site_comparison import compare_files
from dpfl_plugin.data.table_reader import TextFormat
from dpfl_plugin.errors import DataError
from tests.data.test_draft import AGES, DAYS, OPEN_DAYS, US_DAYS, drafted, some, write

rng = np.random.default_rng(1)
GLUCOSE = rng.normal(110, 25, 60).round(1).tolist()
WEIGHT = rng.normal(75, 12, 60).round(1).tolist()
WARM = rng.normal(37, 0.5, 60).round(1).tolist()
TIMES = (-12 * np.log(np.arange(0.995, 0, -0.01))).round(2).tolist()
LABEL = {"column": "ill", "classes": ["0", "1"]}
NUMBER = {"type": "number", "range": [0, 1000]}
DATE = {"type": "date", "range": ["2024-01-01", "2025-01-01"]}


def compare(folder: Path, sites: Mapping[str, Mapping[str, Any]], columns: Mapping[str, Any]) -> tuple[str, ...]:
    schema = {"label": LABEL, "columns": {**columns, "v": {"type": "number", "range": [-9, 9]}}}
    return compare_files(write(folder, sites), TableSchema.parse(schema), TextFormat())


def category(*values: Any) -> dict[str, Any]:
    return {"type": "category", "values": list(values)}


DIFFERENT: dict[str, tuple[dict[str, Sequence[Any]], dict[str, Any], str]] = {
    # cells of column u by site, what the schema says of it, what is said
    "mg/dL and mmol/L": (
        {"a": GLUCOSE, "b": [round(value / 18, 1) for value in GLUCOSE], "c": [value + 5 for value in GLUCOSE]},
        NUMBER,
        r"column 'u' differs: a, c: mostly \d+\.?\d* to 1\d\d\.?\d*; b: mostly \d\.\d* to \d\.\d*\. Are these differ",
    ),
    "kg and lb": ({"a": WEIGHT, "b": [round(2.2 * value, 1) for value in WEIGHT]}, NUMBER, "different units"),
    "F, M and 1, 2": (
        {"a": "FM" * 30, "b": "12" * 30, "c": "FM" * 20},
        category("F", "M", "1", "2"),
        "column 'u' differs: a, c: 'F', 'M'; b: '1', '2'. If they mean the same, write them alike",
    ),
    "0, 1 and 1, 2": ({"a": "01" * 30, "b": "12" * 30}, category("0", "1", "2"), "a: '0', '1'; b: '1', '2'"),
    "d/m/Y and m/d/Y": (
        {"a": DAYS, "b": US_DAYS},
        {"type": "ignored"},
        "a: dates as %d/%m/%Y; b: dates as %m/%d/%Y. Write all dates alike",
    ),
    "dates of which one site's may be read in two ways": (
        {"a": DAYS, "b": OPEN_DAYS},
        {**DATE, "format": "%d/%m/%Y"},
        "a: dates as %d/%m/%Y; b: dates as %d/%m/%Y or %m/%d/%Y.*where either number may be the day, check which",
    ),
    "dates that may be read in two ways, by the schema": (
        {"a": OPEN_DAYS},
        {**DATE, "format": "%d/%m/%Y"},
        "a: dates as %d/%m/%Y or %m/%d/%Y; the schema: dates as %d/%m/%Y",
    ),
    "dates and days of a spreadsheet": (
        {"a": DAYS, "b": range(45292, 45352)},
        {"type": "ignored"},
        "a: dates as %d/%m/%Y; b: dates as 43861, a day as spreadsheets count them",
    ),
    "99.9 among temperatures": (
        {"a": WARM, "b": some(WARM, _4=99.9)},
        NUMBER,
        r"99.9 is far from all other numbers, 3\d\.\d to 3\d\.\d \(.*b\.csv, line 6: '99\.9'\)\. Correct it, or.*"
        r"data\.schema\.columns\.u\.missing_values",
    ),
    "an age of 430": (
        {"a": some(AGES, _0=430)},
        NUMBER,
        r"430 is far from all other numbers, 20 to 89 \(.*a\.csv, line 2",
    ),
    "days and months until an event, which overlap": (
        {"a": [30 * time for time in TIMES], "b": TIMES, "c": [2 * time for time in TIMES]},
        {"type": "number", "range": [0, 9999]},
        r"a: mostly 3\d\.\d* to 8\d\d\.?\d*; b, c: mostly 1\.\d* to 5\d\.\d*\. Are these different units",
    ),
    "a site whose numbers are outside the range": (
        {"a": [3 * time for time in TIMES], "b": TIMES},
        {"type": "number", "range": [0, 40]},
        r"column 'u': 3\d% of the cells of a are outside data\.schema\.columns\.u\.range, and \d% elsewhere\. Is this",
    ),
    "another unit than the schema's": (
        {"a": [round(value / 18, 1) for value in GLUCOSE]},
        {"type": "number", "range": [50, 300]},
        "a: mostly .* the schema: mostly 50 to 300. Are these different units",
    ),
    "a column that one site has not filled": (
        {"a": GLUCOSE, "b": [""] * 60},
        {**NUMBER, "missing": "indicator"},
        "a: nearly all filled; b: nearly all empty",
    ),
}


@pytest.mark.parametrize(("cells", "column", "said"), DIFFERENT.values(), ids=DIFFERENT)
def test_what_differs_is_named_with_the_sites(
    tmp_path: Path, cells: dict[str, Any], column: dict[str, Any], said: str
) -> None:
    (note,) = compare(tmp_path, {site: {"u": list(values)} for site, values in cells.items()}, {"u": column})
    assert re.search(said, note), note


ALIKE: dict[str, tuple[dict[str, Sequence[Any]], dict[str, Any]]] = {
    "units of another level": ({"a": GLUCOSE, "b": [value * 1.3 for value in GLUCOSE]}, NUMBER),
    "times of sites that differ": ({"a": TIMES, "b": [7 * time for time in TIMES]}, NUMBER),
    "years": ({"a": [*range(2000, 2010)] * 6, "b": [*range(2015, 2025)] * 6}, {"type": "number", "range": [0, 3000]}),
    "a category that one site lacks": ({"a": "xyz" * 20, "b": "xy" * 30}, category(*"xyz")),
    "a category for each site": ({"a": "x" * 60, "b": "y" * 60}, category(*"xy")),
    "spellings of one number": ({"a": ["1.0", "2.0"] * 30, "b": ["1", "2"] * 30}, category(1, 2)),
    "words that are not used": (
        {"a": [f"a{n}" for n in range(60)], "b": [f"b{n}" for n in range(60)]},
        {"type": "ignored"},
    ),
    "dates": ({"a": DAYS, "b": DAYS[::-1]}, {**DATE, "format": "%d/%m/%Y"}),
    "a named code": ({"a": [*GLUCOSE, 999]}, {**NUMBER, "missing": "indicator", "missing_values": ["999"]}),
    "few records": ({"a": GLUCOSE, "b": [6.1] * 5}, NUMBER),
}


@pytest.mark.parametrize(("cells", "column"), ALIKE.values(), ids=ALIKE)
def test_sites_that_are_alike_are_not_named(tmp_path: Path, cells: dict[str, Any], column: dict[str, Any]) -> None:
    assert compare(tmp_path, {site: {"u": list(values)} for site, values in cells.items()}, {"u": column}) == ()


def test_a_file_with_many_cells_outside_the_range_is_not_all_right(tmp_path: Path) -> None:
    paths = write(tmp_path, {"a": {"u": TIMES}, "b": {"u": [30 * time for time in TIMES]}})
    columns = {name: {"type": "number", "range": [-9, 60]} for name in ("u", "v")}
    result = check_tables(paths, {"label": LABEL, "columns": columns})
    assert result.outside == {str(paths[1]): ("u",)}
    first, second, *_ = str(result).splitlines()
    assert first == f"{paths[0]}: 100 records, all right"
    assert second == f"{paths[1]}: 100 records, many outside the range of u: check unit and range"


def test_days_of_a_spreadsheet_at_one_site_are_refused_by_what_they_are(tmp_path: Path) -> None:
    paths = write(tmp_path, {"a": {"u": DAYS}, "b": {"u": list(range(45292, 45352))}})
    schema = {"label": LABEL, "columns": {"u": {**DATE, "format": "%d/%m/%Y"}}, "other_columns": "ignore"}
    with pytest.raises(
        DataError, match=r"(?s)b\.csv.*60 cells are not dates.*spreadsheets count days, 45292 is 2024-01-01"
    ):
        check_tables(paths, schema)


def test_copies_are_named_within_and_across_sites_where_chance_makes_none(tmp_path: Path) -> None:
    row = "7.5,31,12,0"
    others = [f"{n / 7:.3f},{20 + n * n % 67},{n * n % 43},{n % 2}" for n in range(100)]
    for name, lines in (("a", [*others[:50], row, row]), ("b", [*others[50:], row])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["x,age,stay,ill", *lines]))
    columns = {name: {"type": "number", "range": [0, 99]} for name in ("x", "age", "stay")}
    schema = {"label": LABEL, "columns": columns}
    paths = sorted(tmp_path.glob("*.csv"))
    (note,) = (note for note in check_tables(paths, schema).notes if "copies of another" in note)
    assert note.startswith(f"2 rows are copies of another in all columns ({paths[0]}, line 53 is {paths[0]}, line 52; ")
    assert f"{paths[1]}, line 52 is {paths[0]}, line 52)" in note
    schema = {"label": LABEL, "columns": {"age": columns["age"]}, "other_columns": "ignore"}  # few columns: many copies
    assert not any("copies of another" in note for note in check_tables(paths, schema).notes)


MESSY = {
    "sites_differ": ["glucose", "sex", "admitted"],
    "row_numbers": [],
    "codes": [],
    "sentinels": [],
    "censored_numbers": [],
}


@pytest.mark.parametrize(("folder", "columns"), MESSY.items(), ids=MESSY)
def test_messy_sites_are_compared(folder: str, columns: list[str], data_folder: Path) -> None:
    paths = sorted((data_folder / "messy" / folder).glob("*.csv"))
    if not paths:
        pytest.skip("there are no messy tables")
    schema = TableSchema.parse(drafted(paths).schema)
    notes = compare_files(paths, schema, TextFormat())
    assert [note.split("'")[1] for note in notes] == columns
    assert all("basel: " in note and "boston: " in note for note in notes)
