"""`run.coefficients`: a prediction by them, from the cells of a table, is the model's own."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.special import expit, softmax

import dpfl_plugin as dpfl
from dpfl_plugin.data import heart_disease
from dpfl_plugin.errors import UnsupportedError
from tests.cli.command import dpfl as command
from tests.cli.command import one_message

RNG = np.random.default_rng(11)
N = 80
EDGES = [2.0, 5.0, 10.0]
MISSING = {"missing": "indicator"}
COLUMNS: dict[str, dict[str, Any]] = {
    "age": {"type": "integer", "range": [20, 90], "unit": "years", **MISSING},
    "chol": {"type": "number", "range": [100, 600], "unit": "mg/dL", "missing": "default", "default": 240},
    "pressure": {"type": "number", "range": [80, 220], "default": 130, **MISSING},
    "bmi": {"type": "number", "range": [10, 60], "scale": "mean", **MISSING},
    "crp": {"type": "number", "range": [0, 30], "scale": "quantiles"},
    "sex": {"type": "category", "values": ["f", "m"]},
    "smoker": {"type": "category", "values": ["never", "ex", "current"], "other": True, "missing": "category"},
    "ward": {"type": "category", "values": ["A", "B", "C"], "missing": "default", "default": "B"},
    "drug": {"type": "category", "values": ["no", "yes"], "missing": "most_frequent"},
    "blood": {"type": "category", "values": ["0", "A", "B"], "other": True, "missing": "most_frequent"},
    "nyha": {"type": "ordinal", "values": ["I", "II", "III", "IV"], **MISSING},
    "grade": {"type": "ordinal", "values": ["low", "middle", "high"], "default": "middle", **MISSING},
    "born": {"type": "date", "range": ["1930-01-01", "2000-12-31"], **MISSING},
    "seen": {"type": "date", "range": ["2020-01-01", "2020-03-31"]},
    "room": {"type": "ignored"},
}
MADE: dict[str, Any] = {
    "age": lambda n: RNG.integers(15, 99, n),  # beyond the range, too
    "chol": lambda n: RNG.normal(240, 150, n),
    "pressure": lambda n: RNG.normal(150, 60, n),
    "bmi": lambda n: RNG.normal(27, 15, n),
    "crp": lambda n: RNG.exponential(8, n),
    "sex": lambda n: RNG.choice(["f", "m"], n),
    "smoker": lambda n: RNG.choice(["never", "ex", "current", "pipe"], n),
    "ward": lambda n: RNG.choice(["A", "B", "C"], n),
    "drug": lambda n: RNG.choice(["no", "yes"], n),
    "blood": lambda n: RNG.choice(["0", "A", "B", "AB"], n),
    "nyha": lambda n: RNG.choice(["I", "II", "III", "IV"], n),
    "grade": lambda n: RNG.choice(["low", "middle", "high"], n),
    "born": lambda n: [f"{RNG.integers(1920, 2010)}-0{RNG.integers(1, 9)}-11" for _ in range(n)],
    "seen": lambda n: [f"2020-0{RNG.integers(1, 4)}-{RNG.integers(10, 29)}" for _ in range(n)],
    "room": lambda n: range(n),
}
LABELS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "two classes": ({"column": "y", "classes": ["0", "1"]}, "softmax", {"y": lambda n: RNG.integers(0, 2, n)}),
    "one output": ({"column": "y", "classes": ["0", "1"]}, "logistic", {"y": lambda n: RNG.integers(0, 2, n)}),
    "three classes": ({"column": "y", "classes": ["a", "b", "c"]}, "softmax", {"y": lambda n: RNG.choice([*"abc"], n)}),
    "ordinal": (
        {"outcome": "ordinal", "column": "y", "classes": ["a", "b", "c"]},
        "linear",
        {"y": lambda n: RNG.choice([*"abc"], n)},
    ),
    "regression": (
        {"outcome": "regression", "column": "y", "range": [-20, 80], "unit": "days"},
        "linear",
        {"y": lambda n: RNG.normal(30, 20, n)},
    ),
    "counts": (
        {"outcome": "counts", "column": "y", "exposure": "years", "range": [0, 30]},
        "linear",
        {"y": lambda n: RNG.poisson(2, n), "years": lambda n: RNG.uniform(0.5, 2, n)},
    ),
    "multi_label": (
        {"outcome": "multi_label", "columns": ["up", "down"]},
        "linear",
        {"up": lambda n: RNG.integers(0, 2, n), "down": lambda n: RNG.integers(0, 2, n)},
    ),
    "survival by bin": (
        {"outcome": "survival", "time": "time", "event": "died", "range": [0, 10], "bins": EDGES},
        "linear",
        {"time": lambda n: RNG.exponential(4, n), "died": lambda n: RNG.integers(0, 2, n)},
    ),
    "survival": (
        {"outcome": "survival", "time": "time", "event": "died", "range": [0, 10], "bins": EDGES},
        "grouped_cox",
        {"time": lambda n: RNG.exponential(4, n), "died": lambda n: RNG.integers(0, 2, n)},
    ),
}
SCALES = {"counts": "log rate ratio", "regression": "difference", "survival": "log hazard ratio"}
BY_STATISTICS: dict[str, Any] = {"private_statistics": {"noise_multiplier": 3.0}}
BY_CONSTANTS: dict[str, Any] = {
    "preprocess": [
        {"name": "scale", "factor": 0.5, "offset": 0.25},
        {"name": "standardise", "fit": "none", "mean": 0.1, "std": 2.0},
    ]
}
OF_CONSTANTS = {"mean": "range", "quantiles": "range", "most_frequent": "category"}
PUBLIC: dict[str, dict[str, Any]] = {
    name: {key: OF_CONSTANTS.get(str(value), value) for key, value in column.items()}
    for name, column in COLUMNS.items()
}


def records(labels: dict[str, Any] | None = None, n: int = N) -> pd.DataFrame:
    frame = pd.DataFrame({name: made(n) for name, made in {**MADE, **(labels or {})}.items()}).astype(object)
    for name, column in COLUMNS.items():
        if column.get("missing"):
            frame.loc[RNG.random(n) < 0.2, name] = None
    return frame


def train(table: Any, schema: dict[str, Any], out: Path, **changes: Any) -> dpfl.Run:
    data = dpfl.Federation.from_table(table, schema, preprocess=changes.pop("preprocess", []))
    setting = {"rounds": 3, "privacy": {"noise_multiplier": 1.0}, "algorithm": dpfl.algorithms.MBSGD(lr=1.0)}
    return dpfl.train(data, **{**setting, **changes}, seed=3, out=out, progress=False)


def days(cell: str) -> float:
    return datetime.datetime.fromisoformat(cell).replace(tzinfo=datetime.UTC).timestamp() / 86400


def predictor(
    run: dpfl.Run, columns: dict[str, dict[str, Any]], frame: pd.DataFrame, output: str | None
) -> NDArray[np.float64]:
    """[n] what columns add, by what the rows of the coefficients say, as somebody does it who has nothing else."""
    sums = np.zeros(len(frame))
    of_column: dict[str, dict[str | None, Any]] = {}
    for row in run.coefficients.rows:
        if row.output == output:
            of_column.setdefault(row.column, {})[row.level] = row
    for name, column in columns.items():
        rows = of_column.get(name, {})
        for place, cell in enumerate(frame[name]):
            if cell is None and column.get("missing") == "default":
                cell = column["default"]
            if cell is None and column.get("missing") == "most_frequent":
                cell = run.result["private_statistics"]["columns"][name]["most_frequent"]
            if not rows:
                assert name == "room"
            elif cell is None:
                sums[place] += rows["missing"].estimate
            elif column["type"] == "category":
                level = cell if cell in column["values"] else "other"
                sums[place] += 0.0 if level == column["values"][0] else rows[level].estimate
            else:
                row = rows[None]
                number, reference = cell, row.reference
                if column["type"] == "ordinal":
                    number, reference = column["values"].index(cell), column["values"].index(reference)
                else:
                    low, high = column["range"]
                    if column["type"] == "date":
                        low, high, number, reference = map(days, (low, high, cell, reference))
                    number = min(max(number, low), high)
                sums[place] += row.estimate * (number - reference) / row.step
    return sums


def intercepts(run: dpfl.Run) -> list[float]:
    return [row.estimate for row in run.coefficients.rows if row.column == "(intercept)"]


CASES = [*((kind, "statistics") for kind in LABELS), ("regression", "constants"), ("survival", "constants")]


@pytest.mark.parametrize(("kind", "encoding"), CASES)
def test_a_prediction_by_coefficients_is_the_models(kind: str, encoding: str, tmp_path: Path) -> None:
    label, model, made = LABELS[kind]
    columns, keys = (COLUMNS, BY_STATISTICS) if encoding == "statistics" else (PUBLIC, BY_CONSTANTS)
    schema = {"label": label, "columns": columns}
    run = train({"a": records(made), "b": records(made)}, schema, tmp_path, model=model, **keys)
    new = records()
    said = dpfl.predict(run, new).predictions
    outputs = list(dict.fromkeys(row.output for row in run.coefficients.rows if row.column != "(intercept)"))
    sums = np.stack([predictor(run, columns, new, output) for output in outputs], axis=1)
    z = sums + np.array(intercepts(run))
    assert np.abs(sums).max(axis=0).min() > 0.1  # there is something to be wrong about
    assert run.coefficients.scale == SCALES.get(kind, "log odds ratio")
    if kind in ("two classes", "one output"):
        found, expected = expit(z[:, 0]), said.probabilities[:, 1]
    elif kind == "three classes":
        found, expected = softmax(np.column_stack([np.zeros(len(z)), z]), axis=1), said.probabilities
    elif kind == "ordinal":
        above = np.column_stack([np.ones(len(z)), expit(z), np.zeros(len(z))])
        found, expected = above[:, :-1] - above[:, 1:], said.probabilities
    elif kind == "regression":
        found, expected = z[:, 0] / 100, said.predicted / 100
    elif kind == "counts":
        found, expected = z[:, 0], np.log(said.predicted)
    elif kind == "multi_label":
        found, expected = expit(z), said.probabilities
    elif kind == "survival":
        found, expected = np.exp(-np.exp(z).cumsum(axis=1)), said.probabilities
    else:
        found, expected = np.cumprod(1 - expit(z), axis=1), said.probabilities
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    for row in run.coefficients.rows:
        assert row.ratio is None if kind == "regression" else row.ratio == pytest.approx(math.exp(row.estimate))


def test_without_privacy_they_are_those_of_a_logistic_regression(tmp_path: Path) -> None:
    """Odds ratios of heart disease, by the table's own units, and a category's against its first value."""
    api = pytest.importorskip("statsmodels.api")
    frame = pd.DataFrame(
        np.concatenate([heart_disease._read(name) for name in heart_disease.HOSPITALS]),
        columns=[*heart_disease.COLUMNS, "num"],
    )[["age", "sex", "cp", "thalach", "oldpeak", "num"]].dropna()
    whole = {name: frame[name].astype(int) for name in ("age", "sex", "cp", "thalach", "num")}
    schema = {
        "label": {"column": "num", "classes": ["healthy", "ill"], "class_values": [["0"], ["1", "2", "3", "4"]]},
        "columns": {
            "age": {"type": "integer", "range": [20, 90], "unit": "years"},
            "sex": {"type": "category", "values": ["0", "1"]},
            "cp": {"type": "category", "values": ["4", "1", "2", "3"]},
            "thalach": {"type": "number", "range": [50, 210], "unit": "beats/min"},
            "oldpeak": {"type": "number", "range": [-3, 7]},
        },
    }
    frame = frame.assign(**whole)
    run = dpfl.train(
        dpfl.Federation.from_table({"all": frame}, schema, test_fraction=0.001),
        model="logistic",
        algorithm=dpfl.algorithms.FedAvg(local_steps=400, local_lr=4.0),
        privacy=dpfl.Privacy(noise_multiplier=0, clip_norm=math.inf, sampler="full"),
        rounds=10,
        out=tmp_path,
        progress=False,
    )
    levels = pd.get_dummies(frame["cp"], prefix="cp").drop(columns="cp_4")
    exog = api.add_constant(pd.concat([frame[["age", "sex", "thalach", "oldpeak"]], levels], axis=1).astype(float))
    theirs = api.Logit((frame["num"] > 0).astype(int), exog).fit(disp=0)
    names = ["age", "sex", "cp_1", "cp_2", "cp_3", "thalach", "oldpeak"]
    *rows, intercept = run.coefficients.rows
    shown = [(row.column, row.level, row.reference, row.step, row.unit) for row in rows]
    assert shown == [
        ("age", None, 55.0, 1.0, "years"),
        ("sex", "1", "0", None, None),
        ("cp", "1", "4", None, None),
        ("cp", "2", "4", None, None),
        ("cp", "3", "4", None, None),
        ("thalach", None, 130.0, 10.0, "beats/min"),
        ("oldpeak", None, 2.0, 1.0, None),
    ]
    for row, name in zip(rows, names, strict=True):  # a single patient is held out
        size = row.step or 1.0
        assert row.estimate == pytest.approx(size * theirs.params[name], abs=0.1 * size * theirs.bse[name]), name
    at_references = api.Logit.predict(theirs.model, theirs.params, [[1, 55, 0, 130, 2, 0, 0, 0]])[0]
    assert expit(intercept.estimate) == pytest.approx(at_references, abs=0.01)
    assert run.coefficients.what == "odds ratios of ill against healthy"


NUMBERS = {"label": {"column": "y", "classes": ["0", "1"]}, "columns": {"chol": COLUMNS["chol"], "sex": COLUMNS["sex"]}}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a hidden layer": ({"model": {"name": "mlp", "hidden": [3]}}, "the model, mlp, is not linear"),
    "unit_norm": ({"preprocess": ["unit_norm"]}, r"data.preprocess\[0\]: after unit_norm, what a column adds"),
    "hinge": ({"model": "logistic", "loss": "hinge"}, "loss='hinge': the outputs .* are no log-odds"),
    "fitted to records": ({"preprocess": [{"name": "pca", "dims": 2}]}, "pca was fitted to the run's private"),
}


@pytest.mark.parametrize(("changes", "why"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_linear_in_columns_is_refused(changes: dict[str, Any], why: str, tmp_path: Path) -> None:
    frame = records({"y": lambda n: RNG.integers(0, 2, n)})[["chol", "sex", "y"]]
    run = train({"a": frame}, NUMBERS, tmp_path, **changes)
    with pytest.raises(UnsupportedError, match=why):
        _ = run.coefficients


def test_records_without_columns_have_none(tmp_path: Path) -> None:
    data = dpfl.Federation.load("synthetic", num_features=4, num_classes=2, records_per_silo=30, num_silos=2)
    setting: dict[str, Any] = {"privacy": {"noise_multiplier": 1.0}, "rounds": 1, "out": tmp_path, "progress": False}
    run = dpfl.train(data, algorithm=dpfl.algorithms.MBSGD(lr=1.0), **setting)
    with pytest.raises(UnsupportedError, match="trained on synthetic: only columns of a table"):
        _ = run.coefficients


def test_of_a_table_of_numbers_they_are_the_weights(tmp_path: Path) -> None:
    """Without a schema, each column is a number as it is; and what is printed has them, beside what they are of."""
    frame = pd.DataFrame({"age": RNG.normal(size=60), "dose": RNG.normal(size=60), "ill": ["no", "yes", "no"] * 20})
    data = dpfl.Federation.from_frame(
        frame.assign(site=["a", "b"] * 30), silo="site", label="ill", classes=["no", "yes"]
    )
    setting: dict[str, Any] = {"privacy": {"noise_multiplier": 1.0}, "rounds": 2, "out": tmp_path, "progress": False}
    run = dpfl.train(data, algorithm=dpfl.algorithms.MBSGD(lr=1.0), model="logistic", seed=1, **setting)
    weights, bias = (parameter.detach().reshape(-1).tolist() for parameter in run.model.parameters())
    found = run.coefficients
    assert [row.estimate for row in found.rows] == pytest.approx([*weights, *bias], abs=1e-7)
    lines = str(found).splitlines()
    assert lines[0] == "odds ratios of yes against no:"
    assert lines[1].split() == ["column", "against", "per", "log", "odds", "ratio", "odds", "ratio"]
    assert lines[2].split() == ["age", "0", "1", f"{weights[0]:.4g}", f"{math.exp(weights[0]):.4g}"]
    assert any("trained at epsilon" in line for line in lines) and "<pre>odds ratios" in found._repr_html_()
    assert found.table["ratio"].tolist() == [row["ratio"] for row in found.to_dict()["rows"]]
    done = command("coefficients", run.folder)
    assert done.code == 0 and done.out == f"{found}\n"
    one_message(command("coefficients", tmp_path / "none"), "is not the folder of a run")
