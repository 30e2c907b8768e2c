"""Checkpoints: at every moment there is a whole one, and it is the newest."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from dpfl_plugin.errors import DataError
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
    """Of the same round too: it is neither deleted before the other has its name, nor taken apart before that."""

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

    for module, name in (
        (os, "fsync"),
        (os, "rename"),
        (os, "unlink"),
        (os, "rmdir"),
        (os, "mkdir"),
        (shutil, "rmtree"),
    ):
        monkeypatch.setattr(module, name, dies(getattr(module, name)))
    saves = 0
    for place in range(1, 40):
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
        save(folder, state(rounds + 1, 3.0))
        assert len(list(folder.iterdir())) == 1, "nothing is left behind"
    assert 0 < saves < 39


def test_a_checkpoint_is_whole_on_the_disk_before_it_counts_and_older_ones_are_there_till_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File systems keep no order that nobody asked for: of a file its bytes, and of a folder its names, are synced."""
    synced: dict[int, Any] = {}  # what a power cut leaves, by inode
    fsync, rename, rmtree, counted = os.fsync, os.rename, shutil.rmtree, list[Path]()

    def held(path: Path) -> Any:
        return {one.name: one.stat().st_ino for one in path.iterdir()} if path.is_dir() else path.read_bytes()

    def syncs(handle: int) -> None:
        fsync(handle)
        synced[os.fstat(handle).st_ino] = held(Path(os.readlink(f"/proc/self/fd/{handle}")))

    def renames(old: Path, new: Path) -> None:
        assert all(synced.get(path.stat().st_ino) == held(path) for path in (old, *old.iterdir()))
        rename(old, new)
        counted.append(new)

    def removes(path: Path, **how: Any) -> None:
        if path.exists():
            assert counted[-1].name in synced[tmp_path.stat().st_ino], "the next has its name on the disk"
        rmtree(path, **how)

    for module, name, watched in ((os, "fsync", syncs), (os, "rename", renames), (shutil, "rmtree", removes)):
        monkeypatch.setattr(module, name, watched)
    for rounds in (1, 2, 2, 3):
        save(tmp_path, state(rounds))
    assert len(counted) == 4 and held(tmp_path).keys() == {counted[-1].name}


@pytest.mark.parametrize("name", ["facts.json", "server.safetensors", "silos.safetensors"])
@pytest.mark.parametrize("how", ["cut", "gone"])
def test_damage_names_the_checkpoint(tmp_path: Path, name: str, how: str) -> None:
    save(tmp_path, state(3))
    (path,) = tmp_path.glob(f"round-*/{name}")
    if how == "cut":
        path.write_bytes(path.read_bytes()[:20])
    else:
        path.unlink()
    with pytest.raises(DataError, match=r"round-00000003.*cannot be read"):
        load(tmp_path)


def test_another_schema_is_refused(tmp_path: Path) -> None:
    save(tmp_path, state(3))
    (facts,) = tmp_path.glob("round-*/facts.json")
    facts.write_text(facts.read_text().replace('"schema": 4', '"schema": 5'))
    with pytest.raises(DataError, match="schema 5"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["facts.json", "server.safetensors", "silos.safetensors"])
def test_one_flipped_bit_is_noticed(tmp_path: Path, name: str) -> None:
    """In whatever place: it would be another state under a name that is charged already."""
    save(tmp_path, state(3, 1.0))
    (path,) = tmp_path.glob(f"round-*/{name}")
    whole = path.read_bytes()
    places = {*range(0, len(whole), 11), *range(len(whole) - 12, len(whole))}
    # Of the facts, first a number, which leaves them as readable as before.
    for place in [whole.index(b"1.0")] if name == "facts.json" else sorted(places):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            found = load(tmp_path)
        except DataError:
            continue
        assert name != "facts.json", f"byte {place}"
        assert found is not None and _bits(found) == _bits(state(3, 1.0)), f"byte {place}"  # of the file's padding


def _bits(found: Checkpoint) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in {**found.server, **found.silos}.items()}
