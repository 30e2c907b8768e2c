"""Runs whose noise is solved for, and caps on participation: end to end."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

import dpfl_plugin
from dpfl_plugin.runs.forecast import Forecast
from tests.cli.command import charges, dpfl, metrics, run, write
from tests.cli.test_resume import crash, folder_of, same

ALONE: dict[str, Any] = {"privacy": {"epsilon": 2.0, "noise_multiplier": None, "clip_norm": None, "record_rate": None}}
CAPPED: dict[str, Any] = {"max_participations": 4, "silo_rate": 0.5, "rounds": 40, "checkpoint": {"every": 2}}


# Noise that is solved for


def test_epsilon_alone_is_enough(tmp_path: Path) -> None:
    path = write(tmp_path, {**ALONE, "silo_rate": 0.5})
    result = run(path)
    assert (result["status"], result["rounds"]) == ("done", 6)
    server = result["epsilon"]["server"]
    assert 2.0 * (1 - 1e-3) < server["worst_case_epsilon"] <= 2.0 and server["epsilon"] <= 2.0
    folder = Path(result["folder"])
    said = json.loads((folder / "ledger.json").read_text())["mechanism"]
    assert said["noise_multiplier"] == result["noise_multiplier"] and said["noise_multiplier_solved"] is True
    assert (said["clip_norm"], said["record_rate"]) == (1.0, 0.2)
    assert {charge.release.noise_multiplier for charge in charges(folder)} == {result["noise_multiplier"]}
    assert f"noise_multiplier solved: {result['noise_multiplier']:g}, for 6 rounds" in (folder / "log.txt").read_text()
    assert dpfl_plugin.plan(path).run.value == result["noise_multiplier"]
    again = yaml.safe_load((folder / "config.yaml").read_text())["privacy"]
    assert (again["noise_multiplier"], again["record_rate"]) == (None, 0.2)


@pytest.mark.parametrize("view", ["server", "third_party"])
def test_the_draws_of_a_warm_up_do_not_end_the_run(tmp_path: Path, view: str) -> None:
    """Rounds of K and of K + 1 gradients, as the draws have it; all rounds are run, for any seed."""
    warm = {"algorithm": {"name": "scaffold_warm", "option": "I"}, "silo_rate": 0.5, "rounds": 12}
    path = write(tmp_path, {**ALONE, **warm, "privacy": {**ALONE["privacy"], "budget_view": view}})
    for seed in (1, 2):
        result = run(path, "--set", f"seed={seed}")
        assert (result["status"], result["rounds"]) == ("done", 12)
        assert result["epsilon"][view]["epsilon"] <= 2.0


def test_an_unfinished_run_keeps_its_noise(tmp_path: Path) -> None:
    """Even if a later version would solve for another number."""
    changes = {**ALONE, "checkpoint": {"every": 2}}
    for name in ("whole", "crashed"):
        (tmp_path / name).mkdir()
    whole = run(write(tmp_path / "whole", changes))
    config = crash(write(tmp_path / "crashed", changes), 4)
    with mock.patch.object(Forecast, "solved", return_value=(99.0, Counter())):
        resumed = run(config, "--resume")
        same(resumed, whole)
        assert resumed["noise_multiplier"] == whole["noise_multiplier"] < 99
        other = run(config, "--set", "seed=8")
        assert other["noise_multiplier"] == 99.0  # which is what a run that begins now takes
    assert {charge.noise_id for charge in charges(resumed["folder"])} == {c.noise_id for c in charges(whole["folder"])}


def test_a_ledger_cut_before_its_first_line_solves_anew(tmp_path: Path) -> None:
    config = crash(write(tmp_path, ALONE), 1)
    folder = folder_of(config)
    for path in sorted((folder / "checkpoint").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (folder / "ledger.jsonl").write_bytes(b'{"facts":')
    assert run(config, "--resume")["rounds"] == 6


# A cap on participation


def participations(folder: Path | str) -> Counter[int]:
    return Counter(silo for silo, _, _ in {(c.silo, c.round, c.noise_id) for c in charges(folder)})


def test_a_cap_is_never_passed_and_ends_the_run(tmp_path: Path) -> None:
    path = write(tmp_path, CAPPED)
    result = run(path, code=3)
    counts = participations(result["folder"])
    # 16 places, 2 a round; the run ends when 3 of the 4 silos have used theirs up.
    assert max(counts.values()) == 4 and sum(n < 4 for n in counts.values()) + (4 - len(counts)) < 2
    assert result["status"] == "budget_exhausted" and "max_participations=4" in result["reason"]
    assert result["cause"] == "max_participations"
    free = run(path, "--set", "max_participations=null", "--set", f"rounds={result['rounds']}")
    assert max(participations(free["folder"]).values()) > 4, "the cap has to matter"
    four = run(path, "--set", "max_participations=null", "--set", "rounds=4")["epsilon"]["server"]["worst_case_epsilon"]
    views = result["epsilon"]
    assert views["server"]["worst_case_epsilon"] == views["third_party"]["epsilon"] == four
    assert "no mixture" in views["third_party"]["basis"]
    assert [line["round"] for line in metrics(result)][-1] == result["rounds"]


def test_a_cap_that_nobody_can_reach_changes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, {"silo_rate": 0.5})
    free, capped = run(path), run(path, "--set", "max_participations=6")
    assert capped["epsilon"] == free["epsilon"]
    drawn = [{(c.silo, c.round) for c in charges(one["folder"])} for one in (free, capped)]
    assert drawn[0] == drawn[1]


def test_all_silos_in_a_round_need_all_below_the_cap(tmp_path: Path) -> None:
    result = run(write(tmp_path, {**CAPPED, "silo_rate": 1.0}), code=3)
    assert result["rounds"] == 4 and set(participations(result["folder"]).values()) == {4}


def test_a_run_says_that_the_cap_ended_it_and_what_its_noise_was_solved_for(tmp_path: Path) -> None:
    path = write(tmp_path, {**ALONE, "max_participations": 5})
    done = dpfl("run", path, "--out", tmp_path / "runs", "--json")
    assert (done.code, done.json["status"], done.json["rounds"]) == (3, "budget_exhausted", 5)
    assert "dpfl: stopped by max_participations after 5 rounds: too few silos" in done.err
    said = (Path(done.json["folder"]) / "log.txt").read_text()
    assert ", for at most 5 rounds of a silo within epsilon 2 " in said
    noisy = ["--set", "rounds=100", "--set", "max_participations=99", "--set", "privacy.noise_multiplier=2"]
    spent = dpfl("run", path, "--out", tmp_path / "runs", *noisy)
    assert spent.code == 3 and "dpfl: stopped by the budget after " in spent.err
    unreached = run(path, "--set", "max_participations=6")
    assert ", for 6 rounds within epsilon 2 " in (Path(unreached["folder"]) / "log.txt").read_text()


@pytest.fixture(scope="module")
def capped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(write(tmp_path_factory.mktemp("capped"), CAPPED), code=3)


@pytest.mark.parametrize("number", [1, 4, 7])  # before the first checkpoint; later, and near the end
def test_a_capped_run_is_resumed_to_the_same_bits(tmp_path: Path, capped: dict[str, Any], number: int) -> None:
    """What was released after the checkpoint is repeated by the silos that made it, who are counted once."""
    config = crash(write(tmp_path, CAPPED), min(number, capped["rounds"]))
    same(run(config, "--resume", code=3), capped)


@pytest.mark.parametrize("number", [3, 5, 6])
def test_rounds_with_fresh_noise_count_towards_the_cap(
    tmp_path: Path, capped: dict[str, Any], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpfl_plugin.runs.prepare.fresh_coins", lambda: "")  # with others the cap may end it before
    fresh = {**CAPPED, "privacy": {**CAPPED.get("privacy", {}), "randomness": "fresh"}}
    config = crash(write(tmp_path, {**fresh, "checkpoint": {"every": 4, "seconds": 1000}}), number)
    crash(config, 1, "--resume")  # and once more, after a round
    result = run(config, "--resume", code=3)
    counts = participations(result["folder"])
    assert max(counts.values()) == 4 and result["rounds"] < len({c.noise_id for c in charges(result["folder"])})
    assert result["epsilon"]["server"]["worst_case_epsilon"] == capped["epsilon"]["server"]["worst_case_epsilon"]
