"""`dpfl.account`, of a run that is yet to come and of ledgers, and its command."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpfl_plugin import account
from dpfl_plugin.api.account import PAPERS_HIDDEN, RECIPE
from dpfl_plugin.errors import DataError, LedgerError
from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.events import SampledGaussian, Term
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.paper import NOBLE_THIRD_PARTY_UNSOUND, noble_third_party_epsilon
from tests.cli.command import dpfl, merged, one_message, run, write


def by_accountant(source: Path, accountant: str = "PLD") -> dict[str, float | None]:
    """Epsilons by view."""
    return {row.view: row.epsilon for row in account(source).rows if row.accountant == accountant}


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
    rows = account(path).rows
    result = run(path, code=ENDS_EARLY.get(request.node.callspec.id, 0))
    views = result["epsilon"]
    ahead = by_accountant(path, views["server"]["accountant"])
    assert ahead == {
        "server, worst case": views["server"]["worst_case_epsilon"],
        "third party": views["third_party"]["epsilon"],
        **({"outsider": views["outsider"]["epsilon"]} if "outsider" in views else {}),
    }
    assert all(row.basis.startswith(f"{result['rounds']} rounds") for row in rows if row.view != RECIPE)
    folder = Path(result["folder"])
    after = by_accountant(folder, views["server"]["accountant"])
    assert after == {**ahead, "server": views["server"]["epsilon"]}
    assert {row.accountant for row in account(folder).rows} == {row.accountant for row in rows}
    assert json.loads((folder / "details.json").read_text())["views"] == views


def test_a_folder_that_holds_no_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"ledger\.jsonl"):
        account(tmp_path)
    folder = Path(run(write(tmp_path))["folder"])
    one_message(dpfl("account", folder, "--set", "rounds=3"), "the folder of a run, whose configuration is")


def test_a_table_for_people(tmp_path: Path) -> None:
    path = write(tmp_path, {"silo_rate": 0.5, "variants": {"a": {}, "b": {"rounds": 2}}})
    result, text = account(path), dpfl("account", path).out
    assert text == f"{result}\n" and "third party" in text and "replace-one" in text
    assert "the smallest holds" in text and max(map(len, text.splitlines())) <= 100
    assert dpfl("account", path, "--json").json == result.to_dict() and list(result.to_dict()) == ["a", "b"]


def test_it_says_how_many_of_the_rounds_fit(tmp_path: Path) -> None:
    path = write(tmp_path, {"rounds": 500, "privacy": {"epsilon": 2.0}})
    assert "of the 500 asked for fit epsilon 2" in str(account(path))


def test_what_papers_say_is_shown_where_it_is_asked_for_or_theirs(tmp_path: Path) -> None:
    own = write(tmp_path, {"silo_rate": 0.5})
    folder = run(own)["folder"]
    by_theirs = write(tmp_path, {"silo_rate": 0.5, "privacy": {"accountant": "paper"}}, "theirs.yaml")
    for source, papers, shown in (
        (own, False, False),
        (folder, False, False),
        (own, True, True),
        (folder, True, True),
        (by_theirs, False, True),
        (run(by_theirs)["folder"], False, True),
    ):
        text = str(account(source, papers=papers))
        assert (RECIPE in text, "Not sound" in text, "Paper" in text) == (shown,) * 3, (source, papers)
        assert (PAPERS_HIDDEN in text) == (not shown)
        columns = text.splitlines()[1].split()
        assert columns.index("PLD") < columns.index("RDP"), "the smallest is named first"


def test_a_second_opinion_does_not_lean_on_the_budget(tmp_path: Path) -> None:
    """The run's own accountant allowed the rounds; another one says what it finds for them, however much that is."""
    path = write(tmp_path, {"silo_rate": 0.5, "rounds": None, "privacy": {"epsilon": 2.0}})
    folder = run(path)["folder"]
    for where in (path, folder):
        rows = {row.accountant: row for row in account(where).rows if row.view == "third party"}
        pld, rdp, paper = (rows[name].epsilon or 0 for name in ("PLD", "RDP", "Paper"))
        assert pld <= 2.0 < rdp < paper and "which no silo's releases pass" not in rows["RDP"].basis


def test_accountants_say_how_far_off_they_may_be(tmp_path: Path) -> None:
    for row in account(write(tmp_path)).rows:
        if row.view == RECIPE:
            assert not row.sound and row.caveat == NOBLE_THIRD_PARTY_UNSOUND
        else:
            assert row.sound and row.error


def test_the_published_recipe_is_shown_where_it_applies(tmp_path: Path) -> None:
    """Noble et al.'s settings give their number; the worst of unequal silos counts; elsewhere there is none."""

    def recipe(source: Path | None = None, **changes: Any) -> list[float | None]:
        rows = account(write(tmp_path, changes) if source is None else source).rows
        return [row.epsilon for row in rows if row.view == RECIPE]

    own: dict[str, Any] = {"noise_multiplier": 4.0, "local_steps": 2, "rounds": 6, "record_rate": 0.5, "delta": 1e-5}
    assert recipe(silo_rate=0.5) == [noble_third_party_epsilon(silo_rate=0.5, num_silos=4, **own)]
    folder = Path(run(write(tmp_path, {"silo_rate": 0.5}))["folder"])
    assert recipe(folder) == recipe(silo_rate=0.5)
    skew = {"partition": {"name": "quantity_skew", "alpha": 1.0, "min_records": 4}}
    (worst,) = recipe(data=skew, privacy={"record_rate": None, "batch_size": 3})
    (equal,) = recipe(privacy={"record_rate": None, "batch_size": 3})
    assert worst and equal and worst > equal
    warm = {"name": "scaffold_warm", "option": "I"}
    for other in ({"algorithm": warm}, {"privacy": {"sampler": "poisson"}}, {"privacy": {"noise_multiplier": 0}}):
        assert recipe(silo_rate=0.5, **other) == []


def test_a_folder_tells_all_views_without_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(write(tmp_path, {"silo_rate": 0.5}))

    def no_data(*args: Any) -> None:
        raise AssertionError("records were read")

    monkeypatch.setattr("dpfl_plugin.runs.forecast.federate", no_data)
    (tmp_path / "config.yaml").unlink()
    after, views = by_accountant(Path(result["folder"])), result["epsilon"]
    assert after["server"] == views["server"]["epsilon"]
    assert after["server, worst case"] == views["server"]["worst_case_epsilon"]
    assert after["third party"] == views["third_party"]["epsilon"]


def test_a_folder_of_an_older_version_tells_the_servers_view(tmp_path: Path) -> None:
    result = run(write(tmp_path))
    path = Path(result["folder"]) / "ledger.jsonl"
    charges = list(Ledger.open(path, append=False))
    path.unlink()
    path.with_name("ledger.json").unlink()
    path.with_name("details.json").unlink()  # which names this version's last line
    with Ledger(path, {"run": result["id"], "name": "run"}) as older:
        older.append(charges)
    older = account(result["folder"])
    assert {row.view for row in older.rows} == {"server"} and "older version" in str(older)
    assert older.rows[0].epsilon == result["epsilon"]["server"]["epsilon"]


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
    with pytest.raises(LedgerError) as refused:
        account(folder)
    for part in (str(ledger), f"{left} charges", str(total), "its end is missing", "from a copy"):
        assert part in str(refused.value)


def test_a_ledger_that_grew_since_its_statement_is_believed(tmp_path: Path) -> None:
    folder = Path(run(write(tmp_path))["folder"])
    with Ledger.open(folder / "ledger.jsonl") as ledger:
        ledger.note("more")
    assert account(folder).rows
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


def test_an_outsider_gets_the_sampled_sum_in_config_run_and_folder(tmp_path: Path) -> None:
    """6 rounds of 2 of 4 silos: Gaussian releases of noise multiplier 2 sqrt(2) on a sample at rate 1/2."""
    path = write(tmp_path, SILO)
    release = SampledGaussian(
        noise_multiplier=2 * math.sqrt(2), sampler="fixed", rate=0.5, neighbouring="replace_one", unit="silo"
    )
    expected = PLD().epsilon([Term(release=release, count=1, rounds=6)], 1e-5)
    ahead, result = by_accountant(path), run(path)
    assert [ahead["outsider"], result["epsilon"]["outsider"]["epsilon"]] == [expected, expected]
    assert expected < (ahead["third party"] or 0) < (ahead["server, worst case"] or 0)
    assert by_accountant(Path(result["folder"]))["outsider"] == expected
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
    assert "outsider" not in by_accountant(path)


def test_an_outsiders_view_is_not_stated_of_runs_that_share_a_ledger(tmp_path: Path) -> None:
    """Runs of one seed draw the same silos; and rounds that count as certain then are no rounds of all silos."""
    path = write(tmp_path, merged(SILO, {"privacy": {"noise_multiplier": 20.0, "randomness": "fresh"}}))
    ledger = ["--ledger", tmp_path / "all.jsonl"]
    first = run(path, *ledger)
    solved = ["--set", "privacy.noise_multiplier=null", "--set", "privacy.epsilon=3"]
    for result in (first, run(path, *ledger, *solved)):
        assert "outsider" not in result["epsilon"] and "outsider" not in by_accountant(Path(result["folder"]))
    assert "outsider" in by_accountant(path)
