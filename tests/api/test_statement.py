"""The page to sign: its numbers hold of every test, and are refused where nothing is guaranteed or proven."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpfl_plugin as dpfl
from dpfl_plugin.cli.output import show
from dpfl_plugin.core.rounding import places
from dpfl_plugin.errors import DpflError
from dpfl_plugin.federation.outcome import Cause
from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.statement_pages import FALSE_ALARMS, guess, page_to_sign, power, privacy_page
from dpfl_plugin.privacy.views import server_view
from dpfl_plugin.runs.statement import ENDED_EARLY, HOLDERS, HeldBy, holders_of
from tests.cli.command import dpfl as command
from tests.cli.command import one_message, write
from tests.cli.test_tables import SCHEMA, frame

FACTS: dict[str, Any] = {
    **dict.fromkeys(("study", "purpose", "recipients", "outcome", "made", "version", "digest"), ""),
    "variables": [],
    "other_runs": [],
    "is_current": False,
}
ROLES = ("study lead", "owner of the records", "data protection officer")
SECURE = {"privacy": {"randomness": "fresh", "noise_multiplier": None, "epsilon": 3.0, "delta": 1e-3}, "seed": None}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("signing")
    done = command("run", write(folder, {"out": str(folder / "runs"), **SECURE}), "--json")
    assert done.code == 0, done.err
    return Path(done.json["folder"])


def test_the_page_has_the_statements_numbers_and_names(finished: Path) -> None:
    said = json.loads((finished / "ledger.json").read_text())
    text = dpfl.statement(finished, names={0: "Mercy | *General*"}, study="Hearts\n\n## All signed").text
    assert text.startswith("# Statement on the protection of records: Hearts \\#\\# All signed\n")
    assert f"`{said['run']['id']}`" in text and r"| Mercy \| \*General\* (silo 0) |" in text
    for silo in said["silos"]:
        (line,) = [line for line in text.splitlines() if f"silo {silo['silo']}" in line and "to train on" in line]
        shown = float(line.split("|")[-3])
        assert silo["epsilon"] <= shown <= silo["epsilon"] + 0.001
    epsilon, delta = (said["views"]["server"][key] for key in ("epsilon", "delta"))
    for rate in FALSE_ALARMS:
        (line,) = [line for line in text.splitlines() if line.startswith(f"| {100 * rate:g} %")]
        shown = float(line.split("|")[-2].strip().removesuffix(" %")) / 100
        assert 0 <= shown - power(epsilon, delta, rate) <= 0.001 + 1e-9
    assert f"at most {places(100 * guess(epsilon, delta), 1)} %." in text
    for part in (*said["assumptions"], *said["caveats"], *ROLES):
        assert part[1:] in text


@pytest.mark.parametrize(
    ("held_by", "left", "had_all"),
    [
        ("process", None, "the person who ran it held the records of all sites"),
        ("simulation", None, "the person who ran it had the records of all sites"),
        ("ranks", "What left a silo's rank were releases with noise", "could read the records that they read"),
        ("site", "What left a site were releases with noise", None),
        (None, None, None),
    ],
)
def test_pages_say_who_held_the_records(
    finished: Path, held_by: HeldBy | None, left: str | None, had_all: str | None
) -> None:
    """Nothing left a site where one process held the records of all: then the guarantee is not against its owner."""
    said = json.loads((finished / "ledger.json").read_text())
    assert said["held_by"] == "process" and said["caveats"][0] == HOLDERS["process"][0]
    said = {**said, "held_by": held_by, "caveats": [*HOLDERS.get(held_by, ()), *said["caveats"][1:]]}
    signed, published = page_to_sign(said, {}, **FACTS), privacy_page(said)
    opening = published.split("\n\n")[1]
    assert ("What left a" in signed) == (left is not None) and (left or "") in signed
    assert ("is not recorded." in signed) == (held_by is None)
    for text, word in ((signed.split("\n\n")[1], "sites"), (opening, "silos")):
        assert (had_all or "").replace("sites", word) in text and ("The run was" in text) == (had_all is not None)
    together = held_by in ("process", "simulation")
    assert ("left a silo, each record's" in published) == ("before it left" in published) == (not together)
    assert ("the person who ran this, who had the records of all silos" in published) == together


def test_each_site_signs_for_its_own_records_and_knows_which_were_not_used(finished: Path) -> None:
    said = json.loads((finished / "ledger.json").read_text())
    names, tested = {1: "Mercy"}, [silo["num_test_records"] for silo in said["silos"]]
    assert all(tested) and sum(tested) == json.loads((finished / "result.json").read_text())["num_test_records"]
    text = page_to_sign(said, names, **FACTS)
    owners = [line for line in text.splitlines() if line.startswith("| owner of the records")]
    assert [line.split("|")[1].strip() for line in owners] == [
        f"owner of the records of {site}" for site in ("silo 0", "Mercy (silo 1)", "silo 2", "silo 3")
    ]
    assert f"| {said['silos'][0]['num_records']} to train on, {tested[0]} to test on |" in text
    for silos, counted in ((said["silos"] * 6, True), (None, False)):
        run = {**said["run"], "num_silos": 24}
        text = page_to_sign({**said, "run": run, "silos": silos}, {}, **FACTS)
        assert text.count("| owner of the records") == 1 and "for each of 24 sites on a sheet of its own" in text
        assert ("to train on" in text) == counted


@pytest.mark.parametrize(
    ("changes", "said_of_end"),
    [
        ({}, None),
        ({"algorithm": {"name": "fedavg", "local_lr": 1e300}}, Cause.NOT_FINITE),
    ],
)
def test_only_a_run_that_ended_early_says_what_its_end_may_tell(
    tmp_path: Path, changes: dict[str, Any], said_of_end: Cause | None
) -> None:
    done = command("run", write(tmp_path, {"out": str(tmp_path), **changes}), "--json")
    assert done.code == (0 if said_of_end is None else 1), done.err
    said = json.loads(next(tmp_path.glob("*/*/ledger.json")).read_text())
    for cause, text in ENDED_EARLY.items():
        assert (text in said["caveats"]) == (cause == said_of_end)


def test_what_one_process_held_once_it_held() -> None:
    assert holders_of("process", "ranks") == holders_of("ranks", "process") == "process"
    assert holders_of(None, "ranks") == "ranks" and holders_of(None) is None


def test_no_site_of_a_tunings_winner_is_told_the_epsilon_of_that_run_alone(finished: Path) -> None:
    said = json.loads((finished / "ledger.json").read_text())
    said["tuning"] = {"epsilon": 7.5, "delta": 1e-3, "num_candidates": 4, "id": "a"}
    text = page_to_sign(said, {}, **FACTS)
    lines = [line for line in text.splitlines() if line.startswith("| silo ")]
    assert len(lines) == 4 and all(float(line.split("|")[-3]) == 7.5 for line in lines)


def test_a_run_that_shares_a_ledger_is_stated_with_the_others(finished: Path) -> None:
    said = json.loads((finished / "ledger.json").read_text())
    total = {"epsilon": 5.0, "delta": said["views"]["server"]["delta"], "why": "its limit"}
    said["shared"] = {"num_runs": 1, "adaptive": total, "planned": None, "num_same_records": 1}
    text = page_to_sign(said, {}, **FACTS)
    assert text.count("| 5.000 |") == len(said["silos"])
    (line,) = [line for line in text.splitlines() if line.startswith("| 0.1 %")]
    shown = float(line.split("|")[-2].strip().removesuffix(" %"))
    assert 0 <= shown - 100 * power(5.0, said["views"]["server"]["delta"], 0.001) <= 0.1 + 1e-9


def test_what_proves_nothing_is_not_to_be_signed(finished: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"

    def changed(**changes: Any) -> Path:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(finished, copy)
        said = json.loads((copy / "ledger.json").read_text())
        for path, value in changes.items():
            *parts, last = path.split("__")
            place = said
            for part in parts:
                place = place[part]
            place[last] = value
        (copy / "ledger.json").write_text(json.dumps(said))
        return copy

    cases = [
        ({"guarantee": "none: no noise was added"}, "no noise was added.*nothing to sign"),
        ({"mechanism__randomness": "seeded"}, r"was a simulation.*privacy.randomness=fresh, or without a seed"),
        ({"views__server__epsilon": 0.1}, "views.server.epsilon is 0.1, but the releases in ledger.jsonl cost"),
        ({"views__third_party__epsilon": 0.1}, "views.third_party.epsilon is 0.1, but the releases"),
        ({"views__server__epsilon": None}, "views.server.epsilon is 0, but"),
        ({"accountant__name": "another"}, "the accountant 'another' of its statement is not installed"),
    ]
    for changes, why in cases:
        with pytest.raises(DpflError, match=why):
            dpfl.statement(changed(**changes))
    ledger = changed() / "ledger.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(DpflError, match=r"ledger\.jsonl"):
        dpfl.statement(copy)
    (changed() / "ledger.json").write_text("{}")
    with pytest.raises(DpflError, match=r"ledger\.json is damaged"):
        dpfl.statement(copy)
    with pytest.raises(DpflError, match=r"ledger\.json cannot be read"):
        dpfl.statement(tmp_path)
    with pytest.raises(DpflError, match="names=99 must be a silo of"):
        dpfl.statement(finished, names={99: "Nobody"})


def test_of_a_shared_ledger_a_page_gives_the_total(tmp_path: Path) -> None:
    ledger = tmp_path / "shared.jsonl"
    for name, epsilon in (("first", 1.0), ("second", 4.0)):
        (tmp_path / name).mkdir()
        changes = {"out": str(tmp_path / name), **SECURE, "privacy": {**SECURE["privacy"], "epsilon": epsilon}}
        done = command("run", write(tmp_path / name, changes), "--json", "--ledger", ledger)
        assert done.code == 0, done.err
    folder = Path(done.json["folder"])
    text, total = dpfl.statement(folder).text, done.json["adaptive_total"]["epsilon"]
    assert "was not computed again" in text and text.count(f"| {places(total, 3)} |") == 4 and total > 4
    assert text.count("| others, or not known to be the same |") == 1


@pytest.mark.parametrize(
    "more",
    [
        {"private_evaluation": {"noise_multiplier": 2.0, "share": 0.25, "every": 1}},
        {"personalise": {"local_steps": 3, "local_lr": 0.1}},
    ],
    ids=["scores", "own models"],
)
def test_a_site_that_no_round_drew_is_told_what_it_released_beside_them(tmp_path: Path, more: dict[str, Any]) -> None:
    drawn = {
        "rounds": 1,
        "silo_rate": 0.25,
        "privacy": {"randomness": "fresh"},
        "seed": None,
        "out": str(tmp_path),
        **more,
    }
    done = command("run", write(tmp_path, drawn), "--json")
    assert done.code == 0, done.err
    folder = Path(done.json["folder"])
    silos = json.loads((folder / "ledger.json").read_text())["silos"]
    assert sorted(silo["rounds"] for silo in silos) == [0, 0, 0, 1]
    ledger, accountant = Ledger.open(folder / "ledger.jsonl", append=False), PLD()
    for silo in silos:
        own = ledger.tally.only(lambda entry, number=silo["silo"]: entry.silo == number)  # type: ignore[misc]
        assert silo["epsilon"] == pytest.approx(server_view(own, accountant, 1e-5).epsilon, rel=1e-9) and own
    assert dpfl.statement(folder)


def test_on_a_terminal_the_page_looks_as_it_will_be_read(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    show(dpfl.statement(finished, names={0: "st_anne", 1: "_x_"}))
    said = capsys.readouterr()
    assert "st_anne (silo 0)" in said.out and "_x_ (silo 1)" in said.out
    assert "## " not in said.out and "| --- |" not in said.out and "\\" not in said.out


def test_names_are_escaped_where_they_would_be_mark_up(finished: Path) -> None:
    text = dpfl.statement(finished, names={0: "st_anne", 1: "_x_", 2: "a__b"}).text
    assert all(f"| {name} (silo" in text for name in ("st_anne", r"\_x\_", r"a\_\_b"))


def test_the_statement_in_words_says_where_names_are(finished: Path) -> None:
    """They are not in it: it may be published."""
    assert "Their names are in the run's `silos.csv`" in (finished / "privacy.md").read_text()


def test_the_command_prints_or_writes_a_new_file(finished: Path, tmp_path: Path) -> None:
    done = command("statement", finished, "--name", "1=Mercy")
    assert done.code == 0 and done.out == dpfl.statement(finished, names={1: "Mercy"}).text
    out = tmp_path / "statement.md"
    assert "| site | records |" in done.out
    assert command("statement", finished, "--out", out).code == 0 and out.read_text().startswith("# Statement")
    one_message(command("statement", finished, "--out", out), "exists, and was left as it is")
    one_message(command("statement", finished, "--name", "Mercy"), "--name 'Mercy' must be a silo's number")
    one_message(command("statement", finished, "--name", "0=A", "--name", "0=B"), "silo 0 was named before")


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    arrays = {name: (np.random.default_rng(0).random((n, 4)), np.arange(n) % 2) for name, n in (("=A", 40), ("B", 20))}
    run = dpfl.train(
        dpfl.Federation.from_arrays(arrays, classes=[0, 1]),
        algorithm=dpfl.algorithms.FedAvg(local_steps=1, local_lr=0.1),
        privacy=dpfl.Privacy(noise_multiplier=5.0, randomness="fresh"),
        rounds=1,
        out=tmp_path_factory.mktemp("named"),
        progress=False,
    )
    return run.folder


def test_sites_have_the_names_that_the_data_gave_them(named: Path) -> None:
    text = dpfl.statement(named).text
    assert "=A (silo 0)" in text and "B (silo 1)" in text


def test_the_page_describes_the_study(named: Path, tmp_path: Path) -> None:
    """What the folder knows is there; the rest is to be filled in."""
    run = dpfl.train(
        dpfl.Federation.from_table(frame(), SCHEMA),
        algorithm=dpfl.algorithms.FedAvg(local_steps=1, local_lr=0.1),
        privacy=dpfl.Privacy(noise_multiplier=5.0),
        rounds=1,
        out=tmp_path,
        progress=False,
    )
    text = dpfl.statement(run, purpose="Who falls ill | when", recipients="the two clinics").text
    for row in (
        "| purpose | Who falls ill \\| when |",
        "| what the model predicts | ill: no, yes |",
        "| who receives the model and the results | the two clinics |",
        "| age | number, 20 to 90 |",
        "| stage | category: I, II, III |",
    ):
        assert row in text
    text = dpfl.statement(named).text
    assert "| purpose |  |" in text and "| an array of shape (4,) |" in text
