"""`privacy.clip` from the configuration to the statement; adapted norms survive what a run survives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from dpfl_plugin.federation.silo_group import CLIP_NORM
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.runs.checkpoint import load
from dpfl_plugin.runtimes.in_process import InProcess
from tests.cli.command import charges, dpfl, metrics, one_message, run, write

ADAPTIVE: dict[str, Any] = {
    "silo_rate": 0.5,
    "rounds": 9,
    "privacy": {"clip": {"name": "adaptive", "lr": 0.5}},
    "checkpoint": {"every": 2, "seconds": 1000},
}
MEDIAN = {"privacy": {"clip": "median"}}


def states(result: dict[str, Any]) -> dict[str, Any]:
    found = load(Path(result["folder"]) / "checkpoint")
    assert found is not None
    return found.silos


def statement(result: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(result["folder"]) / "ledger.json").read_text())
    return found


class Crash(BaseException):
    """Ends a run as nothing in the package expects."""


@pytest.mark.parametrize("number", [1, 6, 7])
def test_resumed_with_the_same_bits(tmp_path: Path, number: int) -> None:
    whole = run(write(tmp_path, ADAPTIVE), "--set", f"out={tmp_path / 'whole'}")
    rounds, real = 0, InProcess.run_round

    def run_round(self: InProcess, *given: Any) -> Any:
        nonlocal rounds
        rounds += 1
        result = real(self, *given)
        if rounds == number:
            raise Crash
        return result

    (tmp_path / "crashed").mkdir()
    config = write(tmp_path / "crashed", ADAPTIVE)
    with mock.patch.object(InProcess, "run_round", run_round), pytest.raises(Crash):
        dpfl("run", config, "--out", tmp_path / "crashed" / "runs")
    resumed = run(config, "--resume")
    assert resumed["model_sha256"] == whole["model_sha256"]
    assert metrics(resumed) == metrics(whole) and charges(resumed["folder"]) == charges(whole["folder"])
    norms = states(whole)[CLIP_NORM]
    assert norms.shape == (4, 1) and norms.unique().numel() > 2
    assert states(resumed)[CLIP_NORM].equal(norms)


def test_every_stack_gives_the_same_bits(tmp_path: Path) -> None:
    one = run(write(tmp_path, ADAPTIVE), "--set", "silo_rate=1")
    norms = states(one)[CLIP_NORM]
    (tmp_path / "stack").mkdir()
    other = run(write(tmp_path / "stack", ADAPTIVE), "--set", "silo_rate=1", "--set", "runtime.stack=3")
    assert other["model_sha256"] == one["model_sha256"] and states(other)[CLIP_NORM].equal(norms)


def test_adaptive_and_per_layer_cost_what_flat_costs(tmp_path: Path) -> None:
    models, epsilons = set(), set()
    for clip in ("flat", "adaptive", "per_layer"):
        result = run(write(tmp_path, {"model": {"name": "mlp", "hidden": [5]}, "privacy": {"clip": clip}}))
        models.add(result["model_sha256"])
        epsilons.add(result["epsilon"]["server"]["epsilon"])
        said = statement(result)
        assert said["guarantee"].startswith("differential privacy") and said["mechanism"]["clip"]["name"] == clip
    assert len(models) == 3 and len(epsilons) == 1 and None not in epsilons


def test_the_statement_says_that_c_is_adapted(tmp_path: Path) -> None:
    said = statement(run(write(tmp_path, ADAPTIVE)))["mechanism"]["clip"]
    assert said["lr"] == 0.5 and "noised counts" in said["what"] and "the charge covers both" in said["what"]


# Median


def test_median_guarantees_nothing_and_says_so(tmp_path: Path) -> None:
    path = write(tmp_path, MEDIAN)
    result = run(path)
    assert result["epsilon"]["server"]["epsilon"] is result["epsilon"]["third_party"]["epsilon"] is None
    assert {charge.release.noise_multiplier for charge in charges(result["folder"])} == {0.0}
    assert statement(result)["guarantee"].startswith("none: clip: median")
    assert any("no privacy guarantee holds: clip: median" in note for note in result["notes"])
    shown = dpfl("run", path, "--out", tmp_path / "runs").out
    assert "note: no privacy guarantee holds: clip: median" in shown and "nothing is guaranteed" in shown
    rows = dpfl("account", path, "--json").json
    assert {row["epsilon"] for row in rows} == {None}


@pytest.mark.parametrize("command", ["run", "account"])
def test_median_with_a_budget_is_refused(tmp_path: Path, command: str) -> None:
    path = write(tmp_path, {"privacy": {"clip": "median", "epsilon": 3.0}})
    one_message(dpfl(command, path), "privacy.epsilon=3 cannot be kept", "clip: median", "adaptive")


# Refusals


@pytest.mark.parametrize(
    ("privacy", "parts"),
    [
        ({"clip": "nonsense"}, ["clipping 'nonsense'", "Known: adaptive, auto_s, flat, median, per_layer"]),
        ({"clip": {"name": "adaptive", "quantile": 2}}, ["privacy.clip.quantile=2.0", "(0, 1)"]),
        ({"clip": {"name": "adaptive", "bit_noise_multiplier": 4}}, ["privacy.clip.bit_noise_multiplier=4", "Use 28"]),
        ({"clip": {"name": "per_layer", "shares": [1, 1]}}, ["privacy.clip.shares=[1.0, 1.0]", "1 layers: 1 (15)"]),
        ({"clip": {"module": "string:Formatter"}}, ["Formatter must derive from Clipping"]),
    ],
    ids=lambda value: "",
)
def test_wrong_options_are_refused_before_anything_is_written(
    tmp_path: Path, privacy: dict[str, Any], parts: list[str]
) -> None:
    path = write(tmp_path, {"privacy": privacy, "algorithm": {"name": "fedavg"}})
    one_message(dpfl("run", path, "--out", tmp_path / "runs"), *parts)
    assert not (tmp_path / "runs").exists()


def test_an_engine_without_norms_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ClosedForm.clipped_sum

    def silent(self: ClosedForm, y: Any, batch: Any, clip_norm: float, out: Any) -> None:
        if isinstance(clip_norm, tuple):
            raise TypeError("must be real number, not tuple")
        real(self, y, batch, clip_norm, out)

    monkeypatch.setattr(ClosedForm, "clipped_sum", silent)
    for clip in ("adaptive", "median"):
        path = write(tmp_path, {"privacy": {"clip": clip}})
        one_message(dpfl("run", path, "--out", tmp_path / "runs"), "closed_form must return the gradients' norms")
    path = write(tmp_path, {"privacy": {"clip": "per_layer"}})
    one_message(dpfl("run", path, "--out", tmp_path / "runs"), "closed_form fails with this privacy.clip", "TypeError")
    assert not (tmp_path / "runs").exists()
    run(write(tmp_path))  # flat clipping needs no norms
