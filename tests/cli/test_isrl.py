"""The algorithms of Gao et al. 2024 by the command line: resumed to the same bits, accounted by the worst phase."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from dpfl_plugin.runtimes.in_process import InProcess
from tests.cli.command import charges, dpfl, metrics, one_message, run, write

BINARY: dict[str, Any] = {
    "rounds": 8,
    "data": {"dataset": {"name": "synthetic", "num_features": 4, "num_classes": 2, "records_per_silo": 50}},
    "model": "logistic",
    "loss": "hinge",
    "checkpoint": {"every": 3, "seconds": 1000},
}
LOCAL = {"phases": 2, "regularisation": 0.1}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "mb_sgd": {"lr": 1.0, "average": "uniform", "diameter": 4.0},
    "accelerated_mb_sgd": {"smoothness": 1.0},
    "multistage_mb_sgd": {"smoothness": 1.0, "strong_convexity": 0.1, "stage_rounds": [5, 3]},
    "localized_mb_sgd": {"lr": 1.0, "passes": "one", **LOCAL},
    "noisy_subgradient": {"lr": 1.0},
    "localized_subgradient": {"phases": 2, "eta": 0.5},
    "convolution_mb_sgd": {"smoothing_radius": 0.5, "v": 2.0},
    "localized_convolution": {"smoothing_radius": 0.5, **LOCAL},
    "localized_nesterov": {"envelope": 2.0, **LOCAL},
}


def config(folder: Path, name: str, **changes: Any) -> Path:
    """A configuration with the algorithm ``name``."""
    folder.mkdir(exist_ok=True)
    algorithm = {"name": name, "local_steps": None, "local_lr": None, **ALGORITHMS[name]}
    return write(folder, {**BINARY, "algorithm": algorithm, **changes})


class Crash(BaseException):
    """Ends a run as nothing in the package expects."""


@pytest.mark.parametrize("name", ALGORITHMS)
def test_crashed_and_resumed_to_the_same_bits(tmp_path: Path, name: str) -> None:
    """In the 6th round, with the last checkpoint after the 3rd; phases change after the 4th."""
    whole = run(config(tmp_path / "whole", name))
    path, real, rounds = config(tmp_path / "crashed", name), InProcess.run_round, 0

    def run_round(self: InProcess, *given: Any) -> Any:
        nonlocal rounds
        rounds += 1
        if rounds == 6:
            raise Crash
        return real(self, *given)

    with mock.patch.object(InProcess, "run_round", run_round), pytest.raises(Crash):
        dpfl("run", path, "--out", path.parent / "runs")
    result = run(path, "--resume")
    assert (result["status"], result["rounds"]) == ("done", 8)
    assert result["model_sha256"] == whole["model_sha256"] and metrics(result) == metrics(whole)
    assert charges(result["folder"]) == charges(whole["folder"])


@pytest.mark.parametrize("sampler", ["full", "poisson"])
def test_stacks_give_the_same_bits(tmp_path: Path, sampler: str) -> None:
    privacy = {"sampler": sampler, "record_rate": None if sampler == "full" else 0.5}
    one = run(config(tmp_path / "one", "localized_convolution", privacy=privacy))
    four = run(config(tmp_path / "four", "localized_convolution", privacy=privacy, runtime={"stack": 4}))
    assert one["model_sha256"] == four["model_sha256"] and one["folder"] != four["folder"]


def epsilons(path: Path, *settings: str) -> set[float]:
    """Of both views by the default accountant."""
    rows = dpfl("account", path, "--json", *(word for setting in settings for word in ("--set", setting))).json
    return {row["epsilon"] for row in rows if row["accountant"].lower() == "pld"}


def test_account_shows_the_worst_phase_not_the_sum(tmp_path: Path) -> None:
    """Phases of 5 and 3 rounds cost what 5 rounds of the first cost; what is run costs what was promised."""
    privacy = {"sampler": "full", "record_rate": None}
    path = config(tmp_path / "a", "localized_mb_sgd", privacy=privacy)
    phases = ["algorithm.passes=multi", "algorithm.phase_rounds=[5, 3]"]
    five = epsilons(path, "rounds=5", "algorithm.phases=1", "algorithm.passes=multi")
    eight = epsilons(path, "rounds=8", "algorithm.phases=1", "algorithm.passes=multi")
    assert epsilons(path, *phases) == five and max(five) < min(eight)
    assert epsilons(path) == epsilons(path, "rounds=1", "algorithm.phases=1"), "one pass: as one release"
    result = run(path, *(word for setting in phases for word in ("--set", setting)))
    assert {result["epsilon"]["server"]["epsilon"]} == five
    assert result["epsilon"]["server"]["worst_case_epsilon"] == max(five)


def test_a_budget_that_fits_the_worst_phase_lasts_for_all_of_them(tmp_path: Path) -> None:
    privacy = {"sampler": "full", "record_rate": None}
    path = config(tmp_path / "a", "localized_mb_sgd", privacy=privacy)
    settings = ["--set", "algorithm.passes=multi"]
    (spent,) = epsilons(path, "algorithm.passes=multi")
    done = dpfl(
        "run", path, "--out", path.parent / "runs", "--json", *settings, "--set", f"privacy.epsilon={1.001 * spent}"
    )
    assert (done.json["status"], done.json["rounds"]) == ("done", 8)
    assert "round 8/8" in done.err, "what is expected counts phases on other records as free, too"
    short = run(path, *settings, "--set", f"privacy.epsilon={0.999 * spent}", code=3)
    assert (short["status"], short["rounds"]) == ("budget_exhausted", 3)
    assert any("ended after 3 of 8 rounds, in phase 1 of 2" in note for note in short["notes"])


def test_bad_input_is_found_before_anything_is_written(tmp_path: Path) -> None:
    nesterov = config(tmp_path / "a", "localized_nesterov", loss="logistic")
    one_message(dpfl("run", nesterov, "--out", tmp_path / "runs"), "loss: hinge", "convolution")
    path = config(tmp_path / "b", "localized_mb_sgd", rounds=None, privacy={"epsilon": 3.0})
    one_message(dpfl("run", path, "--out", tmp_path / "runs"), "rounds is missing", "divided among the phases")
    path = config(tmp_path / "c", "localized_subgradient")
    full = ["--set", "privacy.sampler=full", "--set", "privacy.record_rate=null"]
    many = dpfl("run", path, "--out", tmp_path / "runs", "--set", "algorithm.phases=6", *full)
    one_message(many, "smallest silo has 40 records", "may read 0", "Use fewer phases")
    assert not (tmp_path / "runs").exists()


def test_sampled_participation(tmp_path: Path) -> None:
    """M of N silos in a round, as in the paper's Fig. 3."""
    result = run(config(tmp_path / "a", "localized_mb_sgd", silo_rate=0.5))
    per_round = [sum(charge.round == round for charge in charges(result["folder"])) for round in range(8)]
    assert per_round == [2] * 8


def test_a_third_partys_mixture_is_over_all_rounds_that_any_draws_allow(tmp_path: Path) -> None:
    """A budget of the server's view ends the run by chance, early; phases that it did not reach might have been run."""
    privacy = {"sampler": "full", "record_rate": None, "epsilon": 1.7}
    result = run(
        config(tmp_path / "a", "localized_mb_sgd", silo_rate=0.5, privacy=privacy),
        "--set",
        "algorithm.passes=multi",
        code=3,
    )
    assert 0 < result["rounds"] < 8
    assert "over the 8 rounds" in result["epsilon"]["third_party"]["basis"]
    assert result["epsilon"]["third_party"]["epsilon"] < 1.7
