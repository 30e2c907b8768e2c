"""Marks of thousands are read where a schema says so, and never as decimals in silence: not by a draft, a table, or a
CSV file of numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas
import pytest

import dpfl_plugin as dpfl
from dpfl_plugin.api.tables import check_tables
from dpfl_plugin.data.draft import Draft, Roles, of_files
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.data.files import csv
from dpfl_plugin.data.table import Columns
from dpfl_plugin.data.table_reader import TextFormat
from dpfl_plugin.data.tables import table as read
from dpfl_plugin.data.thousands import grouped, without_marks
from dpfl_plugin.errors import DataError

WHOLE = [300 + 997 * row for row in range(60)]  # 300 to 59,123, some below 1000


def written(mark: str, numbers: Sequence[float] = WHOLE, form: str = ",") -> list[str]:
    return [
        format(number, form).replace(",", "x").replace(".", "." if mark != "." else ",").replace("x", mark)
        for number in numbers
    ]


HALVES = [number + 0.5 for number in WHOLE]
DECIMALS = [f"{36 + row % 50 / 10}" for row in range(60)]
MILLI = [f"{36 + row % 50 / 1000:.3f}" for row in range(60)]


def commas(cells: Sequence[str]) -> list[str]:
    return [cell.replace(".", ",") for cell in cells]


def table(folder: Path, **columns: Sequence[Any]) -> Path:
    frame = pandas.DataFrame(columns).assign(ill=[row % 2 for row in range(60)])
    frame.to_csv(folder / "a.csv", index=False, sep=";")
    return folder / "a.csv"


def drafted(path: Path) -> Draft:
    return of_files([path], TextFormat(), Roles(label="ill"))


DRAFTS: dict[str, tuple[dict[str, Sequence[str]], str, dict[str, str], str]] = {
    # columns, the decimal mark, {column: type}, what is said
    "alone": (
        {"u": written(",")},
        ".",
        {"u": "ignored"},
        "is '1,297' 1297, with a mark of thousands, or 1.297? If it is 1297: {type: integer, range: [0, 60000], "
        "thousands: ','}.",
    ),
    "one number": ({"u": ["1,234", "1234"] * 30}, ".", {"u": "ignored"}, "or 1.234? Write 1234, without marks."),
    "all of them": ({"u": written(",", WHOLE[1:] * 2)[:60]}, ".", {"u": "ignored"}, "or data.dataset.decimal: ','"),
    "beside decimals": ({"u": written(","), "v": DECIMALS}, ".", {"u": "ignored", "v": "number"}, "u is not used"),
    "beside commas": (
        {"u": written(","), "v": commas(DECIMALS)},
        ",",
        {"u": "number", "v": "number"},
        "u: '1,297' is read as a decimal, since other columns have decimal commas. If it is 1297",
    ),
    "points beside commas": (
        {"u": written("."), "v": commas(DECIMALS)},
        ",",
        {"u": "ignored", "v": "number"},
        "write them with a comma",
    ),
    "points": ({"u": written(".")}, ".", {"u": "number"}, "u: '1.297' beside '300' is read as 1.297"),
    "millions": (
        {"u": written(",", [number * 999 for number in WHOLE]), "v": commas(DECIMALS)},
        ",",
        {"u": "integer", "v": "number"},
        "u: thousands: ',', as in '299,700', which is 299700.",
    ),
    "with decimals": ({"u": written(",", HALVES, ",.2f")}, ".", {"u": "number"}, "as in '1,297.50', which is 1297.50."),
    "German": (
        {"u": written(".", HALVES, ",.1f"), "v": DECIMALS},
        ".",
        {"u": "number", "v": "number"},
        "u: thousands: '.', as in '1.297,5', which is 1297.5.",
    ),
    "Swiss": ({"u": written("'")}, ".", {"u": "integer"}, 'u: thousands: "\'", as in "1\'297", which is 1297.'),
    "blanks": ({"u": commas(written("\u202f", HALVES, ",.1f"))}, ",", {"u": "number"}, "u: thousands: ' '"),
    "blanks and commas beside points": (
        {"u": commas(written("\u00a0", HALVES, ",.1f")), "v": DECIMALS, "w": DECIMALS},
        ".",
        {"u": "ignored", "v": "number", "w": "number"},
        "u is not used (type: ignored): most of its numbers, such as '300,5'",
    ),
    "few of them": ({"u": ["1,234,000", "2,000,000"] * 30}, ".", {"u": "integer"}, "u: thousands: ','"),
    "with a few words": ({"u": [*written(",")[:58], "x", "n/a"]}, ".", {"u": "ignored"}, "u is not used"),
    "decimal commas": ({"v": commas(DECIMALS)}, ",", {"v": "number"}, "decimal: ',', as the cells of v have it"),
    "a column of commas": (
        {"v": commas(DECIMALS), "w": DECIMALS, "x": DECIMALS},
        ".",
        {"v": "ignored", "w": "number", "x": "number"},
        "v is not used (type: ignored): most of its numbers, such as '36,0'",
    ),
}


@pytest.mark.parametrize(("columns", "decimal", "types", "said"), DRAFTS.values(), ids=DRAFTS)
def test_a_draft_guesses_no_mark_and_passes_its_own_check(
    tmp_path: Path, columns: dict[str, Sequence[str]], decimal: str, types: dict[str, str], said: str
) -> None:
    path = table(tmp_path, **columns, z=[row % 37 for row in range(60)])
    found = drafted(path)
    assert found.form.decimal == decimal
    assert {name: found.schema["columns"][name]["type"] for name in columns} == types
    assert sum(said in one for one in found.notes) == 1, found.notes
    assert [name for name, kind in types.items() if kind == "ignored"] == [
        name for name in columns if any(one.startswith(f"{name} is not used") for one in found.notes)
    ]
    check_tables(path, found.schema, decimal=found.form.decimal)


@pytest.mark.parametrize(
    "cells", [DECIMALS, MILLI, [f"{row / 1000:.3f}" for row in range(60)], list(map(str, WHOLE[:30])) * 2]
)
def test_decimals_are_none(tmp_path: Path, cells: list[str]) -> None:
    found = drafted(table(tmp_path, u=cells))
    assert found.schema["columns"]["u"]["type"] in ("number", "integer") and not any(
        "thousands" in o for o in found.notes
    )


DATES: dict[str, tuple[list[str], str | None, str]] = {
    # dates, the format that is drafted, what is said
    "either": (["07/01/2015", "12/11/2015"], None, "in '07/01/2015' either number may be the day. Write {type: date"),
    "day first": (["07/01/2015", "25/11/2015"], "%d/%m/%Y", "date: u."),
    "month first": (["07/01/2015", "11/25/2015"], "%m/%d/%Y", "date: u."),
    "both alike": (["07/07/2015", "11/11/2015"], "%d/%m/%Y", "date: u."),
    "points": (["07.01.2015", "12.11.2015"], "%d.%m.%Y", "date: u."),
}


@pytest.mark.parametrize(("cells", "form", "said"), DATES.values(), ids=DATES)
def test_a_draft_does_not_guess_which_number_of_a_date_is_the_day(
    tmp_path: Path, cells: list[str], form: str | None, said: str
) -> None:
    path = table(tmp_path, u=cells * 30, v=DECIMALS)
    found = drafted(path)
    assert found.schema["columns"]["u"].get("format") == form
    assert (found.schema["columns"]["u"]["type"] == "ignored") == (form is None)
    assert sum(said in one for one in found.notes) == 1, found.notes
    check_tables(path, found.schema)


BESIDE: dict[str, tuple[Callable[[int], str], bool]] = {
    # how a number is written, whether it is told of as one with something beside it
    "currency": (lambda number: f"€{number}", True),
    "unit": (lambda number: f"{number} kg", True),
    "percent": (lambda number: f"{number / 1000:.1f}%", True),
    "in brackets": (lambda number: f"({number})", True),
    "another minus": (lambda number: f"\N{MINUS SIGN}{number}", True),
    "underscore": (lambda number: f"{number:_}", True),
    "lakh": (lambda number: f"{1 + number // 1000},{10 + number % 89},{number % 1000:03d}", True),
    "postcode": (lambda number: f"{number} {chr(65 + number % 26)}{chr(65 + number % 7)}", False),
    "code": (lambda number: f"A{number}", False),
}


@pytest.mark.parametrize(("write", "is_number"), BESIDE.values(), ids=BESIDE)
def test_numbers_with_something_beside_them_are_left_out_as_what_they_are(
    tmp_path: Path, write: Callable[[int], str], is_number: bool
) -> None:
    path = table(tmp_path, u=list(map(write, WHOLE)), v=DECIMALS)
    found = drafted(path)
    assert not found.schema["columns"]["u"].keys() - {"type"}
    told = [one for one in found.notes if "not used" in one]
    assert len(told) == 1 and ("are no plain numbers" in told[0]) == is_number, told
    check_tables(path, found.schema)


def test_a_label_with_marks_of_thousands_is_refused(tmp_path: Path) -> None:
    path = table(tmp_path, u=written(","), v=DECIMALS)
    with pytest.raises(DataError, match="u cannot be predicted: is '1,297' 1297, with a mark of thousands"):
        of_files([path], TextFormat(), Roles(label="u"))


def test_a_table_says_what_is_wrong_and_believes_who_states_the_mark(tmp_path: Path) -> None:
    schema = {
        "label": {"column": "ill", "classes": ["0", "1"]},
        "columns": {"u": {"type": "number", "range": [0, 1000]}},
    }
    for cells, message in (
        (
            written(","),
            r"have a comma, of thousands or of decimals .*u\.thousands: ',' reads it as 1297; .*decimal: ','",
        ),
        (
            written(",", WHOLE, ",.2f"),
            r"have marks of thousands .*data\.schema\.columns\.u\.thousands: ',' reads it as",
        ),
        (written(".", HALVES, ",.1f")[1:31] * 2, r"thousands: '\.' reads it as 1297\.5"),
        (commas(DECIMALS), r"have a decimal comma .*data\.dataset\.decimal: ','"),
        ([*commas(MILLI)[:59], "1,5"], r"60 cells have a decimal comma"),
    ):
        with pytest.raises(DataError, match=message):
            check_tables(table(tmp_path, u=cells), schema)
    check_tables(table(tmp_path, u=written(",")), schema, decimal=",")
    path = table(tmp_path, u=written("."))
    assert any("'1.297' beside '300' is read as 1.297" in note for note in check_tables(path, schema).notes)
    assert not any("beside" in note for note in check_tables(path, schema, decimal=".").notes)
    assert not any("beside" in note for note in check_tables(table(tmp_path, u=MILLI), schema).notes)
    frame = pandas.DataFrame({"u": written(","), "ill": [0, 1] * 30})
    with pytest.raises(DataError, match=r"thousands: ','.*pandas\.read_csv\(\.\.\., decimal=','\)") as caught:
        dpfl.Federation.from_table(frame, schema)
    assert "data.dataset" not in str(caught.value)
    with pytest.raises(DataError, match=r"Write 1297, without marks of thousands, or 1\.297, if it is a decimal"):
        dpfl.Federation.from_frame(frame[1:2], label="ill")


@pytest.mark.parametrize("mark", [",", ".", "'", " ", "’", "\u00a0", "\u2009", "\u202f"])
@pytest.mark.parametrize("decimal", [".", ","])
def test_a_schema_reads_the_marks_that_it_names_and_refuses_them_elsewhere(
    tmp_path: Path, mark: str, decimal: str
) -> None:
    """The same features as of numbers without marks; of the column beside it, too."""
    numbers = [1234567.5 * row for row in range(-30, 30)]
    own = {",": ".", ".": ","}.get(mark, decimal)
    cells = [f"{number:,.1f}".replace(",", "x").replace(".", own).replace("x", mark) for number in numbers]
    named = {"’": "'", ",": ",", ".": ".", "'": "'"}.get(mark, " ")

    def features(cells: Sequence[str], **more: str) -> Any:
        columns = {"u": {"type": "number", "range": [-4e7, 4e7], **more}, "v": {"type": "number", "range": [36, 41]}}
        schema = {"label": {"column": "ill", "classes": ["0", "1"]}, "columns": columns}
        path = table(tmp_path, u=cells, v=[cell.replace(".", decimal) for cell in DECIMALS])
        return read(DataSource(base=path.parent), schema=schema, files=path.name, decimal=decimal).features

    plain = features([f"{number:.1f}".replace(".", decimal) for number in numbers])
    assert (features(cells, thousands=named) == plain).all() and len(set(plain[:, 1])) > 40
    for odd in (f"12{mark}5", f"1{mark}2345", f"0{mark}123", f"1{mark}x"):
        with pytest.raises(DataError, match=r"line 2.*elsewhere than before three digits"):
            features([odd, *cells[1:]], thousands=named)


def test_a_csv_file_of_numbers_refuses_marks_of_thousands(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('u,label\n"1,234,567",0\n"57,435",1\n"12,5",1\n')
    with pytest.raises(DataError, match=r"(?s)has marks of thousands\. .*1234567.*57,435' has a decimal.*12,5' has"):
        Columns("label", None, (), ",").read(tmp_path / "a.csv")


def test_a_csv_file_of_numbers_tells_of_points_that_may_be_marks_of_thousands(tmp_path: Path) -> None:
    """As a run tells it; of the points of no other column."""
    frame = pandas.DataFrame({"u": written("."), "v": DECIMALS, "w": MILLI, "label": [0, 1] * 30})
    frame.to_csv(tmp_path / "a.csv", index=False)
    noted = [note for note in csv(DataSource(base=tmp_path), files="a.csv").notes if "thousands" in note]
    assert len(noted) == 1 and noted[0].startswith("column 'u': '1.297' beside '300' is read as 1.297"), noted


def test_which_words_may_have_marks_of_thousands() -> None:
    for word, mark, sure in (
        ("57,435", ",", False),
        ("-8.534", ".", False),
        ("1 234", " ", True),
        ("1.234,5", ".", True),
    ):
        assert grouped(word) == (mark, sure)
    for word in ("950", "0,534", "12,5", "1,2345", "1234,567", "1,234,56", "1,234,5678", "a,123"):
        assert grouped(word) is None and without_marks(word) == word
    assert [without_marks(word) for word in ("57,435", "1.234,5", "1,234,567.25")] == ["57435", "1234.5", "1234567.25"]
