"""What a run tells a person: numbers that can be read, and what they should have known before."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from dpfl_plugin.runs import prepare
from dpfl_plugin.runs.forecast import MANY_ROUNDS
from dpfl_plugin.runs.result import _diverged
from tests.cli.command import dpfl, run, write


@pytest.mark.parametrize(
    ("losses", "says"),
    [
        ([], ""),
        ([2.3, 0.5], ""),
        ([2.3, 1e-6, 0.9], ""),
        ([2.3, 2299.0], ""),
        ([2.3, 2301.0], "its loss is 2301 at the end"),
        ([1e29, 1e28], "its loss is 1e+28 at the end"),
        ([2e5, 1e5], ""),
        ([2.3, None], "its loss is not finite"),
    ],
)
def test_a_run_that_diverged_says_so(losses: list[float | None], says: str) -> None:
    notes = _diverged(losses)
    assert (says in notes[0]) if says else notes == []


def test_a_note_of_divergence_and_warnings_before_training(tmp_path: Path) -> None:
    config = write(tmp_path, {"algorithm": {"local_lr": 1e30}, "privacy": {"epsilon": 1e5, "delta": 0.1}})
    done = dpfl("run", config, "--out", tmp_path / "runs", "--json")
    assert done.code == 0 and any(note.startswith("training diverged") for note in done.json["notes"])
    first = done.err.index("round 1/")
    for warning in ("warning: privacy.epsilon=100000 promises", "warning: privacy.delta=0.1 is not below"):
        assert 0 <= done.err.find(warning) < first
    usual = [f"--set={value}" for value in ("algorithm.local_lr=0.1", "privacy.epsilon=20", "privacy.delta=1e-5")]
    quiet = dpfl("run", config, "--out", tmp_path / "runs", *usual)
    assert "warning: privacy" not in quiet.err and "diverged" not in quiet.out


SOLVED: dict[str, Any] = {"rounds": 6, "privacy": {"noise_multiplier": None, "epsilon": 2.0}}


def test_what_was_not_spent_is_explained(tmp_path: Path) -> None:
    config = write(tmp_path, {**SOLVED, "silo_rate": 0.25})
    says = "solved for the worst case, a silo in every round, at epsilon 2.000. No silo was drawn as often"
    assert says in dpfl("run", config, "--out", tmp_path / "runs").out
    assert "worst case, a silo" not in dpfl("run", config, "--out", tmp_path / "runs", "--set", "silo_rate=1").out
    given = ["--set", "privacy.noise_multiplier=20"]
    assert "worst case, a silo" not in dpfl("run", config, "--out", tmp_path / "runs", *given).out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_long_planning_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """While short plans are made, a run is stopped as between rounds: see test_resume."""

    def build(*args: Any, **more: Any) -> Any:
        signal.raise_signal(number)
        raise AssertionError("it went on planning")

    monkeypatch.setattr(prepare, "build", build)
    config = write(tmp_path, {**SOLVED, "rounds": MANY_ROUNDS})
    done = dpfl("run", config, "--out", tmp_path / "runs")
    assert done.code == 7 and "solving for the noise of 10,000 rounds" in done.err
    assert "interrupted during planning: no round began" in done.err and "stopping" not in done.err
    assert not list(tmp_path.glob("runs/*/*/ledger.jsonl"))


def test_a_warning_is_told_before_training_and_at_the_end(tmp_path: Path) -> None:
    done = dpfl("run", write(tmp_path, {"privacy": {"delta": 0.05}}), "--out", tmp_path / "runs")
    assert [text.count("privacy.delta=0.05 is not below") for text in (done.err, done.out)] == [1, 1]
    again = dpfl("run", tmp_path / "config.yaml", "--out", tmp_path / "runs")
    assert "note: privacy.delta=0.05 is not below" in again.out, "who sees a finished run was not warned"


def test_the_log_is_for_people(tmp_path: Path) -> None:
    result = run(write(tmp_path))
    log = (Path(result["folder"]) / "log.txt").read_text()
    last = result["test_accuracy"]["last"]
    assert "{" not in log and f"after round 6 (train): training loss {result['train_loss']['last']:.4g}, " in log
    assert f"test accuracy {last:.4g}, epsilon " in log and " rounds 1 to 6\n" in log


def test_what_a_total_is_of(tmp_path: Path) -> None:
    config, ledger = write(tmp_path, {"privacy": {"randomness": "fresh"}}), tmp_path / "all.jsonl"
    first = dpfl("run", config, "--out", tmp_path / "runs", "--ledger", ledger)
    assert "shared ledger" not in first.out  # nothing to add up
    second = dpfl("run", config, "--out", tmp_path / "runs", "--ledger", ledger, "--set", "seed=4")
    assert "shared ledger, when this run ended: epsilon " in second.out and "for all its runs together" in second.out


@pytest.mark.parametrize("silos", [4, 10])
def test_what_an_accuracy_is_of_and_a_tenth_of_silos_only_where_there_are_ten(tmp_path: Path, silos: int) -> None:
    shown = dpfl("run", write(tmp_path, {"rounds": 1, "data": {"num_silos": silos}}), "--out", tmp_path / "runs").out
    assert "mean over silos" in shown and "at silos: worst " in shown
    assert ("10th percentile" in shown) == (silos == 10)
