"""The training whose coverage is simulated is that of the package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import dpfl_plugin as dpfl
from benchmarks import coverage

PUBLIC = {
    "classes": ("logistic", {"classes": [0, 1]}),
    "regression": ("linear", {"outcome": {"kind": "regression", "range": [-1, 1]}}),
    "counts": ("linear", {"outcome": {"kind": "counts", "range": [0, 99]}}),
    "survival": ("grouped_cox", {"outcome": {"kind": "survival", "range": [0, 4], "bins": [*coverage.EDGES]}}),
}


@pytest.mark.parametrize("outcome", coverage.OUTCOMES)
def test_the_training_is_that_of_the_package(outcome: str, tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(1)
    x, y = coverage.records(coverage.Cell(outcome, 40, 6, 1.0), 2, rng)
    y = y.clamp(-1, 1) if outcome == "regression" else y
    np.savez(tmp_path / "all.npz", x=x[0], y=y[0].long() if outcome in ("classes", "counts") else y[0])
    model, public = PUBLIC[outcome]
    files = {"files": str(tmp_path / "all.npz"), "test_files": str(tmp_path / "all.npz")}
    run = dpfl.train(
        dpfl.Federation.load("npz", **files, **public, num_silos=1, test="own"),
        model=model,
        algorithm=dpfl.algorithms.MBSGD(lr=coverage.LR[outcome], average="tail"),
        privacy=dpfl.Privacy(noise_multiplier=0, clip_norm=0.7, sampler="full"),
        rounds=coverage.STEPS,
        out=tmp_path,
        progress=False,
    )
    weights = next(run.model.parameters()).detach().reshape(-1)
    found = coverage.fitted(outcome, x, y, 0.7, 0.0, rng)[0]
    assert weights.norm() > 0.1
    torch.testing.assert_close(found, weights, atol=1e-5, rtol=0)
