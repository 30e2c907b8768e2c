"""Whatever a program gives wrongly is told in one message that names it; nothing is released, and nothing written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import nn

import dpfl_plugin as dpfl
from dpfl_plugin.errors import DpflError

RNG = np.random.default_rng(5)
X, Y = RNG.normal(size=(30, 4)).astype(np.float32), RNG.integers(0, 3, 30)
NAN = np.where(np.arange(120).reshape(30, 4) == 9, np.nan, X)
NUMBERS = {"num_features": 4, "num_classes": 3, "records_per_silo": 30, "num_silos": 4}
Frame, Arrays, Sets = dpfl.Federation.from_frame, dpfl.Federation.from_arrays, dpfl.Federation.from_datasets
Load = dpfl.Federation.load


def refused(call: Any, *says: str) -> None:
    """One message of the product's, which says each of ``says``, and nothing of the inside."""
    with pytest.raises(DpflError) as raised:
        call()
    said = str(raised.value)
    assert all(part in said for part in says), said
    assert "Traceback" not in said and "site-packages" not in said and len(said) < 900, said


TRAIN: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "unknown keyword": ({"silo_rat": 0.5}, ("silo_rat is not a known key", "did you mean 'silo_rate'")),
    "no rounds": ({"rounds": 0}, ("rounds=0", "greater than or equal to 1")),
    "rounds in words": ({"rounds": "ten"}, ("rounds='ten'",)),
    "half a round": ({"rounds": 2.5}, ("rounds=2.5",)),
    "a seed that is text": ({"seed": "x"}, ("seed='x'",)),
    "a rate above 1": ({"silo_rate": 2}, ("silo_rate=2",)),
    "a name that is a path": ({"name": "a/b"}, ("name='a/b'",)),
    "a key that is an object": ({"evaluation": {"every": object()}}, ("evaluation", "is a object")),
    "epsilon 0": ({"privacy": {"epsilon": 0}}, ("privacy.epsilon=0", "greater than 0")),
    "epsilon nan": ({"privacy": {"epsilon": float("nan")}}, ("privacy.epsilon=nan",)),
    "no privacy": ({"privacy": None}, ("privacy=None", "dpfl.Privacy(")),
    "privacy as a number": ({"privacy": 4}, ("privacy=4", "dpfl.Privacy(")),
    "privacy as a class": ({"privacy": dpfl.Privacy}, ("privacy=", "dpfl.Privacy(")),
    "no algorithm": ({"algorithm": None}, ("algorithm=None", "not an algorithm: give a name")),
    "a number of another type": (
        {"algorithm": {"name": "fedavg", "local_steps": "two", "local_lr": 1}},
        ("local_steps='two'",),
    ),
    "a name of others": (
        {"algorithm": {"name": "FedAdam"}},
        ("did you mean algorithm: fedavg with server_optimizer: adam?",),
    ),
    "no steps": ({"algorithm": {"name": "fedavg", "local_steps": 0, "local_lr": 1}}, ("algorithm.local_steps=0",)),
    "no model": ({"model": None}, ("model=None", "give an nn.Module")),
    "other outputs": (
        {"model": nn.Linear(4, 2)},
        ("maps features (3, 4) to (3, 2)", "must be (3, 3)"),
    ),
    "other inputs": ({"model": nn.Linear(7, 3)}, ("fails on features of shape (3, 4)",)),
    "outputs in a tuple": ({"model": nn.LSTM(4, 3)}, ("maps features (3, 4) to a tuple", "dpfl_plugin.FieldsModel")),
    "a factory of nothing": ({"model": lambda: None}, ("the factory returned a NoneType",)),
    "an unknown loss": ({"loss": "crossentropy"}, ("loss='crossentropy'", "did you mean 'cross_entropy'")),
    "a mean loss": ({"loss": nn.CrossEntropyLoss()}, ("must give one value for each record", "it gives ()")),
    "a loss that is none": ({"loss": lambda outputs, labels: "x"}, ("fails on made-up records",)),
    "a loss of outputs": ({"loss": lambda outputs, labels: outputs}, ("one value for each record, (2,)",)),
    "a loss of nothing": (
        {"loss": lambda outputs, labels: torch.zeros(len(outputs))},
        ("loss=", "does not depend on the model's outputs"),
    ),
    "callbacks that are none": ({"callbacks": [5]}, ("callbacks[0]=5",)),
    "a callback alone": ({"callbacks": "tensorboard"}, ("callbacks='tensorboard' must be a list",)),
    "no callbacks": ({"callbacks": None}, ("callbacks=None must be a list",)),
    "out as a number": ({"out": 5}, ("out=5 must be a path",)),
    "out of nothing": ({"out": ""}, ("out='' must be a path",)),
    "a ledger as a number": ({"ledger": 5}, ("ledger=5 must be a path",)),
    "a ledger nowhere": ({"ledger": "no/such/folder"}, ("ledger no/such/folder: must be a file in a folder",)),
    "resume in words": ({"resume": "yes"}, ("resume='yes' must be True or False",)),
    "profile in words": ({"profile": "yes"}, ("profile='yes' must be True or False",)),
    "progress in words": ({"progress": "yes"}, ("progress='yes' must be",)),
}


@pytest.mark.parametrize(("changes", "says"), TRAIN.values(), ids=TRAIN)
def test_an_argument_of_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: Any, says: Any) -> None:
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {
        "algorithm": dpfl.algorithms.FedAvg(local_steps=2, local_lr=0.5),
        "privacy": {"noise_multiplier": 4.0},
        "rounds": 2,
        **changes,
    }
    refused(lambda: dpfl.train(Load("synthetic", **NUMBERS), **given), *says)
    assert not list(tmp_path.rglob("ledger.jsonl"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"epsilon": 0}, "privacy.epsilon=0"),
        ({"epsilonn": 1}, "privacy.epsilonn is not a known key (did you mean 'epsilon'?)"),
        ({"epsilon": 1, "delta": 1}, "privacy.delta=1"),
        ({"epsilon": 1, "clip_norm": -1}, "privacy.clip_norm=-1"),
        ({"epsilon": 1, "unit": "user"}, "privacy.unit='user'"),
        ({"epsilon": 1, "unit": "person"}, "privacy: max_records_per_person is missing"),
        ({"epsilon": 1, "record_rate": "half"}, "privacy.record_rate='half'"),
    ],
)
def test_an_argument_of_privacy(changes: dict[str, Any], says: str) -> None:
    refused(lambda: dpfl.Privacy(**changes), says)


@pytest.mark.parametrize("algorithm", [dpfl.algorithms.FedAvg, dpfl.algorithms.Scaffold, dpfl.algorithms.ScaffoldWarm])
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"local_steps": 0}, "local_steps=0 must be at least 1, a whole number"),
        ({"local_steps": "two"}, "local_steps='two' must be"),
        ({"local_steps": 1.5}, "local_steps=1.5 must be"),
        ({"local_lr": -1.0}, "local_lr=-1.0 must be positive"),
        ({"local_lr": float("nan")}, "local_lr=nan must be positive"),
        ({"local_lr": "fast"}, "local_lr='fast' must be positive"),
        ({"local_lr": None}, "give exactly one of them"),
    ],
)
def test_an_argument_of_an_algorithm(algorithm: Any, changes: dict[str, Any], says: str) -> None:
    refused(lambda: algorithm(**{"local_steps": 2, "local_lr": 0.5, **changes}), says)


FEDERATIONS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "no data set": (lambda: Load(None), ("dataset=None must be",)),
    "a data set as a number": (lambda: Load(5), ("dataset=5 must be",)),
    "an unknown data set": (lambda: Load("synthetik"), ("there is no dataset 'synthetik'", "'synthetic'")),
    "another library's word": (lambda: Load("synthetic", num_clients=3), ("(did you mean 'num_silos'?)",)),
    "an unknown option": (lambda: Load("synthetic", num_silo=3), ("num_silo is not a known key", "'num_silos'")),
    "no silos": (lambda: Load("synthetic", **{**NUMBERS, "num_silos": 0}), ("data.num_silos=0",)),
    "a step in words": (lambda: Load("synthetic", **NUMBERS, preprocess="unit_norm"), ("data.preprocess='unit_norm'",)),
    "arrays in a list": (lambda: Arrays([(X, Y)]), ("from_arrays needs a mapping",)),
    "no arrays": (lambda: Arrays({}), ("of at least one silo",)),
    "labels missing": (lambda: Arrays({"a": (X,)}), ("silo 'a'", "a pair (features, labels)")),
    "labels of None": (lambda: Arrays({"a": (X, None)}), ("silo a: labels must be",)),
    "other lengths": (lambda: Arrays({"a": (X, Y[:-1])}), ("silo a: labels", "30 rows of features", "(29,)")),
    "no records": (lambda: Arrays({"a": (X, Y), "b": (X[:0], Y[:0])}), ("silo b", "no records")),
    "not a number": (lambda: Arrays({"a": (NAN, Y)}), ("silo a: the feature at (2, 1) is nan",)),
    "labels between": (lambda: Arrays({"a": (X, Y + 0.5)}), ("silo a: labels must be one whole number",)),
    "rows of many lengths": (lambda: Arrays({"a": ([[1, 2], [3]], [0, 1])}), ("silo 'a'", "rows of one length")),
    "a number alone": (lambda: Arrays({"a": (np.float32(1), 0)}), ("silo a", "[records, ...]")),
    "words": (lambda: Arrays({"a": (X.astype(str), Y)}), ("silo a: features must be numbers",)),
    "other columns": (lambda: Arrays({"a": (X, Y), "b": (X[:, :3], Y)}), ("silo b: features (3,)", "silo a has (4,)")),
    "a class left out": (lambda: Arrays({"a": (X, Y)}, classes=[0, 1]), ("silo a", "'2' is not one of the classes")),
    "classes as a number": (lambda: Arrays({"a": (X, Y)}, classes=3), ("classes=3 must be a list",)),
    "classes as a word": (lambda: Arrays({"a": (X, Y)}, classes="012"), ("classes='012' must be a list",)),
    "a silo called None": (lambda: Arrays({None: (X, Y)}), ("silo's name None",)),
    "one class": (lambda: Arrays({"a": (X, Y * 0)}), ("a classifier needs at least 2 classes",)),
    "sets of nothing": (lambda: Sets({"a": None}), ("silo a", "NoneType")),
    "a set without records": (
        lambda: Sets({"a": torch.utils.data.TensorDataset(torch.zeros(0, 4), torch.zeros(0).long())}),
        ("silo a", "no records"),
    ),
    "a set without labels": (
        lambda: Sets({"a": torch.utils.data.TensorDataset(torch.zeros(5, 4))}),
        ("silo a", "pairs of features and labels"),
    ),
}


@pytest.mark.parametrize(("call", "says"), FEDERATIONS.values(), ids=FEDERATIONS)
def test_records_of_a_program(call: Any, says: tuple[str, ...]) -> None:
    refused(call, *says)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"label": "label"}, "label='label': the data frame has no such column. Columns: h, x, ill"),
        ({"silo": "hh"}, "silo='hh' (did you mean 'h'?)"),
        ({"label": 3}, "label=3 must be the name of a column, as text. Where columns are numbered, frame.columns ="),
        ({"silo": 3}, "silo=3 must be"),
        ({"ignore_columns": ["z"]}, "ignore_columns='z'"),
        ({"ignore_columns": "x"}, "ignore_columns='x' must be a list"),
        ({"classes": [0]}, "'1' is not one of the classes 0"),
        ({"test_frac": 0.1}, "did you mean 'test_fraction'?"),
        ({"test_fraction": 2}, "data.test_fraction=2"),
        ({"frame": {"x": [1]}}, "needs a pandas DataFrame, not a dict"),
        ({"x": float("nan")}, "row 3, column 'x' is empty"),
        ({"x": float("inf")}, "row 3, column 'x'"),
        ({"ill": None}, "row 3, column 'ill' is empty"),
    ],
)
def test_a_data_frame(changes: dict[str, Any], says: str) -> None:
    frame = pandas.DataFrame({"h": ["a", "b"] * 15, "x": X[:, 0].astype(float), "ill": [0, 1, 1] * 10})
    given = {"silo": "h", "label": "ill", **changes}
    for column in ("x", "ill"):
        if column in given:
            frame[column] = frame[column].astype(object)
            frame.loc[3, column] = given.pop(column)
    refused(lambda: Frame(given.pop("frame", frame), **given), says)
    refused(lambda: Frame(frame.set_axis(range(3), axis=1), label="2"), "numbers for names of columns: frame.columns =")


OTHERS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "load": (lambda: dpfl.load(5), ("experiment=5 must be",)),
    "audit": (lambda: dpfl.audit(None), ("experiment=None must be",)),
    "attack": (lambda: dpfl.attack(5), ("experiment=5 must be",)),
    "attack half a silo": (lambda: dpfl.attack("x.yaml", silo=0.5), ("silo=0.5 must be",)),
    "attack no seed": (lambda: dpfl.attack("x.yaml", repeats=0), ("repeats=0 must be",)),
    "attack into a number": (lambda: dpfl.attack("x.yaml", out=5), ("out=5 must be a path",)),
    "attack in words": (lambda: dpfl.attack("x.yaml", progress="yes"), ("progress='yes' must be",)),
    "limits": (lambda: dpfl.limits(5), ("file=5 must be",)),
    "plugins": (lambda: dpfl.plugins("engine"), ("there is no group 'engine'", "did you mean 'engines'")),
    "plugins by number": (lambda: dpfl.plugins(5), ("there is no group 5", "Known: algorithms")),
    "engines": (lambda: dpfl.engines(5), ("experiment=5 must be",)),
    "plan": (lambda: dpfl.plan(5), ("experiment=5 must be",)),
    "check": (lambda: dpfl.check(5), ("experiment=5 must be",)),
    "account": (lambda: dpfl.account(5), ("experiment=5 must be",)),
    "resume": (lambda: dpfl.resume(5), ("folder=5 must be",)),
    "predict": (lambda: dpfl.predict(5, "x.csv"), ("run=5 must be",)),
    "predict for a frame": (lambda: dpfl.predict("run", 5), ("data is of type int: give the path of",)),
    "report": (lambda: dpfl.report(5), ("folders=5 must be",)),
    "report of nothing": (lambda: dpfl.report("no/such"), ("no/such is not a folder",)),
    "compare": (lambda: dpfl.compare(None), ("runs=None must be",)),
    "compare others": (lambda: dpfl.compare([3]), ("is a int, not a Run",)),
    "open": (lambda: dpfl.Run.open(5), ("folder=5 must be",)),
    "ledger": (lambda: dpfl.Ledger.open(5), ("path=5 must be",)),
}


@pytest.mark.parametrize(("call", "says"), OTHERS.values(), ids=OTHERS)
def test_an_argument_of_the_other_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any, says: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(call, *says)


def test_a_folder_of_another_run(tmp_path: Path) -> None:
    """An unfinished run of the same configuration is gone on with or left; one of another has its own folder."""
    given: dict[str, Any] = {
        "algorithm": dpfl.algorithms.FedAvg(local_steps=2, local_lr=0.5),
        "privacy": {"noise_multiplier": 4.0},
        "out": tmp_path,
        "rounds": 1,
    }
    run = dpfl.train(Load("synthetic", **NUMBERS), **given)
    (run.folder / "result.json").unlink()
    refused(lambda: dpfl.train(Load("synthetic", **NUMBERS), **given), "holds an unfinished run", "Use resume", "out")
    other = dpfl.train(Load("synthetic", **NUMBERS), **{**given, "rounds": 2})
    assert other.folder != run.folder


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"label": "ill"}, "label has no meaning without data"),
        ({"data": "rows.csv"}, "label is missing: which column of rows.csv is to be predicted? Columns: age, ill."),
        ({"data": "rows.csv", "label": "il"}, "label='il' (did you mean 'ill'?)"),
        ({"data": "rows.csv", "label": "ill", "person": "age"}, "person has no meaning without a schema"),
        ({"data": "rows.csv", "guess_label": True, "schema": True}, "guess_label is for CSV files of numbers"),
        ({"data": "none.csv", "label": "ill"}, "'none.csv': there is no such file"),
    ],
)
def test_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], says: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("age,ill\n1,y\n2,n\n")
    refused(lambda: dpfl.init("new", **given), says)
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: dpfl.epsilon(noise_multiplier="1", steps=3, delta=1e-5), "noise_multiplier='1'"),  # type: ignore[arg-type]
        (lambda: dpfl.epsilon(noise_multiplier=1, steps=3, delta="1e-5"), "delta='1e-5'"),  # type: ignore[arg-type]
        (lambda: dpfl.calibrate(epsilon="2", delta=1e-5, steps=3), "epsilon='2'"),  # type: ignore[arg-type]
        (lambda: dpfl.sweep(7), "experiment=7 must be the path of a configuration"),
        (lambda: dpfl.sweep("sweep.yaml", progress=1), "progress=1 must be True, False or None"),
        (lambda: dpfl.sweep("sweep.yaml", jobs=0), "jobs=0 must be a whole number of at least 1"),
        (lambda: dpfl.sweep("sweep.yaml", pack=True), "pack=True"),
        (lambda: dpfl.sweep("sweep.yaml", "rounds=2"), "settings='rounds=2' must be a list"),
    ],
)
def test_numbers_and_counts(call: Any, says: str) -> None:
    refused(call, says)
