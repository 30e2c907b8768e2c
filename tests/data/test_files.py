"""A user's own CSV and NPZ files, and the errors that say where they are wrong."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfl_plugin.data import files
from dpfl_plugin.data.base import AS_READ, NOT_PUBLIC, Dataset, validate
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.errors import ConfigError, DataError


def read_csv(folder: Path, **options: Any) -> Dataset:
    data = files.csv(DataSource(base=folder), **options)
    validate(data, "csv")
    return data


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


TABLE = "age,label,income,site\n30,yes,1.5,b\n40,no,-2e3,a\n\n50,yes,0,b\n"


def test_one_file_with_a_silo_column(tmp_path: Path) -> None:
    write(tmp_path, "all.csv", TABLE)
    data = read_csv(tmp_path, files="all.csv", silo_column="site")
    assert data.features.tolist() == [[30, 1.5], [40, -2000], [50, 0]]
    assert data.labels.tolist() == [1, 0, 1]
    assert data.num_classes == 2
    assert data.groups is not None
    assert data.groups.tolist() == [1, 0, 1]
    assert data.caveats[0] == f"{AS_READ}2 features: age, income; 2 classes"
    assert data.caveats[1] == f"{AS_READ}labels: no -> 0, yes -> 1; {NOT_PUBLIC}"
    assert "classes" in data.caveats[2]


def test_one_file_without_silos_has_no_groups(tmp_path: Path) -> None:
    write(tmp_path, "all.csv", TABLE)
    data = read_csv(tmp_path, files=["all.csv"], ignore_columns=["site"], classes=["yes", "no", "maybe"])
    assert data.groups is None
    assert data.num_classes == 3
    assert data.labels.tolist() == [0, 1, 0]
    assert len(data.caveats) == 1  # nothing was read from the records


def test_one_file_for_each_silo_with_columns_in_any_order(tmp_path: Path) -> None:
    write(tmp_path, "s1.csv", "u,v,label\n1,2,0\n3,4,1\n")
    write(tmp_path, "s2.csv", "label,v,u\n1,20,10\n")
    data = read_csv(tmp_path, files="s*.csv")
    assert data.features.tolist() == [[1, 2], [3, 4], [10, 20]]
    assert data.groups is not None
    assert data.groups.tolist() == [0, 0, 1]
    assert data.labels.tolist() == [0, 1, 1]


def test_test_files_belong_to_the_same_silos(tmp_path: Path) -> None:
    for name in ("s1", "s2", "t1", "t2"):
        write(tmp_path, f"{name}.csv", f"u,label\n{name[1]},0\n{name[1]},1\n")
    data = read_csv(tmp_path, files="s*.csv", test_files=["t1.csv", "t2.csv"])
    assert data.test is not None
    assert data.test.groups is not None
    assert data.test.groups.tolist() == [0, 0, 1, 1]
    assert data.test.features.ravel().tolist() == [1, 1, 2, 2]
    one = read_csv(tmp_path, files="s*.csv", test_files="t1.csv")
    assert one.test is not None
    assert one.test.groups is None
    write(tmp_path, "t3.csv", "u,label\n3,0\n")
    with pytest.raises(ConfigError, match="test_files names 3 files, files names 2"):
        read_csv(tmp_path, files="s*.csv", test_files="t*.csv")


def test_silos_of_the_test_files_must_be_known(tmp_path: Path) -> None:
    write(tmp_path, "all.csv", TABLE)
    write(tmp_path, "test.csv", "age,label,income,site\n30,yes,1.5,a\n30,yes,1.5,z\n")
    with pytest.raises(DataError, match=r"test\.csv: silo 'z' has no training records"):
        read_csv(tmp_path, files="all.csv", test_files="test.csv", silo_column="site")


def test_gzip_byte_order_mark_quotes_and_other_delimiters(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b'\xef\xbb\xbf"u";label\r\n"1.5";"x;y"\r\n2;z\r\n'))
    data = read_csv(tmp_path, files="a.csv.gz", delimiter=";")
    assert data.features.ravel().tolist() == [1.5, 2]
    assert data.caveats[:2] == (f"{AS_READ}1 feature: u; 2 classes", f"{AS_READ}labels: x;y -> 0, z -> 1; {NOT_PUBLIC}")


def test_number_labels_are_sorted_by_value(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", "u,label\n1,10\n1,9\n1,-1\n")
    assert read_csv(tmp_path, files="a.csv").labels.tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("u,label\n1,0\nred,1\n", r"a\.csv, line 3, column 'u': 'red' is not a number"),
        ("u,label\n1,0\n,1\n", r"a\.csv, line 3, column 'u' is empty: fill it in, or leave the record out"),
        ("u,label\n1,0\n , \n", r"a\.csv, line 3 is empty: remove it\.$"),
        ("u,label\n1,0\n\n1, \n", r"a\.csv, line 4, column 'label' is empty: fill it in, or leave the record out"),
        ("u,label\n1,0\n" + 30 * ",1\n", "are empty: fill them in, or leave the records out"),
        ("u,label\n1,0\nnan,1\n", r"a\.csv, line 3, column 'u': 'nan' is not a finite"),
        ("u,label\ninf,0\n1,1\n", r"a\.csv, line 2, column 'u': 'inf'"),
        ("u,label\n1e39,0\n1,1\n", r"a\.csv, line 2, column 'u': '1e39'"),
        ("u,label\n1,0\n\n1,1,2\n", r"a\.csv, line 4: 3 columns, the header has 2"),
        ("1,0\n2,1\n", r"a\.csv has no header"),
        ("", r"a\.csv has no header"),
        ("u,label\n", r"a\.csv holds a header and no records"),
        ("u,u,label\n1,1,0\n", "two columns have the name 'u'"),
        ("label\n1\n", "no feature column"),
        ("u,label\n1,0\n1,0\n", "all labels are '0'"),
        ('u,label\n1,"0\n1,1\n', r'after line 1: .*a quote \("\) is opened'),
        ("u,label\n" + "".join(f"1,x{i}\n" for i in range(1001)), "more than 1000 different labels"),
        ("u,label\n1,0.5\n2,1.5\n", r"a\.csv: the labels in column 'label' are fractional numbers, 2 different"),
        ("u,label\n" + "".join(f"1,{i}\n" for i in range(21)), r"21 different ones .*classes: \[0, 1, 2, \.\.\.\]"),
        (",u,label\n0,1,0\n1,1,1\n", r"line 1: column 1 has no name.*index=False.*ignore_columns: \[\"\"\]"),
        ("u,label,,\n1,0,,\n1,1,,\n", r"columns 3, 4 have no name"),
        ('u,label\n"1,5",0\n1,1\n', r"line 2, column 'u': '1,5' has a decimal comma. Write it with a point, 1\.5,"),
        ('u,label\n"1.234,5",0\n1,1\n', r"has marks of thousands\. Write it without, 1234\.5,"),
        (
            "u,v,label\n1,x,0\n,1,1\n1,2\n1,1e39,\n",
            r"a\.csv: 5 places are wrong:\n  line 2, column 'v': 'x' is not a .*\n  line 3, column 'u' is empty.*\n"
            r"  line 4: 2 columns, the header has 3\. .*\n  line 5, column 'label' is empty.*\n  line 5, .*'1e39'",
        ),
        (
            "u,v,label\n1,a,0\n" + "x,b,1\n" * 2_999 + "1,1\n" * 4 + "1,,1\n1,1e39,1\n",
            r"6005 places are wrong:\n  column 'v': 3000 cells are not numbers \(line 2 'a', line 3 'b', line 4 "
            r"'b', \.\.\.\)\. Encode .*\n  column 'u': 2999 cells are .* \(line 3 'x', .*\n  4 lines have another "
            r"number of columns than the header, which has 3 \(line 3002, .*\n  line 3006, .* empty.*"
            r"\n  line 3007, .*1e39'[^\n]*\nWords, [^\n]*$",
        ),
        (
            ",".join(f"c{i}" for i in range(30)) + ",label\n" + ("x," * 30 + "1\n") * 5,
            r"150 places are wrong:(\n  column 'c\d+': 5 cells .*){20}\n  and 50 more\n"
            r"Words, gaps or mixed separators: .*--from",
        ),
    ],
)
def test_csv_errors_name_file_line_column_and_value(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path, "a.csv", text)
    with pytest.raises(DataError, match=message):
        read_csv(tmp_path, files="a.csv")


@pytest.mark.parametrize("row", [0, 19_999, 20_000, 45_000])
def test_a_bad_value_is_found_in_any_piece_of_a_long_file(tmp_path: Path, row: int) -> None:
    lines = [f"{i},{i % 2}" for i in range(50_000)]
    lines[row] = "oops,1"
    write(tmp_path, "a.csv", "u,label\n" + "\n".join(lines))
    with pytest.raises(DataError, match=f"line {row + 2}, column 'u': 'oops'"):
        read_csv(tmp_path, files="a.csv")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_column": "labl"}, "label_column='labl' .did you mean 'label'"),
        ({"silo_column": "hospital"}, "silo_column='hospital'"),
        ({"ignore_columns": ["x"]}, "ignore_columns='x'"),
        ({"ignore_columns": ["site"], "classes": ["yes", "yes"]}, "names a class twice"),
        ({"delimiter": "::"}, "delimiter='::'"),
    ],
)
def test_options_that_name_nothing_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    write(tmp_path, "a.csv", TABLE)
    with pytest.raises(ConfigError, match=message):
        read_csv(tmp_path, files="a.csv", **options)


def test_a_label_outside_the_given_classes_is_named(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", "u,label\n1,0\n1,2\n")
    with pytest.raises(DataError, match=r"a\.csv, line 3, column 'label': '2' is not one of the classes 0, 1\. "):
        read_csv(tmp_path, files="a.csv", classes=[0, 1])


def test_an_empty_silo_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", "u,site,label\n1,x,0\n1,,1\n")
    with pytest.raises(DataError, match=r"a\.csv, line 3, column 'site' is empty"):
        read_csv(tmp_path, files="a.csv", silo_column="site")


@pytest.mark.parametrize("mark", [";", "\t"])
def test_another_delimiter_is_suggested(tmp_path: Path, mark: str) -> None:
    write(tmp_path, "a.csv", "u,v,label\n1,2,0\n1,2,1\n".replace(",", mark))
    advice = f"give delimiter: {json.dumps(mark)}; if only this one is, save it with ','"
    with pytest.raises(ConfigError, match=re.escape(advice)):
        read_csv(tmp_path, files="a.csv")
    assert read_csv(tmp_path, files="a.csv", delimiter=mark).columns == ("u", "v")


def test_what_looks_like_a_misprint_is_noted(tmp_path: Path) -> None:
    write(tmp_path, "s1.csv", "u,label\n1,ill\n2,well\n3,well\n4,il\n")
    write(tmp_path, "s2.csv", "u,label\n1,ill\n2,well\n3,dead\n4,dead\n")
    rare, single = read_csv(tmp_path, files="s*.csv").notes
    assert rare.startswith("label 'il' on one record only")
    assert single == "label 'dead' is in one silo only: s2"
    (alone,) = read_csv(tmp_path, files="s2.csv").notes
    assert alone.startswith("labels 'ill', 'well' on one record only"), "one file is no silo"


def test_files_with_other_columns_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "s1.csv", "u,v,label\n1,2,0\n")
    write(tmp_path, "s2.csv", "u,w,label\n1,2,1\n")
    with pytest.raises(DataError, match=r"s2\.csv: other columns .* lacks \['v'\], has also \['w'\]"):
        read_csv(tmp_path, files="s*.csv")


@pytest.mark.parametrize("other", ["s1.csv", "./s1.csv", "symbolic.csv", "hard.csv"])
def test_one_file_is_not_two_silos(tmp_path: Path, other: str) -> None:
    """Each of its records would be in the releases of both."""
    one = write(tmp_path, "s1.csv", "u,label\n1,0\n2,1\n")
    (tmp_path / "symbolic.csv").symlink_to(one)
    (tmp_path / "hard.csv").hardlink_to(one)
    with pytest.raises(DataError, match=r"s1\.csv and .* are the same file"):
        read_csv(tmp_path, files=["s1.csv", other])


def test_nor_are_a_file_and_its_copy(tmp_path: Path) -> None:
    for name, rows in (("s1", "1,0\n2,1\n"), ("s2", "1,0\n3,1\n"), ("s3", "1,0\n2,1\n"), ("s4", "1,0\n2,0\n")):
        write(tmp_path, f"{name}.csv", f"u,label\n{rows}")
    assert len(read_csv(tmp_path, files=["s1.csv", "s2.csv", "s4.csv"]).labels) == 6
    with pytest.raises(DataError, match=r"s1\.csv and .*s3\.csv hold exactly the same records"):
        read_csv(tmp_path, files="s?.csv")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PAR1\x15", "is not a Parquet file, or is damaged"),
        (b"PK\x03\x04\x14", "is not an xlsx workbook"),
        (b"\xd0\xcf\x11\xe0", "is an old Excel file"),
        ("größe,label\n1,0\n".encode("latin-1"), r"0xf6, .*iconv -f WINDOWS-1252.*`dataset: table` .*: windows-1252"),
        (gzip.compress(b"u,label\n1,0\n", mtime=0), r"compressed by gzip.*a\.csv\.gz"),
    ],
)
def test_a_file_of_another_kind_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(DataError, match=rf"a\.csv {message}|a\.csv .*{message}"):
        read_csv(tmp_path, files="a.csv")


@pytest.mark.parametrize("kind", ["a.csv", "utf-16", "utf-16-le", "a.parquet", "a.xlsx"])
def test_files_of_other_kinds_are_the_same_records(tmp_path: Path, kind: str) -> None:
    frame = pandas.DataFrame({"größe": [1.5, 2.0, 3.25], "n": [1, 2, 3], "label": ["b", "a", "b"]})
    if kind.endswith("parquet"):
        frame.to_parquet(tmp_path / kind)
    elif kind.endswith("xlsx"):
        frame.to_excel(tmp_path / kind, index=False)
    else:
        frame.to_csv(tmp_path / "a.csv", index=False, encoding="utf-8" if kind == "a.csv" else kind)
    data = read_csv(tmp_path, files="a.*")
    assert data.columns == ("größe", "n") and data.labels.tolist() == [1, 0, 1]
    assert data.features.tolist() == [[1.5, 1], [2, 2], [3.25, 3]]


def test_numbers_below_or_above_a_limit_are_read_as_it_and_noted(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", "Ward 3\nu,label\n<5,a\n>90,b\n7,a\n8,b\n")
    data = read_csv(tmp_path, files="a.csv")
    assert data.features.ravel().tolist() == [5, 90, 7, 8]
    assert data.notes == (
        f"{tmp_path / 'a.csv'}: 1 line above the names of the columns is not read",
        "column 'u': 2 of 4 cells are below or above a limit ('<5', '>90'), and are read as the limit",
    )


def test_numbers_that_nobody_shares_are_noted(tmp_path: Path) -> None:
    rows = [f"{100 + i},{i % 3},{i}.5,{'ab'[i % 2]}" for i in range(20)]
    write(tmp_path, "a.csv", "patient,u,v,label\n" + "\n".join(rows))
    (note,) = read_csv(tmp_path, files="a.csv").notes
    assert note.startswith("column 'patient' has another whole number in each of the 20 records")
    assert not note.endswith(".")  # whoever tells it ends it
    assert read_csv(tmp_path, files="a.csv", ignore_columns=["patient"]).notes == ()
    write(tmp_path, "b.csv", ",u,label\n1,1,a\n2,1,b\n")
    assert read_csv(tmp_path, files="b.csv", ignore_columns=[""]).columns == ("u",)


@pytest.mark.parametrize(
    ("name", "values", "noted"),
    [
        ("patient", [row // 2 for row in range(60)], True),
        ("PatNr", [7 * (row % 30) for row in range(60)], True),
        ("study_id", [row // 2 for row in range(60)], True),
        ("patient_age", [20 + row // 2 for row in range(60)], False),
        ("paid", [row // 2 for row in range(60)], False),
        ("case", [row % 2 for row in range(60)], False),
        ("key", [1000 * (row // 2) for row in range(300)], True),  # next to each other
        ("key", [row % 150 for row in range(300)], True),  # none is left out
        ("age", [row // 2 for row in range(200)], False),
        ("sugar", [2 * (row % 150) for row in range(300)], False),
        ("day", [row // 5 for row in range(750)], False),
    ],
)
def test_numbers_that_recur_as_those_of_persons_are_noted(
    tmp_path: Path, name: str, values: list[int], noted: bool
) -> None:
    """By what the column is called, or by very many numbers that stand together or leave none out."""
    write(
        tmp_path, "a.csv", f"{name},u,label\n" + "\n".join(f"{v},0.5,{'ab'[row % 2]}" for row, v in enumerate(values))
    )
    notes = read_csv(tmp_path, files="a.csv").notes
    assert [note.split(" If so, ")[0] for note in notes] == [
        f"column {name!r} looks like whose record it is: its values recur."
    ] * noted
    assert all("name it as person_column" in note and "ignore_columns" in note for note in notes)
    write(
        tmp_path, "b.csv", f"{name},p,label\n" + "\n".join(f"{v},{v},{'ab'[row % 2]}" for row, v in enumerate(values))
    )
    assert all("person_column" not in note for note in read_csv(tmp_path, files="b.csv", person_column="p").notes)


def test_binary_and_cut_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xff\xff\x00\x01")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(TABLE.encode() * 50)[:-12])
    for name in ("a.csv", "b.csv.gz"):
        with pytest.raises(DataError, match=f"{name} is not a CSV file"):
            read_csv(tmp_path, files=name)


@given(
    x=st.lists(st.tuples(*[st.floats(width=32, allow_nan=False, allow_infinity=False)] * 3), min_size=2, max_size=30)
)
@settings(max_examples=30, deadline=None)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, x: list[tuple[float, ...]]) -> None:
    folder = tmp_path_factory.mktemp("csv")
    rows = "".join(f"{a!r},{b!r},{c!r},{i % 2}\n" for i, (a, b, c) in enumerate(x))
    write(folder, "a.csv", "a,b,c,label\n" + rows)
    assert np.array_equal(read_csv(folder, files="a.csv").features, np.array(x, np.float32))


# --- NPZ --------------------------------------------------------------------------------------------------------


def read_npz(folder: Path, **options: Any) -> Dataset:
    data = files.npz(DataSource(base=folder), **options)
    validate(data, "npz")
    return data


def test_npz_with_images_and_silos(tmp_path: Path) -> None:
    x = np.arange(24, dtype=np.float64).reshape(3, 2, 2, 2)
    np.savez(tmp_path / "a.npz", x=x, y=np.array(["cat", "dog", "cat"]), silo=np.array([12, 2, 12]))
    data = read_npz(tmp_path, files="a.npz")
    assert np.array_equal(data.features, x)
    assert data.labels.tolist() == [0, 1, 0]
    assert data.groups is not None
    assert data.groups.tolist() == [1, 0, 1]


def test_npz_one_file_for_each_silo(tmp_path: Path) -> None:
    for i in (1, 2):
        np.savez(tmp_path / f"s{i}.npz", features=np.full((2, 3), i), labels=np.array([0, 1]))
    data = read_npz(tmp_path, files=["s2.npz", "s1.npz"], test_files=["s2.npz", "s1.npz"])
    assert data.features[:, 0].tolist() == [2, 2, 1, 1]
    assert data.test is not None
    assert data.groups is not None
    assert data.groups.tolist() == [0, 0, 1, 1]


GOOD: dict[str, Any] = {"x": np.ones((2, 3)), "y": np.array([0, 1])}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (GOOD | {"y": np.array([0.5, 1.0])}, "labels must be one whole number"),
        (GOOD | {"y": np.array([0])}, "labels must be one whole number"),
        (GOOD | {"silo": np.array([0, 1, 2])}, "silo must be one whole number"),
        (GOOD | {"x": np.array([[1, 2, 3], [4, np.nan, 6]])}, r"the feature at \(1, 1\) is nan"),
        (GOOD | {"x": np.array([[1, 2], [1e300, 6]])}, r"the feature at \(1, 0\) is 1e\+300"),
        (GOOD | {"x": np.ones(2)}, "features must be numbers of shape"),
        (GOOD | {"x": np.array([["a"], ["b"]])}, "features must be numbers"),
        ({"x": np.ones((2, 3))}, "holds no array y or labels; it holds x"),
        (GOOD | {"y": np.array([{"a": 1}, None])}, "is not an NPZ file of plain arrays"),
    ],
)
def test_npz_errors(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=rf"a\.npz.*{message}"):
        read_npz(tmp_path, files="a.npz")


def test_npz_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("hello")
    np.save(tmp_path / "plain.npy", np.ones(3))
    np.savez(tmp_path / "whole.npz", **GOOD)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:-40])
    for name in ("text.npz", "plain.npy", "cut.npz"):
        with pytest.raises(DataError, match=f"{name} is not an NPZ file") as found:
            read_npz(tmp_path, files=name)
        assert "pickle" not in str(found.value)


def test_an_empty_label_of_an_npz_file_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((3, 2)), y=np.array(["a", "", "b"]))
    with pytest.raises(DataError, match=r"a\.npz, record 1: its label is empty"):
        read_npz(tmp_path, files="a.npz")
