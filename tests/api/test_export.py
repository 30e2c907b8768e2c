"""`export`: what is written says what the run's model says, and the card claims no more than the run."""

import datetime
import re
import zipfile
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
import yaml

import dpfl_plugin as dpfl
from dpfl_plugin.data.digits import digits
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.errors import ConfigError, UnsupportedError
from tests.cli.command import dpfl as command
from tests.cli.command import one_message

FROM_RECORDS = "Names of classes were read from private records, and are left out"
UNPROTECTED = "**Do not publish this model**"
STEPS = [
    {"name": "scale", "factor": 2.0, "offset": -0.5},
    {"name": "standardise", "fit": "none", "mean": 0.1, "std": 0.4},
    "unit_norm",
]


def trained(tmp_path, **keys):
    options = {"model": "softmax", "preprocess": STEPS, "privacy": {"noise_multiplier": 4.0}} | keys
    federation = dpfl.Federation.load("digits", num_silos=2, preprocess=options.pop("preprocess"))
    step = dpfl.algorithms.MBSGD(lr=1.0)
    return dpfl.train(federation, algorithm=step, rounds=1, out=tmp_path / "runs", progress=False, **options)


@pytest.mark.parametrize("model", ["softmax", "mlp"])
def test_the_torch_file_predicts_as_the_run_does(tmp_path, model):
    run = trained(tmp_path, model=model)
    folder = run.export(tmp_path / "out")
    assert {path.name for path in folder.iterdir()} == {"model.pt2", "README.md", "privacy.md"}
    with zipfile.ZipFile(folder / "model.pt2") as archive:
        held = b"".join(archive.read(name) for name in archive.namelist())
    for told in (dpfl.__file__, str(tmp_path)):  # where the code and the run were says who made it
        assert str(Path(told).parent).encode() not in held
    raw = digits(DataSource()).features[:50]
    with torch.no_grad():
        outputs = torch.export.load(folder / "model.pt2").module()(torch.from_numpy(raw))
    x = (2 * raw - 0.5 - 0.1) / 0.4  # by hand
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    with torch.no_grad():
        torch.testing.assert_close(outputs, run.model(torch.from_numpy(x)), rtol=1e-4, atol=1e-5)
    assert (folder / "privacy.md").read_text() == run.statement


def test_onnx_says_the_same(tmp_path):
    onnx = pytest.importorskip("onnx", reason="onnx is not installed: launchers/env onnx")
    from onnx.reference import ReferenceEvaluator

    run = trained(tmp_path)
    done = command("export", run.folder, tmp_path / "out", "--onnx")
    assert done.code == 0, done.err
    raw = digits(DataSource()).features[:7]
    model = onnx.load(tmp_path / "out" / "model.onnx")
    (found,) = ReferenceEvaluator(model).run(None, {model.graph.input[0].name: raw})
    with torch.no_grad():
        expected = torch.export.load(tmp_path / "out" / "model.pt2").module()(torch.from_numpy(raw))
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("privacy", "said", "unsaid"),
    [
        ({"noise_multiplier": 4.0, "randomness": "fresh"}, ["* server: epsilon "], [UNPROTECTED]),
        ({"noise_multiplier": 0.0}, [UNPROTECTED, "* server: no epsilon holds"], []),
    ],
)
def test_the_card_says_whether_the_model_may_be_published(tmp_path, privacy, said, unsaid):
    run = trained(tmp_path, privacy=privacy)
    text = (run.export(tmp_path / "out") / "README.md").read_text()
    _, head, body = text.split("---\n", 2)
    assert yaml.safe_load(head)["library_name"] == "dpfl"
    assert all(part in body for part in said) and not any(part in body for part in unsaid)
    shown = re.findall(r"[0-9.]*[0-9]", body)  # whole numbers: 0.2 is also the beginning of an epsilon
    assert str(run.accuracy) not in shown and f"{run.accuracy:.3f}" not in shown
    assert "Classes, in the order of outputs: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9." in body


@pytest.mark.parametrize(
    ("classes", "keys", "said"),
    [
        (["ill", "well"], {}, "Classes, in the order of outputs: ill, well."),
        (None, {}, f"{FROM_RECORDS}: outputs are in their order."),
        (["ill", "well"], {"model": "logistic"}, "The output is the log-odds of well against ill, above 0 for well."),
        (["ill", "well"], {"model": "logistic", "loss": "hinge"}, "The output is a score, above 0 for well."),
        (None, {"model": "logistic"}, f"{FROM_RECORDS}: the output is the log-odds of the second against the first, "),
    ],
)
def test_names_of_classes_that_were_read_from_records_stay_here(tmp_path, classes, keys, said):
    rng = np.random.default_rng(0)
    records = {name: (rng.random((20, 3)), np.array(["ill", "well"] * 10)) for name in "ab"}
    run = dpfl.train(
        dpfl.Federation.from_arrays(records, classes=classes),
        algorithm=dpfl.algorithms.MBSGD(lr=1.0),
        privacy={"noise_multiplier": 4.0},
        rounds=1,
        out=tmp_path / "runs",
        progress=False,
        **keys,
    )
    text = (run.export(tmp_path / "out") / "README.md").read_text()
    assert said in text and ("well" in text) == (classes is not None) and (FROM_RECORDS in text) == (classes is None)
    assert f"outputs: [n, {1 if 'model' in keys else 2}]" in text


def test_what_cannot_be_is_refused_and_nothing_is_written(tmp_path):
    run = trained(tmp_path, preprocess=[{"name": "hog", "cell": 4}])
    with pytest.raises(UnsupportedError, match=r"data\.preprocess\[0\]\.name='hog' cannot be part"):
        run.export(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match="it exists, and was left as it is"):
        run.export(tmp_path / "there")
    one_message(command("export", tmp_path / "nowhere", tmp_path / "out"), "is not the folder of a run")


LABELS = [  # and how many outputs a model has, and what the card says of them
    ({"column": "y", "classes": ["0", "1", "2"]}, 3, "Classes, in the order of outputs: 0, 1, 2."),
    ({"outcome": "ordinal", "column": "y", "classes": ["0", "1", "2"]}, 2, "cumulative logits of the levels 0, 1, 2"),
    ({"outcome": "regression", "column": "y", "range": [0, 2]}, 1, "Outputs: [n, 1], the label scaled"),
    ({"outcome": "counts", "column": "y", "range": [0, 2]}, 1, "Outputs: [n, 1], the logarithm of the rate"),
    ({"outcome": "multi_label", "columns": ["z", "w"]}, 2, "Labels, in order: z, w."),
    ({"outcome": "survival", "time": "y", "event": "z", "range": [0, 2], "bins": 2}, 2, "bins end at 1, 2 "),
]


@pytest.mark.parametrize(("label", "outputs", "said"), LABELS, ids=[one[0].get("outcome", "classes") for one in LABELS])
def test_models_of_every_outcome_are_exported(tmp_path, label, outputs, said):
    """And say what the run's model says; writing compares them by what `dpfl predict` answers."""
    rows = {"x": range(24), "y": [0, 1, 2] * 8, "z": [0, 1] * 12, "w": [0, 0, 1, 1] * 6}
    schema = {"label": label, "columns": {"x": {"type": "number", "range": [0, 24]}}, "other_columns": "ignore"}
    frame = pandas.DataFrame(rows)
    federation = dpfl.Federation.from_table({"a": frame[:12], "b": frame[12:]}, schema)
    run = dpfl.train(
        federation,
        model="linear" if label.get("outcome") else "softmax",
        algorithm=dpfl.algorithms.MBSGD(lr=1.0),
        privacy=dpfl.Privacy(noise_multiplier=4.0),
        rounds=1,
        out=tmp_path / "runs",
        progress=False,
    )
    x = torch.linspace(-1, 1, 5).unsqueeze(1)
    folder = run.export(tmp_path / "out")
    with torch.no_grad():
        found = torch.export.load(folder / "model.pt2").module()(x)
        torch.testing.assert_close(found, run.model(x), rtol=1e-5, atol=1e-6)
    text = (folder / "README.md").read_text()
    assert found.shape == (5, outputs) and f"outputs: [n, {outputs}]" in text and said in text
    assert FROM_RECORDS not in text  # the schema is public


def test_the_card_says_how_a_table_becomes_records(tmp_path):
    """By what it says, cells become what the schema makes of them."""
    schema = {
        "label": {"outcome": "survival", "time": "days", "event": "dead", "range": [0, 40], "bins": 4},
        "columns": {
            "age": {"type": "integer", "range": [20, 80], "missing": "indicator", "default": 65},
            "sex": {"type": "category", "values": ["f", "m"]},
            "stage": {"type": "ordinal", "values": ["I", "II", "III"]},
            "grade": {"type": "category", "values": ["a", "b"], "other": True, "missing": "category"},
            "seen": {"type": "date", "range": [datetime.date(2020, 1, 1), "2020-12-31"], "outside": "refuse"},
        },
    }
    rows = {"age": [65, 50, 99], "sex": ["m", "f", "f"], "stage": ["I", "III", "II"], "grade": ["c", "b", "a"]}
    rows |= {"seen": ["2020-01-01", "2020-12-31", "2020-07-01"], "days": [5, 50, 7], "dead": [1, 0, 1]}
    frame = pandas.DataFrame({name: values * 8 for name, values in rows.items()}).assign(
        days=range(24), age=[None, *[50, 99, 65] * 7, 50, 99]
    )
    federation = dpfl.Federation.from_table({"a": frame[:12], "b": frame[12:]}, schema)
    run = dpfl.train(
        federation,
        model="linear",
        algorithm=dpfl.algorithms.MBSGD(lr=1.0),
        privacy=dpfl.Privacy(noise_multiplier=4.0),
        rounds=1,
        out=tmp_path / "runs",
        progress=False,
    )
    text = (run.export(tmp_path / "out") / "README.md").read_text()
    assert "bins end at 10, 20, 30, 40" in text
    said = dict(re.findall(r"^\| (\w+) \| (.* \| .*) \|$", text, re.MULTILINE))
    assert said == {
        "column": "features | how",
        "age": "age, age=missing | 2 * (x - 20) / 60 - 1, of 20 to 80; beyond is clipped; 0.5 for a cell without "
        "value, and 1 then, else 0",
        "sex": "sex=m | 1 for m, 0 for f",
        "stage": "stage | evenly from -1 (I) to 1 (III)",
        "grade": "grade=a, grade=b, grade=other, grade=missing | 1 for the cell's value, 0 for others; other: a value "
        "that is not listed; missing: a cell without value",
        "seen": "seen | 2 * (days since 2020-01-01) / 365 - 1, of 2020-01-01 to 2020-12-31; beyond is refused",
    }
    frame[:3].to_csv(tmp_path / "a.csv", index=False)
    age = [0.5, 2 * (50 - 20) / 60 - 1, 1.0]  # by hand, by what was said; the last is clipped
    seen = [-1, 1, 2 * 182 / 365 - 1]
    expected = [[age[0], 1, 1, -1, 0, 0, 1, 0, seen[0]], [age[1], 0, 0, 1, 0, 1, 0, 0, seen[1]]]
    expected += [[age[2], 0, 0, 0, 1, 0, 0, 0, seen[2]]]
    np.testing.assert_allclose(dpfl.read_tables(tmp_path / "a.csv", schema).features, expected, rtol=1e-6)
