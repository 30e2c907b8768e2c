"""`export`: what is written says what the run's model says, and the card claims no more than the run."""

import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import dpfl_plugin as dpfl
from dpfl_plugin.api.model_card import FROM_RECORDS, SIMULATED, UNPROTECTED
from dpfl_plugin.data.digits import digits
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.errors import ConfigError, UnsupportedError
from tests.cli.command import dpfl as command
from tests.cli.command import one_message

STEPS = [
    {"name": "scale", "factor": 2.0, "offset": -0.5},
    {"name": "standardise", "fit": "none", "mean": 0.1, "std": 0.4},
    "unit_norm",
]


def trained(tmp_path, **keys):
    options = {"model": "softmax", "preprocess": STEPS, "privacy": {"noise_multiplier": 4.0}} | keys
    federation = dpfl.Federation.load("digits", num_silos=2, preprocess=options.pop("preprocess"))
    step = dpfl.MBSGD(lr=1.0)
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
    assert {path.stat().st_mode & 0o077 for path in folder.iterdir()} == {0}  # access: owner, as in the run's folder
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
        ({"noise_multiplier": 4.0}, [SIMULATED, "* server: epsilon "], [UNPROTECTED]),
        ({"noise_multiplier": 4.0, "secure": True}, ["* server: epsilon "], [SIMULATED, UNPROTECTED]),
        ({"noise_multiplier": 0.0}, [UNPROTECTED, "* server: no epsilon holds"], [SIMULATED]),
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


@pytest.mark.parametrize(("classes", "shown"), [(["ill", "well"], True), (None, False)])
def test_names_of_classes_that_were_read_from_records_stay_here(tmp_path, classes, shown):
    rng = np.random.default_rng(0)
    records = {name: (rng.random((20, 3)), np.array(["ill", "well"] * 10)) for name in "ab"}
    run = dpfl.train(
        dpfl.Federation.from_arrays(records, classes=classes),
        algorithm=dpfl.MBSGD(lr=1.0),
        privacy={"noise_multiplier": 4.0},
        rounds=1,
        out=tmp_path / "runs",
        progress=False,
    )
    text = (run.export(tmp_path / "out") / "README.md").read_text()
    assert ("ill, well" in text) == shown and (FROM_RECORDS in text) != shown


def test_what_cannot_be_is_refused_and_nothing_is_written(tmp_path):
    run = trained(tmp_path, preprocess=[{"name": "hog", "cell": 4}])
    with pytest.raises(UnsupportedError, match=r"data\.preprocess\[0\]\.name='hog' cannot be part"):
        run.export(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match="it exists, and was left as it is"):
        run.export(tmp_path / "there")
    one_message(command("export", tmp_path / "nowhere", tmp_path / "out"), "is not the folder of a run")
