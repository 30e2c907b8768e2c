"""Every algorithm through the command line: what it costs is known ahead, and a crash changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import charges, dpfl, metrics, one_message, run, write
from tests.cli.test_resume import crash, same

SILO = {"unit": "silo", "sampler": "full", "record_rate": None, "noise_multiplier": 20.0}
SCAFFNEW = {"name": "scaffnew", "local_steps": None, "p": 0.4}
SYNC = {"name": "fedavg_sync", "local_lr": 0.3, "schedule": "inverse", "gradient_clip": 1.0}
BUDGET = {"rounds": None, "checkpoint": {"every": 2}}
RUNS: dict[str, dict[str, Any]] = {
    "scaffnew": {"algorithm": SCAFFNEW, **BUDGET, "privacy": {"epsilon": 3.0}},
    "scaffnew, third party's budget": {
        "algorithm": SCAFFNEW,
        **BUDGET,
        "privacy": {"epsilon": 3.0, "budget_view": "third_party"},
    },
    "scaffnew, silo": {"algorithm": SCAFFNEW, **BUDGET, "privacy": {**SILO, "epsilon": 0.8}},
    "scaffnew, fixed": {"algorithm": {**SCAFFNEW, "p": None, "local_steps": 3}, "checkpoint": {"every": 2}},
    "fedprox": {"algorithm": {"name": "fedprox", "mu": 0.5}, "silo_rate": 0.5, **BUDGET, "privacy": {"epsilon": 3.0}},
    "fedprox, silo": {"algorithm": {"name": "fedprox", "mu": 0.5}, **BUDGET, "privacy": {**SILO, "epsilon": 0.8}},
    "fedavg_sync": {
        "algorithm": SYNC,
        "silo_rate": 0.5,
        "silo_weights": "records",
        **BUDGET,
        "privacy": {**SILO, "sampler": "fixed", "record_rate": 0.2, "epsilon": 0.5},
    },
    "fedavg_sync, with replacement": {
        "algorithm": {**SYNC, "silo_sampling": "with_replacement"},
        "silo_rate": 0.5,
        "silo_weights": "records",
        **BUDGET,
        "privacy": {**SILO, "sampler": "with_replacement", "record_rate": 0.2, "epsilon": 0.5},
    },
}


@pytest.mark.parametrize("changes", RUNS.values(), ids=RUNS)
def test_what_is_said_ahead_is_what_the_run_reports_and_a_crash_changes_nothing(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    path = write(tmp_path, changes)
    rows = dpfl("account", path, "--json").json
    result = run(path)
    views = result["epsilon"]
    accountant = views["server"]["accountant"]
    ahead = {row["view"]: row["epsilon"] for row in rows if row["accountant"] == accountant}
    assert ahead == {
        "server, worst case": views["server"]["worst_case_epsilon"],
        "third party": views["third_party"]["epsilon"],
        **({"outsider": views["outsider"]["epsilon"]} if "outsider" in views else {}),
    }
    budget = changes.get("privacy", {}).get("epsilon")
    if budget is not None:
        assert result["rounds"] > 3 and 0.5 * budget < views["server"]["epsilon"] <= budget
    if changes["algorithm"]["name"] == "scaffnew":  # all silos, always: a third party has no draw to count on
        assert views["third_party"]["epsilon"] == views["server"]["epsilon"] == views["server"]["worst_case_epsilon"]

    (tmp_path / "again").mkdir()
    again = crash(write(tmp_path / "again", changes), 4)
    same(run(again, "--resume"), result)


@pytest.mark.parametrize("unit", ["record", "silo"])
def test_scaffnews_noise_is_solved_for_the_rounds_that_its_coins_will_make(tmp_path: Path, unit: str) -> None:
    privacy = {"noise_multiplier": None, "epsilon": 3.0, "unit": unit}
    result = run(write(tmp_path, {"algorithm": SCAFFNEW, "rounds": 8, "privacy": privacy}))
    assert result["rounds"] == 8 and 2.9 < result["epsilon"]["server"]["epsilon"] <= 3.0


def test_scaffnews_rounds_cost_what_the_coins_say(tmp_path: Path) -> None:
    """And the coins are those of the seed: other records, noise and options leave them alone."""
    first = run(write(tmp_path, {"algorithm": SCAFFNEW, "rounds": 8}))
    counts = {charge.round: charge.count for charge in charges(first["folder"])}
    assert len(set(counts.values())) > 1
    others = {"data": {"dataset": {"alpha": 3.0}}, "privacy": {"noise_multiplier": 8.0}}
    second = run(write(tmp_path, {"algorithm": {**SCAFFNEW, "local_lr": 0.1}, "rounds": 8, **others}))
    assert {charge.round: charge.count for charge in charges(second["folder"])} == counts
    silo = run(write(tmp_path, {"algorithm": SCAFFNEW, "rounds": 8, "privacy": SILO}))
    assert {charge.count for charge in charges(silo["folder"])} == {1}


@pytest.mark.parametrize("changes", [RUNS["scaffnew"], RUNS["fedprox"]], ids=["scaffnew", "fedprox"])
def test_stacks_give_the_same_bits(tmp_path: Path, changes: dict[str, Any]) -> None:
    one, two = (run(write(tmp_path, changes), "--set", f"runtime.stack={stack}") for stack in (1, 2))
    assert one["model_sha256"] == two["model_sha256"] and metrics(one) == metrics(two)


def test_the_notes_reach_the_result_and_the_statement(tmp_path: Path) -> None:
    result = run(write(tmp_path, {**RUNS["fedavg_sync"], "algorithm": {**SYNC, "schedule": "constant"}}))
    statement = json.loads((Path(result["folder"]) / "ledger.json").read_text())
    for notes in (result["notes"], statement["notes"]):
        assert any("not proven, and not the ledger's" in note for note in notes)
    assert result["epsilon"]["server"]["unit"] == "silo"


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"algorithm": {**SCAFFNEW, "p": 0}}, ("p=0", "(0, 1]")),
        ({"algorithm": {**SCAFFNEW, "p": 1.01}}, ("p=1.01", "(0, 1]")),
        ({"algorithm": {**SCAFFNEW, "local_steps": 3}}, ("exactly one",)),
        ({"algorithm": {"name": "fedprox", "mu": -1}}, ("mu=-1", "at least 0")),
        ({"algorithm": {"name": "fedprox"}}, ("algorithm.mu is missing",)),
        ({"algorithm": {**SYNC, "gradient_clip": 0}}, ("gradient_clip=0", "positive")),
        ({"algorithm": {**SYNC, "mu": 2}}, ("mu=2", "left out")),
        (
            {"algorithm": {**SYNC, "silo_sampling": "with_replacement"}, "silo_rate": 0.5, "max_participations": 3},
            ("max_participations", "with replacement"),
        ),
        ({"algorithm": SYNC, "privacy": {"sampler": "with_replacement"}}, ("with_replacement", "unit: silo")),
    ],
)
def test_wrong_options(tmp_path: Path, changes: dict[str, Any], parts: tuple[str, ...]) -> None:
    one_message(dpfl("run", write(tmp_path, changes), "--out", tmp_path / "runs"), *parts)
    assert not (tmp_path / "runs").exists()
