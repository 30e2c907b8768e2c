"""Tables by a schema: the same records from CSV, Parquet and xlsx files, and everything that is wrong at once."""

from __future__ import annotations

import datetime
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import dpfl_plugin as dpfl
from dpfl_plugin.api.tables import check_tables, read_tables
from dpfl_plugin.core.outcomes import Outcome
from dpfl_plugin.data.base import Dataset, Ownership, digest
from dpfl_plugin.data.draft import Roles, of_files
from dpfl_plugin.data.federation import FederationSpec, build_federation
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.data.partition import natural
from dpfl_plugin.data.persons import numbers
from dpfl_plugin.data.schema import TableSchema
from dpfl_plugin.data.table_reader import TextFormat
from dpfl_plugin.data.tables import new_records, table
from dpfl_plugin.errors import ConfigError, DataError

SCHEMA: dict[str, Any] = {
    "label": {"column": "ill", "classes": ["no", "yes"]},
    "person": "id",
    "columns": {
        "age": {"type": "number", "range": [0, 100]},
        "town": {"type": "category", "values": ["Köln", "Bonn, West", 'the "Hill"']},
        "seen": {"type": "date", "range": ["2020-01-01", "2021-01-01"]},
        "note": {"type": "ignored"},
    },
}
FRAME = pandas.DataFrame(
    {
        "id": ["p1", "p2", "p1", "p3"],
        "age": [20.5, 31.0, 99.25, 0.0],
        "town": ["Köln", "Bonn, West", 'the "Hill"', "Köln"],
        "seen": pandas.to_datetime(["2020-01-01", "2020-07-02", "2020-12-31", "2020-02-29"]),
        "note": ["", "two\nlines", "x", ""],
        "ill": ["no", "yes", "yes", "no"],
    }
)


def text(**options: Any) -> Callable[[Path], None]:
    """Writes FRAME as pandas does, with these options."""
    return lambda path: FRAME.to_csv(path, **{"index": False, "date_format": "%Y-%m-%d", **options})


WRITTEN: dict[str, tuple[str, Callable[[Path], Any], dict[str, Any]]] = {
    # name of the file, how it is written, options of `table`
    "csv": ("a.csv", text(), {}),
    "semicolons": ("a.csv", text(sep=";"), {}),
    "tabs": ("a.tsv", text(sep="\t"), {}),
    "another delimiter": ("a.csv", text(sep="!"), {"delimiter": "!"}),
    "decimal commas": ("a.csv", text(sep=";", decimal=","), {"decimal": ","}),
    "decimal commas in quotes": ("a.csv", text(decimal=","), {"decimal": ","}),
    "a byte order mark": ("a.csv", text(encoding="utf-8-sig"), {}),
    "UTF-16": ("a.csv", text(encoding="utf-16"), {}),
    "UTF-16 without a mark": ("a.csv", text(encoding="utf-16-le"), {}),
    "UTF-16, the large byte first": ("a.csv", text(encoding="utf-16-be"), {}),
    "Windows": ("a.csv", text(encoding="windows-1252", lineterminator="\r\n"), {"encoding": "windows-1252"}),
    "quotes": ("a.csv", text(quoting=1), {}),
    "gzip": ("a.csv.gz", text(), {}),
    "no header": ("a.csv", text(header=False), {"header": list(FRAME.columns)}),
    "a header, after all": ("a.csv", text(), {"header": list(FRAME.columns)}),
    "blanks": (
        "a.csv",
        lambda path: path.write_text(FRAME.to_csv(index=False).replace("20.5", " 20.5 ").replace("Köln", " Köln ")),
        {},
    ),
    "parquet": ("a.parquet", lambda path: FRAME.to_parquet(path), {}),
    "categories in parquet": ("a.parquet", lambda path: FRAME.astype({"town": "category"}).to_parquet(path), {}),
    "xlsx": ("a.xlsx", lambda path: FRAME.to_excel(path, index=False), {}),
    "a sheet": ("a.xlsx", lambda path: FRAME.to_excel(path, index=False, sheet_name="two"), {"sheet": "two"}),
}


def load(folder: Path, files: str | list[str], schema: object = SCHEMA, **options: Any) -> Dataset:
    return table(DataSource(base=folder), files=files, schema=schema, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "write", "options"), WRITTEN.values(), ids=WRITTEN)
def test_every_way_to_write_a_table_is_the_same_records(
    tmp_path: Path, name: str, write: Callable[[Path], Any], options: dict[str, Any]
) -> None:
    write(tmp_path / name)
    found = load(tmp_path, name, **options)
    days = (FRAME["seen"] - pandas.Timestamp("2020-01-01")).dt.days.to_numpy()
    hot = np.stack([FRAME["town"] == town for town in SCHEMA["columns"]["town"]["values"]], axis=1)
    expected = np.column_stack([FRAME["age"] / 50 - 1, hot, days / 366 * 2 - 1])
    np.testing.assert_allclose(found.features, expected, atol=1e-6)
    assert found.labels.tolist() == [0, 1, 1, 0] and found.labels.dtype == np.int64
    assert found.persons is not None and found.persons.tolist() == numbers(FRAME["id"]).tolist()
    assert found.class_names == ("no", "yes") and found.num_classes == 2


HEADER = "id,age,town,seen,ill"
GOOD = "p1,20,Köln,2020-02-01,no"


def lines(*rows: str, header: str = HEADER) -> str:
    return "\n".join([header, *rows]) + "\n"


WRONG: dict[str, tuple[str | bytes, dict[str, Any], str]] = {
    # text, options, message
    "a missing column": (lines("p1,20", header="id,age"), {}, r"line 1: 3 columns are wrong:.*no column 'town'"),
    "a misspelt column": (
        lines(GOOD, header="id,Age,town,seen,ill"),
        {},
        r"no column 'age' \(did you mean 'Age'\?\), which data\.schema\.columns\.age names",
    ),
    "a stranger": (
        lines(f"{GOOD},1", header=f"{HEADER},salary"),
        {},
        r"line 1: column 'salary' is not in the schema\. data\.schema\.columns\.salary: \{type: ignored\}",
    ),
    "no name": (
        lines(f"{GOOD},1", header=f"{HEADER},"),
        {},
        r"column 6, which has no name, is not in the schema\. Is it a row number",
    ),
    "twice": (lines(f"{GOOD},1", header=f"{HEADER},age"), {}, "2 columns have the name 'age'"),
    "no header": (lines(GOOD, header=GOOD), {}, r"names none of the schema's columns.*data\.dataset\.header"),
    "empty": ("", {}, "is empty: its first line must name the columns"),
    "no records": (lines(), {}, "a header and no records"),
    "another width": (lines(GOOD, "p2,1,Köln,2020-02-01", GOOD), {}, "line 3: 4 columns, the header has 5"),
    "an empty last line": (lines(GOOD, ", ,,,"), {}, r"line 3 is empty in all columns that are read: remove it\.$"),
    "empty lines": (
        lines(GOOD, ",,,,", "p2,x,Köln,2020-02-01,no", *[",,,,"] * 3),
        {},
        r"5 places are wrong:\n  4 lines are empty.*: remove them \(line 3, line 5, line 6, ...\)\.\n  line 4.*'x'",
    ),
    "another delimiter": (
        lines(GOOD, GOOD.replace(",", ";"), GOOD.replace(",", "\t")),
        {},
        r"2 places.*line 3: is divided by ';', and the header by ','\. Divide all.*line 4: is divided by '\\t'",
    ),
    "names and width": (lines(GOOD), {"header": ["a", "b"]}, "line 1: has 5 columns, data.dataset.header names 2"),
    "latin": (lines(GOOD).encode("latin-1"), {}, "0xf6.*data.dataset.encoding: windows-1252"),
    "names in latin": (lines(GOOD, header=HEADER.replace("age", "größe")).encode("latin-1"), {}, "0xf6.*windows-1252"),
    "not that encoding": (lines(GOOD), {"encoding": "utf-16"}, "is not text in utf-16"),
    "a point": (
        lines(GOOD.replace("20,K", '"20.5",K')).replace(",", ";").replace("Köln", "Köln"),
        {"decimal": ","},
        r"line 2, column 'age': '20.5' has a point, where the decimal mark is a comma\..* if all have a point: "
        r"data\.dataset\.decimal: '\.'\.$",
    ),
    "points of other kinds": (
        lines(
            *[f"p1;{age};Köln;2020-02-01;no" for age in ("1.234,5", "n.b.", "20,5")], header=HEADER.replace(",", ";")
        ),
        {"decimal": ","},
        r"2 places are wrong:\n  line 2, column 'age': '1\.234,5' has a point, .*\n"
        r"  line 3, column 'age': 'n\.b\.' is not a number\.[^\n]*missing_values: \[\.\.\.\]\.$",
    ),
    "an open quote": (lines(GOOD, 'p2,"2,Köln,2020-02-01,no', GOOD, GOOD), {}, r'after line 2: .*a quote \("\)'),
    "no workbook": (b"PK\x03\x04 nothing", {}, "is not an xlsx workbook"),
    "old Excel": (b"\xd0\xcf\x11\xe0\0\0\0\0", {}, "old Excel file"),
    "no Parquet": (b"PAR1 nothing", {}, "is not a Parquet file, or is damaged"),
    "another sheet": (b"", {"sheet": "x"}, "no sheet 'x'"),
}


@pytest.mark.parametrize(("content", "options", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_file_is_refused_by_its_place(
    tmp_path: Path, content: str | bytes, options: dict[str, Any], message: str
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    if "sheet" in options:
        path = tmp_path / "a.xlsx"
        FRAME.to_excel(path, index=False)
    with pytest.raises(DataError, match=f"(?s)a\\.(csv|xlsx).*({message})"):
        load(tmp_path, path.name, **options)


def test_all_that_is_wrong_with_all_files_is_told_at_once_by_its_true_line(tmp_path: Path) -> None:
    """Lines are those of an editor: below a cell of two lines, an empty line and a row that was left out."""
    rows = [
        GOOD,
        'p2,30,"Bonn, West",2020-02-01,no',
        "",
        "p3,30,Köln",
        "p4,x,Köln,2020-02-01,no",
        " ,30,Kölle,2020-02-01,perhaps",
    ]
    (tmp_path / "a.csv").write_text(lines(*rows))
    (tmp_path / "b.csv").write_text(lines('p5,50,"Bonn\n, West",2020-02-01,no', "p6,50,Köln,01.02.2020,no"))
    (tmp_path / "c.csv").write_text(lines(GOOD.replace("20,", "21,")))
    with pytest.raises(DataError) as caught:
        load(tmp_path, ["a.csv", "b.csv", "c.csv"])
    told = str(caught.value)
    assert told.startswith("2 of 3 tables are wrong.\n")
    for place in (
        "a.csv: 5 places are wrong",
        "line 5: 3 columns, the header has 5",
        "line 6, column 'age': 'x' is not a number",
        "line 7, column 'id' is empty: it has to say whose record it is",
        "line 7, column 'town': 'Kölle' is not one of",
        "line 7, column 'ill': 'perhaps' is not one of the classes no, yes",
        "b.csv: 2 places are wrong",
        "line 3, column 'town': 'Bonn\\n, West' is not one of",
        "line 4, column 'seen': '01.02.2020' is not a date",
    ):
        assert place in told, told
    assert "c.csv" not in told


def test_many_places_that_are_alike_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(lines(*["p1,?,Köln,2020-02-01,no"] * 5000))
    with pytest.raises(DataError) as caught:
        load(tmp_path, "a.csv")
    assert len(str(caught.value).splitlines()) == 2
    assert "column 'age': 5000 cells hold no value (line 2 '?', line 3 '?', line 4 '?', ...)." in str(caught.value)


def test_a_file_is_a_silo_unless_a_column_names_it_and_copies_are_refused(tmp_path: Path) -> None:
    for number, name in enumerate(["north.csv", "south.csv"]):
        FRAME.assign(age=FRAME["age"] + number).iloc[: 3 - number].to_csv(tmp_path / name, index=False)
    by_file = load(tmp_path, "*.csv")
    assert by_file.silo_names == ("north", "south") and by_file.groups is not None
    assert by_file.groups.tolist() == [0, 0, 0, 1, 1]
    by_column = load(tmp_path, "*.csv", {**SCHEMA, "silo": "id"} | {"person": None})
    assert by_column.silo_names == ("p1", "p2") and by_column.groups is not None
    assert by_column.groups.tolist() == [0, 1, 0, 0, 1]
    (tmp_path / "copy.csv").write_bytes((tmp_path / "north.csv").read_bytes())
    with pytest.raises(DataError, match="exactly the same records"):
        load(tmp_path, "*.csv")


def test_a_process_reads_its_own_files_only_and_holds_its_silos_as_they_are_in_the_whole(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(3):
        rows = [
            f"p{number}{row},{rng.uniform(0, 100):.3f},Köln,2020-02-01,{'no' if row % 2 else 'yes'}" for row in range(8)
        ]
        (tmp_path / f"{number}.csv").write_text(lines(*rows))

    def federation(ownership: Ownership | None) -> Any:
        return build_federation(
            FederationSpec(
                dataset=table,
                dataset_options={"files": "*.csv", "schema": SCHEMA},
                partitioner=natural,
                partition_options={},
                num_silos=None,
                seed=0,
                base=tmp_path,
                ownership=ownership,
            )
        )

    path = tmp_path / "0.csv"
    path.write_text(path.read_text().replace(",no\n", ",\n", 1))  # a record without a label, at another process
    whole = [digest(silo) for silo in federation(None).silos]
    (tmp_path / "1.csv").write_text("not a table")  # of another process
    mine = federation(Ownership(lambda silo: silo == 2, lambda value: [value]))
    assert {silo: digest(records) for silo, records in mine.by_id().items()} == {2: whole[2]}
    assert mine.num_silos == 3


@pytest.mark.parametrize(("key", "missing"), [("id", "refuse"), ("patient", "indicator")])
def test_a_feature_that_looks_like_whose_record_it_is_is_noted(tmp_path: Path, key: str, missing: str) -> None:
    columns = {name: {"type": "integer", "range": [0, 5000], "missing": missing} for name in (key, "age")}
    rows = [f"{1000 + row // 3},{20 + row % 40},{'no' if row % 2 else 'yes'}" for row in range(60)]
    (tmp_path / "a.csv").write_text(lines(*rows, header=f"{key},age,ill"))
    (note,) = load(tmp_path, "a.csv", {"label": SCHEMA["label"], "columns": columns}).notes
    assert note.startswith(f"column '{key}' looks like whose record it is: its values recur. If so, name it as data.")
    assert note.endswith(f"or leave it out: data.schema.columns.{key}: {{type: ignored}}")


def test_records_that_a_model_is_asked_about_need_no_label_and_are_held_to_the_schema(tmp_path: Path) -> None:
    path = tmp_path / "new.csv"
    path.write_text(lines("20,Köln,2020-02-01,7", "-5,Köln,2020-02-01,8", header="age,town,seen,extra"))
    found = new_records(path, {"schema": SCHEMA})
    assert not found.labels.known.any() and found.lines.tolist() == [2, 3]
    assert found.notes == (
        "column 'age': 1 of 2 cells are outside data.schema.columns.age.range, and clipped to 0 or 100.",
    )
    assert found.unused == ("extra",)
    path.write_text(lines("20,Köln,2020-02-01,", "20,Köln,2020-02-01,yes", header="age,town,seen,ill"))
    labels = new_records(path, {"schema": SCHEMA}).labels
    assert labels.known.tolist() == [False, True] and labels.values[1] == 1
    path.write_text(lines("20,Rom,2020-02-01,no", header="age,town,seen,ill"))
    with pytest.raises(DataError, match=r"line 2, column 'town': 'Rom' is not one of.*The model knows nothing else"):
        new_records(path, {"schema": SCHEMA})


def test_a_model_that_knows_gaps_may_be_asked_about_a_record_of_nothing_else(tmp_path: Path) -> None:
    columns = {name: {**one, "missing": "indicator"} for name, one in list(SCHEMA["columns"].items())[:2]}
    path = tmp_path / "new.csv"
    path.write_text(lines("20,Köln", ",", header="age,town"))
    assert new_records(path, {"schema": {**SCHEMA, "columns": columns}}).lines.tolist() == [2, 3]
    columns["town"] = SCHEMA["columns"]["town"]
    with pytest.raises(DataError, match=r"new\.csv, line 3 is empty in all columns that are read: remove it\.$"):
        new_records(path, {"schema": {**SCHEMA, "columns": columns}})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (lines("20,Rom,2020-02-01", header="age,town,seen"), "knows nothing else: correct this file, or leave"),
        (lines("old,Köln,2020-02-01", header="age,town,seen"), "'old' is not a number. The model knows nothing else"),
        (lines("20,Köln,1.2.20", header="age,town,seen"), "'1.2.20' is not a date as .*Write it so"),
        (lines("20,Köln,2020-02-01,perhaps", header="age,town,seen,ill"), "a label is not needed"),
        (lines("20,Köln,2020-02-01", header="Age,town,seen"), "Rename the column 'Age' of this file to 'age'"),
        (lines("20,Köln", header="age,town"), r"no column 'seen', which the model was trained on\. Add it\.$"),
        (lines("2020-02-01,20", header="seen,age"), r"no column 'town'.* Add it\. It may be empty: the schema"),
        (
            lines("20,Köln,2020-02-01", header="age,town,seen").encode("latin-1"),
            r"0xf6.*iconv .*as .CSV UTF-8.\.$",
        ),
        (lines("20,Köln,2020-02-01", header="x1,x2,x3"), "Its first line must have these names"),
    ],
)
def test_what_a_finished_model_is_asked_is_never_mended_by_its_configuration(
    tmp_path: Path, text: str | bytes, message: str
) -> None:
    """Another schema would be another model."""
    (tmp_path / "new.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    columns = {**SCHEMA["columns"], "town": {**SCHEMA["columns"]["town"], "missing": "category"}}
    with pytest.raises(DataError, match=message) as told:
        new_records(tmp_path / "new.csv", {"schema": {**SCHEMA, "columns": columns}})
    assert "data.schema.columns" not in str(told.value) and "data.dataset" not in str(told.value)


def test_a_workbook_of_several_sheets_says_which_is_read(tmp_path: Path) -> None:
    """By a table and by a draft, unless it was said."""
    with pandas.ExcelWriter(tmp_path / "a.xlsx") as book:
        for name in ("Data", "Info"):
            FRAME.to_excel(book, sheet_name=name, index=False)
    said = "a.xlsx: the first sheet, 'Data', is read, not 'Info': data.dataset.sheet names another"
    assert [note for note in load(tmp_path, "a.xlsx").notes if said in note]
    assert not [note for note in load(tmp_path, "a.xlsx", sheet="Info").notes if "sheet" in note]
    assert [line for line in of_files([tmp_path / "a.xlsx"], TextFormat(), Roles(label="ill")).notes if said in line]


def test_cells_of_truth_values_are_the_words_of_python() -> None:
    schema = {**SCHEMA, "label": {"column": "ill", "classes": ["False", "True"]}}
    found = dpfl.Federation.from_table(FRAME.assign(ill=FRAME["ill"] == "yes"), schema)
    assert "4 records" in repr(found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delimiter": ";;"}, "delimiter=';;' must be one character"),
        ({"decimal": "'"}, "decimal"),
        ({"decimal": ",", "delimiter": ","}, "are both ','"),
        ({"encoding": "utf8x"}, "encoding='utf8x' is not known"),
        ({"header": ["a", "a"]}, "names a column twice"),
    ],
)
def test_a_wrong_option_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    (tmp_path / "a.csv").write_text(lines(GOOD))
    with pytest.raises(ConfigError, match=f"data.dataset.*{message}"):
        load(tmp_path, "a.csv", **options)


@pytest.mark.parametrize("word", ["", ".", "#N/A", "n/a", "<NA>", "NA", "?"])
def test_words_of_other_programs_for_no_value_are_missing_unless_a_column_has_them(tmp_path: Path, word: str) -> None:
    columns: dict[str, Any] = {
        "age": {"type": "number", "range": [0, 100], "missing": "indicator"},
        "town": {"type": "category", "values": ["Köln", word or "Bonn"], "missing": "category"},
    }
    (tmp_path / "a.csv").write_text(lines(f"p1,{word},{word},2020-02-01,no", GOOD))
    found = load(tmp_path, "a.csv", {**SCHEMA, "columns": columns, "other_columns": "ignore"})
    assert found.columns == ("age", "age=missing", "town=Köln", f"town={word or 'Bonn'}", "town=missing")
    assert found.features[0].tolist() == [0, 1, 0, *([1, 0] if word else [0, 1])]


def test_a_schema_in_python_may_have_pythons_dates() -> None:
    ends = [datetime.date(2020, 1, 1), pandas.Timestamp("2021-01-01")]
    plain = {"type": "date", "range": ["2020-01-01", "2021-01-01T00:00:00"], "default": "2020-06-01"}
    given = {"type": "date", "range": ends, "default": datetime.date(2020, 6, 1)}
    parsed = [TableSchema.parse({**SCHEMA, "columns": {"seen": column}}) for column in (plain, given)]
    assert parsed[0] == parsed[1]


def test_gzip_without_its_suffix_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(gzip.compress(lines(GOOD).encode()))
    with pytest.raises(DataError, match=r"compressed by gzip.*a\.csv\.gz"):
        load(tmp_path, "a.csv")


def test_a_table_says_its_outcome(tmp_path: Path) -> None:
    known = {**SCHEMA, "label": {"outcome": "ordinal", "column": "ill", "classes": ["no", "yes"]}}
    (tmp_path / "a.csv").write_text(lines(GOOD))
    assert load(tmp_path, "a.csv", known).outcome == Outcome("ordinal")
    assert check_tables(tmp_path / "a.csv", known).num_records == {str(tmp_path / "a.csv"): 1}
    found = read_tables([tmp_path / "a.csv"], known)
    assert found.columns == TableSchema.parse(known).features
    assert found.features.shape == (1, len(found.columns)) and found.labels.tolist() == [0]


def test_a_quote_in_a_column_that_is_not_read_swallows_no_record_in_silence(tmp_path: Path) -> None:
    rows = [f"p{row},20,Köln,2020-02-01,no,{'never closed' if row else chr(34) + 'open'}" for row in range(5)]
    (tmp_path / "a.csv").write_text(lines(*rows, header=f"{HEADER},note"))
    with pytest.raises(DataError, match=r"a\.csv, after line 1: .*a quote"):
        load(tmp_path, "a.csv")
