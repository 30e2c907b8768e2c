"""Runs of a program's own records, used in another process that has no records: all that is needed is the folder."""

import json
import os
import subprocess
import sys

import numpy as np
import pandas
import pytest
import torch
from safetensors.torch import load_file

import dpfl_plugin as dpfl
from dpfl_plugin.errors import ConfigError, DataError
from dpfl_plugin.given import MissingError
from tests.cli.command import dpfl as command
from tests.cli.command import one_message

PROGRAM = """
import json
import sys
from pathlib import Path

import numpy as np
import pandas
import torch

import dpfl_plugin as dpfl

rng = np.random.default_rng(0)
table = pandas.DataFrame({"age": rng.integers(20, 90, 160), "weight": rng.normal(70, 9, 160).round(1)})
table["sex"], table["site"] = rng.choice(["m", "f"], 160), rng.choice(["a", "b"], 160)
table["ill"], table["patient"] = np.where(table.age > 55, "yes", "no"), np.arange(160)
schema = {
    "label": {"column": "ill", "classes": ["no", "yes"]},
    "silo": "site",
    "other_columns": "ignore",
    "columns": {
        "age": {"type": "integer", "range": [18, 100]},
        "weight": {"type": "number", "range": [30, 200]},
        "sex": {"type": "category", "values": ["f", "m"]},
    },
}
plain = table[["weight", "age", "site"]].assign(label=table.ill)
x, y = plain[["weight", "age"]].to_numpy(np.float32), (table.ill == "yes").to_numpy().astype(int) + 3
silos = {site: (x[table.site == site], y[table.site == site]) for site in "ab"}
steps = [{"name": "scale", "factor": 0.01}, {"name": "parity"}]
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))


def loss(outputs, labels):
    return torch.nn.functional.cross_entropy(outputs, labels, reduction="none")


def trained(name, records, **keys):
    step = dpfl.algorithms.FedAvg(local_steps=2, local_lr=0.5)
    privacy = dpfl.Privacy(epsilon=4, delta=1e-3, randomness="fresh")
    given = {"algorithm": step, "privacy": privacy, "rounds": 2, "out": "runs", "progress": False, **keys}
    return dpfl.train(records, name=name, **given)


arrays = dpfl.Federation.from_arrays(silos)
new = table.head(9)
asked = {
    "schema": (trained("schema", dpfl.Federation.from_table(table, schema), model="mlp"), new),
    "frame": (trained("frame", dpfl.Federation.from_frame(plain, label="label", silo="site")), plain.head(9)),
    "arrays": (trained("arrays", dpfl.Federation.from_arrays(silos, preprocess=steps), model="mlp"), x[:9]),
    "net": (trained("net", arrays, model=net), x[:9]),
    "loss": (trained("loss", arrays, loss=loss), x[:9]),
}
fitted = dpfl.Federation.from_arrays(silos, preprocess=[{"name": "standardise"}, {"name": "pca", "dims": 1}])
folders = {"fitted": str(trained("fitted", fitted).folder)}
said = {}
for name, (run, records) in asked.items():
    folders[name] = str(run.folder)
    predicted = dpfl.predict(run, records)
    said[name] = {"rows": predicted.rows, "accuracy": predicted.accuracy, "classes": predicted.classes}
new.to_csv("schema.csv", index=False)
plain.head(9).to_csv("frame.csv", index=False)
np.savez("arrays.npz", x=x[:9], y=y[:9])
Path("said.json").write_text(json.dumps([folders, said]))
"""
MODULE = """
import torch


def make(feature_shape, num_classes):
    return torch.nn.Sequential(torch.nn.Linear(feature_shape[0], 3), torch.nn.Tanh(), torch.nn.Linear(3, num_classes))
"""


def program(folder):
    """Run `PROGRAM` there: ({name: run's folder}, {name: what was said of new records})."""
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=folder, env=dict(os.environ), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    folders, said = json.loads((folder / "said.json").read_text())
    return {name: folder / path for name, path in folders.items()}, said


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    (folder / "program.py").write_text(PROGRAM)
    return folder


@pytest.fixture(scope="module")
def runs(place):
    return program(place)


def records(place, name):
    """What the program asked about, as it had it; read from a file here."""
    if name == "arrays":
        return np.load(place / "arrays.npz")["x"]
    return pandas.read_csv(place / f"{name}.csv")


@pytest.mark.parametrize("name", ["schema", "frame", "arrays"])
def test_predictions_are_those_of_the_process_that_trained(place, runs, name):
    folder, said = runs[0][name], runs[1][name]
    found = dpfl.predict(folder, records(place, name))
    assert found.rows == said["rows"] and list(found.classes) == said["classes"] and found.accuracy == said["accuracy"]
    assert dpfl.predict(dpfl.Run.open(folder), records(place, name)).rows == said["rows"]
    file = place / f"{name}.{'npz' if name == 'arrays' else 'csv'}"
    by_file = dpfl.predict(folder, file)
    assert [row["probabilities"] for row in by_file.rows] == [row["probabilities"] for row in said["rows"]]
    assert by_file.accuracy is not None and by_file.accuracy == (said["accuracy"] or by_file.accuracy)
    done = command("predict", folder, file)
    assert done.code == 0 and done.out == by_file.to_csv()


def test_a_column_of_the_new_records_goes_along(place, runs):
    for data in (place / "schema.csv", records(place, "schema")):
        found = dpfl.predict(runs[0]["schema"], data, id_column="patient")
        assert [row["patient"] for row in found.rows] == [str(number) for number in range(9)]


def test_new_records_of_another_kind_are_refused(place, runs):
    with pytest.raises(DataError, match="shape"):
        dpfl.predict(runs[0]["arrays"], np.zeros((2, 3)))
    with pytest.raises(DataError, match="weight"):
        dpfl.predict(runs[0]["frame"], records(place, "frame").drop(columns="weight"))
    with pytest.raises(DataError, match="weight"):
        dpfl.predict(runs[0]["schema"], records(place, "schema").drop(columns="weight"))


@pytest.mark.parametrize("name", ["schema", "frame", "arrays", "fitted"])
def test_the_model_is_there(runs, name):
    """Also behind steps that were fitted to the records: they say of what shape features are, whatever they hold."""
    folder = runs[0][name]
    found, kept = dpfl.Run.open(folder).model.state_dict(), load_file(folder / "model.safetensors")
    assert found.keys() == kept.keys() and all(torch.equal(found[key], kept[key]) for key in kept)


@pytest.mark.parametrize("name", ["schema", "frame", "arrays"])
def test_the_model_is_exported(runs, name, tmp_path):
    folder = runs[0][name]
    dpfl.Run.open(folder).export(tmp_path / "python")
    assert command("export", folder, tmp_path / "command").code == 0
    for made in (tmp_path / "python", tmp_path / "command"):
        (count,) = dpfl.Run.open(folder).result["inputs"]["shape"]
        assert torch.export.load(made / "model.pt2").module()(torch.zeros(4, count)).shape == (4, 2)


@pytest.mark.parametrize(("name", "kind"), [("net", "model"), ("loss", "loss")])
def test_what_a_model_is_made_of_is_needed(runs, name, kind, tmp_path):
    folder = runs[0][name]
    asked = (
        lambda: dpfl.predict(folder, np.zeros((2, 2))),
        lambda: dpfl.Run.open(folder).model,
        lambda: dpfl.Run.open(folder).export(tmp_path / "out"),
    )
    for use in asked:
        with pytest.raises(MissingError, match=rf"the {kind} \({kind}_.*no command has them") as caught:
            use()
        assert "the records" not in str(caught.value)
    one_message(command("predict", folder, folder / "silos.csv"), f"the {kind} ({kind}_", "the program that trained it")
    one_message(command("export", folder, tmp_path / "out"), f"the {kind} ({kind}_")


def test_a_model_of_a_module_is_found_and_must_be_what_it_was(tmp_path):
    (tmp_path / "model_made_later.py").write_text(MODULE)
    x = "np.linspace(-1, 1, 80, dtype=np.float32).reshape(40, 2)"
    train = f"""
silos = {{name: (shift + {x}, np.arange(40) % 2) for shift, name in enumerate("ab")}}
run = dpfl.train(
    dpfl.Federation.from_arrays(silos), model={{"module": "model_made_later:make"}},
    privacy={{"noise_multiplier": 4.0}}, algorithm=dpfl.algorithms.MBSGD(lr=1.0), rounds=1, out="runs", progress=False,
)"""
    opened, again = "run = dpfl.Run.open(sys.argv[1])", f"\nprint(run.model, dpfl.predict(run, {x}).rows)"
    done = python(tmp_path, train + again + "\nprint(run.folder)")
    assert done.returncode == 0, done.stderr
    said, folder = done.stdout.strip().rsplit("\n", 1)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = python(elsewhere, opened + again, tmp_path / folder)
    assert done.returncode == 0 and done.stdout.strip() == said, done.stderr
    (tmp_path / "model_made_later.py").write_text(MODULE.replace("Tanh", "ReLU"))
    done = python(elsewhere, opened + again, tmp_path / folder)
    assert "OtherCodeError" in done.stderr and "model_made_later" in done.stderr


def python(folder, code, *args):
    """A Python of its own that runs ``code`` in a folder."""
    command = [sys.executable, "-c", f"import sys, numpy as np, dpfl_plugin as dpfl\n{code}", *map(str, args)]
    return subprocess.run(command, cwd=folder, env=dict(os.environ), capture_output=True, text=True, timeout=300)


def test_the_advice_helps(place, runs):
    """The unchanged program, run again: the finished run is shown, and its model used."""
    ledger = (runs[0]["net"] / "ledger.jsonl").read_bytes()
    folders, said = program(place)
    assert (folders, said) == runs and (runs[0]["net"] / "ledger.jsonl").read_bytes() == ledger


def test_a_run_of_an_earlier_version_says_what_it_lacks(place, runs, tmp_path):
    folder = tmp_path / "runs" / "arrays" / runs[0]["arrays"].name
    folder.mkdir(parents=True)
    for file in runs[0]["arrays"].iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    result = json.loads((folder / "result.json").read_text())
    del result["inputs"]
    (folder / "result.json").write_text(json.dumps(result))
    with pytest.raises(MissingError, match=r"the records \(data_.*resume=True"):
        dpfl.Run.open(folder).model  # noqa: B018
    with pytest.raises(ConfigError, match="earlier version"):
        dpfl.predict(folder, np.zeros((2, 2)))


def test_what_needs_no_model_works_too(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = runs[0]["schema"]
    statement, account, report = (command(name, folder) for name in ("statement", "account", "report"))
    assert (statement.code, account.code, report.code) == (0, 0, 0), (statement.err, account.err, report.err)
    assert "epsilon" in statement.out and folder.name in account.out
    assert (tmp_path / "report" / "index.html").is_file()
