"""`dpfl plan`, runs whose noise is solved for, and caps on participation: end to end."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from dpfl_plugin.core.rounding import digits
from dpfl_plugin.runs.forecast import Forecast
from tests.cli.command import charges, dpfl, metrics, one_message, run, write
from tests.cli.test_resume import crash, folder_of, same

ALONE: dict[str, Any] = {"privacy": {"epsilon": 2.0, "noise_multiplier": None, "clip_norm": None, "record_rate": None}}
CAPPED: dict[str, Any] = {"max_participations": 4, "silo_rate": 0.5, "rounds": 40, "checkpoint": {"every": 2}}


def plan(config: Path, *args: object) -> dict[str, Any]:
    done = dpfl("plan", config, *args, "--json")
    assert done.code == 0, done.err
    answer: dict[str, Any] = done.json
    return answer


def worst(config: Path, *settings: str) -> float:
    """The worst case of the configuration with these settings, by its own accountant."""
    rows = dpfl("account", config, *(word for one in settings for word in ("--set", one)), "--json").json
    (row,) = [row for row in rows if (row["view"], row["accountant"]) == ("server, worst case", "PLD")]
    return float(row["epsilon"])


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
    assert plan(path)["value"] == result["noise_multiplier"]
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


# dpfl plan


@pytest.mark.parametrize("view", ["server", "third_party"])
@pytest.mark.parametrize("solve", ["sigma", "rounds", "steps"])
def test_what_is_solved_for_fits_and_more_does_not(tmp_path: Path, solve: str, view: str) -> None:
    path = write(tmp_path, {"silo_rate": 0.5})
    answer = plan(path, "--epsilon", 3.0, "--delta", 1e-4, "--solve", solve, "--view", view)
    assert answer["asked"] == {"epsilon": 3.0, "delta": 1e-4, "view": view}
    *repeated, last = answer["set"]
    budget = ["privacy.epsilon=3.0", "privacy.delta=0.0001", f"privacy.budget_view={view}"]
    assert repeated == (budget[1:2] if solve == "sigma" else budget)
    key, _, value = last.partition("=")
    more = {"sigma": 0.999 * answer["value"], "rounds": answer["value"] + 1, "steps": answer["value"] + 1}
    name = {"server": "server, worst case", "third_party": "third party"}[view]
    found = []
    for number in (value, more[solve]):
        rows = dpfl("account", path, "--set", f"{key}={number}", "--set", "privacy.delta=1e-4", "--json").json
        found += [row["epsilon"] for row in rows if (row["view"], row["accountant"]) == (name, "PLD")]
    assert found[0] == answer["epsilon"][view] <= 3.0 < found[1]


def test_the_rate_with_next_to_the_least_noise(tmp_path: Path) -> None:
    """Of 2 C sigma / (s n): the smallest within a tenth of the least, and its own sigma at the budget."""
    path = write(tmp_path, {**ALONE, "rounds": 4})
    with mock.patch("dpfl_plugin.api.rates.RATES", (0.01, 0.1, 0.5, 1.0)):
        answer = plan(path, "--solve", "rate")
        shown = dpfl("plan", path, "--solve", "rate").out
    num_records = round(2 * answer["tried"][-1]["noise_multiplier"] / answer["tried"][-1]["noise"])  # C is 1
    assert [one["rate"] for one in answer["tried"]] == [0.1, 0.5, 1.0]  # a batch of a hundredth has no record
    for one in answer["tried"]:
        assert one["noise"] == pytest.approx(2 * one["noise_multiplier"] / int(one["rate"] * num_records + 1e-9))
        assert f"record_rate {one['rate']:g}: noise_multiplier {digits(one['noise_multiplier'], 4)}" in shown
    least = min(one["noise"] for one in answer["tried"])
    best = next(one for one in answer["tried"] if one["noise"] <= 1.1 * least)
    assert answer["value"] == best["rate"]
    assert answer["set"] == [f"privacy.record_rate={best['rate']}"]
    assert answer["epsilon"]["server"] <= 2.0
    again = plan(path, "--set", f"privacy.record_rate={best['rate']}")
    assert again["value"] == best["noise_multiplier"]
    one_message(
        dpfl("plan", path, "--solve", "rate", "--set", "privacy.sampler=full"), "privacy.record_rate", "sampler: full"
    )


def test_the_cap_that_fits(tmp_path: Path) -> None:
    path = write(tmp_path, {"silo_rate": 0.5, "rounds": 20, "privacy": {"epsilon": 1.9}})
    answer = plan(path, "--solve", "cap")
    cap = answer["value"]
    assert 1 < cap < 20 and answer["epsilon"]["server"] == answer["epsilon"]["third_party"] <= 1.9
    assert worst(path, f"max_participations={cap}", "privacy.epsilon=null") == answer["epsilon"]["server"]
    assert worst(path, f"max_participations={cap + 1}", "privacy.epsilon=null") > 1.9
    done = run(path, "--set", f"max_participations={cap}", code=3 if answer["rounds"] < 20 else 0)
    assert done["rounds"] == answer["rounds"]
    assert plan(path, "--solve", "cap", "--epsilon", 50)["value"] == 20  # no cap is needed


def test_a_cap_saves_noise(tmp_path: Path) -> None:
    path = write(tmp_path, {**ALONE, "silo_rate": 0.5, "rounds": 20})
    assert plan(path, "--set", "max_participations=12")["value"] < 0.85 * plan(path)["value"]


def test_unequal_silos_count_as_the_worst(tmp_path: Path) -> None:
    """floor(s R) / R differs from silo to silo; the largest share is what the noise has to be enough for."""
    skew = {"data": {"partition": {"name": "quantity_skew", "alpha": 1.0, "min_records": 4}}, "rounds": 5}
    path = write(tmp_path, {**ALONE, **skew})
    result = run(path, "--set", "privacy.batch_size=3", "--set", "privacy.record_rate=null")
    silos = json.loads((Path(result["folder"]) / "ledger.json").read_text())["silos"]
    assert max(silos, key=lambda silo: silo["epsilon"])["num_records"] == min(silo["num_records"] for silo in silos)
    assert 2.0 * (1 - 1e-3) < max(silo["epsilon"] for silo in silos) <= 2.0


@pytest.mark.parametrize(
    ("solve", "words"),
    [
        ("rounds", ["--set", "privacy.noise_multiplier=5", "--set", "rounds=3", "--epsilon", "1.5", "--delta", "1e-4"]),
        ("sigma", ["--set", "algorithm={name: fedavg, local_steps: 3}", "--epsilon", "1.5", "--view", "third_party"]),
        ("cap", ["--set", "privacy.noise_multiplier=12", "--set", "silo_rate=1", "--set", "privacy.epsilon=0.5"]),
    ],
)
def test_the_printed_command_runs_what_was_planned(tmp_path: Path, solve: str, words: list[str]) -> None:
    folder = tmp_path / "my runs"
    folder.mkdir()
    path = write(folder, {**ALONE, "silo_rate": 0.5})
    answer = plan(path, "--solve", solve, *words)
    (line,) = [line for line in dpfl("plan", path, "--solve", solve, *words).out.splitlines() if "dpfl run" in line]
    command = shlex.split(line.partition(": dpfl ")[2])
    assert command == ["run", str(path), *(word for setting in answer["set"] for word in ("--set", setting))]
    result = dpfl(*command, "--out", folder, "--json").json
    assert result["rounds"] == answer["rounds"]
    assert result["epsilon"]["server"]["worst_case_epsilon"] == answer["epsilon"]["server"]
    config = yaml.safe_load((Path(result["folder"]) / "config.yaml").read_text())
    privacy = config["privacy"]
    asked = {"epsilon": privacy["epsilon"], "delta": privacy["delta"], "view": privacy["budget_view"]}
    assert asked == answer["asked"]
    given = {"rounds": 5, "sigma": answer["value"], "cap": 12}[solve]
    assert result["noise_multiplier"] == given and config["algorithm"].get("local_steps") == (
        3 if solve == "sigma" else 2
    )


def test_a_budget_of_the_command_line_is_enough(tmp_path: Path) -> None:
    """For a file that has neither epsilon nor noise_multiplier, which dpfl run refuses."""
    path = write(tmp_path, {"privacy": {"noise_multiplier": None}})
    one_message(dpfl("run", path), "privacy.epsilon is missing")
    answer = plan(path, "--epsilon", 2)
    assert 2 * (1 - 1e-3) < answer["epsilon"]["server"] <= 2
    assert run(path, *(word for one in answer["set"] for word in ("--set", one)))["rounds"] == 6
    one_message(dpfl("plan", path), "privacy.epsilon is missing")


def test_every_variant_has_a_command_of_its_own(tmp_path: Path) -> None:
    """Which runs that variant alone, with the noise that was solved for it; the settings fit no other variant."""
    open_run = {"privacy": {"noise_multiplier": 0, "epsilon": None}}
    variants = {"short": {"rounds": 2}, "a long one": {"rounds": 9}, "open": open_run}
    path = write(tmp_path, {"privacy": {"noise_multiplier": None}, "variants": variants})
    lines = dpfl("plan", path, "--epsilon", 2).out.splitlines()
    answers = plan(path, "--epsilon", 2)
    for label in ("short", "a long one"):
        (line,) = [line for line in lines if line.startswith(f"{label}: dpfl run")]
        command = shlex.split(line.partition(": ")[2])
        assert command == answers[label]["command"]
        result = dpfl(*command[1:], "--out", tmp_path / "runs", "--json").json
        assert (result["rounds"], result["noise_multiplier"]) == (variants[label]["rounds"], answers[label]["value"])
    one = plan(path, "--epsilon", 2, "--variant", "short")
    assert one == answers["short"]
    one_message(dpfl("plan", path, "--epsilon", 2, "--variant", "shrt"), "variant='shrt' must be one of short")
    one_message(dpfl("run", write(tmp_path, name="b.yaml"), "--variant", "short"), "has no variants. Leave it out")


def test_a_random_number_of_local_steps_is_not_solved_for(tmp_path: Path) -> None:
    """The message's own way out works."""
    path = write(tmp_path, {"algorithm": {"name": "scaffnew", "local_steps": None, "p": 0.5}})
    one_message(dpfl("plan", path, "--epsilon", 3, "--solve", "steps"), "algorithm.p=0.5", "local_steps=1")
    fixed = ["--set", "algorithm.p=null", "--set", "algorithm.local_steps=1"]
    answer = plan(path, "--epsilon", 3, "--solve", "steps", *fixed)
    assert answer["value"] > 1
    result = dpfl(*answer["command"][1:], "--out", tmp_path / "runs", "--json").json
    assert result["epsilon"]["server"]["worst_case_epsilon"] == answer["epsilon"]["server"] <= 3


def test_much_noise_is_told_of(tmp_path: Path) -> None:
    path = write(tmp_path, ALONE)
    much = plan(path, "--set", "rounds=2000", "--epsilon", 0.3)
    assert much["value"] > 100 and "is above 100" in much["warning"]


@pytest.mark.parametrize(("solve", "key"), [("rounds", "rounds"), ("steps", "local_steps"), ("cap", "participations")])
@pytest.mark.parametrize("view", ["server", "third_party"])
def test_what_does_not_fit_is_refused_with_what_would(tmp_path: Path, solve: str, key: str, view: str) -> None:
    """The noise and the budget that are named fit, and a little less of either does not."""
    path = write(tmp_path, {"silo_rate": 0.5})
    words = ("plan", path, "--solve", solve, "--view", view)
    asked = (*words, "--epsilon", 0.01)
    done = dpfl(*asked)
    one_message(done, f"{key}=1 is the least", "nothing fits epsilon 0.01", "Raise")
    assert "Solved for" not in done.out and "dpfl run" not in done.out
    noise, epsilon = (
        float(re.search(pattern, done.err)[1])  # type: ignore[index]
        for pattern in (r"Raise privacy.noise_multiplier to ([0-9.]+)", r"the budget to ([0-9.]+)")
    )
    for factor, code in ((1.0, 0), (0.99, 2)):
        assert dpfl(*asked, "--set", f"privacy.noise_multiplier={factor * noise}").code == code
        assert dpfl(*words, "--epsilon", factor * epsilon).code == code


def test_a_command_names_the_budget_or_the_noise_as_its_file_does(tmp_path: Path) -> None:
    by_budget = write(tmp_path, {"privacy": {"epsilon": 2.0, "noise_multiplier": None}}, name="budget.yaml")
    by_noise = write(tmp_path, {"privacy": {"epsilon": None, "noise_multiplier": 4.0}}, name="noise.yaml")
    by_both = write(tmp_path, {"privacy": {"epsilon": 3.0, "noise_multiplier": 4.0}}, name="both.yaml")
    value = plan(by_budget)["value"]
    assert plan(by_budget)["set"] == [] and plan(by_budget, "--epsilon", 2)["set"] == ["privacy.epsilon=2.0"]
    assert plan(by_noise, "--epsilon", 2)["set"] == [f"privacy.noise_multiplier={value:g}"]
    # A budget of the file's own would end the run.
    assert plan(by_both, "--epsilon", 2)["set"] == ["privacy.epsilon=2.0", f"privacy.noise_multiplier={value:g}"]
    assert plan(by_budget, "--solve", "rate")["set"][0].startswith("privacy.record_rate=")
    assert len(plan(by_budget, "--solve", "rate")["set"]) == 1
    for path in (by_budget, by_noise, by_both):
        result = dpfl(*plan(path, "--epsilon", 2)["command"][1:], "--out", tmp_path / path.stem, "--json").json
        assert result["noise_multiplier"] == value and result["epsilon"]["server"]["worst_case_epsilon"] <= 2


def test_no_two_columns_have_one_name(tmp_path: Path) -> None:
    path = write(tmp_path, {"privacy": {"epsilon": 2.0}, "silo_rate": 0.5})
    named = {"sigma": "noise_multiplier", "rounds": "rounds", "steps": "local_steps", "cap": "max_participations"}
    for solve, name in named.items():
        heading = dpfl("plan", path, "--epsilon", 50, "--solve", solve).out.splitlines()[0]
        assert heading.count(" rounds ") == 1 and name in heading and "sigma" not in heading
    assert "at most 10% above the least" in " ".join(dpfl("plan", path, "--solve", "rate").out.split())


def test_a_table_for_people(tmp_path: Path) -> None:
    variants = {"a": {}, "b": {"rounds": 9}, "open": {"privacy": {"noise_multiplier": 0, "epsilon": None}}}
    done = dpfl("plan", write(tmp_path, {"privacy": {"epsilon": 2.0}, "variants": variants}))
    assert done.code == 0 and "open: not private" in done.out and max(map(len, done.out.splitlines()[:5])) <= 100
    values = re.findall(r"--set privacy.noise_multiplier=([0-9.]+)", done.out)
    assert "noise_multiplier" in done.out.splitlines()[0] and "sigma" not in done.out
    assert len(values) == 2 and float(values[0]) < float(values[1])


NUMBERS = ["plan", "--mechanism", "gaussian-wor", "--q", "0.2", "--epsilon", "2", "--delta", "2.5e-6"]


def test_by_numbers() -> None:
    noise = dpfl(*NUMBERS, "--steps", 20000, "--json").json
    assert noise["noise_multiplier"] == pytest.approx(60.8, abs=0.1) and 1.998 < noise["epsilon"] <= 2
    steps = dpfl(*NUMBERS, "--sigma", 60, "--json").json
    assert 19_000 < steps["steps"] < 20_000 and 1.998 < steps["epsilon"] <= 2
    rdp = dpfl(*NUMBERS, "--steps", 20000, "--accountant", "rdp", "--json").json
    assert rdp["noise_multiplier"] > 1.8 * noise["noise_multiplier"]
    assert "releases: epsilon" in dpfl(*NUMBERS, "--sigma", 6, "--solve", "steps").out


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "--steps is missing"),
        (["--steps", "5", "--sigma", "3"], "--steps is what --solve steps finds"),
        (["--steps", "5", "--sigma", "3", "--solve", "sigma"], "--sigma is what --solve sigma finds"),
        (["--solve", "steps"], "--sigma is missing"),
        (["--solve", "rounds", "--steps", "5"], "--solve='rounds'"),
        (["--steps", "0"], "--steps=0"),
        (["--sigma", "0"], "--sigma=0.0"),
        (["--sigma", "nan"], "--sigma=nan"),
        (["--steps", "5", "--delta", "1"], "delta=1.0"),
        (["--steps", "5", "--epsilon", "0"], "--epsilon=0.0"),
        (["--steps", "5", "--epsilon", "inf"], "--epsilon=inf"),
        (["--steps", "20000", "--epsilon", "1e-7"], "epsilon=1e-07 is out of reach"),
        (["--steps", "5", "--accountant", "pdl"], "did you mean 'pld'"),
        (["--steps", "5", "--view", "server"], "--view belongs to CONFIG"),
        (["--steps", "5", "--set", "seed=1"], "--set belongs to CONFIG"),
    ],
)
def test_wrong_numbers(words: list[str], part: str) -> None:
    one_message(dpfl(*NUMBERS, *words), part)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "epsilon is missing"),
        (["--epsilon", "1", "--delta", "1"], "delta=1.0"),
        (["--epsilon", "-1"], "epsilon=-1.0"),
        (["--epsilon", "1e-9"], "privacy.epsilon=1e-09 is out of reach"),
        (["--epsilon", "1", "--solve", "noise"], "solve='noise' must be one of sigma, rounds, steps, cap"),
        (["--epsilon", "1", "--view", "clients"], "view='clients'"),
        (
            ["--set", "privacy={epsilon: 1, noise_multiplier: null}", "--solve", "rounds"],
            "privacy.noise_multiplier is missing: solve=rounds needs it above 0. Add privacy.noise_multiplier=",
        ),
        (["--epsilon", "1", "--q", "0.2"], "--q belongs to --mechanism"),
        (["--epsilon", "1", "--set", "privacy.noise_multiplier=0", "--solve", "rounds"], "without noise"),
        (
            ["--epsilon", "1", "--set", "rounds=null", "--set", "privacy.epsilon=1", "--solve", "cap"],
            "rounds is missing",
        ),
        (["--epsilon", "1", "--set", "algorithm={name: fedsgd, form: single}", "--solve", "steps"], "fedsgd takes"),
        (["--epsilon", "1", "--set", "privacy.accountant=gaussian"], "Gaussian has no bound"),
    ],
)
def test_wrong_words(tmp_path: Path, words: list[str], part: str) -> None:
    one_message(dpfl("plan", write(tmp_path), *words), part)


def test_an_algorithm_without_local_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "oneshot.py").write_text(
        "from dpfl_plugin.algorithms.fedavg import FedAvg\n"
        "def make(*, lr: float = 1.0):\n    return FedAvg(local_steps=2, local_lr=lr)\n"
    )
    config = write(tmp_path, {"algorithm": None})
    text = config.read_text() + "algorithm: {module: 'oneshot:make'}\n"
    config.write_text(text)
    one_message(dpfl("plan", config, "--epsilon", 1, "--solve", "steps"), "oneshot:make", "no option local_steps", "lr")
    assert plan(config, "--epsilon", 1)["value"] > 0


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
    monkeypatch.setattr("dpfl_plugin.runs.job.fresh_coins", lambda: "")  # with others the cap may end it before
    fresh = {**CAPPED, "privacy": {**CAPPED.get("privacy", {}), "randomness": "fresh"}}
    config = crash(write(tmp_path, {**fresh, "checkpoint": {"every": 4, "seconds": 1000}}), number)
    crash(config, 1, "--resume")  # and once more, after a round
    result = run(config, "--resume", code=3)
    counts = participations(result["folder"])
    assert max(counts.values()) == 4 and result["rounds"] < len({c.noise_id for c in charges(result["folder"])})
    assert result["epsilon"]["server"]["worst_case_epsilon"] == capped["epsilon"]["server"]["worst_case_epsilon"]
