"""A configuration that names a ledger: which runs it counts, and the total that plans, runs and statements have."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from dpfl_plugin.api.statement import statement
from dpfl_plugin.core.rounding import digits
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.shared_ledger import adaptive_total, runs_in
from tests.cli.command import dpfl, one_message, run, write
from tests.cli.test_tune import TUNE

PRIVACY: dict[str, Any] = {"noise_multiplier": 20.0, "randomness": "fresh", "ledger": "project.jsonl", "delta": 1e-3}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write(tmp_path, {"rounds": 2, "privacy": PRIVACY})


def ledger_of(config: Path) -> Ledger:
    return Ledger.open(config.with_name("project.jsonl"), append=False)


def total(config: Path) -> float:
    return float(adaptive_total(ledger_of(config), 1e-3)["epsilon"])


def test_plans_runs_and_statements_have_one_total(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(config)
    spent = first["epsilon"]["server"]["epsilon"]
    planned = dpfl("plan", config, "--epsilon", spent, "--json").json
    assert planned["total"]["num_runs"] == 1 and planned["total"]["epsilon"] > spent
    ahead = {row["view"]: row["epsilon"] for row in dpfl("account", config, "--json").json}
    monkeypatch.chdir(config.parent.parent)  # paths start at the file
    done = dpfl("run", config, "--out", config.parent / "runs", "--set", "algorithm.local_lr=0.1", "--json")
    second = done.json
    assert "with this run's plan, its 2 runs come to epsilon" in done.err
    assert second["adaptive_total"]["epsilon"] == total(config) == first["total_after_another"]["epsilon"]
    assert ahead["server, whatever decided on later runs"] == total(config)
    assert second["total_after_another"]["epsilon"] > total(config)
    again = dpfl("run", config, "--out", config.parent / "runs", "--resume", "--json")
    assert again.json == first, "shown, without --ledger"
    signed = statement(first["folder"])  # it ended before the second began
    assert signed.epsilon == total(config) and "1 other run that its ledger held on" in signed.text
    config.with_name("project.jsonl").rename(config.parent / "elsewhere.jsonl")
    one_message(dpfl("statement", first["folder"]), "project.jsonl: is missing", "Restore the file", code=1)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (("privacy.randomness=seeded",), "seeded: the noise can be computed"),
        (("privacy.noise_multiplier=0",), "no noise: nothing is guaranteed"),
    ],
)
def test_what_protects_nobody_is_not_counted(config: Path, settings: tuple[str, ...], why: str) -> None:
    done = dpfl("run", config, "--out", config.parent / "runs", *(w for s in settings for w in ("--set", s)))
    assert done.code == 0 and why in done.err and "project.jsonl" in done.err
    assert not config.with_name("project.jsonl").exists()


def test_a_sweep_is_one_plan_in_the_ledger_of_its_configuration(config: Path) -> None:
    sweep = {"grid": {"algorithm.local_lr": [0.1, 0.3]}}
    write(config.parent, {"rounds": 1, "privacy": PRIVACY, "sweep": sweep})
    assert dpfl("sweep", config, "--out", config.parent / "out").code == 0
    assert [run.early for run in runs_in(ledger_of(config))] == [True, True]


def test_a_tuning_is_one_run_whose_slots_are_its_plan(tmp_path: Path) -> None:
    config = write(tmp_path, {**TUNE, "privacy": {**TUNE["privacy"], **PRIVACY, "noise_multiplier": None}})
    for _ in range(2):  # the second time it is finished
        done = dpfl("tune", config, "--out", tmp_path / "out", "--json")
        assert done.code == 0, done.err
    (tuning,) = runs_in(ledger_of(config))
    released: defaultdict[int, Counter[Any]] = defaultdict(Counter)
    charges: list[Charge] = list(Ledger.open(tmp_path / "out" / "ledger.jsonl", append=False))
    for charge in charges:
        released[charge.silo][charge.release, charge.share] += charge.count
    assert tuning.slots == released and not tuning.more and len(ledger_of(config)) == 0
    first = run(config, "--set", "tune=null")
    assert first["earlier_runs"] == 1 and first["adaptive_total"]["epsilon"] == total(config)
    assert [entry.records for entry in runs_in(ledger_of(config))] == [tuning.records] * 2, "one key, one cut"
    again = dpfl("tune", config, "--out", tmp_path / "again", "--plan", "--json").json
    assert again["total"]["num_runs"] == 2 and again["total"]["epsilon"] > total(config)
    winner = done.json["winner"]["folder"]
    assert statement(winner).epsilon == total(config) > done.json["guarantee"]["epsilon"]
    rows = dpfl("account", config.with_name("project.jsonl"), "--json").json
    assert max(row["epsilon"] for row in next(iter(rows.values())) if row["accountant"] == "PLD") == pytest.approx(
        done.json["epsilon"], rel=1e-3
    )
    assert first["planned_total"] is None, "chosen after the tuning released"
    one_message(
        dpfl("tune", config, "--out", tmp_path / "out", "--set", "privacy.ledger=null"),
        "this tuning is a run in the ledger project.jsonl",
    )
    later = dpfl("tune", config, "--out", tmp_path / "later", "--json").json
    assert (later["other_runs"], later["adaptive_total"]["epsilon"]) == (2, total(config))
    assert (
        f"2 other runs of its project's ledger: epsilon {digits(total(config), 4)}**"
        in (tmp_path / "later" / "tuning.md").read_text()
    )
    page = (Path(later["winner"]["folder"]) / "privacy.md").read_text()
    assert "**These numbers cover the tuning and the 2 other runs that its ledger holds**" in page
    (tmp_path / "project.jsonl").unlink()
    one_message(dpfl("tune", config, "--out", tmp_path / "out"), "this tuning began without it")


def test_a_run_with_another_ledger_than_its_configuration_names_has_a_statement(config: Path) -> None:
    result = run(config, "--ledger", config.with_name("other.jsonl"), "--ledger-wait", "1")
    made = statement(result["folder"])
    assert made.epsilon == result["epsilon"]["server"]["epsilon"] and not config.with_name("project.jsonl").exists()
