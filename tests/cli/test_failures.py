"""Runs that fail while they train: the round is named, the last good state is kept, and no file holds a NaN."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.cli.command import charges, dpfl, metrics, run, write

NOT_PRIVATE = {"noise_multiplier": 0, "clip_norm": float("inf")}

MINE = """
import os

import torch
from torch.nn import functional

from dpfl_plugin.algorithms.fedavg import FedAvg

def is_late():  # kept where nobody looks: what code keeps in variables ends a run before it fails
    os.environ["CALLS"] = str(int(os.environ["CALLS"]) + 1)
    return int(os.environ["CALLS"]) > 60

def nan_later(outputs, labels):
    losses = functional.cross_entropy(outputs, labels, reduction="none")
    return losses * float("nan") if is_late() else losses

def broken(outputs, labels):
    if is_late():
        raise KeyError("weights of 'age'")
    return functional.cross_entropy(outputs, labels, reduction="none")

class Broken(FedAvg):
    def aggregate(self, server, mean_up, plan):
        return {"model": mean_up["modle"]}

class TooMany(FedAvg):
    def local_update(self, down, silos, oracle, plan):
        for _ in range(plan.num_gradients + 1):
            oracle.gradient(down["model"].expand(oracle.num_silos, -1))
"""


@pytest.fixture(autouse=True)
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "failing", raising=False)
    monkeypatch.setenv("CALLS", "0")


def failed(config: Path) -> dict[str, Any]:
    """The result of a run that fails, after checking what it left behind."""
    done = dpfl("run", config, "--out", config.parent / "runs", "--json")
    assert done.code == 1 and "Traceback" not in done.err, done.err
    result: dict[str, Any] = done.json
    assert result["status"] == "failed" and result["reason"] in done.err and "checkpoint" in done.err
    folder = Path(result["folder"])
    assert json.loads((folder / "result.json").read_text()) == result
    for path in folder.glob("*.json*"):
        assert not {"NaN", "Infinity"} & set(path.read_text().replace(",", " ").replace(":", " ").split())
    for path in (folder / "model.safetensors", folder / "checkpoint" / "state.safetensors"):
        assert all(torch.isfinite(value).all() for value in load_file(path).values())
    return result


def test_a_model_that_is_no_longer_finite(tmp_path: Path) -> None:
    changes = {"algorithm": {"name": "fedavg", "local_lr": 1e30}, "privacy": NOT_PRIVATE, "l2": 1.0, "rounds": 20}
    result = failed(write(tmp_path, changes))
    rounds = result["rounds"]
    assert f"not finite after round {rounds + 1}" in result["reason"]
    assert f"last finite after round {rounds}" in result["reason"]


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"loss": "failing:broken"}, ("failing:broken", "KeyError", "weights of 'age'")),
        ({"algorithm": {"module": "failing:Broken", "name": None}}, ("failing:Broken", "KeyError", "'modle'")),
    ],
)
def test_an_exception_in_somebodys_own_code(tmp_path: Path, changes: dict[str, Any], parts: tuple[str, ...]) -> None:
    """The plugin and the place are named; the traceback is in the log, and what was reached is kept."""
    result = failed(write(tmp_path, {"algorithm": {"name": "fedavg"}, "rounds": 20, "privacy": NOT_PRIVATE, **changes}))
    for part in (*parts, "round", "failing.py, line ", "log.txt"):
        assert part in result["reason"]
    log = (Path(result["folder"]) / "log.txt").read_text()
    assert "Traceback (most recent call last)" in log and "KeyError" in log


def test_an_exception_in_our_own_code_is_not_blamed_on_a_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*args: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr("dpfl_plugin.federation.round_loop.RoundLoop.advance", wrong)
    with pytest.raises(KeyError, match="ours"):
        dpfl("run", write(tmp_path, {"loss": "failing:broken"}), "--out", tmp_path / "runs")


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_a_loss_that_becomes_nan(tmp_path: Path, algorithm: str) -> None:
    changes = {"loss": "failing:nan_later", "algorithm": {"name": algorithm}, "rounds": 20, "privacy": NOT_PRIVATE}
    result = failed(write(tmp_path, changes))
    assert "after round" in result["reason"] and "last finite after round" in result["reason"]
    assert {charge.round for charge in charges(result["folder"])} >= set(range(result["rounds"]))


def test_a_private_loss_that_becomes_nan(tmp_path: Path) -> None:
    """Its gradients add nothing, so that the model stays finite; the loss tells."""
    result = failed(write(tmp_path, {"loss": "failing:nan_later", "rounds": 20}))
    assert f"training loss is nan after round {result['rounds']}" in result["reason"]
    assert metrics(result)[-1]["train_loss"] is None and result["train_loss"]["last"] is None
    assert result["epsilon"]["server"]["epsilon"] > 0


def test_an_algorithm_that_asks_for_more_than_it_planned(tmp_path: Path) -> None:
    result = failed(write(tmp_path, {"algorithm": {"name": None, "module": "failing:TooMany"}}))
    assert result["reason"].startswith("round 1: the algorithm asked for more than the 2 gradients")
    assert result["rounds"] == 0


def test_a_failed_run_fails_again_when_resumed(tmp_path: Path) -> None:
    changes = {"algorithm": {"name": "fedavg", "local_lr": 1e30}, "privacy": NOT_PRIVATE, "l2": 1.0, "rounds": 20}
    first = failed(write(tmp_path, changes))
    again = run(tmp_path / "config.yaml", "--resume", code=1)
    assert {k: first[k] for k in ("reason", "rounds", "model_sha256")} == {
        k: again[k] for k in ("reason", "rounds", "model_sha256")
    }
