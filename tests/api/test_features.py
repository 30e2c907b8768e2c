"""A frozen backbone from `Federation.features` to the statement, the predictions and the exported model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import dpfl_plugin as dpfl
from dpfl_plugin.config.load import configure
from dpfl_plugin.data.digits import digits
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.errors import ConfigError, DataError, LimitError
from dpfl_plugin.owners.limits import Limits
from tests.cli.command import BASE, merged

MINE = """
import torch
from torch import nn

def frozen(shape):
    made = nn.Sequential(nn.Linear(shape[0], 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Dropout(0.5))
    made.load_state_dict(torch.load({weights!r}))
    return made
"""


def frozen() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(64, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Dropout(0.5))


def train(federation: dpfl.Federation, out: Path, **keys: object) -> dpfl.Run:
    options = {"model": "softmax", "privacy": {"noise_multiplier": 4.0}, "out": out, "progress": False, **keys}
    return dpfl.train(federation, algorithm=dpfl.algorithms.MBSGD(lr=1.0), rounds=2, **options)  # type: ignore[arg-type]


def test_a_run_on_features_states_predicts_and_exports_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    weights = tmp_path / "weights.pt"
    torch.save(frozen().state_dict(), weights)
    (tmp_path / "pretrained_here.py").write_text(MINE.format(weights=str(weights)))
    federation = dpfl.Federation.load("digits", num_silos=2, preprocess=[{"name": "scale", "factor": 0.5}])
    federation = federation.features("pretrained_here:frozen", cache=tmp_path / "kept", then=["unit_norm"])
    run = train(federation, tmp_path / "runs")
    assert sum(value.numel() for value in run.model.state_dict().values()) == 10 * (12 + 1)
    (digest,) = json.loads((run.folder / "result.json").read_text())["inputs"]["backbones"]
    assert digest in run.statement and "costs no epsilon" in run.statement
    assert str(tmp_path / "kept") not in run.statement.split("## ")[0]

    raw = digits(DataSource()).features[:50]
    np.savez(tmp_path / "asked.npz", x=raw)
    num_files = len(list((tmp_path / "kept").iterdir()))
    predicted = dpfl.predict(run, tmp_path / "asked.npz")
    assert len(list((tmp_path / "kept").iterdir())) == num_files  # records that are asked about are not kept
    with torch.no_grad():
        x = frozen().eval()(torch.from_numpy(raw) * 0.5)
        x = x / x.norm(dim=1, keepdim=True)
        outputs = run.model(x)
    assert np.array_equal(predicted.predictions.predicted, outputs.argmax(1).numpy())
    program = torch.export.load(run.export(tmp_path / "exported") / "model.pt2").module()
    torch.testing.assert_close(program(torch.from_numpy(raw)), outputs, rtol=1e-4, atol=1e-5)

    other = frozen().state_dict()
    other["0.bias"] += 1e-3
    torch.save(other, weights)
    with pytest.raises(DataError, match="weights or code changed"):
        dpfl.predict(run, tmp_path / "asked.npz")


def test_a_module_of_the_program_is_the_same_step(tmp_path: Path) -> None:
    raw = digits(DataSource())
    parts = {"a": slice(0, 200), "b": slice(200, 400)}
    silos = {name: (raw.features[part], raw.labels[part]) for name, part in parts.items()}
    module = frozen()
    run = train(dpfl.Federation.from_arrays(silos).features(module), tmp_path / "runs")
    assert module.training and all(p.requires_grad for p in module.parameters())  # the program's own stays as it is
    made = {name: (frozen().eval()(torch.from_numpy(x)).detach(), y) for name, (x, y) in silos.items()}
    by_hand = train(dpfl.Federation.from_arrays(made), tmp_path / "by_hand")
    # Other noise, as the configuration is another one; the same numbers of records, parameters and epsilon.
    assert run.epsilon == by_hand.epsilon
    for key, value in run.model.state_dict().items():
        assert value.shape == by_hand.model.state_dict()[key].shape


def test_wrong_options_are_told_at_once() -> None:
    federation = dpfl.Federation.load("digits", num_silos=2)
    with pytest.raises(ConfigError, match=r"backbone\.batchsize"):
        federation.features(frozen(), batchsize=3)
    with pytest.raises(ConfigError, match="is a int"):
        federation.features(3)


def test_an_owner_has_to_allow_code_that_sees_all_records(tmp_path: Path) -> None:
    steps = [{"name": "backbone", "factory": "a:b"}]
    made = configure(merged(BASE, {"data": {"preprocess": steps}, "privacy": {"epsilon": 1.0}}), source="test")
    owner = {"folder": tmp_path, "epsilon": 100.0, "delta": 0.1, "code": frozenset({"a:b"})}
    with pytest.raises(LimitError, match="backbone"):
        Limits(**owner).check(made)  # type: ignore[arg-type]
    Limits(**owner, send=frozenset({"fitted"})).check(made)  # type: ignore[arg-type]
