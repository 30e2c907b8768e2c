"""`private_evaluation: {measure: auc}` in runs: what is released, charged and stated, and what it does not go with."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score

from dpfl_plugin.config.load import configure, load, run_id
from dpfl_plugin.gradients.shares import part_of
from dpfl_plugin.runs.build import build
from tests.cli.command import charges, dpfl, merged, one_message, run, write
from tests.cli.test_resume import crash

AUC: dict[str, Any] = {
    "silo_weights": "records",
    "data": {"dataset": {"num_classes": 2}},
    "private_evaluation": {"share": 0.25, "every": 3, "noise_multiplier": 2.0, "measure": "auc"},
    "privacy": {"delta": 1e-3},
}


def test_without_noise_it_is_the_auc_of_the_result_on_the_records_set_apart(tmp_path: Path) -> None:
    """Over all silos, up to ties; and what follows for the accuracy is what counting right answers gives."""
    fine = {
        "private_evaluation": {"noise_multiplier": 0, "every": None, "bins": 1000},
        "privacy": {"noise_multiplier": 0.01},
    }
    config = write(tmp_path, merged(AUC, fine))
    result = run(config)
    parts = build(load(config, []).variants[0].config, tmp_path)
    parts.module.load_state_dict(load_file(Path(result["folder"]) / "model.safetensors"))
    apart = [part_of(parts.train[silo], (0.75, 1.0)) for silo in range(4)]
    x, y = torch.cat([one.features for one in apart]), torch.cat([one.labels for one in apart])
    with torch.no_grad():
        z = parts.module(x).double().numpy()
    score = z[:, 0] if z.shape[1] == 1 else z[:, 1] - z[:, 0]
    found = result["private_evaluation"]
    ((one,), ((after, accuracy),)) = found["auc"], found["scores"]
    assert one["round"] == after == 6 and one["noise_std"] == 0
    assert one["value"] == pytest.approx(roc_auc_score(y, score), abs=0.01) and 0.5 < one["value"] < 1, "it learns"
    assert accuracy == pytest.approx(float(np.mean((score > 0) == y.numpy())))


def test_it_is_charged_as_a_count_is_and_stated(tmp_path: Path) -> None:
    """A histogram is one Gaussian release, with noise in proportion to its own sensitivity, sqrt(2) for a replaced
    record; and a resumed run has all that it released."""
    path = write(tmp_path, AUC, "auc.yaml")
    result = run(path)
    count = merged(AUC, {"private_evaluation": {"measure": "accuracy"}})
    like = run(write(tmp_path, count, "count.yaml"))
    place = lambda held: {(c.round, c.silo, c.share, c.release, c.count, c.kind) for c in held}  # noqa: E731
    assert place(charges(result["folder"])) == place(charges(like["folder"]))
    assert result["epsilon"] == like["epsilon"]
    found = result["private_evaluation"]
    std = 2.0 * math.sqrt(2) / 6 / 2  # of the mean of 4 silos' shares of 6 records each
    assert found["histograms"]["noise_std"] == pytest.approx(std) and len(found["histograms"]["shares"][0]) == 20
    assert found["noise_std"] == pytest.approx(std * math.sqrt(10))
    assert [one["round"] for one in found["auc"]] == [3, 6] == [after for after, _ in found["scores"]]
    page = (Path(result["folder"]) / "privacy.md").read_text()
    assert "counts by class and by the model's score, in 10 bins of each class" in page
    assert "with noise of standard deviation 2.828" in page and " in each; 2 of each silo, planned" in page
    shown = dpfl("run", path, "--out", Path(result["folder"]).parents[1])
    assert "private AUC after round 6: " in shown.out and "private accuracy after round 6: " in shown.out
    crashed = crash(write(tmp_path, {**AUC, "checkpoint": {"every": 1}, "name": "again"}, "again.yaml"), 5)
    again = run(crashed, "--resume")["private_evaluation"]
    assert [one["round"] for one in again["auc"]] == [3, 6] and len(again["histograms"]["shares"]) == 2
    assert json.dumps(again, allow_nan=False)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data": {"dataset": {"num_classes": 3}}}, "private_evaluation.measure='auc' is of two classes"),
        ({"private_evaluation": {"bins": 7}}, "bins=7 must be even"),
        ({"private_evaluation": {"noise_multiplier": 0.1}, "privacy": {"epsilon": 1.0}}, "come to epsilon"),
    ],
)
def test_what_it_does_not_go_with(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    one_message(dpfl("run", write(tmp_path, merged(AUC, changes)), "--out", tmp_path / "out"), says)
    assert not (tmp_path / "out").exists()


def test_runs_without_a_measure_keep_their_names_and_others_have_others() -> None:
    values: dict[str, Any] = {"rounds": 6, "algorithm": "fedsgd", "privacy": {"noise_multiplier": 1.0}}
    evaluations: list[dict[str, Any]] = [
        {},
        {"measure": "accuracy"},
        {"measure": "auc"},
        {"measure": "auc", "bins": 20},
    ]
    plans = [{"noise_multiplier": 1.0, **one} for one in evaluations]
    configs = [configure({**values, "private_evaluation": plan}, source="test") for plan in plans]
    assert not {"measure", "bound", "bins", "at"} & configs[0].model_dump()["private_evaluation"].keys()
    assert len({run_id(config) for config in configs}) == len(configs)
