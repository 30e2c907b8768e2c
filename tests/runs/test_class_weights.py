"""`class_weights` in runs: given, or made of one charged release; and what they do not go with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dpfl_plugin as dpfl
from dpfl_plugin.config.load import configure
from dpfl_plugin.errors import ConfigError, DpflError, UnsupportedError
from tests.cli.command import charges

pytestmark = pytest.mark.usefixtures("measured")
RNG = np.random.default_rng(3)
Y = (RNG.random(200) < 0.1).astype(int)
X = (RNG.normal(size=(200, 3)) + Y[:, None]).astype(np.float32)
NOISY = {"noise_multiplier": 1.0}
STATISTICS: dict[str, Any] = {"private_statistics": {"noise_multiplier": 0.5}}


def federation() -> dpfl.Federation:
    names = np.array(["well", "ill"])[Y]
    return dpfl.Federation.from_arrays({"a": (X[:90], names[:90]), "b": (X[90:], names[90:])}, classes=["well", "ill"])


def train(out: Path, **changes: Any) -> dpfl.Run:
    given: dict[str, Any] = {
        "model": "softmax",
        "algorithm": dpfl.algorithms.FedAvg(local_steps=3, local_lr=0.5),
        "privacy": {"noise_multiplier": 0.5, "clip_norm": 10.0, "sampler": "full"},
        "rounds": 5,
        "seed": 1,
        "out": out,
        **changes,
    }
    return dpfl.train(federation(), **given)


def test_balanced_weights_are_one_release_and_train_as_the_same_weights_given(tmp_path: Path) -> None:
    balanced = train(tmp_path, class_weights="balanced", **STATISTICS)
    weights = balanced.result["private_statistics"]["columns"]["class_weights"]
    share = Y[np.r_[0:90, 90:200]].mean()
    assert weights["ill"] == 1 and weights["well"] == pytest.approx(share / (1 - share), rel=0.7)
    assert "class_weights well" in str(balanced)
    released = [charge for charge in charges(str(balanced.folder)) if charge.kind == "statistics"]
    found = {(charge.silo, charge.count, charge.release.noise_multiplier) for charge in released}
    assert len(released) == 2 and found == {(0, 1, 0.5), (1, 1, 0.5)}
    same = train(tmp_path, class_weights=weights)
    assert same.result["model_sha256"] == balanced.result["model_sha256"]
    assert same.epsilon < balanced.epsilon
    assert train(tmp_path).result["model_sha256"] != same.result["model_sha256"]


def test_weights_find_more_of_a_rare_class_and_make_its_probability_too_large(tmp_path: Path) -> None:
    little = {"noise_multiplier": 1e-3, "clip_norm": 100.0, "sampler": "full"}
    plain, weighted = (
        train(tmp_path, rounds=40, privacy=little, **weights) for weights in ({}, {"class_weights": {"well": 0.1}})
    )
    assert "do not read them as risks" in str(weighted) and "read them as risks" not in str(plain)
    tables = [run.measures["pooled"]["model"] for run in (plain, weighted) if run.measures is not None]
    assert tables[1]["sensitivity"] > tables[0]["sensitivity"] and tables[1]["brier"] > tables[0]["brier"]


def test_tuning_by_log_loss_finds_the_step_that_learns_a_rare_class(tmp_path: Path) -> None:
    """By accuracy the three are alike: all predict that everybody is well."""
    tuned = federation().tune(
        {"grid": {"algorithm.local_lr": [1e-4, 0.1, 1e-5]}, "rungs": [5], "share": 0.5, "measure": "log_loss"},
        model="softmax",
        algorithm=dpfl.algorithms.FedAvg(local_steps=5, local_lr=0.5),
        privacy=dpfl.Privacy(epsilon=1e4, delta=1e-3, clip_norm=1.0, sampler="full"),
        rounds=6,
        seed=1,
        out=tmp_path / "tuned",
        progress=False,
    )
    assert tuned.result["winner"]["label"] == "algorithm.local_lr=0.1"
    assert "A score is the mean log loss (a record's is cut at 4.605)" in tuned.statement


@pytest.mark.parametrize("engine", ["closed_form", "bookkeeping", "vmap"])
def test_engines_agree_on_weights(engine: str, tmp_path: Path) -> None:
    weights = {"class_weights": {"well": 0.1}, "engine": engine}
    expected, found = (train(tmp_path, **how) for how in ({"class_weights": {"well": 0.1}}, weights))
    assert found.result["engine"] == engine
    x = torch.from_numpy(X[:20])
    torch.testing.assert_close(found.model(x), expected.model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"class_weights": {"il": 2.0}}, ConfigError, "class_weights.il is no class (did you mean 'ill'?)"),
        ({"class_weights": {"ill": 0.0}}, ConfigError, "class_weights.ill=0"),
        ({"class_weights": "balanced"}, ConfigError, "Set private_statistics"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], error: type[DpflError], says: str, tmp_path: Path) -> None:
    with pytest.raises(error) as refused:
        train(tmp_path, **changes)
    assert says in str(refused.value) and not list(tmp_path.iterdir())


def test_an_outcome_without_classes_has_no_weights(tmp_path: Path) -> None:
    records = dpfl.Federation.from_arrays({"a": (X, Y.astype(float))}, outcome={"kind": "regression", "range": [0, 1]})
    fedavg = dpfl.algorithms.FedAvg(local_steps=1, local_lr=0.1)
    with pytest.raises(UnsupportedError, match="class_weights: an outcome of regression has no classes"):
        dpfl.train(records, model="linear", algorithm=fedavg, class_weights={"1": 2.0}, privacy=NOISY, rounds=1)


def test_names_that_yaml_reads_as_true_are_to_be_in_quotes() -> None:
    with pytest.raises(ConfigError, match="in quotes"):
        configure({"algorithm": "fedsgd", "rounds": 1, "privacy": NOISY, "class_weights": {True: 2.0}}, source="test")
