"""A warning where a model says less of a patient than a baseline without features does."""

from __future__ import annotations

from typing import Any

import pytest

from dpfl_plugin.runs.usefulness import worse_than_baseline


def result(
    model: dict[str, Any], baseline: dict[str, Any], where: str = "pooled", whose: str = "model"
) -> dict[str, Any]:
    measures = {"pooled": None, where: {"model": {}, whose: model, "baseline": baseline}}
    return {"measures": measures, "inputs": {"num_classes": 2}}


@pytest.mark.parametrize(
    ("found", "algorithm", "parts"),
    [
        (result({"log_loss": 1.35}, {"log_loss": 0.68}), {"local_lr": 1.0}, ["log loss 1.35", "0.68", "local_lr=0.1"]),
        (result({"log_loss": 1.35}, {"log_loss": 0.68}), {"lr": 3}, ["--set algorithm.lr=0.3"]),
        (result({"log_loss": 1.35}, {"log_loss": 0.68}), {"eta_0": 2.0}, ["--set algorithm.eta_0=0.2"]),
        (result({"log_loss": 1.35}, {"log_loss": 0.68}), {"local_lr": None}, ["a larger epsilon may help"]),
        # It stayed where training begins, at ln 2: a smaller step is not the remedy.
        (result({"log_loss": 0.69}, {"log_loss": 0.68}), {"local_lr": 0.01}, ["More rounds"]),
        (result({"brier": 0.2}, {"brier": 0.1}), {"local_lr": 1.0}, ["More rounds"]),
        (result({"rmse": 9.0, "mae": 1.0}, {"rmse": 5.0}), {"local_lr": 1.0}, ["rmse 9", "expects means nothing"]),
        (result({"deviance": 2.0}, {"deviance": 1.0}, "mean_of_silos"), {"lr": 1.0}, ["deviance 2"]),
        (result({"log_loss": 2.0}, {"log_loss": 1.0}, "pooled", "own_models"), {"lr": 1.0}, ["log loss 2"]),
        # Of one measure only: probabilities that are better than the baseline's are no matter for a warning.
        (result({"log_loss": 0.5, "brier": 0.3}, {"log_loss": 0.6, "brier": 0.2}), {"lr": 1.0}, []),
        (result({"log_loss": 0.68}, {"log_loss": 0.68}), {"lr": 1.0}, []),
        (result({"log_loss": None, "accuracy": 0.5}, {"log_loss": 0.7}), {"lr": 1.0}, []),
        ({"measures": None}, {"lr": 1.0}, []),
    ],
)
def test_the_warning_and_its_remedy(found: dict[str, Any], algorithm: dict[str, Any], parts: list[str]) -> None:
    said = worse_than_baseline(found, algorithm)
    assert (said is None) == (not parts) and all(part in str(said) for part in parts), said
