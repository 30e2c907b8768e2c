"""`privacy.md`: every number in it is one of `ledger.json`, and it says plainly what holds and what does not."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from dpfl_plugin.api.runs import Run
from dpfl_plugin.core.rounding import odds
from dpfl_plugin.core.text import epsilon as epsilon_text
from dpfl_plugin.privacy.statement_pages import privacy_page, total_of
from tests.cli.command import dpfl, merged, run, write

SILO: dict[str, Any] = {
    "algorithm": {"name": "fedavg"},
    "privacy": {"unit": "silo", "sampler": "full", "record_rate": None, "noise_multiplier": 20.0},
}
KINDS: dict[str, dict[str, Any]] = {
    "record": {"data": {"partition": {"name": "quantity_skew", "alpha": 1.0, "min_records": 4}}},
    "batches": {"privacy": {"record_rate": None, "batch_size": 7}},
    "full": {"privacy": {"sampler": "full", "record_rate": None, "clip_norm": 0.123456789}},
    "third party's budget": {
        "privacy": {"epsilon": 2.0, "budget_view": "third_party"},
        "rounds": None,
        "silo_rate": 0.5,
    },
    "drawn": {"privacy": {"epsilon": 3.0}, "rounds": None, "silo_rate": 0.5},
    "poisson": {"privacy": {"sampler": "poisson"}},
    "silo": SILO,
    "silo, add or remove": merged(SILO, {"privacy": {"neighbouring": "add_or_remove"}}),
    "many silos": {"data": {"num_silos": 30, "dataset": {"records_per_silo": 10}}, "silo_rate": 0.1},
    "not private": {"privacy": {"noise_multiplier": 0, "clip_norm": float("inf")}},
    "next to no noise": {"privacy": {"noise_multiplier": 0.005}},
    "median": {"privacy": {"clip": "median"}},
    "adaptive": {"privacy": {"clip": "adaptive"}},
    "per layer": {"privacy": {"clip": "per_layer"}},
    "solved": {"privacy": {"noise_multiplier": None, "epsilon": 2.5}},
    "capped": {"max_participations": 3, "silo_rate": 0.5, "rounds": 4},
    "fresh": {"privacy": {"randomness": "fresh"}},
    "one of several": {},
    "fitted": {"data": {"preprocess": [{"name": "standardise"}]}},
}
WORDS = {
    "record": ["One record of one silo.", "had been any other", "2 C sigma"],
    "batches": ["batch_size 7"],
    "full": ["0.123456789", "all records of the silo"],
    "third party's budget": ["budget of epsilon 2 for what third parties see"],
    "drawn": ["budget of epsilon 3 for what the server sees"],
    "poisson": ["as zero, or not", "`add_or_remove`", "a batch may be empty", "(s n)"],
    "silo": [
        "whole data set of one silo",
        "all records of one silo had been any others",
        "clip(update, C) + 2 C sigma",
    ],
    "silo, add or remove": ["the update of one silo had counted as zero", "clip(update, C) + C sigma"],
    "many silos": ["`ledger.json` has all of them"],
    "not private": ["**Nothing is protected**: no noise was added.", "no epsilon"],
    "next to no noise": ["**Nothing is protected**: noise_multiplier 0.005 is too little", "no epsilon"],
    "median": ["**Nothing is protected**: clip: median takes", "no epsilon"],
    "adaptive": ["clip(gradient, C_i)", "noised count", "quantile"],
    "per layer": ["a bound of its own"],
    "solved": [", computed from the budget", "budget of epsilon 2.5"],
    "capped": ["in at most 3 rounds", "in 3 rounds, the cap"],
    "fresh": [
        "a silo's own staff, who have its records; the person who ran this, who had the records of all silos.",
        "keys that each silo drew",
    ],
    "fitted": ["## What is not covered\n\n* The run was one process on one machine", "\n* Standardise: mean"],
    "one of several": ["Together with other runs", "Besides this run it holds 1 other run.", "`dpfl account FILE`"],
}


def made(tmp_path: Path, kind: str) -> tuple[dict[str, Any], str]:
    config, more = write(tmp_path, KINDS[kind]), []
    if kind == "one of several":
        more = ["--ledger", str(tmp_path / "all.jsonl"), "--set", "privacy.randomness=fresh"]
        run(config, *more, "--set", "seed=11")
    folder = Path(run(config, *more)["folder"])
    return json.loads((folder / "ledger.json").read_text()), (folder / "privacy.md").read_text()


def numbers_of(value: Any) -> set[str]:
    """Every number that a program finds, as it may be written: as it is, or as an epsilon, rounded up."""
    if isinstance(value, dict):
        return set().union(*(numbers_of(item) for item in value.values()))
    if isinstance(value, list):
        return set().union(*(numbers_of(item) for item in value))
    if isinstance(value, str):
        return set(numbers_in(value))
    if value is None or isinstance(value, bool):
        return set()
    return {f"{value:.15g}", *([epsilon_text(value), *numbers_in(odds(value))] if value >= 0 else [])}


def numbers_in(text: str) -> list[str]:
    """Words that are numbers, and not parts of names such as L2 or e^."""
    return re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])", re.sub(r"`[^`]*`", "", text))


@pytest.mark.parametrize("kind", KINDS)
def test_it_holds_no_number_of_its_own(tmp_path: Path, kind: str) -> None:
    said, text = made(tmp_path, kind)
    assert privacy_page(said) == text  # from the file that programs read, and nothing else
    explained = ("* **The factor**", "* **How strong that is**", "* **Delta**")  # tests/privacy/test_statement_pages.py
    found = set(numbers_in("\n".join(line for line in text.splitlines() if not line.startswith(explained))))
    assert found <= numbers_of(said) | {"0"}, found - numbers_of(said)
    for part in WORDS[kind]:
        assert part in text, text
    assert "head" not in said and "dpfl account FOLDER" in text
    listed = [line for line in text.splitlines() if line.startswith("* ")]
    assert len(listed) == len(set(listed)), "a note that is listed as not covered is not said again"
    if kind not in ("not private", "next to no noise", "median"):
        alone = said["views"]["server"]
        assert epsilon_text(alone["epsilon"]) in found
        epsilon = total_of(said, alone)["epsilon"]
        assert f"a factor of at most e^{epsilon_text(epsilon)} ({odds(epsilon)})" in text
        assert epsilon_text(said["views"]["third_party"]["epsilon"]) in found
        fresh = said["mechanism"]["randomness"] == "fresh"
        assert ("So may the model, at the epsilon" in text) == fresh
        assert ("The model of a simulation has no epsilon" in text) == (not fresh)


@pytest.mark.parametrize("kind", ["not private", "next to no noise", "median"])
def test_without_noise_nothing_else_is_claimed(tmp_path: Path, kind: str) -> None:
    _, text = made(tmp_path, kind)
    for word in ("Accountant", "factor", "Assumptions", "against whom", "| epsilon |"):
        assert word not in text
    assert "Both files may be published. Nothing protects the model (above)." in text


def test_a_long_table_is_cut_and_shows_the_worst_silo(tmp_path: Path) -> None:
    said, text = made(tmp_path, "many silos")
    rows = [line for line in text.splitlines() if re.match(r"\| \d+ \|", line)]
    worst = said["views"]["server"]["worst_silo"]
    assert len(rows) in (20, 21) and len(said["silos"]) == 30
    assert any(row.startswith(f"| {worst} |") for row in rows)


def test_it_is_there_however_a_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write(tmp_path)
    endings = {
        "ended by its privacy budget": ["rounds=900", "privacy.epsilon=3"],
        "failed": ["algorithm.local_lr=1e38"],
    }
    for words, settings in endings.items():
        done = dpfl("run", config, "--out", tmp_path / "runs", "--json", *(f"--set={setting}" for setting in settings))
        assert words in (Path(done.json["folder"]) / "privacy.md").read_text()
    monkeypatch.setattr("dpfl_plugin.interrupts.Stop.__call__", lambda self: True)
    text = (Path(run(config, code=7)["folder"]) / "privacy.md").read_text()
    assert "interrupted; it can be resumed" in text


def test_the_users_own_code_is_trusted_and_may_leave_the_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mine", raising=False)  # of another test
    (tmp_path / "mine.py").write_text(
        "from dpfl_plugin.privacy.mechanisms import Gaussian\n\n\nclass Mine(Gaussian):\n    __slots__ = ()\n"
    )
    said = {}
    for own in (False, True):
        mechanism = ["--set=privacy.mechanism={module: mine:Mine}"] if own else []
        result = run(write(tmp_path), *mechanism)
        said[own] = (Path(result["folder"]) / "privacy.md").read_text()
    for own, text in said.items():
        assert ("whole steps of a grid" in text) == (not own)
        assert "The user's own code is trusted" in text


@pytest.mark.parametrize(
    ("changes", "dealt", "secret"),
    [
        ({}, True, False),
        ({"data": {"partition": "natural"}}, False, False),
        ({"data": {"partition": "natural"}, "privacy": {"randomness": "fresh"}}, False, True),
    ],
)
def test_it_says_what_of_dealing_cutting_and_testing_is_covered(
    tmp_path: Path, changes: dict[str, Any], dealt: bool, secret: bool
) -> None:
    path = write(tmp_path, changes)
    result = run(path)
    text = (Path(result["folder"]) / "privacy.md").read_text()
    shown = dpfl("run", path, "--out", tmp_path / "runs").out
    for said in (text, shown, str(Run.open(result["folder"])), " ".join(result["not_covered"])):
        assert ("How records were dealt to silos (data.partition) is taken as given" in said) == dealt
        assert "raw test measures are covered for nobody" in said
    assert ("The key is the silos' secret" in text) == secret
