"""Records of a program: a data frame goes the way of CSV files, arrays and torch's data sets that of NPZ files."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import dpfl_plugin as dpfl
from dpfl_plugin import given
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.data.files import csv
from dpfl_plugin.data.labels import typed
from dpfl_plugin.errors import ConfigError, DataError, UnsupportedError

RNG = np.random.default_rng(2)


def frame(num_records=60, **columns):
    return pandas.DataFrame(
        {
            "hospital": [("mercy", "north", "St. Anne")[row % 3] for row in range(num_records)],
            "age": RNG.normal(60, 9, num_records),
            "weight": RNG.normal(80, 5, num_records).astype(np.float32),
            "sex": RNG.integers(0, 2, num_records),
            "label": [("ill", "well")[row % 2] for row in range(num_records)],
            **columns,
        }
    )


def dataset(federation):
    block = dict(federation.data["dataset"])
    return getattr(given, block.pop("module").partition(":")[2])(DataSource(), **block)


COLUMN = [1.0, 2.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("column", "classes", "numbers"),
    [
        (COLUMN, [1, 2], [0, 1, 1, 0]),
        (COLUMN, [2.0, np.float32(1.0)], [1, 0, 0, 1]),
        (COLUMN, ["1", "2"], [0, 1, 1, 0]),
        (COLUMN, ["2.0", "1.0"], [1, 0, 0, 1]),
        ([1, 2, 2, 1], [1.0, 2.0], [0, 1, 1, 0]),
        ([1, 2, 2, 1], ["1.0", "2.0"], [0, 1, 1, 0]),
        ([1.0, 2.5, 2.5, 1.0], [1.0, 2.5], [0, 1, 1, 0]),
        (["1", "1.0", "1.0", "1"], ["1.0", "1"], [1, 0, 0, 1]),  # what is named exactly is that class
        ([-0.0, -1.0, -1.0, 0.0], [0, -1], [0, 1, 1, 0]),
        ([True, False, False, True], [False, True], [1, 0, 0, 1]),
        ([1.0, 1.5, 1.5, 1.0], [1, 2], None),
        (["01", "2", "2", "01"], [1, 2], None),
        (["1e0", "2", "2", "1e0"], [1, 2], None),
        (["1.", "2", "2", "1."], [1, 2], None),
        ([True, False, False, True], [0, 1], None),
        ([2.0**53, 0.0, 0.0, 2.0**53], [0, 2**53], None),  # which may have been rounded from another
        (["1.00", "2", "2", "1.00"], ["1", "1.0", "2"], None),
    ],
)
def test_a_whole_number_is_the_same_class_as_a_float_and_nothing_else_is(column, classes, numbers):
    records = pandas.DataFrame({"x": RNG.normal(size=4), "label": column})
    if numbers is None:
        with pytest.raises(DataError, match="is not one of the classes"):
            dpfl.Federation.from_frame(records, classes=classes)
    else:
        assert dataset(dpfl.Federation.from_frame(records, classes=classes)).labels.tolist() == numbers


def test_a_number_that_two_hospitals_write_differently_is_one_class():
    """Also where the classes are read from the records: "01" is another one, and "1.0" alone keeps its name."""
    records = pandas.DataFrame({"x": RNG.normal(size=6), "label": ["1", "1.0", "3.0", "2", "01", "3.0"]})
    found = dataset(dpfl.Federation.from_frame(records))
    assert [found.class_names[number] for number in found.labels] == ["1", "1", "3.0", "2", "01", "3.0"]


@pytest.mark.parametrize("classes", [[1.0, float("nan")], [None, 1], [b"a", b"b"], "ab"])
def test_what_is_no_class_is_refused_with_the_argument(classes):
    with pytest.raises(ConfigError, match=r"^classes=.* must be"):
        from_frame(classes=classes)
    with pytest.raises(ConfigError, match=r"^classes=.* must be"):
        dpfl.Federation.from_arrays({"a": GOOD, "b": OTHER}, classes=classes)


def objects(*items):
    return np.array([*items, *items], dtype=object)


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        (objects("x", "y"), "text"),
        (objects(4, np.int8(7)), "int"),
        (objects(True, np.False_), "bool"),
        (np.array([True, False] * 2), "bool"),
        (pandas.Series(["x", "y"] * 2).to_numpy(), "text"),
    ],
)
def test_labels_are_of_the_type_of_their_items(labels, kind):
    """Of arrays and of columns, also of those that hold objects."""
    held = dpfl.Federation.from_arrays({"a": (GOOD[0], labels), "b": (OTHER[0], labels)})
    column = dpfl.Federation.from_frame(pandas.DataFrame({"x": np.arange(4.0), "label": labels}))
    table = dpfl.Federation.from_table(
        pandas.DataFrame({"x": np.arange(4.0), "label": labels}),
        {
            "label": {"column": "label", "classes": sorted({str(item) for item in labels.tolist()})},
            "columns": {"x": {"type": "number", "range": [0, 4]}},
        },
        num_silos=1,
    )
    for made in map(dataset, (held, column, table)):
        assert made.label_type == kind
        assert [typed(made.class_names[number], kind) for number in made.labels[:4]] == labels.tolist()


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (objects(1, "x"), r"of several types \(int, str\)\. Make all of them words"),
        ([1, "x"] * 2, r"of several types \(int, str\)"),
        (objects("x", None), r"\(NoneType, str\).*leave out records without one"),
        (objects(1.0, 2.0), r"are floats.*by \.astype\(int\).*regression"),
        (np.array([1.0, 2.0] * 2), r"are floats.*by \.astype\(int\).*regression"),
        (np.array([b"a", b"b"] * 2), r"are bytes\. Decode them to words"),
        (objects(b"a", b"b"), r"are bytes\. Decode them to words"),
        (np.array(["2020-01-01", "2021-01-01"] * 2, "datetime64[D]"), r"are of type date\. Make all of them words"),
    ],
)
def test_arrays_of_what_is_no_label_are_told_what_to_do(labels, says):
    with pytest.raises(DataError, match=f"^silo a: labels must be one whole number, truth value or word for.*{says}"):
        dpfl.Federation.from_arrays({"a": (GOOD[0], labels), "b": (OTHER[0], labels)})


def test_persons_are_told_like_labels_but_are_no_quantity():
    persons = np.array([1.0, 1.0, 2.0, 2.0])
    with pytest.raises(DataError, match=r"silo a: person must be .*\.astype\(int\), .* or words by \.astype\(str\)\.$"):
        dpfl.Federation.from_arrays({"a": (*GOOD, persons), "b": (*OTHER, persons)})
    named = {"a": (*GOOD, persons.astype(int).astype(object)), "b": (*OTHER, objects("p", "q"))}
    assert dataset(dpfl.Federation.from_arrays(named)).persons is not None


def test_bytes_are_no_words_in_a_frame_either():
    with pytest.raises(DataError, match=r"column 'label': 60 cells are bytes.*Decode them to text"):
        from_frame(label=[b"a", b"b"] * 30)


@pytest.mark.parametrize("classes", [None, ["well", "ill"]])
def test_a_frame_is_read_as_its_csv_file_would_be(tmp_path, classes):
    records = frame()
    records.to_csv(tmp_path / "all.csv", index=False)
    source = DataSource(base=tmp_path)
    there = csv(source, files="all.csv", silo_column="hospital", classes=classes)
    here = dataset(dpfl.Federation.from_frame(records, silo="hospital", classes=classes))
    for key in ("features", "labels", "groups"):
        assert np.array_equal(getattr(here, key), getattr(there, key)), key
    for key in ("num_classes", "caveats", "silo_names", "columns", "notes"):
        assert getattr(here, key) == getattr(there, key), key


def test_truth_values_are_numbers_as_features_and_names_as_labels():
    dummies = frame().assign(smoker=[row % 2 == 0 for row in range(60)], label=[row % 3 == 0 for row in range(60)])
    found = dataset(dpfl.Federation.from_frame(dummies, silo="hospital", classes=[False, True]))
    assert found.columns[-1] == "smoker" and set(found.features[:, -1]) == {0.0, 1.0}
    assert found.class_names == ("False", "True") and found.labels.sum() == 20


def test_silos_are_those_of_the_column_and_records_are_copies():
    records = frame()
    federation = dpfl.Federation.from_frame(records, silo="hospital", test_fraction=0.3)
    assert federation.data["partition"] == {"name": "natural"} and federation.data["test_fraction"] == 0.3
    before = dataset(federation).features.copy()
    records.loc[:, "age"] = 0.0
    assert np.array_equal(dataset(federation).features, before)
    assert dpfl.Federation.from_frame(records, silo="hospital").data != federation.data  # other values, another name


def test_arrays_and_torchs_data_sets_are_the_same_records():
    silos = {name: (RNG.normal(size=(20, 3)).astype(np.float32), RNG.integers(0, 2, 20)) for name in ("10", "9")}
    by_torch = {name: TensorDataset(torch.from_numpy(x), torch.from_numpy(y)) for name, (x, y) in silos.items()}
    by_torch["9"] = DataLoader(by_torch["9"], batch_size=7, shuffle=True)
    one, other = dpfl.Federation.from_arrays(silos), dpfl.Federation.from_datasets(by_torch)
    assert one.data == other.data
    found = dataset(one)
    assert found.silo_names == ("9", "10") and np.array_equal(found.features[found.groups == 0], silos["9"][0])


GOOD = (np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1]))
OTHER = (np.ones((4, 2), np.float32), np.array([0, 1, 0, 1]))


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (
            lambda: from_frame(age=[1.0] * 3 + [None] + [2.0] * 56),
            DataError,
            "data frame, row 3, column 'age' is empty",
        ),
        (lambda: from_frame(age=["x"] + [1.0] * 59), DataError, "row 0, column 'age': 'x' is not a number"),
        (lambda: from_frame(age=[np.inf] + [1.0] * 59), DataError, "row 0, column 'age': 'inf' is not a finite"),
        (
            lambda: from_frame(label=[0.1 * row for row in range(60)]),
            DataError,
            r"fractional numbers, 60 .*outcome=\{'kind': 'regression', 'range': \(LOW, HIGH\)\}.*classes=\[0",
        ),
        (
            lambda: from_frame(label=[1.0, 2.5] * 30),
            DataError,
            r"2 different ones \(1, 2\.5\).*classes=\[1, 2\.5\]\.$",
        ),
        (lambda: from_frame(hospital=[None] + ["a"] * 59), DataError, "row 0, column 'hospital' is empty"),
        (lambda: dpfl.Federation.from_frame(frame(), silo="clinic"), ConfigError, "silo='clinic'.*no such column"),
        (lambda: dpfl.Federation.from_frame(frame(), label="sick"), ConfigError, "label='sick'.*no such column"),
        (lambda: dpfl.Federation.from_frame({"a": [1]}), ConfigError, "needs a pandas DataFrame, not a dict"),
        (lambda: from_frame(partitions="iid"), ConfigError, r"partitions is not a known key.*did you mean 'partition'"),
        (
            lambda: dpfl.Federation.from_frame(frame(), target="ill"),
            ConfigError,
            r"target is not a known key \(did you mean 'label'\?\)",
        ),
        (lambda: from_frame(test_fraction=2), ConfigError, "data.test_fraction=2"),
        (lambda: dpfl.Federation.from_arrays({}), ConfigError, "of at least one silo"),
        (lambda: dpfl.Federation.from_arrays({"a": GOOD[0]}), ConfigError, "silo 'a': must be a pair"),
        (
            lambda: dpfl.Federation.from_arrays({"a": GOOD, "b": GOOD}),
            DataError,
            "^silo a and silo b hold exactly the same",
        ),
        (lambda: dpfl.Federation.from_arrays({"a": (GOOD[0], GOOD[1][:3])}), DataError, "silo a: label.*each of the 4"),
        (lambda: dpfl.Federation.from_arrays({"a": (GOOD[0], GOOD[1] / 2)}), DataError, "silo a: label.*float64"),
        (lambda: dpfl.Federation.from_arrays({"a": (GOOD[0] * np.nan, GOOD[1])}), DataError, "silo a: the feature at"),
        (lambda: dpfl.Federation.from_arrays({1: GOOD, "1": OTHER}), ConfigError, "two silos are called '1'"),
        (
            lambda: dpfl.Federation.from_datasets({"a": TensorDataset(torch.zeros(0, 2), torch.zeros(0))}),
            DataError,
            "^silo a",
        ),
        (lambda: dpfl.Federation.from_datasets({"a": ITERABLE}), UnsupportedError, "IterableDataset"),
        (lambda: dpfl.Federation.load("digit"), ConfigError, "did you mean 'digits'"),
        (lambda: dpfl.Federation.load("digits", num_silo=3), ConfigError, r"did you mean 'num_silos'"),
        (lambda: dpfl.Federation.load("digits", flatten="perhaps"), ConfigError, "data.dataset.flatten='perhaps'"),
        (lambda: dpfl.Federation.load("digits", num_silos=0), ConfigError, "data.num_silos=0"),
    ],
)
def test_what_is_wrong_is_named_when_the_records_are_given(make, error, says):
    with pytest.raises(error, match=says):
        make()


def from_frame(**changes):
    keys = {key: changes.pop(key) for key in ("partitions", "test_fraction", "classes") if key in changes}
    return dpfl.Federation.from_frame(frame(**changes), silo="hospital", **keys)


class _Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from ()


ITERABLE = _Stream()


def test_a_federation_says_what_it_is_when_it_is_printed():
    rng = np.random.default_rng(0)
    two = {name: (rng.normal(size=(3, 2)), [0, 1, 0]) for name in ("north", "mercy")}
    said = "Federation(6 records of 2 features at 2 silos (north, mercy), partition='natural')"
    assert repr(dpfl.Federation.from_arrays(two, classes=[0, 1])) == said
    two_rows = pandas.DataFrame({"age": [50.0, 60.0], "ill": [0, 1]})
    dealt = dpfl.Federation.from_frame(two_rows, label="ill", classes=[0, 1], num_silos=2)
    assert repr(dealt) == "Federation(2 records of 1 feature, num_silos=2)"
    loaded = dpfl.Federation.load("digits", partition={"name": "dirichlet", "alpha": 0.3})
    assert repr(loaded) == "Federation('digits', partition={'name': 'dirichlet', 'alpha': 0.3})"
