"""Models with frozen layers and buffers, by the command: they are saved with the rest, and are the same all along."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from dpfl_plugin.config.load import configure
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.runs.build import build
from dpfl_plugin.runs.records import federate
from dpfl_plugin.runtimes.mpi.link import Patience
from dpfl_plugin.runtimes.mpi.ranks import Ranks
from dpfl_plugin.runtimes.mpi.session import MpiSession
from dpfl_plugin.runtimes.mpi.silos import SiloRank
from tests.cli.command import BASE, dpfl, merged, one_message, run, write
from tests.mpi.network import Loopback, Network

MINE = """
import numpy
import torch
from opacus.layers import DPLSTM
from torch import nn

class Net(nn.Module):
    def __init__(self, width, num_classes, random=torch.rand):
        super().__init__()
        self.body, self.head = nn.Linear(width, 8), nn.Linear(8, num_classes)
        self.register_buffer("scale", random(8) + 0.5)
        self.register_buffer("kept_elsewhere", torch.ones(8), persistent=False)
        self.body.requires_grad_(False)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x) * self.scale * self.kept_elsewhere))

class Recurrent(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.cells, self.head = DPLSTM(1, 3, batch_first=True), nn.Linear(3, num_classes)

    def forward(self, x):
        return self.head(self.cells(x.unsqueeze(-1))[0][:, -1])

def of_numpy(size): return torch.from_numpy(numpy.random.rand(size)).float()
def frozen(shape, num_classes): return Net(shape[0], num_classes)
def unseeded(shape, num_classes): return Net(shape[0], num_classes, of_numpy)
def recurrent(shape, num_classes): return Recurrent(num_classes)
def plain(shape, num_classes): return nn.Linear(shape[0], num_classes)
"""


@pytest.fixture(autouse=True)
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)


def config(tmp_path: Path, model: str, **changes: Any) -> Path:
    return write(tmp_path, {"model": {"module": f"mine:{model}"}, **changes})


def configured(model: str, **changes: Any) -> Config:
    return configure(merged(BASE, {"model": {"module": f"mine:{model}"}, **changes}), source="test")


def made(model: str) -> nn.Module:
    """Another one than the run's: of another seed."""
    torch.manual_seed(12345)
    found: nn.Module = getattr(__import__("mine"), model)((4,), 3)
    return found


@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("frozen", {}),
        ("recurrent", {}),  # whose parameters have two names each
        ("plain", {}),
        (
            "frozen",
            {
                "early_stopping": {"every": 2, "patience": 1, "keep": "best", "share": 0.25, "noise_multiplier": 5.0},
                "rounds": 4,
            },
        ),
    ],
)
def test_what_a_run_saves_loads_strictly_and_predicts_what_the_run_measured(
    tmp_path: Path, model: str, more: dict[str, Any]
) -> None:
    more = {"rounds": 3, **more}
    result, net = run(config(tmp_path, model, **more)), made(model)
    net.load_state_dict(load_file(Path(result["folder"]) / "model.safetensors"))  # strict
    federation = federate(configured(model, **more), tmp_path)
    with torch.no_grad():
        right = [
            float(np.mean(net(torch.from_numpy(silo.test_x)).argmax(1).numpy() == silo.test_y))
            for silo in federation.silos
        ]
    assert np.mean(right) == pytest.approx(result["silos"]["test_accuracy"]["mean"], abs=1e-12)


def test_a_run_does_not_go_on_with_other_frozen_layers(tmp_path: Path) -> None:
    path, out = config(tmp_path, "unseeded", checkpoint={"every": 1}), tmp_path / "runs"
    with mock.patch("dpfl_plugin.runs.run.write_result", side_effect=KeyboardInterrupt):
        dpfl("run", path, "--out", out)
    done = dpfl("run", path, "--out", out, "--resume")
    one_message(done, "frozen layers or buffers are not those that this run began with", "out")


def test_ranks_that_build_other_frozen_layers_are_refused_before_the_first_round(tmp_path: Path) -> None:
    for model, refused in (("frozen", False), ("unseeded", True)):
        network = Network(2)
        network.silo_ranks += [SiloRank(Loopback(network, rank)) for rank in (1,)]
        session, read = MpiSession(Ranks(Loopback(network, 0))), configured(model)
        with mock.patch.object(Patience, "wait", return_value=None):
            parts = build(read, tmp_path, hold=functools.partial(session.hold, key=tmp_path / "key"))
            if refused:
                with pytest.raises(ConfigError, match=r"on ranks 1 it has other frozen layers or buffers than"):
                    session.runtime(parts, mock.Mock(), read)
            else:
                session.runtime(parts, mock.Mock(), read)
    assert json.dumps(network.log[-1])
