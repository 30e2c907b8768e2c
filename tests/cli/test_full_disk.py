"""A disk that is full: the file is named with what to do, nothing that was saved is lost, and it goes on."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpfl_plugin.errors import MAKE_ROOM, LedgerError
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.ledger import Ledger
from tests.cli import sweeping
from tests.cli.command import Done, dpfl, write

PAGE = 4096
SHORT = {"rounds": 4, "checkpoint": {"every": 2}}


class Disk:
    """A small file system of its own, of which all but some pages are taken."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def leave(self, pages: int) -> None:
        free = os.statvfs(self.path).f_bavail
        with open(self.path / "taken", "ab") as file:
            file.write(bytes((free - pages) * PAGE))

    def make_room(self) -> None:
        (self.path / "taken").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    path = tmp_path / "disk"
    path.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "dpfl", path], check=False, capture_output=True)
    if done.returncode:
        pytest.skip("no small file system can be mounted here")
    yield Disk(path)
    subprocess.run(["umount", "--lazy", path], check=True)


def charged(out: Path) -> set[Charge]:
    """What the ledger of the one run in a folder holds; nothing if it does not have its first line."""
    with contextlib.suppress(LedgerError, StopIteration):
        return set(Ledger.open(next(out.rglob("ledger.jsonl")), append=False))
    return set()


def test_wherever_the_space_ends_the_run_says_so_and_goes_on(disk: Disk, tmp_path: Path) -> None:
    config, named = write(tmp_path, SHORT), set()
    expected = dpfl("run", config, "--out", tmp_path / "runs", "--json").json
    for pages in (0, 1, 2, 3, 5, 8, 9, 11, 13, 14):
        out = disk.path / f"runs {pages}"
        disk.leave(pages)
        done = dpfl("run", config, "--out", out, "--resume")
        message = done.err.splitlines()[-1]
        assert done.code == 1 and "Traceback" not in done.err and MAKE_ROOM in message, (pages, done.err)
        assert str(out) in message or pages == 0, message
        assert not [*out.rglob(".*.tmp-*")], "what was begun takes no room"
        named.add(message.partition(" c")[0].rpartition("/")[2].rstrip(":"))
        before = charged(out)
        disk.make_room()
        again = dpfl("run", config, "--out", out, "--resume", "--json")
        assert again.code == 0 and again.json["model_sha256"] == expected["model_sha256"], (pages, again.err)
        assert before <= charged(out)
    assert {"ledger.jsonl", "state.safetensors", "key"} <= named, named


def test_a_sweep_stops_says_so_once_and_goes_on_by_the_same_command(disk: Disk) -> None:
    path, out = sweeping.write(disk.path, {"seeds": 4}, SHORT), disk.path / "out"
    for pages in (14, 10, 9, 8, 7):
        disk.leave(pages)
        done = dpfl("sweep", path, "--out", out)
        assert done.code == 1 and done.err.count(MAKE_ROOM) == 1 and str(out) in done.err, (pages, done.err)
        disk.make_room()
        runs = dpfl("status", out, "--json").json["runs"] if out.exists() else []
        assert not [run for run in runs if run["status"] in ("failed", "lost", "running")], runs
        assert any(MAKE_ROOM in run["reason"] for run in runs) or pages < 8, (pages, runs)
    (folder,) = out.glob("sweeps/*")
    disk.leave(9)
    done = dpfl("sweep-task", folder, 0, "--pack", 4)  # what a batch task does
    assert done.code == 1 and done.err.count(MAKE_ROOM) == 1, done.err
    disk.make_room()
    assert dpfl("sweep", path, "--out", out).code == 0
    assert len(sweeping.left(out)) == 4


def run_without_room_for(name: str, config: Path, out: Path) -> Done:
    """Where no file system can be mounted, too."""
    fsync = os.fsync

    def full(handle: int) -> None:
        if name in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(122, "Disk quota exceeded")
        fsync(handle)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", full)
        return dpfl("run", config, "--out", out)


@pytest.mark.usefixtures("pictures")
def test_a_run_without_room_for_its_picture_has_not_failed(tmp_path: Path) -> None:
    config, out = write(tmp_path, SHORT), tmp_path / "runs"
    done = run_without_room_for("curves.png", config, out)
    (line,) = (line for line in done.err.splitlines() if "curves.png" in line)
    assert done.code == 0 and "could not be written (Disk quota exceeded)" in line and "resume the run" in line
    assert MAKE_ROOM not in done.err and "picture: " not in done.out and not [*out.rglob("*curves.png*")]
    assert dpfl("run", config, "--out", out, "--resume").code == 0
    assert len([*out.rglob("curves.png")]) == 1


@pytest.mark.parametrize("name", ["ledger.jsonl", ".config.yaml.tmp", ".state.safetensors.tmp", ".result.json.tmp"])
def test_a_file_that_cannot_be_synced_is_named(tmp_path: Path, name: str) -> None:
    config = write(tmp_path, SHORT)
    done = run_without_room_for(name, config, tmp_path / "runs")
    assert done.code == 1 and MAKE_ROOM in done.err and "Disk quota exceeded" in done.err, done.err
    assert name.removeprefix(".").removesuffix(".tmp") in done.err
    assert dpfl("run", config, "--out", tmp_path / "runs", "--resume").code == 0


def test_a_sweep_that_cannot_be_planned_for_lack_of_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("dpfl_plugin.experiments.manifest.write_atomic", full)
    path = sweeping.write(tmp_path, {"seeds": 2})
    done = dpfl("sweep", path, "--out", tmp_path / "out")
    assert done.code == 1 and "base.yaml: cannot be written" in done.err and MAKE_ROOM in done.err
