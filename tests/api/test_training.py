"""`dpfl.train` is `dpfl run` in Python: the same keys, checks and bits; and what only Python can give."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import pickle
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from torch import nn

import dpfl_plugin as dpfl
from dpfl_plugin import interrupts, registry
from dpfl_plugin.api.objects import model_block
from dpfl_plugin.errors import ConfigError, DataError, DpflError, PluginError, TrainingError, UnsupportedError
from dpfl_plugin.given import MissingError
from tests.cli.command import charges, one_message, run, write
from tests.cli.command import dpfl as command

RNG = np.random.default_rng(5)
SILOS = {name: (RNG.normal(size=(30, 4)).astype(np.float32), RNG.integers(0, 3, 30)) for name in ("north", "south")}
SCAFFOLD = dpfl.algorithms.Scaffold(local_steps=2, local_lr=0.5)
PRIVACY = {"noise_multiplier": 4.0, "record_rate": 0.5}


def federation(**keys):
    return dpfl.Federation.load(
        "synthetic", num_features=4, num_classes=3, records_per_silo=30, **{"num_silos": 4, **keys}
    )


def train(tmp_path, records=None, **changes):
    given = {
        "algorithm": dpfl.algorithms.FedAvg(local_steps=2, local_lr=0.5),
        "privacy": PRIVACY,
        "rounds": 3,
        "seed": 3,
        "out": tmp_path / "python",
        **changes,
    }
    return dpfl.train(federation() if records is None else records, **given)


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


@pytest.mark.parametrize(
    ("in_yaml", "in_python"),
    [
        (
            {},
            {
                "algorithm": dpfl.algorithms.Scaffold(local_steps=2, local_lr=0.5),
                "privacy": dpfl.Privacy(clip_norm=1.0, **PRIVACY),
            },
        ),
        (
            {
                "model": {"name": "mlp", "hidden": [5]},
                "data": {"partition": {"name": "dirichlet", "alpha": 5.0}},
                "privacy": {"noise_multiplier": None, "epsilon": 3.0, "delta": 1e-3},
                "silo_rate": 0.5,
                "algorithm": {"name": "scaffold", "server_lr": 0.5},
            },
            {
                "records": {"partition": {"name": "dirichlet", "alpha": np.float64(5.0)}},
                "model": {"name": "mlp", "hidden": (5,)},
                "algorithm": dpfl.algorithms.Scaffold(local_steps=2, local_lr=0.5, server_lr=0.5, option="II"),
                "privacy": dpfl.Privacy(epsilon=3.0, delta=1e-3, clip_norm=1.0, record_rate=0.5),
                "silo_rate": 0.5,
            },
        ),
    ],
    ids=["defaults", "blocks"],
)
def test_the_same_words_are_the_same_run_to_the_bit(tmp_path, in_yaml, in_python, pictures):
    by_file = run(write(tmp_path, in_yaml))
    given = dict(in_python)
    found = train(tmp_path, federation(**given.pop("records", {})), rounds=6, **given)
    for key in ("id", "model_sha256", "test_accuracy", "epsilon", "status"):
        assert found.result[key] == by_file[key], key
    assert charges(found.folder) == charges(by_file["folder"])
    files, of_file = ({path.name for path in Path(f).iterdir()} for f in (found.folder, by_file["folder"]))
    assert files == of_file and "curves.png" in files


def test_a_run_knows_its_numbers_and_its_model(tmp_path):
    found = train(
        tmp_path, dpfl.Federation.from_arrays(SILOS), model=net(), privacy=dpfl.Privacy(epsilon=4, delta=1e-3)
    )
    assert found.status == "done" and 3.9 < found.epsilon <= 4 and found.delta == 1e-3
    assert found.accuracy == found.result["test_accuracy"]["last"] == found.lines[-1]["test_accuracy"]
    assert isinstance(found.history, pandas.DataFrame) and found.history["epsilon_server"].iloc[-1] == found.epsilon
    assert "# Privacy statement" in found.statement and "epsilon 4.000 at delta 0.001" in repr(found)
    for page in (found._repr_html_(), dpfl.compare([found, found])._repr_html_()):
        assert "data:image/png;base64,iVBOR" in page
    assert found.plot()._repr_png_().startswith(b"\x89PNG")
    outputs = found.model(torch.from_numpy(SILOS["north"][0]))
    again = dpfl.Run.open(found.folder)  # the objects are still here
    assert torch.equal(again.model(torch.from_numpy(SILOS["north"][0])), outputs) and again.epsilon == found.epsilon
    both = dpfl.compare({"one": found, "two": again})
    assert list(both.table.index) == ["one", "two"] == list(both)
    assert len(repr(both).splitlines()) == 4 and repr(both).endswith("\naccuracy: mean over silos, each counts alike.")
    assert f"accuracy {found.accuracy:.4f} (mean over silos), epsilon" in repr(found)


@pytest.mark.parametrize(
    ("runs", "labels"),
    [
        ([("a", "fedavg", 0), ("b", "fedavg", 0)], ["a", "b"]),
        ([("a", "fedavg", 0), ("a", "scaffold", 0)], ["a, fedavg", "a, scaffold"]),
        ([("a", "fedavg", 0), ("a", "fedavg", 1)], ["a, seed 0", "a, seed 1"]),
        ([("a", "fedavg", 0), ("a", "fedavg", 1), ("a", "scaffold", 0)], None),
        ([("a", "fedavg", 0)] * 3, ["a, fedavg, seed 0, x", "a, fedavg, seed 0, x (2)", "a, fedavg, seed 0, x (3)"]),
    ],
)
def test_runs_that_are_compared_are_told_apart(runs, labels):
    results = [{"name": name, "algorithm": algorithm, "seed": seed, "id": "x"} for name, algorithm, seed in runs]
    given = [dpfl.Run(Path(), result) for result in results]
    expected = labels or ["a, fedavg, seed 0", "a, fedavg, seed 1", "a, scaffold, seed 0"]
    assert list(dpfl.compare(given)) == expected and list(dpfl.compare(given).values()) == given


def test_a_model_of_the_program_stays_as_it_is(tmp_path):
    model = net()
    before = [parameter.clone() for parameter in model.parameters()]
    found = train(tmp_path, model=model)
    assert all(map(torch.equal, before, model.parameters()))
    assert not any(map(torch.equal, before, found.model.parameters()))


@pytest.mark.parametrize("model", [net, lambda: net(), lambda shape, classes: nn.Linear(shape[0], classes)])
def test_a_model_may_be_a_function_that_makes_it(tmp_path, model):
    assert train(tmp_path, model=model, rounds=1).status == "done"


def test_equal_objects_of_any_program_are_one_seeded_run_with_the_same_noise(tmp_path, monkeypatch):
    """In a script, and in a notebook, whose main module has no file."""
    losses = [nn.CrossEntropyLoss(reduction="none", label_smoothing=smoothing) for smoothing in (0.1, 0.1, 0.2)]
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    found = [
        train(tmp_path, model=net(), loss=loss, seed=3, out=tmp_path / str(number)).result
        for number, loss in enumerate(losses)
    ]
    for key in ("id", "model_sha256"):
        assert found[0][key] == found[1][key] != found[2][key]


def test_objects_that_no_digest_shows_are_different_runs():
    """Else the finished run of one would be shown as that of the other."""

    def factory(lock):
        return lambda: (lock, net())[1]

    one, other = factory(threading.Lock()), factory(threading.Lock())
    assert model_block(one)[0] == model_block(one)[0] != model_block(other)[0]
    assert model_block(net())[0] == model_block(net())[0] != model_block(nn.Linear(4, 3))[0]  # these a digest shows


def test_an_interrupted_run_goes_on_and_without_its_objects_says_which_are_missing(tmp_path, monkeypatch, capsys):
    asked = [0]

    def stop(self):
        asked[0] += 1
        return asked[0] > 4

    records, model = dpfl.Federation.from_arrays(SILOS), net()
    whole = train(tmp_path, records, model=model, rounds=6, seed=3, out=tmp_path / "whole")
    with monkeypatch.context() as patched:
        patched.setattr(interrupts.Stop, "__call__", stop)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path, records, model=model, rounds=6, seed=3)
    assert "interrupted; " in capsys.readouterr().err
    (config,) = (tmp_path / "python").glob("*/*/config.yaml")
    with pytest.raises(ConfigError, match="unfinished run"):
        train(tmp_path, records, model=model, rounds=6, seed=3)
    data, of_model = (line.split(":")[-1] for line in config.read_text().splitlines() if "dpfl_plugin.given" in line)
    whole = dpfl.Run.open(whole.folder)
    del records, model
    gc.collect()
    one_message(command("run", config, "--resume", "--out", tmp_path / "python"), f"the records ({data})", of_model)
    with pytest.raises(MissingError, match=of_model):
        dpfl.Run.open(whole.folder).model  # noqa: B018
    found = train(tmp_path, dpfl.Federation.from_arrays(SILOS), model=net(), rounds=6, seed=3, resume=True)
    assert found.result["model_sha256"] == whole.result["model_sha256"] and found.result["rounds"] == 6


def test_a_configuration_tells_nothing_of_what_records_hold(tmp_path):
    """It is shown to others, and the run's id follows from it: by a digest of the records guesses could be tried. In
    one process records that differ are told apart all the same, and each run reads its own."""
    other = {name: (x + 1, y) for name, (x, y) in SILOS.items()}
    names = []
    for silos in (SILOS, other):
        names.append(dpfl.Federation.from_arrays(silos).data)
        gc.collect()  # as in another process
    assert names[0] == names[1]
    first, second, again = (dpfl.Federation.from_arrays(silos) for silos in (SILOS, other, SILOS))
    assert first.data == again.data != second.data
    del again
    gc.collect()
    runs = [train(tmp_path, records, rounds=2) for records in (first, second)]
    assert runs[0].folder != runs[1].folder
    assert runs[0].result["model_sha256"] != runs[1].result["model_sha256"]


def test_a_pickled_result_holds_no_records(tmp_path):
    """It keeps the objects of its configuration alive, and who is sent the result must not be sent these."""
    mark = np.float32(123.456)
    given = {name: (np.where(np.arange(4) == 3, mark, x), y) for name, (x, y) in SILOS.items()}
    records = dpfl.Federation.from_arrays(given, classes=[0, 1, 2])
    made = train(tmp_path, records, model=net())
    sent = b""
    with contextlib.suppress(TypeError):  # which a Federation raises, as below
        sent = pickle.dumps({"one": made, "both": dpfl.compare({"one": made, "again": made})})
    assert sent and mark.tobytes() not in sent
    there = pickle.loads(sent)["one"]
    assert there.result == made.result and torch.equal(there.model[0].weight, made.model[0].weight)
    with pytest.raises(TypeError, match="would hold all records"):
        pickle.dumps(records)
    assert copy.deepcopy(records) == records


def test_without_out_a_run_has_a_folder_of_its_own_and_says_which(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folders = [train(tmp_path, out=None, rounds=1, callbacks=()).folder for _ in range(2)]
    assert folders[0] != folders[1] and all(Path("runs") == folder.parents[2] for folder in folders)
    assert f"folder: {folders[0].parent}" in capsys.readouterr().err


@dataclasses.dataclass(frozen=True)
class Boosted(dpfl.algorithms.FedAvg):
    """A field that is not keyword-only: no configuration names it."""

    boost: float = 1.0


def test_a_field_by_its_place_may_have_its_default(tmp_path):
    made = train(tmp_path, algorithm=Boosted(local_steps=2, local_lr=0.5))
    assert made.config.algorithm.module.endswith("test_training:Boosted")


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"rounds": 0}, ConfigError, "dpfl.train: rounds=0"),
        ({"round": 3}, ConfigError, r"round is not a known key \(did you mean 'rounds'\?\)"),
        ({"privacy": {"epsilonn": 2}}, ConfigError, "privacy.epsilonn is not a known key"),
        ({"privacy": {}}, ConfigError, "privacy.epsilon is missing"),
        ({"algorithm": "scafold"}, ConfigError, "did you mean 'scaffold'"),
        ({"algorithm": dpfl.algorithms.Scaffold}, ConfigError, r"is a class: give an instance .*Scaffold\(local_steps"),
        ({"algorithm": 3}, ConfigError, "algorithm=3 is a int, not an algorithm"),
        (
            {"algorithm": Boosted(local_steps=2, local_lr=0.5, boost=3.0)},
            PluginError,
            r"would not have boost=3\.0.*kw_only",
        ),
        (
            {"algorithm": dpfl.algorithms.FedAvg(local_steps="two" and 2, local_lr=0.5), "silo_rate": 0.01},
            ConfigError,
            "silo_rate",
        ),
        ({"model": 5}, ConfigError, "model=5 is a int: give an nn.Module"),
        ({"model": nn.BatchNorm1d(4)}, UnsupportedError, "BatchNorm1d.*batch statistics mix records"),
        ({"model": nn.Linear(5, 3)}, ConfigError, "fails on features of shape"),
        ({"model": lambda: 1 / 0}, ConfigError, "failed to build: ZeroDivisionError"),
        ({"loss": 7}, ConfigError, "loss=7 must be a name or a function"),
        ({"resume": True, "out": None}, ConfigError, "resume=True without out"),
        ({"data": {}}, ConfigError, "data comes from the federation"),
        ({"records": [1]}, ConfigError, "federation is a list: make one with dpfl.Federation.load"),
        ({"evaluation": {"every": object()}}, ConfigError, "which a configuration cannot hold"),
        ({"runtime": {"kind": "mpi"}}, UnsupportedError, "mpirun dpfl run FILE"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_written(tmp_path, changes, error, says):
    with pytest.raises(error, match=says):
        train(tmp_path, **changes)
    assert not list(tmp_path.glob("python/*/*/ledger.jsonl"))


def test_privacy_is_checked_where_it_is_written():
    with pytest.raises(ConfigError, match=r"Privacy: privacy.epsilonn is not a known key \(did you mean 'epsilon'"):
        dpfl.Privacy(epsilonn=3)
    with pytest.raises(ConfigError, match=r"privacy\.delta=2"):
        dpfl.Privacy(delta=2)


def test_a_run_that_fails_is_an_error_with_the_place_of_its_last_state(tmp_path):
    def loss(outputs, labels):
        if list(tmp_path.glob("python/*/*/checkpoint/state.safetensors")):
            raise ValueError("the programmer's own")
        return nn.functional.cross_entropy(outputs, labels, reduction="none")

    with pytest.raises(TrainingError, match=r"the programmer's own.*resume=True"):
        train(tmp_path, loss=loss, rounds=30, engine="vmap")


def test_an_unknown_run_is_named(tmp_path):
    with pytest.raises(DataError, match="no run ended there"):
        dpfl.Run.open(tmp_path)
    with pytest.raises(ConfigError, match="compare needs at least one run"):
        dpfl.compare([])
    with pytest.raises(ConfigError, match="is a int, not a Run"):
        dpfl.compare([3])
    assert issubclass(DataError, DpflError)


def test_every_algorithm_is_a_public_name():
    own = [n for n in registry.names("algorithms") if registry.origin("algorithms", n).startswith("dpfl-plugin ")]
    assert {registry.load("algorithms", name).__name__ for name in own} == set(dpfl.algorithms.__all__)
