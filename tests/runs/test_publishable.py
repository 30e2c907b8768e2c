"""What a run publishes tells nothing private; and what rests on draws rests on draws that nobody knew before."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from dpfl_plugin.algorithms.base import Setting
from dpfl_plugin.core.rounding import digits
from dpfl_plugin.federation.participant_sampling import draw_participants
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.runs.checkpoint import load_facts
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.runs.statement import SIMULATION
from tests.cli.command import charges, run, write
from tests.cli.test_resume import crash

DRAWN: dict[str, Any] = {"rounds": 12, "silo_rate": 0.5, "data": {"num_silos": 6}}
OUTSIDER: dict[str, Any] = {
    **DRAWN,
    "algorithm": {"name": "fedavg"},
    "privacy": {
        "unit": "silo",
        "sampler": "full",
        "record_rate": None,
        "noise_multiplier": 20.0,
        "randomness": "fresh",
    },
}


def who(result: dict[str, Any]) -> set[tuple[int, int]]:
    return {(charge.round, charge.silo) for charge in charges(result["folder"])}


def published(result: dict[str, Any]) -> str:
    folder = RunFolder(Path(result["folder"]))
    return folder.statement.read_text() + folder.privacy.read_text()


def facts(result: dict[str, Any]) -> dict[str, Any]:
    return load_facts(RunFolder(Path(result["folder"])).checkpoint) or {}


def test_what_is_published_is_the_same_whoever_took_part(tmp_path: Path) -> None:
    """Two runs of one configuration that differ in who took part: an outsider who does not know it cannot tell them."""
    config = write(tmp_path, OUTSIDER)
    one, other = (run(config, "--out", tmp_path / out) for out in ("one", "other"))
    assert "outsider" in one["epsilon"] and who(one) != who(other)
    assert published(one) == published(other)
    said = json.loads(RunFolder(Path(one["folder"])).statement.read_text())
    assert said["views"]["server"]["epsilon"] == one["epsilon"]["server"]["worst_case_epsilon"], "not the realised one"


def test_no_digest_no_name_of_noise_and_no_other_run_is_published(tmp_path: Path) -> None:
    config, ledger = write(tmp_path, {**DRAWN, "privacy": {"randomness": "fresh"}}), tmp_path / "private-name.jsonl"
    first = run(config, "--ledger", ledger, "--set", "name=earlier-run", "--set", "seed=11")
    second = run(config, "--ledger", ledger)
    text, folder = published(second), RunFolder(Path(second["folder"]))
    digits = set(re.findall(r"(?<![0-9.e+-])[0-9a-f]{12,}(?![0-9.])", text)) - {second["id"]}
    assert not digits, "a digest, or what might be one"
    named = {charge.noise_id for charge in Ledger.open(ledger, append=False)}
    for private in ("earlier-run", "private-name", first["id"], facts(second)["data_sha256"], *named):
        assert private not in text
    assert facts(second)["coins"] not in text
    details = json.loads(folder.details.read_text())
    assert details["not_to_be_published"] and details["shared"]["runs"][0]["name"] == "earlier-run"
    assert folder.path.stat().st_mode & 0o777 == 0o700


def test_no_class_that_was_read_from_records_and_no_loss_is_published(tmp_path: Path) -> None:
    """One record may have brought a class; and a note of divergence has a loss that was computed without noise."""
    rows = "".join(f"{n % 7},{n % 5},{'rare-disease' if n == 3 else 'healthy'}\n" for n in range(60))
    (tmp_path / "a.csv").write_text(f"u,v,label\n{rows}")
    config = write(tmp_path, {"data": None, "algorithm": {"local_lr": 1e30}})
    data: dict[str, Any] = {"dataset": {"name": "csv", "files": "a.csv"}, "partition": "iid", "num_silos": 2}
    config.write_text(config.read_text() + f"data: {json.dumps(data)}\n")
    for classes in (None, ["healthy", "rare-disease"]):
        result = run(config, "--set", f"data.dataset.classes={json.dumps(classes)}")
        text, notes = published(result), "\n".join(result["notes"])
        assert "rare-disease" in notes and "training diverged" in notes
        assert "diverged" not in text
        assert ("rare-disease" in text) == (classes is not None), "in the configuration it is public"
        assert ("classes were read from the records" in text) == (classes is None)


def test_fresh_participants_follow_from_no_seed_and_are_kept_for_a_resume(tmp_path: Path) -> None:
    """The mixture is an average over draws that nobody can have known: 20 ways in each of 12 rounds."""
    config = write(tmp_path, {**DRAWN, "privacy": {"randomness": "fresh"}, "checkpoint": {"every": 2}})
    whole = [run(config, "--out", tmp_path / out) for out in ("one", "other")]
    assert who(whole[0]) != who(whole[1])
    crash(config, 7)
    result = run(config, "--resume")
    coins = facts(result)["coins"]
    assert len(coins) == 64 and not any(facts(one)["coins"] == coins for one in whole)
    known = Setting(num_silos=6, num_participants=3, silo_rate=0.5, record_rate=0.5)
    drawn = {(t, silo) for t in range(12) for silo in draw_participants(3, t, known, coins=coins)}
    assert who(result) == drawn, "before the crash and after it"
    assert "unpredictably" not in result["epsilon"]["third_party"]["basis"]
    assert "Reproducible simulation" not in published(result)


def test_a_simulation_says_first_that_it_is_one_and_claims_the_mixture_as_if_only(tmp_path: Path) -> None:
    result = run(write(tmp_path, DRAWN))
    third = result["epsilon"]["third_party"]
    assert third["epsilon"] < result["epsilon"]["server"]["worst_case_epsilon"]
    assert "as if participants had been drawn unpredictably" in third["basis"]
    folder = RunFolder(Path(result["folder"]))
    first = folder.privacy.read_text().split("\n\n")[2]
    assert first == f"**{SIMULATION.format(epsilon=digits(result['epsilon']['server']['epsilon'], 4))}**"
    assert list(json.loads(folder.statement.read_text()))[1] == "warnings"


def test_what_the_server_was_given_is_said_first_wherever_an_epsilon_is_stated(
    tmp_path: Path,
) -> None:
    config = write(tmp_path, {"evaluation": {"reveal": "server"}, "checkpoint": {"every": 2}})
    crash(config, 4)
    result = run(config, "--resume", "--set", "evaluation.reveal=experimenter")
    folder = RunFolder(Path(result["folder"]))
    assert len(result["warnings"]) == 1, "once given, it stays given"
    warning = result["warnings"][0]
    assert "No epsilon covers" in warning and "evaluation.reveal: server" in warning
    assert "all measures" in warning and "training labels" in warning, "a baseline's tell of these, too"
    assert folder.privacy.read_text().split("\n\n")[3] == f"**{warning}**", "after that it is a simulation"
    assert json.loads(folder.statement.read_text())["warnings"][1] == warning
    assert not run(write(tmp_path), "--out", tmp_path / "other")["warnings"]
