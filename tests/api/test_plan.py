"""`dpfl.plan`: what it finds fits, more does not, and the command it prints runs it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

import dpfl_plugin
from dpfl_plugin.api.experiment import Experiment
from dpfl_plugin.core.rounding import digits
from dpfl_plugin.errors import ConfigError
from tests.cli.command import dpfl, one_message, run, write

ALONE: dict[str, Any] = {"privacy": {"epsilon": 2.0, "noise_multiplier": None, "clip_norm": None, "record_rate": None}}


def plan(path: Path, *settings: str, **budget: Any) -> Any:
    return dpfl_plugin.plan(Experiment(path, settings), **budget).run


def spent(path: Path, *settings: str, view: str = "server, worst case") -> float:
    """The epsilon of the configuration with these settings, by its own accountant."""
    rows = dpfl_plugin.account(Experiment(path, settings)).rows
    (epsilon,) = [row.epsilon for row in rows if (row.view, row.accountant) == (view, "PLD")]
    assert epsilon is not None
    return epsilon


@pytest.mark.parametrize("view", ["server", "third_party"])
@pytest.mark.parametrize("solve", ["noise_multiplier", "rounds", "local_steps"])
def test_what_is_solved_for_fits_and_more_does_not(tmp_path: Path, solve: str, view: str) -> None:
    path = write(tmp_path, {"silo_rate": 0.5})
    answer = plan(path, epsilon=3.0, delta=1e-4, solve=solve, view=view)
    assert answer.budget == {"epsilon": 3.0, "delta": 1e-4, "view": view}
    *repeated, last = answer.settings
    budget = ["privacy.epsilon=3.0", "privacy.delta=0.0001", f"privacy.budget_view={view}"]
    assert repeated == (budget[1:2] if solve == "noise_multiplier" else budget)
    key = last.partition("=")[0]
    more = {"noise_multiplier": 0.999 * answer.value, "rounds": answer.value + 1, "local_steps": answer.value + 1}
    name = {"server": "server, worst case", "third_party": "third party"}[view]
    fits, exceeds = (spent(path, change, budget[1], view=name) for change in (last, f"{key}={more[solve]}"))
    assert fits == answer.epsilon[view] <= 3.0 < exceeds


def test_the_rate_with_next_to_the_least_noise(tmp_path: Path) -> None:
    """Of 2 C sigma / (s n): the smallest within a tenth of the least, and its own sigma at the budget."""
    path = write(tmp_path, {**ALONE, "rounds": 4})
    with mock.patch("dpfl_plugin.api.plan.RATES", (0.01, 0.1, 0.5, 1.0)):
        result = dpfl_plugin.plan(path, solve="record_rate")
    answer: Any = result.run
    num_records = round(2 * answer.tried[-1].noise_multiplier / answer.tried[-1].noise)  # C is 1
    assert [item.rate for item in answer.tried] == [0.1, 0.5, 1.0]  # a batch of a hundredth has no record
    for item in answer.tried:
        assert item.noise == pytest.approx(2 * item.noise_multiplier / int(item.rate * num_records + 1e-9))
        assert f"record_rate {item.rate:g}: noise_multiplier {digits(item.noise_multiplier, 4)}" in str(result)
    least = min(item.noise for item in answer.tried)
    best = next(item for item in answer.tried if item.noise <= 1.1 * least)
    assert answer.value == best.rate and answer.settings == (f"privacy.record_rate={best.rate}",)
    assert answer.epsilon["server"] <= 2.0
    assert plan(path, f"privacy.record_rate={best.rate}").value == best.noise_multiplier


def test_the_cap_that_fits(tmp_path: Path) -> None:
    path = write(tmp_path, {"silo_rate": 0.5, "rounds": 20, "privacy": {"epsilon": 1.9}})
    answer = plan(path, solve="max_participations")
    cap = answer.value
    assert 1 < cap < 20 and answer.epsilon["server"] == answer.epsilon["third_party"] <= 1.9
    assert spent(path, f"max_participations={cap}", "privacy.epsilon=null") == answer.epsilon["server"]
    assert spent(path, f"max_participations={cap + 1}", "privacy.epsilon=null") > 1.9
    done = run(path, "--set", f"max_participations={cap}", code=3 if answer.rounds < 20 else 0)
    assert done["rounds"] == answer.rounds
    assert plan(path, solve="max_participations", epsilon=50).value == 20  # no cap is needed


def test_a_cap_saves_noise(tmp_path: Path) -> None:
    """What a plan and a run say of one is what the configuration with this cap is solved for."""
    path = write(tmp_path, {**ALONE, "silo_rate": 0.5, "rounds": 20})
    answer = plan(path)
    less = plan(path, "max_participations=12").value
    assert answer.capped == {"max_participations": 12, "noise_multiplier": less} and less < 0.85 * answer.value
    assert run(path)["capped"] == answer.capped == answer.to_dict()["capped"]
    assert "max_participations=12 would take noise_multiplier" in str(dpfl_plugin.plan(path))
    for settings in ("silo_rate=1", "max_participations=12", "privacy.budget_view=third_party"):
        assert plan(path, settings).capped is None


def test_unequal_silos_count_as_the_worst(tmp_path: Path) -> None:
    """floor(s R) / R differs from silo to silo; the largest share is what the noise has to be enough for."""
    skew = {"data": {"partition": {"name": "quantity_skew", "alpha": 1.0, "min_records": 4}}, "rounds": 5}
    path = write(tmp_path, {**ALONE, **skew})
    result = run(path, "--set", "privacy.batch_size=3", "--set", "privacy.record_rate=null")
    silos = json.loads((Path(result["folder"]) / "ledger.json").read_text())["silos"]
    assert max(silos, key=lambda silo: silo["epsilon"])["num_records"] == min(silo["num_records"] for silo in silos)
    assert 2.0 * (1 - 1e-3) < max(silo["epsilon"] for silo in silos) <= 2.0


@pytest.mark.parametrize(
    ("solve", "settings", "budget"),
    [
        ("rounds", ["privacy.noise_multiplier=5", "rounds=3"], {"epsilon": 1.5, "delta": 1e-4}),
        ("noise_multiplier", ["algorithm={name: fedavg, local_steps: 3}"], {"epsilon": 1.5, "view": "third_party"}),
        ("max_participations", ["privacy.noise_multiplier=12", "silo_rate=1", "privacy.epsilon=0.5"], {}),
    ],
)
def test_the_printed_command_runs_what_was_planned(
    tmp_path: Path, solve: str, settings: list[str], budget: dict[str, Any]
) -> None:
    folder = tmp_path / "my runs"
    folder.mkdir()
    path = write(folder, {**ALONE, "silo_rate": 0.5})
    result = dpfl_plugin.plan(Experiment(path, tuple(settings)), solve=solve, **budget)
    answer: Any = result.run
    (line,) = [line for line in str(result).splitlines() if "dpfl run" in line]
    command = shlex.split(line.partition(": ")[2])
    assert command == list(answer.command)
    assert command[3:] == [word for setting in answer.settings for word in ("--set", setting)]
    done = dpfl(*command[1:], "--out", folder, "--json").json
    assert done["rounds"] == answer.rounds
    assert done["epsilon"]["server"]["worst_case_epsilon"] == answer.epsilon["server"]
    config = yaml.safe_load((Path(done["folder"]) / "config.yaml").read_text())
    privacy = config["privacy"]
    assert answer.budget == {"epsilon": privacy["epsilon"], "delta": privacy["delta"], "view": privacy["budget_view"]}
    assert done["noise_multiplier"] == {"rounds": 5, "noise_multiplier": answer.value, "max_participations": 12}[solve]
    assert config["algorithm"].get("local_steps") == (3 if solve == "noise_multiplier" else 2)


def test_a_budget_that_is_asked_for_is_enough(tmp_path: Path) -> None:
    """For a file that has neither epsilon nor noise_multiplier, which dpfl run refuses."""
    path = write(tmp_path, {"privacy": {"noise_multiplier": None}})
    one_message(dpfl("run", path), "privacy.epsilon is missing")
    answer = plan(path, epsilon=2)
    assert 2 * (1 - 1e-3) < answer.epsilon["server"] <= 2
    assert run(path, *(word for setting in answer.settings for word in ("--set", setting)))["rounds"] == 6


def test_every_variant_has_a_command_of_its_own(tmp_path: Path) -> None:
    """Which runs that variant alone, with the noise that was solved for it; the settings fit no other variant."""
    open_run = {"privacy": {"noise_multiplier": 0, "epsilon": None}}
    variants = {"short": {"rounds": 2}, "a long one": {"rounds": 9}, "open": open_run}
    path = write(tmp_path, {"privacy": {"noise_multiplier": None}, "variants": variants})
    result = dpfl_plugin.plan(path, epsilon=2.0)
    lines = str(result).splitlines()
    assert "open: not private: its noise_multiplier is 0." in lines and max(map(len, lines[:5])) <= 100
    for answer in result.runs[:2]:
        (line,) = [line for line in lines if line.startswith(f"{answer.run}: dpfl run")]
        assert shlex.split(line.partition(": ")[2]) == list(answer.command)
        done = dpfl(*answer.command[1:], "--out", tmp_path / "runs", "--json").json
        assert (done["rounds"], done["noise_multiplier"]) == (variants[answer.run]["rounds"], answer.value)
    short = dpfl("plan", path, "--epsilon", 2, "--variant", "short", "--json").json
    assert short == dpfl("plan", path, "--epsilon", 2, "--json").json["short"] == result.runs[0].to_dict()
    one_message(dpfl("plan", path, "--epsilon", 2, "--variant", "shrt"), "='shrt' must be one of short")
    one_message(dpfl("run", write(tmp_path, name="b.yaml"), "--variant", "short"), "has no variants. Leave it out")
    with pytest.raises(ConfigError, match="several variants: short, a long one, open"):
        _ = result.run


def test_a_random_number_of_local_steps_is_not_solved_for(tmp_path: Path) -> None:
    """The message's own way out works."""
    path = write(tmp_path, {"algorithm": {"name": "scaffnew", "local_steps": None, "p": 0.5}})
    with pytest.raises(ConfigError, match=r"algorithm\.p=0\.5.*local_steps=1"):
        plan(path, epsilon=3, solve="local_steps")
    answer = plan(path, "algorithm.p=null", "algorithm.local_steps=1", epsilon=3, solve="local_steps")
    assert answer.value > 1
    done = dpfl(*answer.command[1:], "--out", tmp_path / "runs", "--json").json
    assert done["epsilon"]["server"]["worst_case_epsilon"] == answer.epsilon["server"] <= 3


def test_a_run_whose_noise_hides_the_records_is_warned_of(tmp_path: Path) -> None:
    weak = plan(write(tmp_path, ALONE), "rounds=2000", epsilon=0.3)
    assert "hardly ever better than a baseline" in weak.warning
    assert "Fewer columns, fewer silos or a larger epsilon help" in weak.warning
    assert not plan(write(tmp_path, ALONE), "rounds=20", epsilon=30).warning


@pytest.mark.parametrize("solve", ["rounds", "local_steps", "max_participations"])
@pytest.mark.parametrize("view", ["server", "third_party"])
def test_what_does_not_fit_is_refused_with_what_would(tmp_path: Path, solve: str, view: str) -> None:
    """The noise and the budget that are named fit, and a little less of either does not."""
    path = write(tmp_path, {"silo_rate": 0.5})
    with pytest.raises(ConfigError, match=f"nothing fits epsilon 0.01 .*{solve}=1 is the least") as raised:
        plan(path, solve=solve, view=view, epsilon=0.01)
    numbers = re.search(r"Raise .*noise_multiplier to ([0-9.]+), or epsilon .* to ([0-9.]+)\.", str(raised.value))
    assert numbers is not None
    noise, epsilon = map(float, numbers.groups())
    plan(path, f"privacy.noise_multiplier={noise}", solve=solve, view=view, epsilon=0.01)
    plan(path, solve=solve, view=view, epsilon=epsilon)
    with pytest.raises(ConfigError, match="nothing fits"):
        plan(path, f"privacy.noise_multiplier={0.99 * noise}", solve=solve, view=view, epsilon=0.01)
    with pytest.raises(ConfigError, match="nothing fits"):
        plan(path, solve=solve, view=view, epsilon=0.99 * epsilon)


def test_a_command_names_the_budget_or_the_noise_as_its_file_does(tmp_path: Path) -> None:
    by_budget = write(tmp_path, {"privacy": {"epsilon": 2.0, "noise_multiplier": None}}, name="budget.yaml")
    by_noise = write(tmp_path, {"privacy": {"epsilon": None, "noise_multiplier": 4.0}}, name="noise.yaml")
    by_both = write(tmp_path, {"privacy": {"epsilon": 3.0, "noise_multiplier": 4.0}}, name="both.yaml")
    value = plan(by_budget).value
    assert plan(by_budget).settings == () and plan(by_budget, epsilon=2.0).settings == ("privacy.epsilon=2.0",)
    assert plan(by_noise, epsilon=2.0).settings == (f"privacy.noise_multiplier={value:g}",)
    # A budget of the file's own would end the run.
    assert plan(by_both, epsilon=2.0).settings == ("privacy.epsilon=2.0", f"privacy.noise_multiplier={value:g}")
    (rate,) = plan(by_budget, solve="record_rate").settings
    assert rate.startswith("privacy.record_rate=")
    for path in (by_budget, by_noise, by_both):
        done = dpfl(*plan(path, epsilon=2).command[1:], "--out", tmp_path / path.stem, "--json").json
        assert done["noise_multiplier"] == value and done["epsilon"]["server"]["worst_case_epsilon"] <= 2


def test_a_table_for_people(tmp_path: Path) -> None:
    path = write(tmp_path, {"privacy": {"epsilon": 2.0}, "silo_rate": 0.5})
    for solve in ("noise_multiplier", "rounds", "local_steps", "max_participations"):
        heading = str(dpfl_plugin.plan(path, epsilon=50, solve=solve)).splitlines()[0]
        assert heading.count(" rounds ") == 1 and solve in heading
    rate = dpfl_plugin.plan(path, solve="record_rate")
    assert "at most 10% above the least" in " ".join(str(rate).split())
    assert dpfl("plan", path, "--solve", "record_rate").out == f"{rate}\n"


@pytest.mark.parametrize(
    ("settings", "arguments", "message"),
    [
        ([], {}, "epsilon is missing"),
        ([], {"epsilon": 1, "delta": 1.0}, "delta=1.0"),
        ([], {"epsilon": -1.0}, "epsilon=-1.0 must be positive"),
        ([], {"epsilon": 1e-9}, "privacy.epsilon=1e-09 is out of reach"),
        ([], {"epsilon": 1, "solve": "noise"}, "solve='noise' must be one of noise_multiplier, rounds, local_steps"),
        ([], {"epsilon": 1, "view": "clients"}, "view='clients' must be"),
        (
            ["privacy={epsilon: 1, noise_multiplier: null}"],
            {"solve": "rounds"},
            "privacy.noise_multiplier is missing: solve=rounds needs it above 0",
        ),
        (["privacy.noise_multiplier=0"], {"epsilon": 1, "solve": "rounds"}, "without noise"),
        (["rounds=null", "privacy.epsilon=1"], {"epsilon": 1, "solve": "max_participations"}, "rounds is missing"),
        (["algorithm={name: fedsgd, form: single}"], {"epsilon": 1, "solve": "local_steps"}, "fedsgd takes"),
        (["privacy.accountant=gaussian"], {"epsilon": 1}, "Gaussian has no bound"),
        (
            ["privacy.sampler=full", "privacy.record_rate=null"],
            {"epsilon": 1, "solve": "record_rate"},
            "privacy.record_rate: sampler: full has none",
        ),
    ],
)
def test_a_wrong_argument_is_named(
    tmp_path: Path, settings: list[str], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        plan(write(tmp_path), *settings, **arguments)


def test_an_algorithm_without_local_steps(tmp_path: Path) -> None:
    (tmp_path / "oneshot.py").write_text(
        "from dpfl_plugin.algorithms.fedavg import FedAvg\n"
        "def make(*, lr: float = 1.0):\n    return FedAvg(local_steps=2, local_lr=lr)\n"
    )
    config = write(tmp_path, {"algorithm": None})
    config.write_text(config.read_text() + "algorithm: {module: 'oneshot:make'}\n")
    with pytest.raises(ConfigError, match=r"oneshot:make has no option local_steps .* lr"):
        plan(config, epsilon=1, solve="local_steps")
    assert plan(config, epsilon=1).value > 0
