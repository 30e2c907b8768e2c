"""Checkpoints: at every moment there is a whole one, and it is the newest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from dpfl_plugin.errors import DataError
from dpfl_plugin.runs import checkpoint
from dpfl_plugin.runs.checkpoint import Checkpoint, load, save


def state(rounds: int, value: float = 0.0) -> Checkpoint:
    server = {"model": torch.full((3,), value), "picked": torch.tensor([True, False])}
    return Checkpoint(rounds, server, {"control": torch.full((2, 3), value)}, {"seconds": value})


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    assert load(tmp_path) is None
    save(tmp_path, state(7, 0.1))
    found = load(tmp_path)
    assert found is not None and found.rounds == 7 and found.facts["seconds"] == 0.1
    assert torch.equal(found.server["model"], torch.full((3,), 0.1)) and found.server["picked"].dtype == torch.bool
    assert torch.equal(found.silos["control"], torch.full((2, 3), 0.1))


def test_silos_without_states(tmp_path: Path) -> None:
    save(tmp_path, Checkpoint(1, {"model": torch.ones(2)}, {}, {}))
    found = load(tmp_path)
    assert found is not None and found.silos == {}


def test_the_newest_is_kept(tmp_path: Path) -> None:
    for number, rounds in enumerate([0, 1, 9, 10, 10, 10, 100]):
        save(tmp_path, state(rounds, float(number)))
        (path,) = tmp_path.iterdir()
        found = load(tmp_path)
        assert found is not None and (found.rounds, found.facts["seconds"]) == (rounds, number), path


@pytest.mark.parametrize("rounds", [5, 6])
def test_killed_at_any_moment_there_is_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    class Killed(BaseException):
        pass

    left = 0

    def dies(real: Any) -> Any:
        def call(*args: Any, **given: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            return real(*args, **given)

        return call

    for module, name in ((os, "fsync"), (os, "replace"), (os, "unlink"), (Path, "open"), (Path, "unlink")):
        monkeypatch.setattr(module, name, dies(getattr(module, name)))
    saves = 0
    for place in range(1, 20):
        folder = tmp_path / str(place)
        left = 10**9
        save(folder, state(5, 1.0))
        left = place
        try:
            save(folder, state(rounds, 2.0))
            saves += 1
        except Killed:
            pass
        left = 10**9
        found = load(folder)
        assert found is not None and (found.rounds, found.facts["seconds"]) in ((5, 1.0), (rounds, 2.0))
        (folder / f".state.safetensors.tmp-{os.getpid() + 1}").touch()  # of another process that was killed
        save(folder, state(rounds + 1, 3.0))
        assert len(list(folder.iterdir())) == 1, "nothing is left behind"
    assert 0 < saves < 19


def test_a_checkpoint_is_whole_on_the_disk_before_it_takes_the_place_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: dict[int, bytes] = {}  # what a power cut leaves, by inode
    fsync, replace, replaced = os.fsync, os.replace, 0

    def syncs(handle: int) -> None:
        fsync(handle)
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        synced[os.fstat(handle).st_ino] = path.read_bytes() if path.is_file() else b""

    def replaces(old: Path, new: Path) -> None:
        nonlocal replaced
        assert synced[old.stat().st_ino] == old.read_bytes()
        replace(old, new)
        replaced += 1

    monkeypatch.setattr(os, "fsync", syncs)
    monkeypatch.setattr(os, "replace", replaces)
    for rounds in (1, 2, 2, 3):
        save(tmp_path, state(rounds))
    assert replaced == 4 and tmp_path.stat().st_ino in synced


def test_damage_names_the_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, state(3))
    path = tmp_path / "state.safetensors"
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(DataError, match=r"state\.safetensors: the checkpoint cannot be read"):
        load(tmp_path)


def test_a_checkpoint_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "round-00000003.000").mkdir()
    with pytest.raises(DataError, match="of an earlier version"):
        load(tmp_path)
    monkeypatch.setattr(checkpoint, "SCHEMA", checkpoint.SCHEMA + 1)
    save(tmp_path, state(3))
    monkeypatch.undo()
    with pytest.raises(DataError, match=f"schema {checkpoint.SCHEMA + 1}"):
        load(tmp_path)


def test_one_flipped_bit_is_noticed(tmp_path: Path) -> None:
    """In whatever place: rounds would go on from another state than the one that the ledger's charges led to."""
    save(tmp_path, state(3, 1.0))
    path = tmp_path / "state.safetensors"
    whole = path.read_bytes()
    for place in range(0, len(whole), 5):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(DataError):
            load(tmp_path)
