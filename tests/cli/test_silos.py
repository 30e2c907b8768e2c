"""`silos` and own models from the command line: what is charged, claimed and shown, resumed and refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import dpfl_plugin
from tests.cli.command import dpfl, merged, run, write
from tests.cli.test_resume import crash

SOLVED: dict[str, Any] = {
    "algorithm": {"name": "fedavg"},
    "silo_weights": "noise",
    "privacy": {"noise_multiplier": None, "epsilon": 3.0, "delta": 1e-3},
    "silos": {"1": {"epsilon": 0.5}, "3": {"record_rate": 0.25, "clip_norm": 0.5}},
}


def test_each_silo_keeps_to_its_own_budget_and_uses_it_up(tmp_path: Path) -> None:
    path = write(tmp_path, SOLVED)
    result = run(path)
    folder = Path(result["folder"])
    stated = json.loads((folder / "ledger.json").read_text())["silos"]
    assert [one["budget"] for one in stated] == [3.0, 0.5, 3.0, 3.0]
    for one in stated:
        assert 0.99 * one["budget"] < one["epsilon"] <= one["budget"]
        alone = dpfl_plugin.epsilon(
            noise_multiplier=one["noise_multiplier"], steps=12, delta=1e-3, record_rate=one["record_rate"]
        )
        assert one["epsilon"] == pytest.approx(alone.epsilon)
    assert [one["clip_norm"] for one in stated] == [1.0, 1.0, 1.0, 0.5]
    assert result["epsilon"]["server"]["epsilon"] == max(one["epsilon"] for one in stated)
    assert result["epsilon"]["third_party"]["epsilon"] == result["epsilon"]["server"]["worst_case_epsilon"] <= 3.0
    rows = list(csv.DictReader((folder / "silos.csv").read_text().splitlines()))
    assert [float(row["budget"]) for row in rows] == [3.0, 0.5, 3.0, 3.0]
    text = (folder / "privacy.md").read_text()
    assert "| 1 | 24 | 6 | 0.5 | 0.5 |" in text
    assert "a budget of epsilon 3 for what the server sees; a silo with a budget of its own" in text
    checked = dpfl("check", path)
    assert f"silo 1: epsilon 0.5, noise_multiplier {stated[1]['noise_multiplier']:g}, clip_norm 1" in checked.out
    # What the ledger alone says is the same.
    said = {row["view"]: row["epsilon"] for row in dpfl("account", folder, "--json").json if row["accountant"] == "PLD"}
    assert said["server"] == result["epsilon"]["server"]["epsilon"]
    assert said["third party"] == result["epsilon"]["third_party"]["epsilon"]


def test_a_crashed_run_goes_on_with_each_silos_noise(tmp_path: Path) -> None:
    """The same bits as of the run that was not disturbed, and the same epsilons."""
    whole = run(write(tmp_path, SOLVED, "whole.yaml"))
    path = write(tmp_path, {**SOLVED, "name": "part", "checkpoint": {"every": 2}}, "part.yaml")
    crash(path, 4)
    again = run(path, "--resume")
    assert again["model_sha256"] == whole["model_sha256"] and again["epsilon"] == whole["epsilon"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"silos": {"9": {"epsilon": 0.5}}}, "silos.9: there is no such silo"),
        ({"silos": {"1": {"batch_size": 99}}}, "silo 1: "),
        (
            {"silos": {"1": {"epsilon": 1e-9}}, "privacy": {"noise_multiplier": None, "epsilon": 3.0, "delta": 1e-15}},
            "silos.1: privacy.epsilon=1e-09 is out of reach",
        ),
        ({"silo_weights": {"0": 1, "1": 1}}, "no weight for silo 2, silo 3"),
    ],
)
def test_what_does_not_fit_the_federation_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    done = dpfl("run", write(tmp_path, {**SOLVED, **changes}))
    assert done.code == 2 and message in done.err and not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize(
    "algorithm", [{"name": "mr_mtl", "mean_weight": 0.5}, {"name": "local"}], ids=lambda a: a["name"]
)
def test_own_models_are_measured_and_cost_what_fedavg_costs(tmp_path: Path, algorithm: dict[str, Any]) -> None:
    ends = {}
    for name, changes in {"own": {"algorithm": algorithm}, "fedavg": {"algorithm": {"name": "fedavg"}}}.items():
        ends[name] = run(write(tmp_path, {**changes, "name": name}, f"{name}.yaml"))
    assert ends["own"]["epsilon"] == ends["fedavg"]["epsilon"]
    assert "personalised_accuracy" in ends["own"]["silos"] and "personalised_accuracy" not in ends["fedavg"]["silos"]
    rows = list(csv.DictReader((Path(ends["own"]["folder"]) / "silos.csv").read_text().splitlines()))
    assert all(row["personalised_accuracy"] for row in rows)
    measures = ends["own"]["measures"]
    assert "own_models" not in ends["fedavg"]["measures"]["pooled"]
    for row in rows:  # each silo's own model on its own records
        own = measures["silos"][row["silo"]]["own_models"]["accuracy"]
        assert own == pytest.approx(float(row["personalised_accuracy"]))
    sizes = [int(row["num_test"]) for row in rows]
    by_silo = [float(row["personalised_accuracy"]) for row in rows]
    pooled = sum(a * n for a, n in zip(by_silo, sizes, strict=True)) / sum(sizes)
    assert measures["pooled"]["own_models"]["accuracy"] == pytest.approx(pooled)
    model, own_models = (measures["pooled"][who] for who in ("model", "own_models"))
    assert own_models["log_loss"] != pytest.approx(model["log_loss"])  # the mean of these models is another one
    at_silo = dpfl("run", write(tmp_path, {"algorithm": algorithm, "privacy": {"unit": "silo"}}))
    assert at_silo.code == 2 and "without releasing it" in at_silo.err


def test_silos_of_different_sizes_that_count_alike_are_told(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"data": {"partition": {"name": "dirichlet", "alpha": 0.5}, "num_silos": 4}}
    asked = {
        "unequal": {},
        "chosen": {"silo_weights": "equal"},
        "private sizes": {"privacy": {"sampler": "poisson"}},
        "a silo is protected": {"privacy": {"unit": "silo"}, "algorithm": {"name": "fedavg"}},
        "equal": {"data": {"partition": "iid"}},
    }
    for label, changes in asked.items():
        config = write(tmp_path, merged(sizes, changes))
        done, checked = dpfl("run", config, "--out", tmp_path / label), dpfl("check", config)
        assert done.code == checked.code == 0, done.err
        for said in (done.err, checked.out + checked.err):
            assert ("count alike: silo_weights=records" in " ".join(said.split())) == (label == "unequal"), label
