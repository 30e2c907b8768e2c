"""A run goes on without silos that are lost: who takes part, with what noise, and what may still be claimed."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from dpfl_plugin.algorithms.scaffnew import ScaffNew
from dpfl_plugin.algorithms.scaffold import Scaffold, ScaffoldWarm
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.shared_ledger import plans_in
from dpfl_plugin.runs.checkpoint import load
from tests.cli.command import charges, dpfl, metrics, one_message, run, write
from tests.cli.losing import Losing, losing
from tests.cli.test_resume import Crash, crash

CONTINUE: dict[str, Any] = {"runtime": {"on_silo_failure": "continue"}, "checkpoint": {"every": 1}}
WHY = "rank 2 was killed"


def by_attempt(result: dict[str, Any]) -> dict[tuple[int, int], list[int]]:
    """{(round, attempt): silos that were charged}; attempts by their order in the ledger."""
    found: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    names: list[int] = []
    for charge in Ledger.open(Path(result["folder"]) / "ledger.jsonl", append=False):
        name = int(charge.noise_id.partition(".")[2] or 0)
        names += [name] * (name not in names)
        found[charge.round, names.index(name)].append(charge.silo)
    return {key: sorted(silos) for key, silos in sorted(found.items())}


def checkpoint(result: dict[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], dict[str, Any]]:
    found = load(Path(result["folder"]) / "checkpoint")
    assert found is not None
    return found.server, found.silos, found.facts


def said(result: dict[str, Any]) -> dict[str, Any]:
    return json.loads((Path(result["folder"]) / "ledger.json").read_text())


@pytest.mark.parametrize("late", [False, True])
def test_a_round_that_loses_a_silo_is_made_again_by_the_others_with_fresh_noise(tmp_path: Path, late: bool) -> None:
    config, made = write(tmp_path, CONTINUE), list[Losing]()
    with losing({3: {1: WHY}}, late=late, made=made):
        result = run(config)
    assert result["status"] == "done" and result["rounds"] == 6
    assert result["lost"] == [{"silo": 1, "after_round": 2, "why": WHY, "back": None}]
    plans = [(draw.round, int("." in draw.noise_id), plan.participants) for plan, draw in made[0].seen]
    assert plans[:3] == [(0, 0, (0, 1, 2, 3)), (1, 0, (0, 1, 2, 3)), (2, 0, (0, 1, 2, 3))]
    assert plans[3:] == [(round, 1, (0, 2, 3)) for round in (2, 3, 4, 5)]
    assert all(plan.weights == (1 / 3,) * 3 and plan.silo_share == 1 for plan, _ in made[0].seen[3:])
    first = {(0, 0): [0, 1, 2, 3], (1, 0): [0, 1, 2, 3]} | ({(2, 0): [0, 1, 2, 3]} if late else {})
    assert by_attempt(result) == first | {(round, 1): [0, 2, 3] for round in (2, 3, 4, 5)}
    assert metrics(result)[-1]["round"] == 6
    rows = (Path(result["folder"]) / "silos.csv").read_text().splitlines()[1:]
    assert [row.split(",")[0] for row in rows] == ["0", "2", "3"]


def test_the_control_variate_is_the_mean_of_those_that_are_left(tmp_path: Path) -> None:
    config = write(tmp_path, {**CONTINUE, "runtime": {**CONTINUE["runtime"], "dtype": "float64"}})
    with losing({3: {1: WHY}, 5: {3: WHY}}):
        result = run(config)
    server, silos, facts = checkpoint(result)
    assert [loss["silo"] for loss in facts["losses"]] == [1, 3]
    assert torch.allclose(server["control"], silos["control"][[0, 2]].mean(dim=0), rtol=1e-12, atol=1e-14)
    assert torch.isfinite(silos["control"]).all(), "what is known of the lost ones: the checkpoint before"
    assert not torch.equal(silos["control"][1], torch.zeros_like(silos["control"][1]))


def test_without_a_loss_nothing_changes(tmp_path: Path) -> None:
    one = run(write(tmp_path, {}))
    (tmp_path / "other").mkdir()
    with losing({}):
        other = run(write(tmp_path / "other", CONTINUE))
    assert one["id"] == other["id"] and one["model_sha256"] == other["model_sha256"]
    assert charges(one["folder"]) == charges(other["folder"]) and one["epsilon"] == other["epsilon"]
    assert one["lost"] == [] and said(one) == said(other)


def test_a_third_party_is_told_the_worst_case_and_why(tmp_path: Path) -> None:
    config = write(tmp_path, {**CONTINUE, "silo_rate": 0.5, "algorithm": {"name": "fedavg"}})
    with losing({3: {1: WHY}}, late=True):
        result = run(config)
    server, third = result["epsilon"]["server"], result["epsilon"]["third_party"]
    assert third["epsilon"] == server["worst_case_epsilon"] >= server["epsilon"]
    assert "silos were lost, which may depend on their records" in third["basis"]
    # Six rounds and one attempt more: no silo was in all seven, and any might have been.
    (tmp_path / "seven").mkdir()
    seven = run(write(tmp_path / "seven", {"algorithm": {"name": "fedavg"}, "rounds": 7}))
    assert third["epsilon"] == pytest.approx(seven["epsilon"]["server"]["epsilon"], rel=1e-9)
    text = (Path(result["folder"]) / "privacy.md").read_text()
    for part in (
        "Silo 1 was lost after round 2",
        "a third party's epsilon is the server's worst case",
        "no epsilon covers",
    ):
        assert part.lower() in text.lower()
    shown = [{key: value for key, value in loss.items() if key != "why"} for loss in result["lost"]]
    assert said(result)["lost"] == shown and WHY not in text, "what a silo said of its error is not published"
    rows = dpfl("account", result["folder"], "--json").json
    (again,) = (row for row in rows if row["view"] == "third party" and row["accountant"] == third["accountant"])
    assert (again["epsilon"], again["basis"]) == (third["epsilon"], third["basis"])
    lines = metrics(result)
    assert lines[-1]["epsilon"]["third_party"] == pytest.approx(third["epsilon"], rel=1e-9)


def test_attempts_that_no_silo_was_in_together_count_together(tmp_path: Path) -> None:
    """One of two silos in a round: the one that is lost, and then the other."""
    changes = {**CONTINUE, "silo_rate": 0.5, "data": {"num_silos": 2}, "rounds": 1, "algorithm": {"name": "fedavg"}}
    made: list[Losing] = []
    with losing({}, made=made):
        run(write(tmp_path, changes))
    (first,) = made[0].seen[0][0].participants
    for folder, rounds in (("lost", 1), ("two", 2)):
        (tmp_path / folder).mkdir()
        with losing({1: {first: WHY}} if rounds == 1 else {}, late=True):
            result = run(write(tmp_path / folder, {**changes, "rounds": rounds}))
        if rounds == 1:
            assert by_attempt(result) == {(0, 0): [first], (0, 1): [1 - first]}
            lost = result["epsilon"]
    assert lost["third_party"]["epsilon"] == lost["server"]["worst_case_epsilon"]
    assert lost["third_party"]["epsilon"] == result["epsilon"]["server"]["worst_case_epsilon"]
    assert lost["third_party"]["epsilon"] > lost["server"]["epsilon"]


def test_a_budget_is_kept_when_rounds_are_released_twice(tmp_path: Path) -> None:
    changes = {**CONTINUE, "rounds": None, "privacy": {"epsilon": 2.0}}
    (tmp_path / "whole").mkdir()
    whole = run(write(tmp_path / "whole", changes))
    with losing({3: {1: WHY}}, late=True):
        result = run(write(tmp_path, changes))
    assert result["rounds"] == whole["rounds"] - 1, "the attempt that was lost was paid for"
    for view in ("server", "third_party"):
        assert result["epsilon"][view]["epsilon"] <= 2.0


def test_charges_that_would_be_repeated_count_once_they_are_not(tmp_path: Path) -> None:
    """After a crash, rounds in the ledger wait for their repetition; without all silos they are not repeated."""
    changes = {**CONTINUE, "rounds": None, "privacy": {"epsilon": 2.0}, "checkpoint": {"every": 2}}
    (tmp_path / "whole").mkdir()
    whole = run(write(tmp_path / "whole", changes))
    config = crash(write(tmp_path, changes), 4)  # rounds 3 and 4 are charged, the checkpoint is after round 2
    with losing({1: {1: WHY}}):
        result = run(config, "--resume")
    assert by_attempt(result)[2, 0] == by_attempt(result)[3, 0] == [0, 1, 2, 3]
    assert by_attempt(result)[2, 1] == [0, 2, 3]
    assert result["rounds"] == whole["rounds"] - 2 and result["epsilon"]["server"]["epsilon"] <= 2.0


def test_the_noise_of_a_repeated_round_was_never_drawn(tmp_path: Path) -> None:
    """Also where an earlier session of the run, resumed before the loss, had used the next attempt."""
    config = write(tmp_path, {**CONTINUE, "checkpoint": {"every": 100, "seconds": 1e9}})
    with losing({3: {1: WHY}}, late=True), pytest.raises(Crash), crashing(5):
        dpfl("run", config, "--out", tmp_path / "runs")
    with losing({1: {0: WHY}}):  # all are back, and another one is lost at once
        result = run(config, "--resume")
    draws = by_attempt(result)
    assert sorted(attempt for round, attempt in draws if round == 2) == [0, 1, 2]
    assert [loss["back"] for loss in result["lost"]] == [2, None]
    assert draws[2, 2] == draws[5, 2] == [1, 2, 3]


def test_silos_that_are_back_have_an_attempt_of_their_own(tmp_path: Path) -> None:
    """Others made the same rounds under the name of the attempt before, and were charged for them."""
    config = write(tmp_path, {**CONTINUE, "checkpoint": {"every": 100, "seconds": 1e9}})
    with losing({3: {1: WHY}}, late=True), pytest.raises(Crash), crashing(5):
        dpfl("run", config, "--out", tmp_path / "runs")
    draws = by_attempt(run(config, "--resume"))
    assert draws[2, 1] == [0, 2, 3] and draws[2, 2] == draws[5, 2] == [0, 1, 2, 3]


def crashing(call: int) -> Any:
    from unittest import mock

    real, calls = Losing.run_round, [0]

    def run_round(self: Losing, *given: Any) -> Any:
        calls[0] += 1
        found = real(self, *given)
        if calls[0] == call:
            raise Crash
        return found

    return mock.patch.object(Losing, "run_round", run_round)


def test_a_resume_brings_lost_silos_back(tmp_path: Path) -> None:
    config = write(tmp_path, {**CONTINUE, "runtime": {"on_silo_failure": "continue", "min_silos": 3}})
    with losing({3: {1: WHY}, 5: {2: "rank 3 was killed"}}):
        done = dpfl("run", config, "--out", tmp_path / "runs", "--json")
    assert done.code == 1 and done.err.count("dpfl: ") == 1
    assert "2 silos are left, fewer than runtime.min_silos=3 to go on with. Lost: silo 1: rank 2 was killed" in done.err
    assert done.json["status"] == "failed" and done.json["rounds"] == 3
    result = run(config, "--resume")
    assert result["rounds"] == 6 and [loss["back"] for loss in result["lost"]] == [3, 3]
    assert len(by_attempt(result)[3, 2]) == len(by_attempt(result)[5, 2]) == 4
    server, silos, _ = checkpoint(result)
    assert torch.allclose(server["control"], silos["control"].mean(dim=0), atol=1e-6)
    assert result["epsilon"]["third_party"]["basis"].endswith("nothing of the draw of participants")


def test_all_silos_lost(tmp_path: Path) -> None:
    config = write(tmp_path, CONTINUE)
    with losing({3: dict.fromkeys(range(4), WHY)}):
        done = dpfl("run", config, "--out", tmp_path / "runs", "--json")
    assert done.code == 1 and "0 silos are left" in done.err and done.json["rounds"] == 2
    assert run(config, "--resume")["rounds"] == 6


@pytest.mark.parametrize("call", [2, 4, 6])
def test_scores_and_own_models_without_a_lost_silo(tmp_path: Path, call: int) -> None:
    """Calls of run_round: two rounds, a score, a round, ... and silos' own models in the end."""
    changes = {
        **CONTINUE,
        "rounds": 3,
        "early_stopping": {"share": 0.25, "every": 2, "patience": 5, "noise_multiplier": 2.0},
        "personalise": {"local_steps": 2, "local_lr": 0.1},
    }
    with losing({3: {1: WHY}, 6: {2: WHY}} if call == 6 else {call: {1: WHY}}):
        result = run(write(tmp_path, changes))
    assert result["status"] == "done" and len(result["early_stopping"]["scores"]) == 1
    rows = [row.split(",") for row in (Path(result["folder"]) / "silos.csv").read_text().splitlines()[1:]]
    assert all(row[4] for row in rows) and len(rows) == (2 if call == 6 else 3)


def test_algorithms_that_do_not_say_what_becomes_of_their_states_are_refused(tmp_path: Path) -> None:
    (tmp_path / "silent.py").write_text(
        "from dataclasses import dataclass\n"
        "from dpfl_plugin.algorithms.scaffold import Scaffold\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Silent(Scaffold):\n"
        "    regroup = None\n"
    )
    config = write(tmp_path, {**CONTINUE, "algorithm": {"name": None, "module": "silent:Silent"}})
    one_message(dpfl("run", config), "keeps state at silos and does not say", "regroup")
    assert run(write(tmp_path, {"algorithm": {"name": None, "module": "silent:Silent"}}))["rounds"] == 6


def test_fewer_silos_than_are_needed_to_go_on_are_refused(tmp_path: Path) -> None:
    many = {"runtime": {"on_silo_failure": "continue", "min_silos": 5}}
    one_message(dpfl("run", write(tmp_path, many)), "runtime.min_silos=5 is more than the 4 silos")


# regroup


def test_scaffnew_shifts_add_up_to_nothing_over_those_that_are_left() -> None:
    algorithm = ScaffNew(local_lr=0.1, local_steps=2)
    generator = torch.Generator().manual_seed(0)
    silos = {name: torch.randn(3, 5, generator=generator, dtype=torch.float64) for name in ("control", "update")}
    server = {"model": torch.zeros(5, dtype=torch.float64), "mean_update": torch.ones(5, dtype=torch.float64)}
    weights = (0.5, 0.3, 0.2)
    after, changed = algorithm.regroup(server, silos, [0, 2, 3], weights)
    shifts = changed["control"] + 5.0 * (after["mean_update"] - changed["update"])  # at the next download
    mean = torch.einsum("i,id->d", torch.tensor(weights, dtype=torch.float64), shifts)
    assert torch.allclose(mean, torch.zeros(5, dtype=torch.float64), atol=1e-14)
    assert torch.equal(after["model"], server["model"]) and torch.equal(changed["update"], silos["update"])


def test_scaffold_regroups_by_weight_and_a_warm_up_does_not_wait_for_the_lost() -> None:
    algorithm = ScaffoldWarm(local_steps=2, local_lr=0.1)
    control = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    server = {"model": torch.zeros(2), "control": torch.ones(2), "picked": torch.tensor([True, False, False])}
    after, silos = algorithm.regroup(server, {"control": control}, [0, 2], (0.75, 0.25))
    assert torch.equal(after["control"], torch.tensor([1.5, 2.5])) and torch.equal(silos["control"], control)
    assert after["picked"].tolist() == [True, True, False] and server["picked"].tolist() == [True, False, False]
    plain = Scaffold(local_steps=2, local_lr=0.1).regroup(server, {"control": control}, [0, 2], (0.75, 0.25))[0]
    assert torch.equal(plain["control"], after["control"])


def test_draws_with_replacement_are_from_those_that_are_left(tmp_path: Path) -> None:
    algorithm = {"name": "fedavg_sync", "local_steps": 2, "gradient_clip": 1.0, "silo_sampling": "with_replacement"}
    privacy = {"unit": "silo", "sampler": "full", "record_rate": None, "noise_multiplier": 20.0}
    changes = {**CONTINUE, "algorithm": algorithm, "privacy": privacy, "silo_rate": 0.75, "rounds": 40}
    made: list[Losing] = []
    with losing({3: {1: WHY}}, made=made):
        result = run(write(tmp_path, changes))
    plans = [plan for plan, _ in made[0].seen[3:]]
    assert len(plans) == 38 and {silo for plan in plans for silo in plan.participants} == {0, 2, 3}
    # Three draws of four silos before, and two of three afterwards; each draw has half of the weight.
    assert {len(plan.participants) for plan in plans} == {1, 2}
    assert all(plan.weights in ((1.0,), (0.5, 0.5)) for plan in plans)
    server, third = result["epsilon"]["server"], result["epsilon"]["third_party"]
    assert third["epsilon"] == server["worst_case_epsilon"] > server["epsilon"]


@pytest.mark.parametrize("late", [False, True])
def test_a_ledger_of_several_runs_has_the_attempts_that_did_not_count(tmp_path: Path, late: bool) -> None:
    """They are in no plan, and count beside it."""
    changes = {**CONTINUE, "rounds": 3, "privacy": {"randomness": "fresh"}}
    config, ledger = write(tmp_path, changes), tmp_path / "all.jsonl"
    with losing({3: {1: WHY}}, late=late):
        first = run(config, "--ledger", ledger)
    shared = Ledger.open(ledger, append=False)
    assert charges(first["folder"]) == set(shared) and len(plans_in(shared)) == 1 + late
