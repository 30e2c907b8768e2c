"""A schema: what it refuses, and what cells become by it, against scikit-learn's encoders and arithmetic."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, OrdinalEncoder

from dpfl_plugin.data import reading
from dpfl_plugin.data.labels import check_labels
from dpfl_plugin.data.reading import Read
from dpfl_plugin.data.schema import TableSchema
from dpfl_plugin.data.table_reader import frame_reader
from dpfl_plugin.data.tables import assembled
from dpfl_plugin.errors import ConfigError

LABEL = {"column": "y", "classes": ["no", "yes"]}
NUMBER = {"type": "number", "range": [0, 10]}


def schema(columns: dict[str, Any] | None = None, label: dict[str, Any] | None = None, **keys: Any) -> TableSchema:
    return TableSchema.parse({"label": label or LABEL, "columns": columns or {"x": NUMBER}, **keys})


def read(known: TableSchema, **columns: Any) -> Read:
    size = max(len(cells) for cells in columns.values())
    cells = {"y": ["no", "yes"] * size, **columns} if known.label.column == "y" else columns
    frame = pandas.DataFrame({name: list(part)[:size] for name, part in cells.items()})
    return reading.read_table(frame_reader(frame), Path("t"), known)


def features(known: TableSchema, **columns: Any) -> np.ndarray[Any, Any]:
    found = read(known, **columns)
    assert found.wrong is None, found.wrong
    assert found.table.features.dtype == np.float32
    assert found.table.features.shape[1] == len(known.features)
    return found.table.features


WRONG = {
    "no label": ({"columns": {"x": NUMBER}}, r"data\.schema\.label is missing"),
    "no columns": ({"label": LABEL, "columns": {}}, r"data\.schema\.columns=\{\}"),
    "a key": ({"label": LABEL, "columns": {"x": {**NUMBER, "rnge": 1}}}, r"columns\.x\.rnge is not.*mean 'range'"),
    "a key of all": ({"label": LABEL, "columns": {"x": NUMBER}, "colums": 1}, r"colums is not.*mean 'columns'"),
    "a key of the label": ({"label": {**LABEL, "clases": 1}, "columns": {"x": NUMBER}}, r"clases is.*mean 'classes'"),
    "a type": ({"label": LABEL, "columns": {"x": {"type": "float"}}}, r"columns\.x\.type='float'"),
    "no range": ({"label": LABEL, "columns": {"x": {"type": "number"}}}, r"columns\.x: .*needs a public range"),
    "an empty range": ({"label": LABEL, "columns": {"x": {"type": "number", "range": [2, 2]}}}, "least value first"),
    "a range backwards": (
        {"label": LABEL, "columns": {"x": {"type": "number", "range": [80, 10]}}},
        r"\[80, 10\] must",
    ),
    "a range too wide": (
        {"label": LABEL, "columns": {"x": {"type": "number", "range": [-1.7e308, 1.7e308]}}},
        "difference",
    ),
    "an infinite range": ({"label": LABEL, "columns": {"x": {"type": "number", "range": [0, float("inf")]}}}, "finite"),
    "one value": ({"label": LABEL, "columns": {"x": {"type": "category", "values": ["a"]}}}, "at least 2 values"),
    "twice": ({"label": LABEL, "columns": {"x": {"type": "category", "values": ["a", "a"]}}}, "'a' twice"),
    "a number without quotes": (
        {"label": LABEL, "columns": {"x": {"type": "category", "values": [10.1, 11.2]}}},
        r"10\.1 without quotes is a number.*in quotes",
    ),
    "codes without quotes": (
        {"label": LABEL, "columns": {"x": {"type": "category", "values": [7, 7]}}},
        "'7' twice: in quotes, '007' and '7' are two",
    ),
    "YAML's no": (
        {"label": LABEL, "columns": {"x": {"type": "category", "values": [True, False]}}},
        "true .*in quotes.*'True'",
    ),
    "no meaning": ({"label": LABEL, "columns": {"x": {**NUMBER, "values": ["a", "b"]}}}, "values has no meaning"),
    "no default": ({"label": LABEL, "columns": {"x": {**NUMBER, "missing": "default"}}}, "needs default"),
    "default outside": ({"label": LABEL, "columns": {"x": {**NUMBER, "default": 11}}}, "default=11.*outside the range"),
    "missing number": ({"label": LABEL, "columns": {"x": {**NUMBER, "missing": "category"}}}, "use indicator"),
    "a date": (
        {"label": LABEL, "columns": {"x": {"type": "date", "range": ["1.1.2000", 3]}}},
        "'1.1.2000' is not a date",
    ),
    "the label": ({"label": LABEL, "columns": {"y": NUMBER}}, r"columns\.y is label\.column, too"),
    "one column, two roles": ({"label": LABEL, "columns": {"x": NUMBER}, "silo": "y"}, "is label.column, too"),
    "no feature": ({"label": LABEL, "columns": {"x": {"type": "ignored"}}}, "names no feature"),
    "one name": (
        {"label": LABEL, "columns": {"x": {"type": "category", "values": ["a", "b", "other"], "other": True}}},
        "two features would have the name 'x=other'",
    ),
    "no classes": ({"label": {"column": "y"}, "columns": {"x": NUMBER}}, "outcome: classes needs classes"),
    "values of fewer classes": (
        {"label": {"column": "y", "classes": ["a", "b"], "class_values": [["1", "2"]]}, "columns": {"x": NUMBER}},
        "1 lists of cells for 2 classes",
    ),
    "a class without values": (
        {"label": {"column": "y", "classes": ["a", "b"], "class_values": [["1", "2"], []]}, "columns": {"x": NUMBER}},
        "with a cell at least",
    ),
    "a value of two classes": (
        {
            "label": {"column": "y", "classes": ["a", "b"], "class_values": [["1"], ["1", "2"]]},
            "columns": {"x": NUMBER},
        },
        "class_values names '1' twice",
    ),
    "an outcome": ({"label": {"outcome": "rank"}, "columns": {"x": NUMBER}}, r"label\.outcome='rank'"),
    "survival": ({"label": {"outcome": "survival", "time": "t"}, "columns": {"x": NUMBER}}, "needs event and range"),
    "counts from 1": (
        {"label": {"outcome": "counts", "column": "n", "range": [1, 9]}, "columns": {"x": NUMBER}},
        "must begin at 0",
    ),
    "classes of a regression": (
        {
            "label": {"outcome": "regression", "column": "y", "range": [0, 1], "classes": [0, 1]},
            "columns": {"x": NUMBER},
        },
        "classes has no meaning",
    ),
    "no mapping": ("schema.yaml", "must be a mapping"),
}


@pytest.mark.parametrize(("given", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_schema_is_refused_by_its_key(given: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        TableSchema.parse(given)
    assert str(caught.value).startswith("data.schema")


def test_features_are_those_of_scikit_learns_encoders() -> None:
    rng = np.random.default_rng(0)
    colours, sexes, grades = ["red", "green", "blue"], ["f", "m"], ["low", "middle", "high"]
    columns = {
        "age": rng.uniform(20, 80, 50),
        "colour": rng.choice(colours, 50),
        "sex": rng.choice(sexes, 50),
        "grade": rng.choice(grades, 50),
    }
    known = schema(
        {
            "age": {"type": "number", "range": [20, 80]},
            "colour": {"type": "category", "values": colours},
            "sex": {"type": "category", "values": sexes},
            "grade": {"type": "ordinal", "values": grades},
        }
    )
    assert known.features == ("age", "colour=red", "colour=green", "colour=blue", "sex=m", "grade")
    scaler = MinMaxScaler((-1, 1)).fit([[20.0], [80.0]])
    hot = OneHotEncoder(categories=[colours, sexes], drop="if_binary", sparse_output=False)
    order = OrdinalEncoder(categories=[grades])
    expected = np.hstack(
        [
            scaler.transform(columns["age"][:, None]),
            hot.fit_transform(np.stack([columns["colour"], columns["sex"]], axis=1)),
            order.fit_transform(columns["grade"][:, None]) - 1,
        ]
    )
    np.testing.assert_allclose(features(known, **columns), expected, atol=1e-7)


LACKING = {
    # what the column says, cells, what they become
    "indicator": ({**NUMBER, "missing": "indicator"}, [0, None, 10], [[-1, 0], [0, 1], [1, 0]]),
    "indicator and default": ({**NUMBER, "missing": "indicator", "default": 10}, [0, None], [[-1, 0], [1, 1]]),
    "a default": ({**NUMBER, "default": 2.5}, [5, None], [[0], [-0.5]]),
    "its own word": ({**NUMBER, "default": 0, "missing_values": ["-9"]}, ["5", "-9", "?"], [[0], [-1], [-1]]),
    "a category": (
        {"type": "category", "values": ["a", "b"], "missing": "category"},
        ["b", None, "a"],
        [[0, 1, 0], [0, 0, 1], [1, 0, 0]],
    ),
    "a category by default": ({"type": "category", "values": ["a", "b"], "default": "b"}, ["a", ""], [[0], [1]]),
    "other": ({"type": "category", "values": ["a", "b"], "other": True}, ["a", "z"], [[1, 0, 0], [0, 0, 1]]),
    "a value that looks missing": ({"type": "category", "values": ["NA", "EU"]}, ["EU", "NA"], [[1], [0]]),
    "an ordinal": ({"type": "ordinal", "values": ["a", "b", "c"], "default": "c"}, ["b", None], [[0], [1]]),
    "numbers as categories": ({"type": "category", "values": [1, 2]}, [1.0, 2.0], [[0], [1]]),
    "a whole number of pandas": ({"type": "category", "values": [1, 2]}, ["1.0", "2"], [[0], [1]]),
    "codes are compared as they are written": (
        {"type": "category", "values": ["10.1", "10.10", "007", "7"]},
        ["10.10", "7", "007", "10.1", "7.0"],
        [[0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1]],
    ),
    "250 and 250.0, where both are listed": (
        {"type": "ordinal", "values": ["250", "250.0", "250.00"]},
        ["250.0", "250.00", "250"],
        [[0], [1], [-1]],
    ),
    "codes of seven digits": ({"type": "category", "values": [3000963, 3000964]}, [3000963.0, 3000964.0], [[0], [1]]),
    "numbers below or above a limit": (NUMBER, ["<5", ">= 2.5", "3", "≤0.0"], [[0], [-0.5], [-0.4], [-1]]),
    "a code of numbers": ({**NUMBER, "default": 0, "missing_values": [-9]}, [5, -9], [[0], [-1]]),
    "another spelling of it": ({**NUMBER, "default": 0, "missing_values": ["9.9"]}, ["5", "9.90"], [[0], [-1]]),
    "a code of 32 bits": (
        {**NUMBER, "default": 0, "missing_values": ["9.9"]},
        np.array([5, 9.9], np.float32),
        [[0], [-1]],
    ),
    "truth values as numbers": (NUMBER, [True, False], [[-0.8], [-1]]),
    "decimals": (NUMBER, [decimal.Decimal("2.50")], [[-0.5]]),
    "decimals as they are written": (
        {"type": "category", "values": ["2.5", "2.50"]},
        [decimal.Decimal("2.50")],
        [[1]],
    ),
    "times of day as words": (
        {"type": "category", "values": ["08:00:00.000000", "09:00:00.000000"]},
        [datetime.time(9)],
        [[1]],
    ),
    "dates after 2255": (
        {"type": "date", "range": ["2299-01-01", "2301-01-01"]},
        [datetime.date(2301, 1, 1), datetime.date(2299, 1, 1)],
        [[1], [-1]],
    ),
    "truth": ({"type": "category", "values": ["False", "True"]}, [True, False], [[1], [0]]),
    "clipped": (NUMBER, [-5, 15, 5], [[-1], [1], [0]]),
    "dates": (
        {"type": "date", "range": ["2000-01-01", "2000-01-21"], "format": "%d.%m.%Y"},
        ["11.01.2000", "21.01.2000"],
        [[0], [1]],
    ),
    "ISO dates": ({"type": "date", "range": ["2000-01-01", "2000-01-03"]}, ["2000-01-02T12:00:00"], [[0.5]]),
    "typed dates": (
        {"type": "date", "range": ["2000-01-01", "2000-01-21"]},
        [datetime.datetime(2000, 1, 11), datetime.datetime(2000, 1, 1)],
        [[0], [-1]],
    ),
}


@pytest.mark.parametrize(("column", "cells", "expected"), LACKING.values(), ids=LACKING)
def test_what_cells_become(column: dict[str, Any], cells: list[Any], expected: list[list[float]]) -> None:
    np.testing.assert_allclose(features(schema({"x": column}), x=cells), expected, atol=1e-6)


REFUSED = {
    "a word for nothing": (NUMBER, ["1", "NA"], r"row 1, column 'x' holds no value \('NA'\)\. "),
    "empty": (NUMBER, [1, None], r"row 1, column 'x' holds no value\. .*columns\.x\.missing: indicator \(or default"),
    "a word": (NUMBER, ["1", "b"], r"row 1, column 'x': 'b' is not a number.*columns\.x: \{type: category"),
    "underscores": (NUMBER, ["1", "1_0"], r"'1_0' is not a number"),
    "infinite": (NUMBER, [1, np.inf], r"row 1, column 'x': 'inf' is not a finite number"),
    "a comma": (NUMBER, ["1", "1,5"], r"'1,5' has a decimal comma\. .*pandas\.read_csv\(\.\.\., decimal=','\)"),
    "outside": ({**NUMBER, "outside": "refuse"}, [1, 11], r"'11' is outside the range 0 to 10.*columns\.x\.range"),
    "a fraction": ({**NUMBER, "type": "integer"}, [1, 1.5], r"'1.5' is not whole.*columns\.x\.type: number"),
    "unseen": (
        {"type": "category", "values": ["a", "b"]},
        ["a", "d"],
        r"row 1, column 'x': 'd' is not one of a, b.*add it to data\.schema\.columns\.x\.values, or set other: true",
    ),
    "no level": ({"type": "ordinal", "values": ["a", "b"]}, ["a", "d"], r"'d' is not one of a, b.*add it to"),
    "no category": (
        {"type": "category", "values": ["a", "b"]},
        ["a", None],
        r"holds no value\. .*columns\.x\.missing: category",
    ),
    "no date": ({"type": "date", "range": ["2000-01-01", "2001-01-01"]}, ["2000-13-01"], r"'2000-13-01' is not a date"),
    "a code that is not listed": (
        {"type": "category", "values": ["10.1", "7"]},
        ["10.10"],
        r"'10\.10' is not one of 10\.1, 7",
    ),
    "a spreadsheet's error": (NUMBER, ["1", "#DIV/0!"], "'#DIV/0!' is an error of a spreadsheet.*missing_values"),
    "an error among words": ({"type": "category", "values": ["a", "b"]}, ["#REF!"], "'#REF!' is an error of a"),
    "words beside a limit": (NUMBER, ["<5", "low"], "row 1, column 'x': 'low' is not a number"),
    "a time of day": (NUMBER, [datetime.time(9)], "'09:00:00' is a time of day.*type: ignored"),
    "a duration": (NUMBER, [datetime.timedelta(2)], r"is a duration\. Write a number, of days for instance"),
    "bytes": ({"type": "category", "values": ["a", "b"]}, [b"a"], "is bytes. Decode them to text"),
    "a list": (NUMBER, [[1, 2], [3]], r"row 0, column 'x': '\[1, 2\]' is of a nested or special type"),
    "a period": (NUMBER, pandas.period_range("2020", "2021", freq="Y"), "is of a nested or special type"),
    "truth values for dates": ({"type": "date", "range": ["2000-01-01", "2001-01-01"]}, [True], "is a truth value"),
    "a date among numbers": (NUMBER, [datetime.datetime(2000, 1, 1)], "is a date.*type: date"),
}


@pytest.mark.parametrize(("column", "cells", "message"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_cell_is_refused_by_place_and_the_line_that_mends_it(
    column: dict[str, Any], cells: list[Any], message: str
) -> None:
    found = read(schema({"x": column}), x=cells)
    assert found.encoded is None and re.search(message, str(found.wrong)), found.wrong


SURVIVAL = {"outcome": "survival", "time": "t", "event": "e", "range": [0, 60], "event_values": ["alive", "dead"]}
OUTCOMES = {
    "classes": (LABEL, {"y": ["yes", "no"]}, np.int64, [1, 0]),
    "ordinal": ({"outcome": "ordinal", "column": "y", "classes": ["a", "b", "c"]}, {"y": ["c", "a"]}, np.int64, [2, 0]),
    "classes of several values": (
        {"column": "y", "classes": ["ill", "healthy"], "class_values": [[4, 1], ["0", "none"]]},
        {"y": ["0.0", "1", "none", "4.0"]},
        np.int64,
        [1, 0, 1, 0],
    ),
    "regression": (
        {"outcome": "regression", "column": "y", "range": [0, 100]},
        {"y": [12.5, 101.0, -3.0]},
        np.float32,
        [12.5, 100, 0],
    ),
    "counts": ({"outcome": "counts", "column": "n", "range": [0, 9]}, {"n": [3, 12]}, np.float32, [[3, 1], [9, 1]]),
    "counts by exposure": (
        {"outcome": "counts", "column": "n", "range": [0, 9], "exposure": "days"},
        {"n": [3, 0], "days": [0.5, 2]},
        np.float32,
        [[3, 0.5], [0, 2]],
    ),
    "several labels": (
        {"outcome": "multi_label", "columns": ["a", "b"], "values": ["n", "j"]},
        {"a": ["j", "n"], "b": ["j", "j"]},
        np.float32,
        [[1, 1], [0, 1]],
    ),
    # Who is there beyond the range is censored at its end, and no event is seen of them.
    "survival": (
        SURVIVAL,
        {"t": [3, 7.5, 70], "e": ["dead", "alive", "dead"]},
        np.float32,
        [[3, 1], [7.5, 0], [60, 0]],
    ),
}


@pytest.mark.parametrize(("label", "columns", "dtype", "expected"), OUTCOMES.values(), ids=OUTCOMES)
def test_what_is_to_be_predicted(label: dict[str, Any], columns: dict[str, Any], dtype: Any, expected: Any) -> None:
    size = len(next(iter(columns.values())))
    found = read(schema(label=label), x=[1] * size, **columns)
    assert found.wrong is None and found.table.labels.dtype == dtype
    np.testing.assert_array_equal(found.table.labels, expected)


NO_LABEL = {
    "a limit": ({"outcome": "regression", "column": "y", "range": [0, 9]}, {"y": ["<5", "1"]}, "'<5' is below or"),
    "another class": (LABEL, {"y": ["yes", "Yes"]}, r"'Yes' is not one of the classes no, yes.*label\.classes"),
    "no value of a class": (
        {"column": "y", "classes": ["no", "yes"], "class_values": [["0"], ["1", "2"]]},
        {"y": ["2", "yes"]},
        r"row 1, column 'y': 'yes' is not one of the values 0, 1, 2.*label\.class_values",
    ),
    "half a count": ({"outcome": "counts", "column": "n", "range": [0, 9]}, {"n": [1, 1.5]}, "'1.5' is not a count"),
    "a negative count": ({"outcome": "counts", "column": "n", "range": [0, 9]}, {"n": [1, -1]}, "'-1' is not a count"),
    "no exposure": (
        {"outcome": "counts", "column": "n", "range": [0, 9], "exposure": "d"},
        {"n": [1, 1], "d": [1, 0]},
        "an exposure of '0'",
    ),
    "a negative time": (SURVIVAL, {"t": [-1, 2], "e": ["dead", "alive"]}, "row 0, column 't': a time of '-1'"),
    "an event without time": (
        SURVIVAL,
        {"t": [None, 2], "e": ["dead", "alive"]},
        "row 0, column 't' holds no value: an event without time",
    ),
    "neither": (SURVIVAL, {"t": [1, 2], "e": ["lost", "alive"]}, "'lost' is neither 'alive' nor 'dead'.*event_values"),
}


@pytest.mark.parametrize(("label", "columns", "message"), NO_LABEL.values(), ids=NO_LABEL)
def test_a_label_that_is_none_is_refused(label: dict[str, Any], columns: dict[str, Any], message: str) -> None:
    found = read(schema(label=label), x=[1, 1], **columns)
    assert found.encoded is None and re.search(message, str(found.wrong)), found.wrong


@pytest.mark.parametrize(
    ("label", "columns"),
    [
        (LABEL, {"y": ["yes", None, "no"]}),
        ({"outcome": "regression", "column": "y", "range": [5, 9]}, {"y": ["6", "", "7"]}),
        ({"outcome": "counts", "column": "n", "range": [0, 9], "exposure": "d"}, {"n": [1, 2, 3], "d": [1, None, 1]}),
        ({"outcome": "multi_label", "columns": ["a", "b"]}, {"a": ["0", "1", "1"], "b": ["0", None, "1"]}),
        (SURVIVAL, {"t": [1, None, 2], "e": ["dead", "alive", "alive"]}),
    ],
    ids=["classes", "regression", "counts", "multi_label", "survival"],
)
def test_a_record_without_a_label_keeps_its_place_and_is_not_usable(
    label: dict[str, Any], columns: dict[str, Any]
) -> None:
    known = schema(label=label)
    found = read(known, x=[1, 2, 3], **columns)
    assert found.wrong is None and found.table.has_label.tolist() == [True, False, True]
    assert not found.table.features[1].any()
    check_labels(found.table.labels, known.label.known, len(known.class_names), "t")
    (note,) = reading.notes([found], known)
    assert "1 of 3 records have no label: they count as records, and nothing is learnt from them" in note
    data = assembled(known, [found], [], [Path("t")], None)
    assert data.usable is not None and data.usable.tolist() == [True, False, True]
    nothing = read(known, x=[4, 5], **{name: [None, None] for name in columns})
    same = dataclasses.replace(
        nothing, path=Path("u")
    )  # another site without a label, which looks the same: nothing of it is used
    assert assembled(known, [found, nothing, same], [], [Path("t"), Path("n"), Path("u")], [0, 1, 2]).usable is not None


def test_a_person_and_a_silo_have_to_be_named() -> None:
    found = read(schema(person="id", silo="where"), x=[1, 2, 3], id=["p", " ", "q"], where=["a", "b", None])
    assert "row 1, column 'id' is empty" in str(found.wrong) and "whose record it is" in str(found.wrong)
    assert "row 2, column 'where' is empty" in str(found.wrong)


def test_what_was_clipped_filled_in_or_put_together_is_counted() -> None:
    known = schema(
        {
            "x": {**NUMBER, "missing": "indicator"},
            "c": {"type": "category", "values": ["a", "b"], "other": True},
            "l": NUMBER,
        }
    )
    found = read(known, x=[-1, 11, 5, None], c=["a", "q", "r", "b"], l=["<2", ">9", "<2", "3"])
    told = reading.notes([found, found], known)
    assert told == (
        "column 'x': 4 of 8 cells are outside data.schema.columns.x.range, and clipped to 0 or 10",
        "column 'l': 6 of 8 cells are below or above a limit ('<2', '>9'), and are read as the limit",
        "cells with no value, of 8: x 2",
        "cells counted as other, of 8: c 4",
    )


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.sampled_from(["a", "b", "c", "?", "zzz"])), min_size=1, max_size=20),
    st.integers(0, 19),
    st.floats(-1e9, 1e9),
)
def test_a_record_moves_no_other(records: list[tuple[float, str]], place: int, value: float) -> None:
    """Encoding reads nothing of a record for the sake of another: neighbours differ in one row, which is bounded."""
    known = schema(
        {
            "x": {**NUMBER, "missing": "indicator"},
            "c": {"type": "category", "values": ["a", "b", "c"], "other": True, "missing": "category"},
        }
    )
    place %= len(records)
    other = [*records[:place], (value, "b"), *records[place + 1 :]]
    one, two = (features(known, x=[x for x, _ in part], c=[c for _, c in part]) for part in (records, other))
    differ = np.flatnonzero((one != two).any(axis=1)).tolist()
    assert set(differ) <= {place}
    assert np.abs(one).max() <= 1 and np.abs(two).max() <= 1
