"""`dpfl account`: of numbers, of a run that is yet to come, and of a ledger."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.events import SampledGaussian, Term
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.paper import NOBLE_THIRD_PARTY_UNSOUND, noble_third_party_epsilon
from tests.cli.command import dpfl, merged, one_message, run, write

RECIPE = "published recipe, NOT A GUARANTEE"
NUMBERS = {"--q": "0.2", "--sigma": "60", "--steps": "20000", "--delta": "2.5e-6"}


def by_numbers(mechanism: str, **changes: str | None) -> list[str]:
    given = {**NUMBERS, **{f"--{key}": value for key, value in changes.items()}}
    words = [word for key, value in given.items() if value is not None for word in (key, value)]
    return ["account", "--mechanism", mechanism, *words, "--json"]


def test_batches_without_replacement() -> None:
    """Where the public DP-SCAFFOLD reference has 13.4; the value is that of an independent computation."""
    result = dpfl(*by_numbers("gaussian-wor")).json
    assert result["epsilon"] == pytest.approx(2.030, abs=5e-4) and result["neighbouring"] == "replace_one"


def test_other_mechanisms() -> None:
    poisson = dpfl(*by_numbers("gaussian-poisson")).json
    assert 0.5 < poisson["epsilon"] < 2.030 and poisson["neighbouring"] == "add_or_remove"
    # One Gaussian of 60 / sqrt(20000) = 0.42426.
    full = dpfl(*by_numbers("gaussian", q=None)).json
    one = dpfl(*by_numbers("gaussian", q=None, sigma=str(60 / 20000**0.5), steps="1")).json
    assert full["epsilon"] == pytest.approx(one["epsilon"], rel=1e-9) and full["epsilon"] > 10
    assert dpfl(*by_numbers("gaussian-wor", sigma="0")).json["epsilon"] is None
    assert dpfl(*by_numbers("gaussian-wor", steps="0")).json["epsilon"] == 0
    rdp = dpfl(*by_numbers("gaussian-wor"), "--accountant", "rdp").json
    assert rdp["epsilon"] > 2.030


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"sigma": None}, "--sigma is missing"),
        ({"steps": None}, "--steps is missing"),
        ({"delta": None}, "--delta is missing"),
        ({"sigma": "-1"}, "--sigma=-1.0"),
        ({"sigma": "nan"}, "--sigma=nan"),
        ({"sigma": "inf"}, "--sigma=inf"),
        ({"q": "0"}, "--q=0.0"),
        ({"q": "1.5"}, "--q=1.5"),
        ({"q": "nan"}, "--q=nan"),
        ({"steps": "-1"}, "--steps=-1"),
        ({"delta": "0"}, "delta=0.0"),
        ({"delta": "1"}, "delta=1.0"),
        ({"delta": "nan"}, "delta=nan"),
    ],
)
def test_wrong_numbers(changes: dict[str, Any], part: str) -> None:
    one_message(dpfl(*by_numbers("gaussian-wor", **changes)), part)


def test_wrong_words() -> None:
    one_message(dpfl(*by_numbers("gauss")), "--mechanism='gauss'", "gaussian-wor, gaussian-poisson, gaussian")
    one_message(dpfl(*by_numbers("gaussian")), "--q=0.2", "samples nothing")
    one_message(dpfl(*by_numbers("gaussian-wor"), "--accountant", "pdl"), "'pdl'", "did you mean 'pld'")
    for words in (["account"], ["account", "x.yaml", "--mechanism", "gaussian"], by_numbers("gaussian", steps="many")):
        done = dpfl(*words)
        assert done.code == 2 and "Traceback" not in done.err and not done.out
    one_message(dpfl(*by_numbers("gaussian-wor"), "--all"), "--all belongs to CONFIG")
    one_message(dpfl("account", "nowhere.yaml"), "nowhere.yaml", "No such file")


AHEAD = {
    "all": {},
    "sampled": {"silo_rate": 0.5},
    "unequal silos": {"data": {"partition": {"name": "quantity_skew", "alpha": 1.0, "min_records": 4}}},
    "poisson": {"privacy": {"sampler": "poisson"}, "silo_rate": 0.5, "rounds": 3},
    "silo": {
        "algorithm": {"name": "fedavg"},
        "privacy": {"unit": "silo", "sampler": "full", "record_rate": None, "noise_multiplier": 20.0},
    },
    # Its warm-up releases K gradients a round, its other rounds K + 1.
    "warm-up": {"algorithm": {"name": "scaffold_warm", "option": "I"}, "silo_rate": 0.5, "rounds": 12},
    "budget, sampled": {"privacy": {"epsilon": 2.0}, "rounds": None, "silo_rate": 0.5},
    "budget, warm-up": {
        "privacy": {"epsilon": 2.0},
        "rounds": None,
        "silo_rate": 0.5,
        "algorithm": {"name": "scaffold_warm", "option": "I"},
    },
    "budget of another accountant": {"privacy": {"epsilon": 9.0, "accountant": "rdp"}, "rounds": None},
    "cap": {"max_participations": 4, "silo_rate": 0.5, "rounds": 7},
    "cap that ends it": {"max_participations": 3, "silo_rate": 0.5, "rounds": 20},
    "cap and budget": {"max_participations": 4, "silo_rate": 0.5, "rounds": None, "privacy": {"epsilon": 2.0}},
    "cap and warm-up": {
        "max_participations": 5,
        "silo_rate": 0.5,
        "rounds": 8,
        "algorithm": {"name": "scaffold_warm", "option": "I"},
    },
    "cap and third party's budget": {
        "max_participations": 9,
        "silo_rate": 0.5,
        "rounds": 30,
        "privacy": {"epsilon": 2.0, "budget_view": "third_party"},
    },
    "epsilon alone": {"privacy": {"epsilon": 2.0, "noise_multiplier": None, "record_rate": None, "clip_norm": None}},
    "epsilon alone, third party": {
        "privacy": {"epsilon": 2.0, "noise_multiplier": None, "budget_view": "third_party"},
        "silo_rate": 0.5,
    },
    "third party's budget": {
        "privacy": {"epsilon": 2.0, "budget_view": "third_party"},
        "rounds": None,
        "silo_rate": 0.5,
    },
}


ENDS_EARLY = {"cap that ends it": 3, "cap and third party's budget": 3}


@pytest.mark.parametrize("changes", AHEAD.values(), ids=AHEAD)
def test_what_is_said_ahead_is_what_the_run_reports(
    tmp_path: Path, changes: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    path = write(tmp_path, changes)
    rows = dpfl("account", path, "--json").json
    result = run(path, code=ENDS_EARLY.get(request.node.callspec.id, 0))
    views = result["epsilon"]
    ahead = {row["view"]: row["epsilon"] for row in rows if row["accountant"] == views["server"]["accountant"]}
    assert ahead == {
        "server, worst case": views["server"]["worst_case_epsilon"],
        "third party": views["third_party"]["epsilon"],
        **({"outsider": views["outsider"]["epsilon"]} if "outsider" in views else {}),
    }
    assert all(row["basis"].startswith(f"{result['rounds']} rounds") for row in rows if row["view"] != RECIPE)
    folder = Path(result["folder"])
    after = dpfl("account", folder, "--json").json
    same = {row["view"]: row["epsilon"] for row in after if row["accountant"] == views["server"]["accountant"]}
    assert same == {**ahead, "server": views["server"]["epsilon"]}
    assert {row["accountant"] for row in after} == {row["accountant"] for row in rows}
    assert json.loads((folder / "details.json").read_text())["views"] == views


def test_a_folder_that_holds_no_run(tmp_path: Path) -> None:
    one_message(dpfl("account", tmp_path), "ledger.jsonl")
    folder = Path(run(write(tmp_path))["folder"])
    one_message(dpfl("account", folder, "--set", "rounds=3"), "--set")


def test_a_table_for_people(tmp_path: Path) -> None:
    done = dpfl("account", write(tmp_path, {"silo_rate": 0.5, "variants": {"a": {}, "b": {"rounds": 2}}}))
    assert done.code == 0 and "third party" in done.out and "replace-one" in done.out
    assert "the smallest holds" in done.out and max(map(len, done.out.splitlines())) <= 100


def test_what_papers_say_is_shown_where_it_is_asked_for_or_theirs(tmp_path: Path) -> None:
    own = write(tmp_path, {"silo_rate": 0.5})
    folder = run(own)["folder"]
    by_theirs = write(tmp_path, {"silo_rate": 0.5, "privacy": {"accountant": "paper"}}, "theirs.yaml")
    for words, shown in (
        ([own], False),
        ([folder], False),
        ([own, "--all"], True),
        ([folder, "--all"], True),
        ([by_theirs], True),
        ([run(by_theirs)["folder"]], True),
    ):
        said = dpfl("account", *words).out
        assert (RECIPE in said, "Not sound" in said, "Paper" in said) == (shown,) * 3, words
        assert ("--all shows" in said) == (not shown)
        columns = said.splitlines()[1].split()
        assert columns.index("PLD") < columns.index("RDP"), "the smallest is named first"


def test_a_second_opinion_does_not_lean_on_the_budget(tmp_path: Path) -> None:
    """The run's own accountant allowed the rounds; another one says what it finds for them, however much that is."""
    path = write(tmp_path, {"silo_rate": 0.5, "rounds": None, "privacy": {"epsilon": 2.0}})
    folder = run(path)["folder"]
    for where in (path, folder):
        of = {row["accountant"]: row for row in dpfl("account", where, "--json").json if row["view"] == "third party"}
        assert of["PLD"]["epsilon"] <= 2.0 < of["RDP"]["epsilon"] < of["Paper"]["epsilon"]
        assert "which no silo's releases pass" not in of["RDP"]["basis"]


def test_accountants_say_how_far_off_they_may_be(tmp_path: Path) -> None:
    for row in dpfl("account", write(tmp_path), "--json").json:
        if row["view"] == RECIPE:
            assert row["sound"] is False and row["caveat"] == NOBLE_THIRD_PARTY_UNSOUND
        else:
            assert row["sound"] is True and row["error"]


def test_the_published_recipe_is_shown_where_it_applies(tmp_path: Path) -> None:
    """Noble et al.'s settings give their number; the worst of unequal silos counts; elsewhere there is none."""

    def recipe(**changes: Any) -> list[float]:
        rows = dpfl("account", write(tmp_path, changes), "--json").json
        return [row["epsilon"] for row in rows if row["view"] == RECIPE]

    own: dict[str, Any] = {"noise_multiplier": 4.0, "local_steps": 2, "rounds": 6, "record_rate": 0.5, "delta": 1e-5}
    assert recipe(silo_rate=0.5) == [noble_third_party_epsilon(silo_rate=0.5, num_silos=4, **own)]
    folder = Path(run(write(tmp_path, {"silo_rate": 0.5}))["folder"])
    assert [row["epsilon"] for row in dpfl("account", folder, "--json").json if row["view"] == RECIPE] == recipe(
        silo_rate=0.5
    )
    skew = {"partition": {"name": "quantity_skew", "alpha": 1.0, "min_records": 4}}
    (worst,) = recipe(data=skew, privacy={"record_rate": None, "batch_size": 3})
    assert worst > recipe(privacy={"record_rate": None, "batch_size": 3})[0]
    warm = {"name": "scaffold_warm", "option": "I"}
    for other in ({"algorithm": warm}, {"privacy": {"sampler": "poisson"}}, {"privacy": {"noise_multiplier": 0}}):
        assert recipe(silo_rate=0.5, **other) == []


def test_a_folder_tells_all_views_without_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(write(tmp_path, {"silo_rate": 0.5}))

    def no_data(*args: Any) -> None:
        raise AssertionError("records were read")

    monkeypatch.setattr("dpfl_plugin.runs.forecast.federate", no_data)
    (tmp_path / "config.yaml").unlink()
    rows = dpfl("account", result["folder"], "--json").json
    said = {row["view"]: row["epsilon"] for row in rows if row["accountant"] == "PLD"}
    views = result["epsilon"]
    assert said["server"] == views["server"]["epsilon"]
    assert said["server, worst case"] == views["server"]["worst_case_epsilon"]
    assert said["third party"] == views["third_party"]["epsilon"]


def test_a_folder_of_an_older_version_tells_the_servers_view(tmp_path: Path) -> None:
    result = run(write(tmp_path))
    path = Path(result["folder"]) / "ledger.jsonl"
    charges = list(Ledger.open(path, append=False))
    path.unlink()
    path.with_name("ledger.json").unlink()
    path.with_name("details.json").unlink()  # which names this version's last line
    with Ledger(path, {"run": result["id"], "name": "run"}) as older:
        older.append(charges)
    rows = dpfl("account", result["folder"], "--json").json
    assert {row["view"] for row in rows} == {"server"}
    assert rows[0]["epsilon"] == result["epsilon"]["server"]["epsilon"]
    assert "older version" in dpfl("account", result["folder"]).out


@pytest.mark.parametrize("known_by", ["checkpoint", "ledger.json"])
def test_a_folder_whose_ledger_lost_whole_lines_is_refused(tmp_path: Path, known_by: str) -> None:
    """Each of the two shows it alone; ledger.json also where the lines were no charges."""
    folder = Path(run(write(tmp_path))["folder"])
    ledger = folder / "ledger.jsonl"
    with Ledger.open(ledger) as whole:
        total = len(whole)
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines[:-1]))
    left = len(Ledger.open(ledger, append=False))
    assert left < total
    if known_by == "checkpoint":
        (folder / "ledger.json").unlink()
    else:
        shutil.rmtree(folder / "checkpoint")
    refused = dpfl("account", folder)
    one_message(refused, str(ledger), f"{left} charges", str(total), "its end is missing", "from a copy", code=1)


def test_a_ledger_that_grew_since_its_statement_is_believed(tmp_path: Path) -> None:
    folder = Path(run(write(tmp_path))["folder"])
    with Ledger.open(folder / "ledger.jsonl") as ledger:
        ledger.note("more")
    assert dpfl("account", folder).code == 0
    statement = folder / "details.json"
    statement.write_text(json.dumps({**json.loads(statement.read_text()), "head": "0123456789abcdef"}))
    one_message(dpfl("account", folder), "0123456789abcdef", "its end is missing", code=1)
    statement.write_text("[")
    one_message(dpfl("account", folder), str(statement), "cannot be read")


SILO: dict[str, Any] = {
    "silo_rate": 0.5,
    "algorithm": {"name": "fedavg"},
    "privacy": {"unit": "silo", "noise_multiplier": 2.0, "record_rate": None, "sampler": "full"},
}


def views_of(path: Path) -> dict[str, float]:
    return {row["view"]: row["epsilon"] for row in dpfl("account", path, "--json").json if row["accountant"] == "PLD"}


def test_an_outsider_gets_the_sampled_sum_in_config_run_and_folder(tmp_path: Path) -> None:
    """6 rounds of 2 of 4 silos: Gaussian releases of noise multiplier 2 sqrt(2) on a sample at rate 1/2."""
    path = write(tmp_path, SILO)
    release = SampledGaussian(
        noise_multiplier=2 * math.sqrt(2), sampler="fixed", rate=0.5, neighbouring="replace_one", unit="silo"
    )
    expected = PLD().epsilon([Term(release=release, count=1, rounds=6)], 1e-5)
    ahead, result = views_of(path), run(path)
    assert ahead["outsider"] == expected < ahead["third party"] < ahead["server, worst case"]
    assert result["epsilon"]["outsider"]["epsilon"] == expected == views_of(Path(result["folder"]))["outsider"]
    words = (Path(result["folder"]) / "privacy.md").read_text()
    assert "third party who does not know which silos took part" in words and "nobody reveals who took part" in words


@pytest.mark.parametrize(
    "changes",
    [
        {"privacy": {"unit": "record"}},
        {"privacy": {"neighbouring": "add_or_remove"}},
        {"silo_weights": "records"},
        {"max_participations": 4},
        {"privacy": {"epsilon": 30.0}},
        {"algorithm": {"name": "scaffnew", "local_steps": None, "p": 0.5}, "silo_rate": 1.0},
        {"algorithm": {"server_optimizer": "fedexp"}},
    ],
    ids=lambda changes: str(next(iter(changes))),
)
def test_an_outsiders_view_is_not_stated_where_its_conditions_fail(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Records, removed silos, unequal weights, draws or lengths that depend on draws, silos that keep a state or send
    more than what they released."""
    path = write(tmp_path, SILO)
    path.write_text(yaml.safe_dump(merged(yaml.safe_load(path.read_text()), changes)))
    assert "outsider" not in views_of(path)


def test_an_outsiders_view_is_not_stated_of_runs_that_share_a_ledger(tmp_path: Path) -> None:
    """Runs of one seed draw the same silos; and rounds that count as certain then are no rounds of all silos."""
    path = write(tmp_path, merged(SILO, {"privacy": {"noise_multiplier": 20.0, "randomness": "fresh"}}))
    ledger = ["--ledger", tmp_path / "all.jsonl"]
    first = run(path, *ledger)
    solved = ["--set", "privacy.noise_multiplier=null", "--set", "privacy.epsilon=3"]
    for result in (first, run(path, *ledger, *solved)):
        assert "outsider" not in result["epsilon"] and "outsider" not in views_of(Path(result["folder"]))
    assert "outsider" in views_of(path)
