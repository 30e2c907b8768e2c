"""Models and losses of users' own, by the command: what runs, what is refused, and what is said."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dpfl_plugin import registry
from tests.cli.command import dpfl, one_message, run, write

MINE = """
import torch
from opacus.layers import DPGRU, DPLSTM, DPRNN
from torch import nn
from torch.nn import functional

def balanced(outputs, labels):
    counts = torch.bincount(labels, minlength=outputs.shape[1])
    losses = functional.cross_entropy(outputs, labels, reduction="none")
    return losses * (len(labels) / (outputs.shape[1] * counts[labels]))

class Recurrent(nn.Module):
    def __init__(self, kind, num_classes):
        super().__init__()
        self.cells, self.head = kind(1, 3, batch_first=True), nn.Linear(3, num_classes)

    def forward(self, x):
        return self.head(self.cells(x.unsqueeze(-1))[0][:, -1])

def lstm(shape, num_classes): return Recurrent(DPLSTM, num_classes)
def gru(shape, num_classes): return Recurrent(DPGRU, num_classes)
def rnn(shape, num_classes): return Recurrent(DPRNN, num_classes)
def torchs_gru(shape, num_classes): return Recurrent(nn.GRU, num_classes)
def torchs_lstm(shape, num_classes): return Recurrent(nn.LSTM, num_classes)

def tied_beside(shape, num_classes):
    model = nn.Sequential(rnn(shape, num_classes), nn.Linear(3, 3))
    model[1].weight = model[0].cells.l0.hh.weight
    return model

def tied(shape, num_classes):
    first, second = nn.Linear(*shape, *shape), nn.Linear(*shape, *shape)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second, nn.Linear(*shape, num_classes))

def registered_twice(shape, num_classes):
    layer = nn.Linear(*shape, *shape)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(*shape, num_classes))

class CalledTwice(nn.Module):
    def __init__(self, shape, num_classes):
        super().__init__()
        self.layer, self.head = nn.Linear(*shape, *shape), nn.Linear(*shape, num_classes)

    def forward(self, x):
        return self.head(self.layer(torch.tanh(self.layer(x))))

def sized_wrongly(shape, num_classes):
    return nn.Linear(str(shape), num_classes)

class Fails(nn.Module):
    def __init__(self, shape, num_classes):
        super().__init__()
        self.head = nn.Linear(*shape, num_classes)

    def forward(self, x):
        return self.head(x)[:, :, 0]
"""
RECURRENT = ("bookkeeping", "opacus", "vmap")


@pytest.fixture(autouse=True)
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)


def config(tmp_path: Path, model: str, **changes: Any) -> Path:
    return write(tmp_path, {"model": {"module": f"mine:{model}"}, **changes})


def line_of(text: str) -> str:
    """Where ``text`` is in the users' file."""
    return f"mine.py, line {MINE[: MINE.index(text)].count(chr(10)) + 1})"


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_opacus_recurrent_layers_run_by_every_engine_for_them_to_the_same_model(tmp_path: Path, kind: str) -> None:
    """All records in every batch and no noise, so that runs differ in the sums of clipped gradients alone."""
    privacy = {"clip_norm": 0.1, "noise_multiplier": 0, "record_rate": 1.0}
    path, models = config(tmp_path, kind, runtime={"dtype": "float64"}, rounds=3, privacy=privacy), {}
    for engine in RECURRENT:
        result = run(path, "--set", f"engine={engine}")
        assert result["engine"] == engine
        models[engine] = load_file(Path(result["folder"]) / "model.safetensors")
    first = models["vmap"]
    for found in models.values():
        for name, value in first.items():
            torch.testing.assert_close(found[name], value, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("tied", "0.weight and 2.weight"),
        ("registered_twice", "0.weight and 2.weight"),
        ("tied_beside", "0.cells.weight_hh_l0 and 1.weight"),
    ],
)
@pytest.mark.parametrize("engine", ["auto", "opacus", "vmap"])
def test_shared_parameters_are_refused_and_the_error_says_what_to_do(
    tmp_path: Path, model: str, names: str, engine: str
) -> None:
    done = dpfl("run", config(tmp_path, model, engine=engine), "--out", tmp_path / "runs")
    one_message(done, f"{names} are the same parameter", "give each layer its own", "call it several times in forward")
    assert not (tmp_path / "runs").exists()


def test_a_layer_that_is_called_twice_runs(tmp_path: Path) -> None:
    assert run(config(tmp_path, "CalledTwice"))["status"] == "done"


@pytest.mark.parametrize("command", [("run",), ("list", "engines", "--for")])
def test_a_loss_that_weighs_classes_by_the_batch_is_refused(tmp_path: Path, command: tuple[str, ...]) -> None:
    """Of the default model, which starts at 0, where all losses are ln 3."""
    one_message(dpfl(*command, write(tmp_path, {"loss": "mine:balanced"})), "depends on the other records of its batch")


def test_where_no_engine_supports_a_model_each_says_why_in_a_line_and_what_to_do_is_last(tmp_path: Path) -> None:
    path = config(tmp_path, "torchs_gru")
    done = dpfl("run", path, "--out", tmp_path / "runs")
    one_message(done, "no engine supports this model.\n")
    lines = done.err.strip().split("\n")[1:]
    assert {line.split(":")[0] for line in lines[:-1]} == {f"  {name}" for name in registry.names("engines")}
    assert lines[-1].startswith("cells: Write opacus.layers.DPGRU in its place")


@pytest.mark.parametrize(
    ("options", "part"),
    [((), "no engine supports this model"), (("--set", "engine=vmap"), "engine='vmap' cannot be used")],
)
def test_engines_are_listed_and_then_the_command_fails_as_the_run_would(
    tmp_path: Path, options: tuple[str, ...], part: str
) -> None:
    done = dpfl("list", "engines", "--for", config(tmp_path, "torchs_gru"), *options)
    assert done.code == 2 and part in done.err and "Traceback" not in done.err
    assert "no: cells: GRU" in done.out and "The estimate decides" not in done.out and "chosen" not in done.out
    listed = dpfl("list", "engines", "--for", tmp_path / "config.yaml", "--json", *options)
    assert listed.code == 2 and not any(line["supported"] for line in listed.json["engines"])


def test_errors_in_users_code_tell_its_place(tmp_path: Path) -> None:
    for model, text in (("sized_wrongly", "return nn.Linear(str(shape)"), ("Fails", "return self.head(x)[:, :, 0]")):
        one_message(dpfl("run", config(tmp_path, model)), f"mine:{model}", line_of(text))


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_losses_of_two_classes_say_so(tmp_path: Path, loss: str) -> None:
    one_message(dpfl("run", write(tmp_path, {"loss": loss})), f"loss='{loss}' is for 2 classes", "has 3 outputs")


def test_a_device_that_is_none(tmp_path: Path) -> None:
    done = dpfl("run", write(tmp_path, {"runtime": {"device": "gpu"}}))
    one_message(done, "runtime.device='gpu' is not a valid device; use cpu, cuda or cuda:N")
    assert "mkldnn" not in done.err  # torch's list of all that there are


def test_what_is_faster_than_a_layer_of_torch_is_said_once_and_not_by_torch(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """Torch asks users to file an issue."""
    warnings.simplefilter("always")
    done = dpfl("run", config(tmp_path, "torchs_lstm", rounds=2), "--out", tmp_path / "runs")
    assert done.code == 0 and done.err.count("cells: Write opacus.layers.DPLSTM in its place") == 1, done.err
    assert not [one for one in recwarn if "performance drop" in str(one.message)]
