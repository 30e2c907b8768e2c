"""Private statistics of a tuning: released once, charged to its plan, and where all candidates begin."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import dpfl_plugin as dpfl
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.experiments.tuning import successive_halving
from dpfl_plugin.federation.scaled_records import SUMS
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.shared_ledger import runs_in
from dpfl_plugin.runs import checkpoint
from dpfl_plugin.runtimes.in_process import InProcess
from tests.cli.command import dpfl as command
from tests.cli.command import merged, one_message
from tests.cli.test_private_statistics import DELTA, SOLVED, Died, by_dp_accounting, config, dies
from tests.runs.test_outcomes import OUTCOMES, SCORE, X, federation

EPSILON = 3.0
SPEC: dict[str, Any] = {"grid": {"algorithm.local_lr": [0.01, 0.1, 0.5]}, "rungs": [1], "share": 0.3}
ROUNDS, SCORES = 4, 4  # of each silo: three candidates in the first round, one in the second
KEYS: dict[str, Any] = {
    "model": "linear",
    "algorithm": dpfl.algorithms.FedAvg(local_steps=1, local_lr=0.1),
    "privacy": dpfl.Privacy(epsilon=EPSILON, delta=DELTA, clip_norm=1.0, sampler="full"),
    "private_statistics": {"outcome": True},
    "rounds": 2,
}
RARE: dict[str, Any] = {"model": "softmax", "class_weights": "balanced"}


def records(kind: str) -> dpfl.Federation:
    if kind in OUTCOMES:
        return federation(kind)
    rare = (SCORE > 1.5).astype(int)
    return dpfl.Federation.from_arrays({"a": (X[::2], rare[::2]), "b": (X[1::2], rare[1::2])}, classes=[0, 1])


def sums_of(tuned: dict[str, Any]) -> list[torch.Tensor]:
    """The released statistics that each candidate knows."""
    states = [checkpoint.load(Path(one["folder"]) / "checkpoint") for one in tuned["ranking"]]
    return [state.server[SUMS] for state in states if state is not None]


def check_charges(out: Path, tuned: dict[str, Any], releases: int = 1) -> None:
    """The ledger holds the plan, with so many releases of statistics; by another library it fits the budget."""
    charges = Ledger.open(out / "ledger.jsonl", append=False)
    made = Counter((charge.silo, charge.kind, charge.release.noise_multiplier, charge.share) for charge in charges)
    noise, of_scores, of_statistics = tuned["noise_multiplier"], tuned["score_noise"], tuned["statistics_noise"]
    training, scored = (0.0, 0.7), (0.7, 1.0)
    for silo in (0, 1):
        assert made[silo, "statistics", of_statistics, training] == releases
        if releases == 1:
            assert made[silo, "round", noise, training] == ROUNDS and made[silo, "score", of_scores, scored] == SCORES
    assert tuned["guarantee"]["in_ledger"] <= EPSILON
    if releases == 1:
        assert made.total() == 2 * (1 + ROUNDS + SCORES)
        expected = max(by_dp_accounting(of_statistics, *[noise] * ROUNDS), by_dp_accounting(*[of_scores] * SCORES))
        assert expected == pytest.approx(EPSILON, rel=2e-3)
        assert tuned["epsilon"] == tuned["guarantee"]["in_ledger"] == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("kind", ["regression", "counts", "ordinal", "survival", "rare classes"])
def test_all_candidates_begin_with_one_release_that_is_charged_once(kind: str, tmp_path: Path) -> None:
    begun, real = [], InProcess.run_round

    def run_round(self: InProcess, down: Any, plan: Any, draw: Any) -> Any:
        if (plan.task, draw.round) == ("train", 0):
            begun.append(down["model"].clone())
        return real(self, down, plan, draw)

    keys = {**KEYS, **(RARE if kind == "rare classes" else {})}
    with mock.patch.object(InProcess, "run_round", run_round):
        tuned = records(kind).tune(SPEC, **keys, out=tmp_path, progress=False)
    assert len(begun) == 3 and all(torch.equal(model, begun[0]) for model in begun) and bool(begun[0].any())
    sums = sums_of(tuned.result)
    assert len(sums) == 3 and all(torch.equal(one, sums[0]) for one in sums)
    columns = [run.result["private_statistics"] for run in tuned.values()]
    assert columns == [columns[0]] * 3 and (kind != "rare classes" or columns[0]["columns"]["class_weights"])
    check_charges(tmp_path, tuned.result)
    pages = [(Path(run.folder) / "privacy.md").read_text() for run in tuned.values()]
    assert all("hold them for that candidate alone" in page for page in pages)


TABLE = merged(SOLVED, {"rounds": 2, "privacy": {"epsilon": EPSILON}, "tune": {**SPEC, "eta": 3}})
FRESH = merged(TABLE, {"privacy": {"randomness": "fresh", "ledger": "project.jsonl"}})


def tune(path: Path) -> dict[str, Any]:
    done = command("tune", path, "--out", path.parent / "out", "--json")
    assert done.code == 0, done.err
    found: dict[str, Any] = done.json
    return found


def died(path: Path, where: Any, name: str, when: int) -> None:
    with mock.patch.object(where, name, dies(getattr(where, name), when)), pytest.raises(Died):
        tune(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A tuning of scaled columns that nothing disturbed."""
    return tune(config(tmp_path_factory.mktemp("whole"), TABLE))


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize(
    ("where", "name", "when", "lost"),
    [
        pytest.param(SiloGroup, "_sums", 1, False, marks=pytest.mark.slow),  # before anything was released
        pytest.param(PrivacyAccount, "sync", 2, True, marks=pytest.mark.slow),  # charged, and nothing has left
        (checkpoint, "save", 2, True),  # released
        pytest.param(successive_halving, "run_config", 2, False, marks=pytest.mark.slow),  # before the next candidate
    ],
)
def test_a_tuning_that_dies_goes_on_with_statistics_that_it_charged(
    tmp_path: Path, whole: dict[str, Any], where: Any, name: str, when: int, lost: bool, fresh: bool
) -> None:
    """Lost ones are made again: seeded to the bit; fresh ones are charged again, and the winner's rounds pay for it."""
    path = config(tmp_path, FRESH if fresh else TABLE)
    died(path, where, name, when)
    tuned = tune(path)
    sums = sums_of(tuned)
    assert len(sums) == 3 and all(torch.equal(one, sums[0]) for one in sums)
    check_charges(tmp_path / "out", tuned, releases=1 + (fresh and lost))
    if fresh:
        (run,) = runs_in(Ledger.open(tmp_path / "project.jsonl", append=False))
        assert bool(run.more) == lost, "what is planned has slots"
    else:
        assert torch.equal(sums[0], sums_of(whole)[0])
        assert [one["scores"] for one in tuned["ranking"]] == [one["scores"] for one in whole["ranking"]]


def test_where_the_budget_has_no_room_for_lost_statistics_the_tuning_says_so(tmp_path: Path) -> None:
    path = config(tmp_path, merged(FRESH, {"private_statistics": {"epsilon_share": 0.9}}))
    died(path, checkpoint, "save", 2)
    for _ in range(2):
        done = command("tune", path, "--out", tmp_path / "out")
        one_message(done, "private statistics: ", "A crash lost those that were charged", "epsilon_share", code=1)


def test_a_model_that_cannot_begin_with_counts_is_refused_before_anything_is_released(tmp_path: Path) -> None:
    spec = {**SPEC, "grid": {"model": ["linear", {"name": "linear", "bias": False}]}}
    with pytest.raises(UnsupportedError, match=r"private_statistics.outcome: the model does not end with"):
        federation("regression").tune(spec, **KEYS, out=tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()
