"""Who may read what is written: nobody but its owner, whatever the umask, unless it is asked for."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

from dpfl_plugin.access import Access, opener
from dpfl_plugin.adapters.agreement import agree
from dpfl_plugin.config.load import load, run_id
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.privacy.ledger import Ledger
from tests.adapters.federation import block
from tests.adapters.test_faults import begin
from tests.cli.command import dpfl, write
from tests.cli.sweeping import write as write_sweep

UMASKS = (0o000, 0o077)  # nothing is held back, everything


@pytest.fixture(params=UMASKS, ids=lambda mask: f"umask {mask:03o}")
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, set[int]]:
    """Those of all folders, and of all files, from ``folder`` down."""
    found: dict[str, set[int]] = {"folders": set(), "files": set()}
    for path in (folder, *folder.rglob("*")):
        found["folders" if path.is_dir() else "files"].add(stat.S_IMODE(path.stat().st_mode))
    return found


def only(access: Access) -> dict[str, set[int]]:
    folder, file = {"owner": (0o700, 0o600), "group": (0o750, 0o640), "everyone": (0o755, 0o644)}[access]
    return {"folders": {folder}, "files": {file}}


@pytest.mark.usefixtures("umask", "pictures")
def test_what_a_run_writes_is_its_owners(tmp_path: Path) -> None:
    shared = tmp_path / "shared.jsonl"
    path = write(tmp_path, {"evaluation": {"every": 2}, "privacy": {"randomness": "fresh"}})
    done = dpfl("run", path, "--out", tmp_path / "deep" / "runs", "--ledger", shared, "--profile")
    assert done.code == 0, done.err
    assert modes(tmp_path / "deep") == only("owner")
    assert stat.S_IMODE(shared.stat().st_mode) == stat.S_IMODE((tmp_path / "shared.jsonl.lock").stat().st_mode) == 0o600


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("access", ["group", "everyone"])
def test_who_else_may_read_can_be_said(tmp_path: Path, access: Access) -> None:
    done = dpfl("run", write(tmp_path), "--out", tmp_path / "runs", "--set", f"access={access}")
    assert done.code == 0, done.err
    (lock,) = (tmp_path / "runs").rglob(".lock")
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600, "nobody else writes"
    lock.unlink()
    (key,) = (tmp_path / "runs").rglob("silos/key")  # which marks the records
    assert (stat.S_IMODE(key.stat().st_mode), stat.S_IMODE(key.parent.stat().st_mode)) == (0o600, 0o700)
    shutil.rmtree(key.parent)
    assert modes(tmp_path / "runs") == only(access)


@pytest.mark.parametrize("umask", [0o000], indirect=True, ids=["umask 000"])  # others are tried by a run alone
def test_a_sweep_and_its_runs_are_their_owners(tmp_path: Path, umask: None) -> None:
    path = write_sweep(tmp_path, {"seeds": 1})
    assert dpfl("sweep", path, "--out", tmp_path / "out").code == 0
    assert modes(tmp_path / "out") == only("owner")
    assert dpfl("status", tmp_path / "out").code == 0
    assert dpfl("report", tmp_path / "out", "--out", tmp_path / "report").code == 0


@pytest.mark.usefixtures("umask")
def test_folders_of_a_silo_and_a_server_are_their_owners(tmp_path: Path) -> None:
    with begin(tmp_path / "all", block(rounds=2)) as running:
        running.run()
    assert modes(tmp_path / "all") == only("owner")


def test_it_does_not_change_the_runs_name(tmp_path: Path) -> None:
    (plain,), (other,) = (load(write(tmp_path, more)).variants for more in ({}, {"access": "everyone"}))
    assert run_id(plain.config) == run_id(other.config)


def test_a_file_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    """Its owner has said who may read it."""
    path = tmp_path / "ledger.jsonl"
    with Ledger(path, {}):
        pass
    path.chmod(0o640)
    with Ledger.open(path) as ledger:
        ledger.note("more")
    with open(path, "a", opener=opener("owner")):
        pass
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_an_agreement_does_not_say_who_may_read_a_silos_folder() -> None:
    with pytest.raises(ConfigError, match="for its owner to say"):
        agree({**block(rounds=2), "access": "everyone"}, num_silos=4, model=torch.nn.Linear(6, 3))


def test_only_known_words_are_taken(tmp_path: Path) -> None:
    path = write(tmp_path, {"access": "all"})
    assert yaml.safe_load(path.read_text())["access"] == "all"
    done = dpfl("run", path, "--out", tmp_path / "runs")
    assert done.code == 2 and "access" in done.err and "everyone" in done.err
