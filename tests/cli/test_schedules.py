"""`privacy.schedule` from the configuration to the statement: planned, run, resumed, accounted for."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.events import Term
from dpfl_plugin.runtimes.in_process import InProcess
from tests.cli.command import charges, dpfl, metrics, one_message, run, write

BY_STEP = {"name": "geometric", "beta": 0.97, "threshold": 2, "by": "step"}
BY_ROUND = {"name": "geometric", "beta": 0.9, "threshold": 2}


def changes(schedule: Any, **privacy: Any) -> dict[str, Any]:
    return {
        "rounds": 12,
        "privacy": {"schedule": schedule, "epsilon": 4.0, **privacy},
        "checkpoint": {"every": 2, "seconds": 1000},
    }


class Crash(BaseException):
    """Ends a run as nothing in the package expects."""


def crash(config: Path, number: int) -> None:
    rounds, real = 0, InProcess.run_round

    def run_round(self: InProcess, *given: Any) -> Any:
        nonlocal rounds
        rounds += 1
        result = real(self, *given)
        if rounds == number:
            raise Crash
        return result

    with mock.patch.object(InProcess, "run_round", run_round), pytest.raises(Crash):
        dpfl("run", config, "--out", config.parent / "runs")


def by_hand(folder: str, silo: int, sigmas: dict[tuple[int, int], float]) -> float:
    """Epsilon of {(round, step): sigma} on batches of half of a silo's records."""
    (release, *_) = {charge.release for charge in charges(folder) if charge.silo == silo}
    terms = []
    for sigma, count in Counter(sigmas.values()).items():
        given = type(release)(noise_multiplier=sigma, sampler="fixed", rate=0.5, neighbouring="replace_one")
        terms.append(Term(release=given, count=1, rounds=count))
    return PLD().epsilon(terms, 1e-5)


@pytest.mark.parametrize("number", [3, 8])
@pytest.mark.parametrize("view", ["server", "third_party"])
def test_resumed_with_the_same_bits(tmp_path: Path, number: int, view: str) -> None:
    """Scheme 2, killed after a round was charged and before it counted."""
    config = write(tmp_path, {**changes(BY_STEP, budget_view=view), "rounds": None, "silo_rate": 0.5})
    whole = run(config, "--set", f"out={tmp_path / 'whole'}", "--out", tmp_path / "whole")
    assert whole["rounds"] > 8
    crash(config, number)
    resumed = run(config, "--resume")
    same = ("status", "rounds", "model_sha256", "epsilon", "noise_multiplier", "id")
    assert {key: resumed[key] for key in same} == {key: whole[key] for key in same}
    assert metrics(resumed) == metrics(whole) and charges(resumed["folder"]) == charges(whole["folder"])


def test_fresh_noise_is_charged_again_as_what_it_was(tmp_path: Path) -> None:
    """The lost rounds are released again: with their own noise, and twice in the ledger."""
    config = write(tmp_path, changes(BY_STEP, epsilon=None, sampler="full", record_rate=None, randomness="fresh"))
    crash(config, 8)  # after round 8 was released; the checkpoint is of 6
    (folder,) = (tmp_path / "runs").glob("*/*")
    result = run(config, "--resume")
    again = Counter((c.round, c.release.noise_multiplier) for c in charges(result["folder"]) if c.silo == 0)
    assert result["rounds"] == 12
    assert all(count == (2 if round in (6, 7) else 1) for (round, _), count in again.items() if round >= 2)
    accounted = dpfl("account", folder, "--json").json
    assert [row["epsilon"] for row in accounted if (row["view"], row["accountant"]) == ("server", "PLD")] == [
        result["epsilon"]["server"]["epsilon"]
    ]


STEPS = {"local_steps": 2, "local_lr": 0.5}
SILO = {"unit": "silo", "sampler": "full", "record_rate": None}
RUNS: dict[str, tuple[dict[str, Any], dict[str, Any], set[int]]] = {
    "option I": ({"name": "scaffold", "option": "I", **STEPS}, {}, {3}),
    "warm-up": ({"name": "scaffold_warm", "option": "I", "warm_rounds": 3, "server_lr": 0.1, **STEPS}, {}, {2, 3}),
    "drawn steps": ({"name": "scaffnew", "p": 0.4, "local_lr": 0.5}, {}, set()),
    "drawn steps, silo": ({"name": "scaffnew", "p": 0.4, "local_lr": 0.5}, SILO, {1}),
    "phases": ({"name": "localized_mb_sgd", "phase_rounds": [4, 4, 4], "regularisation": 0.5, "lr": 0.1}, {}, {1}),
    "silo": ({"name": "fedavg", **STEPS}, SILO, {1}),
}


@pytest.mark.parametrize(("algorithm", "privacy", "lengths"), RUNS.values(), ids=RUNS)
def test_every_round_of_any_algorithm_has_the_noise_of_its_plan(
    tmp_path: Path, algorithm: dict[str, Any], privacy: dict[str, Any], lengths: set[int]
) -> None:
    """Counted by hand: a round's t-th of tau releases has the variance beta^(tau (r - R_th - 1) + t - 1) of Eq. 7."""
    config = write(tmp_path, {"rounds": 12, "privacy": {"schedule": BY_STEP, **privacy}})
    config.write_text(yaml.safe_dump({**yaml.safe_load(config.read_text()), "algorithm": algorithm}))
    result = run(config)
    found: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
    for charge in charges(result["folder"]):
        found[charge.round, charge.silo] += [charge.release.noise_multiplier] * charge.count
    assert {round for round, _ in found} == set(range(12))
    for (round, _), noise in found.items():
        tau = len(noise)
        expected = [4.0 * 0.97 ** ((tau * (round - 2) + t) / 2 if round >= 2 else 0) for t in range(tau)]
        assert sorted(noise, reverse=True) == pytest.approx(expected, rel=1e-12)
    made = {len(noise) for noise in found.values()}
    assert made == lengths if lengths else len(made) > 2


@pytest.mark.parametrize("schedule", [BY_ROUND, BY_STEP], ids=["by round", "by step"])
def test_noise_is_solved_for_with_the_schedules_profile(tmp_path: Path, schedule: dict[str, Any]) -> None:
    result = run(write(tmp_path, changes(schedule, noise_multiplier=None)))
    sigma_0, beta = result["noise_multiplier"], schedule["beta"]
    exponents = {
        (r, t): max(0, r - 2 if schedule is BY_ROUND else 2 * (r - 3) + t - 1) for r in range(1, 13) for t in (1, 2)
    }
    sigmas = {where: sigma_0 * math.sqrt(beta**exponent) for where, exponent in exponents.items()}
    epsilon = by_hand(result["folder"], 0, sigmas)
    assert result["rounds"] == 12 and result["epsilon"]["server"]["epsilon"] == pytest.approx(epsilon, rel=1e-9)
    assert 4.0 * (1 - 1e-3) <= epsilon <= 4.0
    planned = dpfl("plan", tmp_path / "config.yaml", "--json").json
    assert planned["value"] == sigma_0
    given = ("--solve", "rounds", "--set", f"privacy.noise_multiplier={sigma_0}", "--json")
    assert dpfl("plan", tmp_path / "config.yaml", *given).json["value"] == 12


def test_the_statement_says_how_noise_changed_and_which_theorem_speaks_of_it(tmp_path: Path) -> None:
    result = run(write(tmp_path, changes(BY_STEP)))
    said = json.loads((Path(result["folder"]) / "ledger.json").read_text())
    assert said["mechanism"]["schedule"]["beta"] == 0.97 and said["mechanism"]["noise_multiplier"] == 4.0
    text = (Path(result["folder"]) / "privacy.md").read_text()
    assert "up to round 2 the noise is constant; then its variance is multiplied by 0.97 with every release" in text
    assert "each release was charged with its own" in text
    (note,) = [note for note in result["notes"] if "Theorem 2 of Chang" in note]
    assert "p q = 0.5 is above 0.1" in note
    plain = run(write(tmp_path, {}, "plain.yaml"))
    assert not any("Chang" in note for note in plain["notes"])


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        ({"schedule": {"name": "geometric"}}, ("privacy.schedule.beta is missing",)),
        ({"schedule": {"name": "geometric", "beta": 0}}, ("privacy.schedule.beta=0", "positive and finite")),
        ({"schedule": {**BY_ROUND, "threshold": -2}}, ("privacy.schedule.threshold=-2", "at least 0")),
        ({"schedule": {**BY_ROUND, "by": "epoch"}}, ("privacy.schedule.by='epoch'", "'round' or 'step'")),
        ({"schedule": "geometrical"}, ("there is no schedule 'geometrical'", "did you mean 'geometric'")),
        ({"schedule": {**BY_ROUND, "gamma": 1}}, ("privacy.schedule.gamma is not a known option",)),
        ({"schedule": {"name": "geometric", "beta": 1e-50}}, ("round 12 by a number beyond", "nearer 1")),
    ],
)
def test_bad_input(tmp_path: Path, changed: dict[str, Any], parts: tuple[str, ...]) -> None:
    config = write(tmp_path, {"rounds": 12, "privacy": changed})
    one_message(dpfl("run", config, "--out", tmp_path / "runs"), *parts)
    assert not (tmp_path / "runs").exists()


def test_growing_noise_needs_rounds(tmp_path: Path) -> None:
    config = write(tmp_path, {**changes({"name": "geometric", "beta": 1.1}), "rounds": None})
    one_message(dpfl("run", config), "rounds is missing", "privacy.schedule.beta=1.1", "may last for ever")


STRANGER = """
class Late:
    statement = "every second round has half the noise"
    def factors(self, round, num_releases):
        return [1.0 - 0.5 * (round % 2)] * num_releases
class Broken(Late):
    def factors(self, round, num_releases):
        return [1.0] * num_releases if round < {good} else [{bad}] * num_releases
"""


def test_a_strangers_schedule(tmp_path: Path) -> None:
    (tmp_path / "late_schedule.py").write_text(STRANGER.format(good=0, bad=0))
    result = run(write(tmp_path, {"privacy": {"schedule": {"module": "late_schedule:Late"}}}))
    sigmas = {(r, t): 4.0 if r % 2 == 0 else 2.0 for r in range(6) for t in range(2)}
    assert result["epsilon"]["server"]["epsilon"] == pytest.approx(by_hand(result["folder"], 0, sigmas), rel=1e-9)


@pytest.mark.parametrize("bad", ["0.0", "float('nan')", "-1"])
def test_a_strangers_schedule_that_is_broken_is_refused_before_anything_is_released(tmp_path: Path, bad: str) -> None:
    name = f"broken_{abs(hash(bad))}"
    (tmp_path / f"{name}.py").write_text(STRANGER.format(good=1, bad=bad))
    config = write(tmp_path, {"privacy": {"schedule": {"module": f"{name}:Broken"}}})
    one_message(dpfl("run", config, "--out", tmp_path / "runs"), "Broken gives", "round 6", "positive finite")
    assert not (tmp_path / "runs").exists()


def test_a_schedule_that_answers_anew_each_time_is_stopped_before_anything_leaves(tmp_path: Path) -> None:
    """The budget was checked for other noise than the silos added."""
    (tmp_path / "fickle_schedule.py").write_text(
        "import itertools\n"
        "class Fickle:\n"
        "    statement = 'less and less noise, the more often somebody asks'\n"
        "    calls = itertools.count(1)\n"
        "    def factors(self, round, num_releases):\n"
        "        return [1 / next(self.calls)] * num_releases\n"
    )
    config = write(tmp_path, {"privacy": {"schedule": {"module": "fickle_schedule:Fickle"}}})
    one_message(dpfl("run", config, "--out", tmp_path / "runs"), "silo 0 made 2 releases", "must be the same")
    (folder,) = (tmp_path / "runs").glob("*/*")
    assert not charges(folder)


def test_a_third_party_is_promised_the_worst_case_where_draws_decide_how_long_rounds_are(tmp_path: Path) -> None:
    """Option I asks for a gradient more once the warm-up is over, which is when all silos were drawn."""
    warm = {"name": "scaffold_warm", "option": "I", "server_lr": 0.1}
    config = write(tmp_path, {**changes(BY_ROUND, budget_view="third_party"), "silo_rate": 0.5, "algorithm": warm})
    result = run(config, code=3)
    assert result["rounds"] > 3
    views, budget = result["epsilon"], yaml.safe_load(config.read_text())["privacy"]["epsilon"]
    assert views["third_party"]["epsilon"] == views["server"]["worst_case_epsilon"] <= budget


def test_a_shared_ledger_needs_a_budget(tmp_path: Path) -> None:
    config = write(tmp_path, changes(BY_ROUND, epsilon=None, randomness="fresh"))
    one_message(dpfl("run", config, "--ledger", tmp_path / "all.jsonl"), "give privacy.epsilon")
    assert not (tmp_path / "all.jsonl").exists()


def test_runs_of_a_shared_ledger_add_up(tmp_path: Path) -> None:
    """Each has its own budget; the total is of both plans, release by release as noisy as they were."""
    first = run(
        write(tmp_path, changes(BY_STEP, epsilon=4.0, randomness="fresh"), "a.yaml"), "--ledger", tmp_path / "all.jsonl"
    )
    second = run(
        write(tmp_path, {**changes(BY_ROUND, epsilon=6.0, randomness="fresh"), "seed": 3}, "b.yaml"),
        "--ledger",
        tmp_path / "all.jsonl",
    )
    made = [charge for result in (first, second) for charge in charges(result["folder"]) if charge.silo == 0]
    terms = [Term(release=charge.release, count=charge.count, rounds=1) for charge in made]
    own = second["epsilon"]["server"]["epsilon"]
    assert second["adaptive_total"]["epsilon"] >= PLD().epsilon(terms, 1e-5) > own


def test_other_schedules_share_no_noise(tmp_path: Path) -> None:
    """Of the same normals times two numbers the records could be computed."""
    made = [run(write(tmp_path, {"privacy": {"schedule": s}}, f"{i}.yaml")) for i, s in enumerate((BY_ROUND, BY_STEP))]
    names = [{charge.noise_id for charge in charges(result["folder"])} for result in made]
    assert names[0].isdisjoint(names[1])
