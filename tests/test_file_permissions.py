"""Folders of runs, ledgers and keys are their owner's alone, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpfl_plugin.config.load import load, run_id
from tests.adapters.federation import block
from tests.adapters.test_faults import begin
from tests.cli.command import dpfl, write
from tests.cli.sweeping import write as write_sweep


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """One that holds nothing back."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_runs_folder_its_ledgers_and_keys_are_their_owners(tmp_path: Path) -> None:
    shared = tmp_path / "shared.jsonl"
    path = write(tmp_path, {"privacy": {"randomness": "fresh"}})
    done = dpfl("run", path, "--out", tmp_path / "runs", "--ledger", shared)
    assert done.code == 0, done.err
    (ledger,) = (tmp_path / "runs").rglob("ledger.jsonl")
    assert mode(ledger.parent) == 0o700
    files = [ledger, shared, shared.with_name("shared.jsonl.lock"), shared.with_name("shared.jsonl.key")]
    assert {mode(file) for file in files} == {0o600}


def test_a_sweeps_folder_is_its_owners(tmp_path: Path) -> None:
    assert dpfl("sweep", write_sweep(tmp_path, {"seeds": 1}), "--out", tmp_path / "out").code == 0
    folders = [path.parent for name in ("manifest.jsonl", "ledger.jsonl") for path in (tmp_path / "out").rglob(name)]
    assert len(folders) >= 2 and {mode(folder) for folder in folders} == {0o700}


def test_folders_of_a_silo_and_a_server_are_their_owners(tmp_path: Path) -> None:
    with begin(tmp_path / "all", block(rounds=2)) as running:
        running.run()
    folders = {path.parent for name in ("ledger.jsonl", "checkpoint") for path in (tmp_path / "all").rglob(name)}
    assert len(folders) >= 2 and {mode(folder) for folder in folders} == {0o700}


def test_the_key_of_earlier_versions_is_read(tmp_path: Path) -> None:
    (plain,), (other,) = (load(write(tmp_path, more)).variants for more in ({}, {"access": "everyone"}))
    assert run_id(plain.config) == run_id(other.config)
