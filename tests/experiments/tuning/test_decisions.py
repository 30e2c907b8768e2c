"""What is decided in a tuning, is decided once and by scores: not by a failure that comes later, nor by a raw loss."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpfl_plugin as dpfl
from dpfl_plugin.algorithms.base import RoundPlan, Setting
from dpfl_plugin.config.tune import Candidate
from dpfl_plugin.core.validation_scores import DEFAULT_SCORE, ValidationScore
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import DataError, TrainingError
from dpfl_plugin.experiments.tuning.successive_halving import DECISIONS, Standing, decide
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.runtimes.in_process import InProcess

RATES = (0.01, 0.02, 0.1, 0.2)  # the last two learn, the first two unlearn
SPEC: dict[str, Any] = {"grid": {"algorithm.local_lr": list(RATES)}, "rungs": [1, 2], "eta": 2, "share": 0.25}
PRIVACY: dict[str, Any] = {"epsilon": 20.0, "delta": 1e-3, "clip_norm": 1.0, "sampler": "full"}


@dataclass(frozen=True, kw_only=True)
class Failing(dpfl.algorithms.FedAvg):
    """Fails with some step sizes in some round: "0.1@2" is 0.1 in round 2."""

    failing: str = ""

    def round_plan(self, server: Vectors, round: int, setting: Setting, rng: np.random.Generator) -> RoundPlan:
        return replace(super().round_plan(server, round, setting, rng), phase=str(round + 1))

    def aggregate(self, server: Vectors, mean_up: Vectors, plan: RoundPlan) -> Vectors:
        if f"{self.local_lr}@{plan.phase}" in self.failing.split():
            raise TrainingError("as asked")
        made = super().aggregate(server, mean_up, plan)
        return made if plan.local_lr >= 0.1 else {**made, "model": 2 * server["model"] - made["model"]}


def tune(out: Path, failing: str = "") -> dpfl.Tuning:
    rng, arrays = np.random.default_rng(0), {}
    for name in "abc":
        y = rng.integers(0, 2, 60)
        x = rng.normal(size=(60, 2))
        x[:, 0] += 6 * y - 3
        arrays[name] = (x, y)
    return dpfl.Federation.from_arrays(arrays, classes=[0, 1]).tune(
        SPEC,
        model="softmax",
        algorithm=Failing(local_steps=1, local_lr=0.1, failing=failing),
        privacy=dpfl.Privacy(**PRIVACY),
        rounds=3,
        seed=1,
        out=out,
        progress=False,
    )


def rates(result: dict[str, Any]) -> list[float]:
    """Step sizes, the winner's first."""
    return [float(one["label"].partition("=")[2]) for one in result["ranking"]]


def result_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "result.json").read_text())
    return found


def test_a_winner_that_fails_stays_the_winner(tmp_path: Path) -> None:
    """Whichever of the two that learn wins, it fails in its last round, and no call has another one win."""
    results = []
    for _ in range(2):
        with pytest.raises(TrainingError, match=r"failed: round 3: as asked.*No other candidate takes its place"):
            tune(tmp_path, "0.1@3 0.2@3")
        results.append(result_of(tmp_path))
    assert [one["winner"].pop("retried") for one in results] == [False, True]
    assert results[0] == results[1] and results[0]["winner"]["status"] == "failed"
    said = (tmp_path / "tuning.md").read_text()
    assert "No other candidate takes its place" in said and "as asked" not in said
    for written in (tmp_path / "tuning.md", Path(results[0]["winner"]["folder"]) / "privacy.md"):
        assert "training failed before, and was tried again" in written.read_text()
    second = Path(results[0]["ranking"][1]["folder"])
    assert json.loads((second / "result.json").read_text())["rounds"] == 2


def test_a_late_failure_opens_nobody_who_was_left_behind(tmp_path: Path) -> None:
    """0.2 goes on from the first rung, and fails before the second: nobody has its place, in that call or the next."""
    first = tune(tmp_path, "0.2@2")
    ledger = (tmp_path / "ledger.jsonl").read_bytes()
    assert rates(first.result)[:2] == [0.1, 0.2] and first.winner.status == "done"
    assert first.result["failures"] == [{"label": "algorithm.local_lr=0.2", "first": 1, "last": 2}]
    decided = (tmp_path / DECISIONS).read_bytes()
    for old in (False, True):
        if old:  # a folder that an earlier version began: nothing in it but what candidates released
            for name in (DECISIONS, "result.json", "tuning.md"):
                (tmp_path / name).unlink()
            plan = json.loads((tmp_path / "tuning.json").read_text())
            del plan["statistics_noise"]
            (tmp_path / "tuning.json").write_text(json.dumps(plan))
        again = tune(tmp_path, "0.2@2")
        assert again.result == first.result and (tmp_path / "ledger.jsonl").read_bytes() == ledger
        assert (tmp_path / DECISIONS).read_bytes() == decided
    for label in rates(first.result)[2:]:
        assert first[f"algorithm.local_lr={label}"].result["rounds"] == 1


def test_an_early_failure_ranks_last_and_is_told(tmp_path: Path) -> None:
    """No epsilon covers that it failed; why it did stays with the experimenter."""
    found = tune(tmp_path, "0.2@1")
    assert rates(found.result)[0] == 0.1 and rates(found.result)[-1] == 0.2
    told = "Candidate algorithm.local_lr=0.2 of the tuning failed in rounds 1 to 1, before it released its score"
    said = (tmp_path / "tuning.md").read_text()
    assert f"{told} after round 1, and ranked last there" in said and "epsilon does not cover" in said
    assert "as asked" not in said and found.result["ranking"][-1]["failed"] == "round 1: as asked"
    assert told in (found.winner.folder / "privacy.md").read_text()


def test_damaged_decisions_are_refused(tmp_path: Path) -> None:
    tune(tmp_path)
    (tmp_path / DECISIONS).write_text("{}")
    with pytest.raises(DataError, match=r"cannot be read.*Restore it"):
        tune(tmp_path)


def test_a_tuning_whose_winner_was_killed_goes_on(tmp_path: Path) -> None:
    """Then no result says what it scored; its checkpoint does."""
    first = tune(tmp_path)
    (first.winner.folder / "result.json").unlink()
    again = tune(tmp_path)
    assert rates(again.result) == rates(first.result) and again.result["guarantee"] == first.result["guarantee"]


def test_a_raw_loss_that_is_not_finite_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the first raw measurement of a tuning, and made of the winner alone."""
    real = InProcess.evaluate

    def evaluate(self: InProcess, *args: Any) -> Any:
        return {silo: replace(one, train_loss=math.inf) for silo, one in real(self, *args).items()}

    monkeypatch.setattr(InProcess, "evaluate", evaluate)
    with contextlib.suppress(TrainingError):  # which would be the fault
        tune(tmp_path)
    assert result_of(tmp_path)["winner"]["status"] == "done"
    first = tune(tmp_path)
    assert first.winner.result["rounds"] == 3
    assert [after for after, _ in first.result["ranking"][0]["scores"]] == [1, 2, 3]
    assert any("its loss is not finite" in note for note in first.winner.result["notes"])


def test_a_candidate_that_the_budget_stops_before_the_choice_is_not_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after crashes with fresh noise: no record that nothing was charged for decides, or is shown, before."""
    affords, seen = PrivacyAccount.affords, list[str]()
    monkeypatch.setattr(PrivacyAccount, "affords", lambda self, round, *given: not round and affords(self, 0, *given))
    for name, real in (("evaluate", InProcess.evaluate), ("measures", InProcess.measures)):
        watched = lambda *given, name=name, real=real: seen.append(name) or real(*given)  # noqa: E731
        monkeypatch.setattr(InProcess, name, watched)
    found = tune(tmp_path).result
    results = [json.loads((Path(one["folder"]) / "result.json").read_text()) for one in found["ranking"]]
    assert [(one["status"], one["rounds"]) for one in results] == [
        *[("budget_exhausted", 1)] * 2,
        *[("interrupted", 1)] * 2,
    ]
    assert not seen and all(one["measures"] is None and not one["silos"] for one in results)


def test_where_all_fail_it_says_so_each_time_and_opens_nobody(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(TrainingError, match="every candidate that was left failed before its score after round 2"):
            tune(tmp_path, "0.1@2 0.2@2")
    results = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/*/result.json")]
    assert sorted(one["rounds"] for one in results) == [1, 1, 1, 1]


def standing(
    index: int, score: float | None, status: str = "interrupted", rounds: int = 1, kind: ValidationScore = DEFAULT_SCORE
) -> Standing:
    candidate: Any = Candidate(index, str(index), {}, None)  # type: ignore[arg-type]
    scores = () if score is None else ((1, score),)
    return Standing(candidate, candidate.config, scores, {"status": status, "rounds": rounds}, kind)


def test_of_losses_the_smallest_is_the_best_and_none_is_the_worst() -> None:
    loss = ValidationScore("deviance", 10.0)
    compared = [standing(index, score, kind=loss) for index, score in enumerate([3.0, -0.2, None, 1.0])]
    assert decide(compared, 1, 2).ranking == (1, 3, 0, 2)


def test_scores_decide_and_who_failed_before_one_is_behind_who_lost_one() -> None:
    compared = [
        standing(0, None, "failed", 0),
        standing(1, None),  # a crash lost it
        standing(2, 0.5, "failed", 1),  # after its score
        standing(3, 0.5),
        standing(4, 0.7),
    ]
    found = decide(compared, 1, 4)
    assert (found.ranking, found.failed) == ((4, 2, 3, 1, 0), (0,))
    assert (found.goes_on, found.left_behind) == ((4, 2, 3, 1), (0,))
    assert decide(compared, 1, 5).goes_on == (4, 2, 3, 1)  # nobody who failed takes a place
