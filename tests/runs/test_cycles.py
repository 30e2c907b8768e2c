"""Runs on batches in a cycle, with correlated noise: what they charge, how they go on, what they are refused with."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

from dpfl_plugin.privacy.correlation import Correlation
from dpfl_plugin.privacy.cycles import Cycles
from dpfl_plugin.privacy.samplers import Cyclic
from tests.cli.command import BASE, charges, dpfl, merged, metrics, one_message, run, write
from tests.cli.test_resume import crash, folder_of, same

# 24 records in batches of 6, three steps a round: rounds begin at each of the four batches.
CYCLES: dict[str, Any] = {
    "rounds": 9,
    "algorithm": {"name": "scaffold", "local_steps": 3},
    "privacy": {"sampler": "cyclic", "record_rate": 0.25},
    "checkpoint": {"every": 2},
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(write(tmp_path_factory.mktemp("undisturbed"), CYCLES))


def test_what_is_charged(undisturbed: dict[str, Any]) -> None:
    """27 steps of four batches: seven passes were begun."""
    made = charges(undisturbed["folder"])
    assert {(charge.count, charge.release.sampler, charge.release.rate) for charge in made} == {(3, "cyclic", 0.25)}
    assert {(charge.round, charge.silo) for charge in made} == set(itertools.product(range(9), range(4)))
    expected = get_epsilon_gaussian(4.0 / 7**0.5, 1e-5)
    assert undisturbed["epsilon"]["server"]["epsilon"] == pytest.approx(expected, rel=1e-6)
    assert undisturbed["epsilon"]["third_party"]["epsilon"] == pytest.approx(expected, rel=1e-6)


def test_a_record_is_in_every_fourth_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[Any]] = [[] for _ in range(4)]
    real = Cycles.batches

    def batches(self: Cycles, steps: range) -> Any:
        found = real(self, steps)
        for all_so_far, of_silo in zip(seen, found, strict=True):  # all silos of the round, in their order
            all_so_far += of_silo
        return found

    monkeypatch.setattr(Cycles, "batches", batches)
    run(write(tmp_path, {**CYCLES, "runtime": {"stack": 4}}))
    for of_silo in seen:
        assert len(of_silo) == 27
        assert sorted(np.concatenate(of_silo[:4])) == list(range(24))
        assert all(np.array_equal(of_silo[t], of_silo[t % 4]) for t in range(27))


@pytest.mark.parametrize("number", [2, 7])
def test_crashed_and_resumed(tmp_path: Path, undisturbed: dict[str, Any], number: int) -> None:
    """The sums that noise is correlated with are there again, to the bit, and nothing is charged in addition."""
    config = crash(write(tmp_path, CYCLES), number)
    assert {charge.round for charge in charges(folder_of(config))} == set(range(number))
    same(run(config, "--resume"), undisturbed)


def test_other_coefficients_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = crash(write(tmp_path, CYCLES), 4)
    monkeypatch.setattr(Cyclic, "correlation", Correlation((1024, 512, 300, 200)))
    one_message(dpfl("run", config, "--out", config.parent / "runs", "--resume"), "other coefficients")


def test_who_is_advanced_with_whom_changes_nothing(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    config = write(tmp_path, {**CYCLES, "runtime": {"stack": 1}, "name": "alone"})
    assert metrics(run(config)) == metrics(undisturbed)


def test_noise_is_solved_for(tmp_path: Path) -> None:
    privacy = {**CYCLES["privacy"], "noise_multiplier": None, "epsilon": 2.0}
    result = run(write(tmp_path, {**CYCLES, "privacy": privacy}))
    assert result["rounds"] == 9
    assert result["epsilon"]["server"]["epsilon"] == pytest.approx(2.0, rel=1e-3)
    assert result["epsilon"]["server"]["epsilon"] <= 2.0


def test_a_budget_ends_a_run_after_a_pass(tmp_path: Path) -> None:
    """Five passes are afforded: 20 steps, six rounds and no seventh."""
    five = get_epsilon_gaussian(4.0 / 5**0.5, 1e-5)
    privacy = {**CYCLES["privacy"], "epsilon": five * 1.001}
    result = run(write(tmp_path, {**CYCLES, "privacy": privacy}), code=3)
    assert result["rounds"] == 6 and result["epsilon"]["server"]["epsilon"] == pytest.approx(five, rel=1e-6)


def test_what_is_said(undisturbed: dict[str, Any]) -> None:
    said = (Path(undisturbed["folder"]) / "privacy.md").read_text()
    assert "correlated over 4 steps" in said and "dealt into batches once" in said and "4 batches" in said


REFUSED: dict[str, dict[str, Any]] = {
    "bands": {"privacy": {"bands": 5}},
    "whole number of batches": {"privacy": {"record_rate": 0.3}},
    "a part of the records": {
        "rounds": 5,
        "algorithm": {
            "name": "localized_mb_sgd",
            "phase_rounds": [3, 2],
            "lr": 0.1,
            "regularisation": 0.5,
            "local_steps": None,
            "local_lr": None,
        },
    },
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(tmp_path: Path, what: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(merged(merged(BASE, CYCLES), REFUSED[what])))
    one_message(dpfl("run", config, "--out", tmp_path / "runs"), what)
    assert not (tmp_path / "runs").exists()
