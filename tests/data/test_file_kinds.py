"""Small files of every kind: what is read of each, or the place, the cell and the remedy that the message names."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import gzip
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pandas
import pyarrow as pa
import pyarrow.parquet
import pytest

from dpfl_plugin import Federation
from dpfl_plugin.api.tables import check_tables, read_tables
from dpfl_plugin.data.draft import Roles, of_files
from dpfl_plugin.data.table_reader import TextFormat
from dpfl_plugin.errors import ConfigError, DataError

NUMBER = {"type": "number", "range": [0, 10]}
IGNORED = {"type": "ignored"}
TABLE = "x,town,ill\n1,Zürich,no\n2,Genève,yes\n"
READ = [1, 2]


def text(content: str, encoding: str = "utf-8") -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(content.encode(encoding))


def sheet(cells: dict[str, Any], title: str = "A", extra: str = "") -> Callable[[Path], Any]:
    """A workbook of these cells."""

    def write(path: Path) -> None:
        book = openpyxl.Workbook()
        book.active.title = title
        for place, value in cells.items():
            book.active[place] = value
        if extra:
            book.create_sheet(extra)
        book.save(path)

    return write


def parquet(kind: pa.DataType, *values: Any) -> Callable[[Path], Any]:
    columns = {"x": pa.array(values, kind), "town": ["Zürich"] * len(values), "ill": ["no", "yes"][: len(values)]}
    return lambda path: pyarrow.parquet.write_table(pa.table(columns), path)


def stata(path: Path) -> None:
    pandas.DataFrame({"x": [1.0, 2.0], "ill": ["no", "yes"]}).to_stata(path, write_index=False)


def damaged(write: Callable[[Path], Any], old: bytes, new: bytes) -> Callable[[Path], Any]:
    """What ``write`` writes, with these bytes in the place of others, but for the first ones of the file."""

    def write_damaged(path: Path) -> None:
        write(path)
        content = path.read_bytes()
        path.write_bytes(content[:8] + content[8:].replace(old, new))

    return write_damaged


GRID = {"C3": "x", "D3": "town", "E3": "ill", "C4": 1, "D4": "Zürich", "E4": "no", "C5": 2, "D5": "Genève", "E5": "yes"}
CASES: dict[str, tuple[str, Callable[[Path], Any], dict[str, Any] | None, list[float] | str]] = {
    # file, how it is written, its column x (None: a number), the values read or the message
    "a title and a comment above": (
        "a.csv",
        text(f"Export of ward 3\n# made today, by me, again\n\n{TABLE}"),
        None,
        READ,
    ),
    "a line above, in gzip": (
        "a.csv.gz",
        lambda path: path.write_bytes(gzip.compress(b"Export\n" + TABLE.encode())),
        None,
        READ,
    ),
    "a line above, in UTF-16": ("a.csv", text(f"Export\n{TABLE}", "utf-16"), None, READ),
    "the true line below a title": (
        "a.csv",
        text(f"Export\n\n{TABLE}q,Zürich,no\n"),
        None,
        r"line 6, column 'x': 'q' is",
    ),
    "its true line among several": (
        "a.csv",
        text(f'Export\n\n{TABLE}3,"Zü\nrich",no\nq,Bonn,no\n'),
        None,
        "line 8, column 'x': 'q'",
    ),
    "a name of two lines": (
        "a.csv",
        text('"town\n(of birth)","x\n",ill\nBonn,1,no\nBonn,2,yes\n'),
        None,
        READ,
    ),
    "a comment below": ("a.csv", text(f"{TABLE}# the end\n"), None, r"line 4 is a comment: remove it\."),
    "a title as wide as the table": (
        "a.csv",
        text(f"Export,of,ward\n{TABLE}"),
        None,
        "line 1: names none of the schema",
    ),
    "Latin-1": (
        "a.csv",
        text(f"{TABLE}ü,", "latin-1"),
        None,
        r"0xfc.*'ü'.*data\.dataset\.encoding: windows-1252\.",
    ),
    "a table beside A1": ("a.xlsx", sheet(GRID), None, READ),
    "a title above it": ("a.xlsx", sheet({"A1": "Ward 3", **GRID}), None, READ),
    "a remark beside it": (
        "a.xlsx",
        sheet({**GRID, "G5": "?"}),
        None,
        r"row 5: the cell in column G is beside the table\. Remove it",
    ),
    "a formula without a value": (
        "a.xlsx",
        sheet({**GRID, "C5": "=1+1"}),
        None,
        r"row 5, column 'x' \(cell C5\) is a formula without a value\. Open the file in a spreadsheet program and save",
    ),
    "a formula in a column that is not read": ("a.xlsx", sheet({**GRID, "D5": "=1+1"}), None, READ),
    "an error cell": (
        "a.xlsx",
        sheet({**GRID, "C5": "#DIV/0!"}),
        None,
        r"row 5, column 'x' \(cell C5\): '#DIV/0!' is an error of a spreadsheet\. Correct it",
    ),
    "times in a sheet": ("a.xlsx", sheet({**GRID, "C4": datetime.time(9)}), None, "row 4, column 'x': '09:00:00' is"),
    "no sheet of cells": ("a.xlsx", sheet({}), None, "is empty"),
    "an Excel table with dates": (
        "a.xlsx",
        sheet({**GRID, "C4": datetime.datetime(2300, 1, 1), "C5": datetime.datetime(2300, 1, 11)}),
        {"type": "date", "range": ["2299-12-31", "2300-01-11"]},
        [1, 11],
    ),
    "dates in 2300": (
        "a.parquet",
        parquet(pa.date32(), datetime.date(2300, 1, 1), datetime.date(2300, 1, 11)),
        {"type": "date", "range": ["2299-12-31", "2300-01-11"]},
        [1, 11],
    ),
    "dates in 2300 as numbers": (
        "a.parquet",
        parquet(pa.date32(), datetime.date(2300, 1, 1)),
        None,
        "is a date.*type: d",
    ),
    "whole days": (
        "a.parquet",
        parquet(pa.timestamp("ns"), datetime.datetime(2000, 1, 1), datetime.datetime(2000, 1, 2)),
        {"type": "date", "range": ["2000-01-01", "2000-01-11"]},
        [0, 1],
    ),
    "times of day": (
        "a.parquet",
        parquet(pa.time32("s"), datetime.time(9)),
        None,
        r"row 0, column 'x': .* is a time of day",
    ),
    "durations": ("a.parquet", parquet(pa.duration("s"), datetime.timedelta(1)), None, "is a duration. Write a number"),
    "bytes": ("a.parquet", parquet(pa.binary(), b"x"), None, r"b'x'.* is bytes\. Decode them"),
    "lists": ("a.parquet", parquet(pa.list_(pa.int8()), [1]), None, "is of a nested or special type.*type: ignored"),
    "structures": ("a.parquet", parquet(pa.struct({"a": pa.int8()}), {"a": 1}), None, "is of a nested or special type"),
    "decimals": ("a.parquet", parquet(pa.decimal128(5, 2), decimal.Decimal("1.5"), 2), None, [1.5, 2]),
    "small floats": ("a.parquet", parquet(pa.float16(), 1, 2), None, READ),
    "dates of no year of Python's": (
        "a.parquet",
        parquet(pa.timestamp("s"), 10**12),
        None,
        "beyond the year 9999 is a d",
    ),
    "dates of no year, clipped": (
        "a.parquet",
        parquet(pa.timestamp("s"), 10**12, 0),
        {"type": "date", "range": ["1970-01-01", "1970-01-11"]},
        [10, 0],
    ),
    "text that is no UTF-8": (
        "a.parquet",
        damaged(parquet(pa.string(), "7777", "8"), b"7777", b"7\xff77"),
        None,
        "is damaged",
    ),
    "a damaged workbook": (
        "a.xlsx",
        damaged(sheet(GRID), b"PK\x03\x04", b"PK\x03\x05"),
        None,
        "is not an xlsx workbook",
    ),
    "truth values": ("a.parquet", parquet(pa.bool_(), False, True), None, [0, 1]),
    "nothing": ("a.parquet", parquet(pa.null(), None), None, "row 0, column 'x' holds no value"),
    "Stata": ("a.dta", stata, None, r"is a Stata file\. .*pandas\.read_stata\('.*a\.dta'\)\.to_parquet\(.*from_table"),
    "SPSS": (
        "a.sav",
        text("$FL2@(#) SPSS DATA FILE"),
        None,
        r"is an SPSS file \(pandas needs pyreadstat.*pandas\.read_spss\(",
    ),
    "SAS": (
        "a.xpt",
        text("HEADER RECORD*******LIBRARY HEADER"),
        None,
        r"is a SAS transport file\..*pandas\.read_sas\(",
    ),
}


def schema(column: dict[str, Any] | None) -> dict[str, Any]:
    label = {"column": "ill", "classes": ["no", "yes"]}
    return {"label": label, "columns": {"x": column or NUMBER}, "other_columns": "ignore"}


@pytest.mark.parametrize(("name", "write", "column", "expected"), CASES.values(), ids=CASES)
def test_a_file_is_read_or_refused_by_place_and_remedy(
    tmp_path: Path, name: str, write: Callable[[Path], Any], column: dict[str, Any] | None, expected: list[float] | str
) -> None:
    path = tmp_path / name
    write(path)
    if isinstance(expected, str):
        with pytest.raises((DataError, ConfigError)) as caught:
            check_tables(path, schema(column))
        assert re.search(f"(?s){expected}", str(caught.value)), str(caught.value)
        return
    found = read_tables(path, schema(column))
    low, high = (_number(end) for end in (column or NUMBER)["range"])
    values = [(value + 1) / 2 * (high - low) for value in found.features[:, 0].tolist()]
    assert values == pytest.approx(expected, abs=1e-3)
    assert found.labels.tolist() == [0, 1]


def _number(end: float | str) -> float:
    return datetime.date.fromisoformat(end).toordinal() if isinstance(end, str) else end


@pytest.mark.parametrize(("name", "write"), [case[:2] for case in CASES.values()], ids=CASES)
def test_a_draft_of_any_file_is_a_schema_or_a_refusal(tmp_path: Path, name: str, write: Callable[[Path], Any]) -> None:
    path = tmp_path / name
    write(path)
    try:
        draft = of_files([path], TextFormat(), Roles(label="ill"))
    except (DataError, ConfigError):
        return
    check_tables(path, draft.schema)


MESSY = Path(os.environ.get("DPFL_DATA", ".")) / "messy"
CODES = {"type": "category", "values": ["10.1", "10.10", "007", "7"]}
SCHEMAS: dict[str, dict[str, Any]] = {
    "codes": {"code": CODES, "age": IGNORED},
    "censored_numbers": {name: {"type": "number", "range": [0, 200]} for name in ("crp", "egfr")},
    "lines_above": {"age": {"type": "integer", "range": [20, 90]}, "town": IGNORED},
    "typed": {
        "far": {"type": "date", "range": ["2300-01-01", "2300-02-01"]},
        **dict.fromkeys(("clock", "raw", "pair", "age"), IGNORED),
    },
}


@pytest.mark.skipif(not MESSY.exists(), reason="the messy tables are not here")
@pytest.mark.parametrize("folder", SCHEMAS)
def test_messy_tables_are_read(folder: str) -> None:
    label = {"column": "ill", "classes": ["no", "yes"]}
    files = sorted(one for one in (MESSY / folder).iterdir())
    checked = check_tables(files, {"label": label, "columns": SCHEMAS[folder]})
    if folder == "censored_numbers":
        assert any("'<0.003', '<5'" in note for note in checked.notes) and any(
            "'>90'" in note for note in checked.notes
        )
    if folder == "codes":
        found = read_tables(files, {"label": label, "columns": SCHEMAS[folder]})
        cells = pandas.concat([pandas.read_csv(file, dtype=str) for file in files])["code"]
        assert [CODES["values"][place] for place in found.features.argmax(axis=1)] == cells.tolist()


@pytest.mark.skipif(not MESSY.exists(), reason="the messy tables are not here")
@pytest.mark.parametrize(
    ("folder", "form", "message"),
    [
        ("latin1", TextFormat(), "encoding: windows-1252"),
        ("latin1", TextFormat(encoding="windows-1252"), None),
        ("lines_above", TextFormat(), None),
        ("sheet", TextFormat(), r"row 5 '=80/1\.8\^2'.*Open the file in a spreadsheet program"),
        ("typed", TextFormat(), None),
    ],
)
def test_messy_tables_are_drafted_or_refused(folder: str, form: TextFormat, message: str | None) -> None:
    files = sorted((MESSY / folder).iterdir())
    if message is not None:
        with pytest.raises(DataError, match=message):
            of_files(files, form, Roles(label="ill"))
        return
    draft = of_files(files, form, Roles(label="ill"))
    assert check_tables(files, draft.schema, encoding=form.encoding).features


TYPED = {
    "dates": pa.array([datetime.date(2300, 1, 1), None], pa.date32()),
    "nanoseconds": pa.array([datetime.datetime(2000, 1, 1), None], pa.timestamp("ns", "Europe/Zurich")),
    "times": pa.array([datetime.time(9), None], pa.time64("us")),
    "durations": pa.array([datetime.timedelta(1), None], pa.duration("ms")),
    "bytes": pa.array([b"\xff", None], pa.large_binary()),
    "fixed bytes": pa.array([b"xy", None], pa.binary(2)),
    "structures": pa.array([{"a": 1}, None]),
    "lists": pa.array([[1], None]),
    "maps": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int8())),
    "decimals": pa.array([decimal.Decimal("1.50"), None], pa.decimal256(40, 2)),
    "half floats": pa.array([1.5, float("inf")], pa.float16()),
    "large whole numbers": pa.array([2**64 - 1, None], pa.uint64()),
    "truth values": pa.array([True, None]),
    "nothing": pa.nulls(2),
    "codes of numbers": pa.array([7, None]).dictionary_encode(),
    "codes of words": pa.array(["a", None], pa.large_string()).dictionary_encode(),
    "views": pa.array(["1", None], pa.string_view()),
}
ROLES: dict[str, dict[str, Any]] = {
    **{kind: {"columns": {"x": {"type": kind, "range": [0, 10]}}} for kind in ("number", "integer")},
    **{kind: {"columns": {"x": {"type": kind, "values": ["a", "7"]}}} for kind in ("category", "ordinal")},
    "date": {"columns": {"x": {"type": "date", "range": ["2000-01-01", "2301-01-01"]}}},
    "day first": {"columns": {"x": {"type": "date", "range": ["2000-01-01", "2301-01-01"], "format": "%d.%m.%Y"}}},
    "ignored": {"columns": {"x": IGNORED, "other": NUMBER}},
    "silo": {"silo": "x"},
    "person": {"person": "x"},
    "classes": {"label": {"column": "x", "classes": ["a", "7"]}},
    "regression": {"label": {"column": "x", "outcome": "regression", "range": [0, 10]}},
    "counts": {"label": {"column": "other", "outcome": "counts", "range": [0, 10], "exposure": "x"}},
    "multi_label": {"label": {"columns": ["x"], "outcome": "multi_label"}},
    "time": {"label": {"outcome": "survival", "time": "x", "event": "other", "range": [0, 10]}},
    "event": {"label": {"outcome": "survival", "time": "other", "event": "x", "range": [0, 10]}},
}


@pytest.mark.parametrize("kind", TYPED)
def test_typed_columns_are_read_or_refused_whatever_the_schema_says(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.parquet"
    columns = {"x": TYPED[kind], "other": pa.array([1, 0]), "ill": pa.array(["no", "yes"])}
    frame = pandas.DataFrame({name: column.to_pylist() for name, column in columns.items()})
    pyarrow.parquet.write_table(pa.table(columns), path)
    for role in ROLES.values():
        known = {"label": {"column": "ill", "classes": ["no", "yes"]}, "columns": {"other": NUMBER}, **role}
        if "label" in role:
            known["columns"] = {"ill": {"type": "category", "values": ["no", "yes"]}}
        known["other_columns"] = "ignore"
        for read in (lambda: check_tables(path, known), lambda: Federation.from_table(frame, known)):  # noqa: B023
            with contextlib.suppress(DataError):
                read()
    for label in ("x", "ill"):
        with contextlib.suppress(DataError, ConfigError):
            of_files([path], TextFormat(), Roles(label=label))
