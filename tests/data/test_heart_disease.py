"""Heart disease as it ships: the published patients, encoded by public ranges, split alike with and without others."""

from pathlib import Path

import numpy as np
import pandas
import pytest

from dpfl_plugin import read_tables
from dpfl_plugin.data import heart_disease as module
from dpfl_plugin.data.base import validate
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.data.heart_disease import HOSPITALS, columns, encode, heart_disease
from dpfl_plugin.errors import ConfigError

NOWHERE = DataSource(folder=Path("/nowhere"))  # no file, no network


@pytest.mark.parametrize(
    ("options", "sizes", "ill", "features"),
    [
        ({}, [303, 294, 123, 200], [139, 106, 115, 149], 36),
        ({"hospitals": ["va", "cleveland"]}, [303, 200], [139, 149], 36),
    ],
)
def test_counts(options, sizes, ill, features):
    """Rows and diagnoses as published."""
    data = heart_disease(NOWHERE, **options)
    validate(data, "heart_disease")
    assert np.bincount(data.groups).tolist() == sizes
    assert np.bincount(data.groups, weights=data.labels).tolist() == ill
    assert data.features.shape == (sum(sizes), features) and len(data.columns) == features
    assert np.abs(data.features).max() <= 1 and data.test is None
    assert data.silo_names == tuple(name for name in HOSPITALS if name in options.get("hospitals", HOSPITALS))


def test_patients_with_a_missing_value_are_there_and_add_nothing():
    """740 complete patients, as in FLamby, Table 1; the others have one placeholder."""
    data = heart_disease(NOWHERE, missing="drop")
    validate(data, "heart_disease")
    assert np.bincount(data.groups).tolist() == [303, 294, 123, 200]
    assert np.bincount(data.groups, weights=data.usable).tolist() == [303, 261, 46, 130]
    assert np.bincount(data.groups, weights=data.labels).tolist() == [139, 98, 45, 101]
    assert data.features.shape == (920, 15) and len(data.columns) == 15
    assert not data.features[~data.usable].any() and not data.labels[~data.usable].any()


def test_one_patient_by_hand():
    """Line 1 of Hungary's file: 28,1,2,130,132,0,2,185,0,0,NaN,NaN,NaN,0."""
    x, y, usable, names = encode(module._read("hungarian")[:1], keep_all=True)
    found = dict(zip(names, x[0].tolist(), strict=True))
    expected = {"age": 2 * 8 / 70 - 1, "sex": 1, "cp_2": 1, "trestbps": 2 * 50 / 120 - 1, "chol": 2 * 52 / 400 - 1}
    expected |= {"restecg_2": 1, "thalach": 2 * 125 / 150 - 1, "oldpeak": 2 * 3 / 10 - 1}
    expected |= {"slope_missing": 1, "ca_missing": 1, "thal_missing": 1}
    assert y.tolist() == [0] and usable.tolist() == [True]
    assert found == pytest.approx({name: expected.get(name, 0) for name in names}, abs=1e-6)


@pytest.mark.parametrize("keep_all", [True, False])
def test_the_encoding_is_that_of_its_schema(keep_all, tmp_path):
    table = module._read("cleveland")
    schema = {"label": {"column": "num", "classes": list("01234")}, "columns": columns(keep_all=keep_all)}
    x, _, usable, names = encode(table, keep_all=keep_all)
    frame = pandas.DataFrame(table[usable], columns=[*module.COLUMNS, "num"]).astype("Float64")
    frame.to_csv(tmp_path / "cleveland.csv", index=False, float_format="%g")
    found = read_tables(tmp_path / "cleveland.csv", {**schema, "other_columns": "ignore"})
    assert len(found.columns) == len(names)
    np.testing.assert_allclose(found.features, x[usable], atol=1e-6)


def test_zero_is_missing_where_nobody_has_it():
    x, _, _, names = encode(module._read("switzerland"), keep_all=True)
    assert x[:, names.index("chol")].tolist() == [0] * 123 and x[:, names.index("chol_missing")].tolist() == [1] * 123


def test_a_hospital_has_the_same_test_patients_alone_and_with_others():
    """So a model that one trained alone can be compared on records that neither saw."""
    source = DataSource(seed=7)
    whole = heart_disease(source, held_out=0.34, missing="drop")
    assert (len(whole.labels), len(whole.test.labels)) == (606, 314)  # whatever values are missing
    for group, name in enumerate(HOSPITALS):
        alone = heart_disease(source, held_out=0.34, missing="drop", hospitals=[name])
        for part, own in ((whole, alone), (whole.test, alone.test)):
            assert np.array_equal(part.features[part.groups == group], own.features)
    other = heart_disease(DataSource(seed=8), held_out=0.34, missing="drop")
    assert not np.array_equal(other.features, whole.features)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"hospitals": []}, r"hospitals=\[\]: must name one or more of cleveland"),
        ({"hospitals": ["clevland"]}, "clevland"),
        ({"hospitals": ["va", "va"]}, "each once"),
        ({"missing": "impute"}, "missing='impute'"),
        ({"held_out": 1.0}, "held_out=1.0"),
    ],
)
def test_wrong_options(options, said):
    with pytest.raises(ConfigError, match=said):
        heart_disease(NOWHERE, **options)


def test_the_attribution_ships_beside_the_files():
    folder = Path(module.__file__).parent / "shipped" / "heart_disease"
    text = (folder / "ATTRIBUTION.md").read_text()
    for said in ("10.24432/C52P4X", "CC BY 4.0", "Janosi", "Steinbrunn", "Pfisterer", "Detrano"):
        assert said in text
    assert {path.name for path in folder.iterdir()} == {
        "ATTRIBUTION.md",
        *(f"processed.{name}.data" for name in HOSPITALS),
    }
