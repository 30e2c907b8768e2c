"""`dpfl status` of single runs."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from dpfl_plugin.runs import run_status
from tests.cli.command import dpfl, one_message, run, write
from tests.cli.sweeping import write as write_sweep
from tests.cli.test_resume import crash, folder_of

FEW: dict[str, Any] = {"rounds": 3, "checkpoint": {"every": 2}}


def test_a_run_that_is_over(tmp_path: Path) -> None:
    result = run(write(tmp_path, FEW))
    for where in (result["folder"], tmp_path / "runs"):
        (found,) = dpfl("status", where, "--json").json["runs"]
        assert (found["status"], found["round"], found["rounds"], found["next"]) == ("done", 3, 3, "")
        assert found["test_accuracy"] == result["test_accuracy"]["last"]
        assert found["epsilon"] == result["epsilon"]["server"]["epsilon"]
    shown = dpfl("status", result["folder"]).out
    assert "1 run: 1 done" in shown and "3/3" in shown and f"accuracy {found['test_accuracy']:.4f}" in shown
    reason = f"stopped after round 3, as {'the private accuracy had not risen since, ' * 5}and it may not rise"
    (Path(result["folder"]) / "result.json").write_text(json.dumps({**result, "reason": reason}))
    _, _, row, whole = dpfl("status", tmp_path / "runs").out.splitlines()
    assert row.endswith("stopped after round 3, as the ...") and len(row) < 200
    assert whole == f"{result['folder']}: {reason}"


def test_runs_of_one_name_are_told_apart_by_their_settings(tmp_path: Path) -> None:
    config = write(tmp_path, FEW)
    for settings in ([], ["rounds=2"], ["rounds=2", "algorithm.local_lr=0.25"]):
        run(config, *[word for one in settings for word in ("--set", one)])
    found = dpfl("status", tmp_path / "runs", "--json").json["runs"]
    told = [one["settings"] for one in found]
    assert all(set(one) == {"rounds", "algorithm.local_lr"} for one in told)
    assert sorted((one["rounds"], one["algorithm.local_lr"] == 0.25) for one in told) == [
        (2, False),
        (2, True),
        (3, False),
    ]
    shown = dpfl("status", tmp_path / "runs").out
    assert "rounds=2" in shown and "algorithm.local_lr=0.25" in shown
    assert dpfl("status", found[0]["folder"], "--json").json["runs"][0]["settings"] == {}


def test_an_interrupted_run_and_the_command_that_goes_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = crash(write(tmp_path, FEW), 3)
    folder = folder_of(config)
    (folder / ".lock").write_text(f"pid {2**22 + 1} on {os.uname().nodename}")  # of this process, which lives
    (found,) = dpfl("status", folder, "--json").json["runs"]
    assert (found["status"], found["round"], found["rounds"]) == ("interrupted", 2, 3)
    assert f"go on: {found['next']}" in dpfl("status", folder).out
    words = shlex.split(found["next"])
    assert words[0] == "dpfl" and dpfl(*words[1:]).code == 0
    (found,) = dpfl("status", folder, "--json").json["runs"]
    assert found["status"] == "done" and found["folder"] == str(folder)


def test_one_that_shares_a_ledger_goes_on_by_its_own_command(tmp_path: Path) -> None:
    """Which says where the ledger is."""
    config = crash(write(tmp_path, FEW), 3, "--ledger", tmp_path / "all.jsonl", "--set", "privacy.randomness=fresh")
    (folder_of(config) / ".lock").unlink()
    (found,) = dpfl("status", tmp_path / "runs", "--json").json["runs"]
    assert "dpfl resume " in found["next"] and "the ledger that it shares" in found["next"]


def test_a_run_at_work_and_how_long_ago_it_wrote(tmp_path: Path) -> None:
    folder = folder_of(crash(write(tmp_path, FEW), 3))  # this process has locked it, and lives
    for name in run_status.WRITTEN:
        os.utime(folder / name, (10.0, 10.0))
    os.utime(folder / "ledger.jsonl", None)
    done = dpfl("status", folder)
    assert "1 running" in done.out and "round 2/3" in done.out and "wrote 0 s ago" in done.out
    (folder / ".lock").write_text("pid 1 on another-machine")
    assert dpfl("status", folder, "--json").json["runs"][0]["status"] == "running"
    for name in run_status.WRITTEN:
        os.utime(folder / name, (10.0, 10.0))
    assert dpfl("status", folder, "--json").json["runs"][0]["status"] == "interrupted"


def test_without_a_folder_it_looks_where_runs_and_sweeps_are_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one_message(dpfl("status"), "no runs in ./runs", "dpfl status DIR")
    path = write_sweep(tmp_path, {"seeds": 2}, {"rounds": 1})
    assert dpfl("sweep", path).code == 0
    assert len(dpfl("status", "--json").json["runs"]) == 2 and "2 done" in dpfl("status").out
    run(write(tmp_path, FEW))
    one_message(dpfl("status"), "more than one", "dpfl status runs", "dpfl status sweeps/")
    (tmp_path / "sweeps").rename(tmp_path / "elsewhere")
    assert [one["rounds"] for one in json.loads(dpfl("status", "--json").out)["runs"]] == [3]
