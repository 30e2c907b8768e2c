"""What a schema is drafted as: no row number, identifier or code for no value becomes a feature unsaid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from dpfl_plugin.api.tables import check_tables
from dpfl_plugin.data.draft import Draft, Roles, of_files
from dpfl_plugin.data.isolated_values import isolated
from dpfl_plugin.data.table_reader import TextFormat
from dpfl_plugin.errors import DataError

Cells = Sequence[Any]
rng = np.random.default_rng(0)
AGES = rng.integers(20, 90, 120).tolist()
SIZES = [round(size, 1) for size in rng.uniform(18, 45, 120).tolist()]
DAYS = [f"{day:02d}/{1 + day % 12:02d}/2024" for day in range(1, 29)] * 3
US_DAYS = [f"{1 + day % 12:02d}/{day:02d}/2024" for day in range(1, 29)] * 3
OPEN_DAYS = [f"{1 + day % 9:02d}/{1 + day % 12:02d}/2024" for day in range(60)]
IGNORED, IDENTIFIER = {"type": "ignored"}, {"type": "identifier"}


def write(folder: Path, sites: Mapping[str, Mapping[str, Cells]]) -> list[Path]:
    """A file for each site, {column: cells}, with a number and a label beside them."""
    paths = []
    for place, (name, columns) in enumerate(sites.items()):
        size = max(map(len, columns.values()))
        other = [f"{(1000 * place + row) * 0.6180339887 % 1:.5f}" for row in range(size)]  # no two alike
        each = {**columns, "v": other, "ill": [row % 2 for row in range(size)]}
        rows = zip(*each.values(), strict=True)
        paths.append(folder / f"{name}.csv")
        paths[-1].write_text("\n".join([",".join(each), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return paths


def drafted(paths: Sequence[Path]) -> Draft:
    return of_files(paths, TextFormat(), Roles(label="ill"))


def some(cells: Cells, **at: Any) -> list[Any]:
    """The cells, with others at some places, as `_5="x"`."""
    return [at.get(f"_{place}", cell) for place, cell in enumerate(cells)]


COLUMNS: dict[str, tuple[dict[str, Cells], dict[str, Any], str]] = {
    # cells of column u by site, what is drafted, what is said
    "row numbers": ({"a": range(1, 61)}, IDENTIFIER, "not used: u: every value is unique within its site"),
    "that restart": ({"a": range(60), "b": range(50)}, IDENTIFIER, "not used: u: every value is unique within"),
    "of sites with few records": ({f"s{n}": range(6) for n in range(30)}, IDENTIFIER, "unique within its site"),
    "names that restart": ({s: [f"P{n}" for n in range(40)] for s in "abc"}, IDENTIFIER, "unique within its site"),
    "values that differ at small sites": (
        {f"s{n}": [f"ward {n % 7}", f"ward {(n + 1 + n % 5) % 7}"] for n in range(30)},
        {"type": "category", "values": [f"ward {n}" for n in (1, 0, 2, 3, 4, 5, 6)]},
        "category: u.",
    ),
    "numbers of two places in one file": (
        {"a": [*range(60), *range(1000, 1060)]},
        IDENTIFIER,
        "not used: u: every value is unique within its site",
    ),
    "incomes": (
        {"a": rng.choice(80_000, 120, replace=False).tolist()},
        {"type": "integer", "range": [0, 80000]},
        "another whole number in every record: u.",
    ),
    "words in other capitals": (
        {"a": some(["f", "m"] * 30, _7="M")},
        {"type": "category", "values": ["f", "M", "m"]},
        "u: 'M', 'm' differ only in capitalization and are treated as different.",
    ),
    "long identifiers that recur": (
        {s: [10**15 + 7 * (n % 40) for n in range(120)] for s in "ab"},
        IGNORED,
        "not used: u: whole numbers of 12 digits or more",
    ),
    "numbers of patients": (
        {s: [100 * k + n // 2 for n in range(200)] for k, s in enumerate("ab")},
        IGNORED,
        "column 'u' looks like whose record it is: its values recur. If so, name it as the person (person='u')",
    ),
    "codes": (
        {s: ["10.1", "10.10", "007", "7"] * 15 for s in "ab"},
        {"type": "category", "values": ["007", "10.1", "10.10", 7]},
        "codes, by leading zeros or several spellings of a number: u.",
    ),
    "a code in two spellings": (
        {"a": ["250.0", "250.00", "251.5"] * 20},
        {"type": "category", "values": ["250.0", "250.00", "251.5"]},
        "codes, by leading zeros or several spellings of a number: u.",
    ),
    "one number in the spellings of two programs": (
        {"a": ["1.0", "2.0"] * 30, "b": ["1", "2"] * 30},
        {"type": "category", "values": [1, 2]},
        "category: u.",
    ),
    "more codes than a category has": (
        {"a": [f"{n:03d}" for n in range(60)] * 2},
        IGNORED,
        "codes, by leading zeros or several spellings of a number: u.",
    ),
    "long codes": (
        {"a": [3000963, 3000964, 4024552] * 20},
        {"type": "category", "values": [3000963, 3000964, 4024552]},
        "whole numbers as categories: u.",
    ),
    "-1 and 999.9": (
        {"a": [*SIZES, "-1", "999.9"] * 2},
        {"type": "number", "range": [10, 50], "missing": "indicator", "missing_values": ["-1", "999.9"]},
        "u: '-1', '999.9' stand for no value in this draft",
    ),
    "0, 999 and 9999": (
        {"a": [*(age + 80 for age in AGES), 0, 999, 9999]},
        {"type": "integer", "range": [100, 170], "missing": "indicator", "missing_values": ["0", "999", "9999"]},
        "u: '0', '999', '9999' stand for no value",
    ),
    "-9, 999 and a word": (
        {"a": [*AGES, -9, 999, "n/a", "-"]},
        {"type": "integer", "range": [20, 90], "missing": "indicator", "missing_values": ["-", "-9", "999"]},
        "u: '-', '-9', '999' stand for no value",
    ),
    "a frequent 99": (
        {"a": [*(age % 60 for age in AGES), *[99] * 30]},
        {"type": "integer", "range": [0, 60], "missing": "indicator", "missing_values": ["99"]},
        "u: '99' stands for no value",
    ),
    "an age of 99, and a frequent 0 near the others": (
        {"a": [*AGES, 99, *[0] * 60, *range(1, 20)]},
        {"type": "integer", "range": [0, 100]},
        "integer: u.",
    ),
    "a slip": (
        {"a": some(AGES, _7=430), "b": AGES},
        {"type": "integer", "range": [20, 90]},
        "a.csv, line 9: '430') is far from all others, 20 to 89, and outside the drafted range. Correct the file",
    ),
    "numbers below and above a limit": (
        {"a": [*AGES, *["<5", "<0.5", "> 90"] * 10]},
        {"type": "number", "range": [0, 90]},
        "u: 30 cells, such as '<0.5', are below or above a limit: each is read as that limit.",
    ),
    "groups that look like limits": (
        {"a": ["<5", "5-10", ">10"] * 20},
        {"type": "category", "values": ["5-10", "<5", ">10"]},
        "category: u.",
    ),
    "numbers that are close together": (
        {"a": [f"1000000000.{age:04d}1" for age in range(100, 160)] * 2},
        {"type": "number", "range": [1000000000.01, 1000000000.02]},
        "number: v, u.",
    ),
    "dates of which one site's may be read in two ways": (
        {"a": DAYS, "b": OPEN_DAYS},
        {"type": "date", "range": ["2024-01-01", "2025-01-01"], "format": "%d/%m/%Y"},
        "u: in all dates of b either number may be the day. They are read as %d/%m/%Y, as other sites write them",
    ),
    "dates in two ways": (
        {"a": DAYS, "b": US_DAYS},
        IGNORED,
        "sites write dates in different ways: a %d/%m/%Y; b %m/%d/%Y. Write all alike, as 2020-01-31.",
    ),
    "dates and days of a spreadsheet": (
        {"a": DAYS, "b": range(45292, 45352)},
        IGNORED,
        "in different ways: a %d/%m/%Y; b 43861, a day as spreadsheets count them.",
    ),
}


@pytest.mark.parametrize(("cells", "entry", "said"), COLUMNS.values(), ids=COLUMNS)
def test_a_column_is_drafted_by_its_words_at_each_site(
    tmp_path: Path, cells: dict[str, Cells], entry: dict[str, Any], said: str
) -> None:
    paths = write(tmp_path, {site: {"u": values} for site, values in cells.items()})
    found = drafted(paths)
    assert found.schema["columns"]["u"] == entry
    assert sum(said.replace("v, u", "u, v") in line for line in found.notes) == 1, found.notes
    check_tables(paths, found.schema)


def test_a_drafted_code_for_no_value_is_read_as_none_in_typed_columns_too(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"u": [*AGES, 999, -9], "w": [*SIZES, 999.9, np.nan], "ill": [0, 1] * 61})
    frame.to_parquet(tmp_path / "a.parquet")
    schema = drafted([tmp_path / "a.parquet"]).schema
    notes = check_tables(tmp_path / "a.parquet", schema).notes
    assert "cells with no value, of 122: u 2, w 2" in notes and not any("clipped" in note for note in notes)


@pytest.mark.parametrize("mark", [".", ","])
def test_numbers_with_the_other_decimal_mark_than_most_are_named(tmp_path: Path, mark: str) -> None:
    cells = [f"{100 + row}{mark if row < 38 else ',.'[mark == ',']}5" for row in range(40)]
    rows = [f"{cell};{row % 2}" for row, cell in enumerate(cells)]
    (tmp_path / "a.csv").write_text("\n".join(["pressure;ill", *rows]))
    found = drafted([tmp_path / "a.csv"])
    assert found.form.decimal == mark and found.schema["columns"]["pressure"]["range"] == [100, 140]
    assert any(note.startswith("pressure: 2 cells, such as '138") for note in found.notes)
    with pytest.raises(DataError, match="column 'pressure'"):
        check_tables(tmp_path / "a.csv", found.schema, decimal=mark)


def test_a_name_says_what_numbers_are(tmp_path: Path) -> None:
    ids = [n * n * 69 % 999983 for n in range(120)]
    columns = {"customer_id": ids, "income": ids[::-1], "case no": [n % 30 for n in range(120)]}
    found = drafted(write(tmp_path, {"a": columns})).schema["columns"]
    assert [found[name]["type"] for name in columns] == ["identifier", "integer", "ignored"]


def test_days_of_a_spreadsheet_are_named_by_what_the_column_is_called(tmp_path: Path) -> None:
    days = [45000 + n * n % 97 for n in range(90)]
    told = drafted(write(tmp_path, {"a": {"admission_date": days, "salary": days[::-1]}})).notes
    (line,) = (line for line in told if "as spreadsheets count" in line)
    assert line.startswith("admission_date: whole numbers from 45")


def test_sites_may_be_in_one_file(tmp_path: Path) -> None:
    """Row numbers restart at each, and its dates are its own."""
    columns = {"site": ["a"] * 60 + ["b"] * 60, "row": [*range(60), *range(60)], "seen": DAYS[:60] + US_DAYS[:60]}
    found = of_files(write(tmp_path, {"all": columns}), TextFormat(), Roles(label="ill", silo="site"))
    assert found.schema["columns"]["row"] == IDENTIFIER and found.schema["columns"]["seen"] == IGNORED
    assert any("a %d/%m/%Y; b %m/%d/%Y" in line for line in found.notes)


def test_a_quantity_to_be_predicted_has_the_range_of_the_numbers_that_are_not_far(tmp_path: Path) -> None:
    paths = write(tmp_path, {"a": {"stay": some(AGES, _3=999)}})
    found = of_files(paths, TextFormat(), Roles(label="stay"))
    assert found.schema["label"]["range"] == [20, 90]
    assert any("'999' (" in line and "leave the records out" in line for line in found.notes)


@pytest.mark.parametrize(("column", "cells", "hinted"), [("died", [0, 1], 1), ("died", [0, 2], 0), ("male", [0, 1], 0)])
def test_a_time_beside_an_event_may_be_of_survival(tmp_path: Path, column: str, cells: list[int], hinted: int) -> None:
    paths = write(tmp_path, {"a": {"days": AGES, column: cells * 60}})
    notes = of_files(paths, TextFormat(), Roles(label="days")).notes
    assert sum("--time='days' --event='died'." in line for line in notes) == hinted


@pytest.mark.parametrize("shape", ["uniform", "normal", "poisson", "none or some", "lognormal", "exponential"])
def test_measurements_are_not_isolated(shape: str) -> None:
    """Also not counts, and numbers with a tail: 300 seeded samples of 200."""
    rng = np.random.default_rng(0)
    draw = {
        "uniform": lambda: rng.uniform(0, 100, 200).round(),
        "normal": lambda: rng.normal(80, 15, 200).round(1),
        "poisson": lambda: rng.poisson(3, 200).astype(float),
        "none or some": lambda: rng.poisson(6, 200) * rng.integers(0, 2, 200).astype(float),
        "lognormal": lambda: rng.lognormal(3, 0.7, 200).round(1),
        "exponential": lambda: rng.exponential(20, 200).round(1),
    }[shape]
    for _ in range(300):
        assert isolated(*np.unique(draw(), return_counts=True)) == ([], [])


MESSY: dict[str, dict[str, Any]] = {
    # folder: {column: what of its entry has to be so}
    "codes": {"code": {"type": "category", "values": ["007", "10.1", "10.10", 7]}},
    "long_codes": {"drug": {"type": "category", "values": [3000963, 3000964, 4024552, 4024559]}},
    "sentinels": {
        "bmi": {"range": [10, 50], "missing_values": ["-1", "999.9"]},
        "sbp": {"range": [0, 200], "missing_values": ["0", "999", "9999"]},
        "sodium": {"range": [120, 150], "missing_values": ["-9", "999"]},
    },
    "identifiers": {"insurance": {"type": "ignored"}},
    "censored_numbers": {"crp": {"type": "number"}, "egfr": {"type": "integer"}},
    "row_numbers": {"Unnamed: 0": {"type": "identifier"}},
    "sites_differ": {"admitted": {"type": "ignored"}},
}


@pytest.mark.parametrize(("folder", "expected"), MESSY.items(), ids=MESSY)
def test_messy_tables_are_drafted_right(folder: str, expected: dict[str, Any], data_folder: Path) -> None:
    paths = sorted((data_folder / "messy" / folder).glob("*.csv"))
    if not paths:
        pytest.skip("there are no messy tables")
    schema = drafted(paths).schema
    for name, entry in expected.items():
        assert {key: schema["columns"][name].get(key) for key in entry} == entry
    check_tables(paths, schema)
