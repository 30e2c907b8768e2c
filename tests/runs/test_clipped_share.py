"""`private_evaluation: {measure: clipped_share}`: what is counted, and what it is charged as."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dpfl_plugin.config.load import load
from dpfl_plugin.data.persons import NO_RECORD
from dpfl_plugin.gradients.shares import part_of
from dpfl_plugin.runs.build import build
from tests.cli.command import charges, merged, run, write

SHARE: dict[str, Any] = {
    "private_evaluation": {"share": 0.25, "every": 3, "noise_multiplier": 0, "measure": "clipped_share"},
    "privacy": {"noise_multiplier": 0.01, "delta": 1e-3, "clip_norm": 0.8},
}


@pytest.mark.parametrize("clip", ["flat", "per_layer"])
def test_without_noise_it_is_the_share_of_the_gradients_that_autograd_finds_too_long(tmp_path: Path, clip: str) -> None:
    """Of each record by itself, so that another record moves the count by 1 at most."""
    path = write(tmp_path, merged(SHARE, {"privacy": {"clip": {"name": clip}}}))
    result = run(path)
    parts = build(load(path, []).variants[0].config, tmp_path)
    parts.module.load_state_dict(load_file(Path(result["folder"]) / "model.safetensors"))
    layers = [list(layer.parameters()) for layer in parts.module.modules() if list(layer.parameters(recurse=False))]
    bound = 0.8 / math.sqrt(len(layers)) if clip == "per_layer" else 0.8
    clipped = []
    for silo in range(4):
        apart = part_of(parts.train[silo], (0.75, 1.0))
        for row in range(len(apart)):
            record = apart.between(row, row + 1)
            assert int(record.labels) != NO_RECORD
            parts.module.zero_grad()
            parts.loss(parts.module(record.features), record.labels).sum().backward()
            norms = [torch.cat([p.grad.flatten() for p in layer if p.grad is not None]).norm() for layer in layers]
            longest = max(norms) if clip == "per_layer" else torch.stack(norms).norm()
            clipped.append(float(longest) > bound)
    private = result["private_evaluation"]
    assert [after for after, _ in private["scores"]] == [3, 6] and 0 < sum(clipped) < len(clipped)
    assert private["scores"][-1][1] == pytest.approx(sum(clipped) / len(clipped))
    low, high = private["intervals"][-1]
    assert low <= private["scores"][-1][1] <= high


def test_a_fresh_run_computes_none_of_its_training_records(tmp_path: Path, measured: None) -> None:
    """Nor does a record that cannot be used count, whose gradient has no length."""
    result = run(write(tmp_path, {"privacy": {"randomness": "fresh", "delta": 1e-3}}))
    assert result["measures"] and "clipped_share" not in json.dumps(result)


def test_it_is_charged_as_a_count_is(tmp_path: Path) -> None:
    noisy = merged(SHARE, {"private_evaluation": {"noise_multiplier": 2.0}})
    result = run(write(tmp_path, noisy, "share.yaml"))
    like = run(write(tmp_path, merged(noisy, {"private_evaluation": {"measure": "accuracy"}}), "count.yaml"))
    kinds = [
        {(c.round, c.silo, c.share, c.release, c.count, c.kind) for c in charges(of["folder"])} for of in (result, like)
    ]
    assert kinds[0] == kinds[1] and result["epsilon"] == like["epsilon"]
    assert result["private_evaluation"]["noise_std"] == like["private_evaluation"]["noise_std"]
    page = (Path(result["folder"]) / "privacy.md").read_text()
    assert "validation scores: a count of the clipped gradients, on the last 0.25 of each silo's records" in page
    assert "a number from 0 to 1: whether its gradient is clipped" in page
