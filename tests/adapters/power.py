"""A power cut at any moment: what was not synced is lost, or some of it."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

Lost = Literal["nothing", "data", "all"]
"""Of what was not synced: nothing (the process is killed); what is in files, but not their names; these, too."""


class Disk:
    """What is below a folder, and of it what is known to be on the disk.

    Args:
        at: the call of fsync, rename or unlink before which the power is cut.
    """

    def __init__(self, root: Path, at: int, lost: Lost) -> None:
        self._root, self._at, self._lost = root, at, lost
        self._data: dict[int, bytes] = {}
        self._names: dict[Path, dict[str, int]] = {}
        self._held: list[int] = []  # so that no number of a file is given to another
        self._lock = threading.Lock()
        self._calls = {name: getattr(os, name) for name in ("fsync", "replace", "rename", "unlink")}
        for folder in (root, *(path for path in root.rglob("*") if path.is_dir())) if root.exists() else ():
            self._sync_names(folder)
            for path in folder.iterdir():
                if path.is_file():
                    self._data[path.stat().st_ino] = path.read_bytes()

    def install(self) -> None:
        """From here on calls are counted."""
        for name in self._calls:
            setattr(os, name, self._counted(name))

    def _counted(self, name: str) -> Callable[..., None]:
        def call(*args: object, **named: object) -> None:
            with self._lock:
                self._at -= 1
                if self._at < 0:
                    self._cut()
                if name == "fsync":
                    self._sync(args[0])  # type: ignore[arg-type]
                else:
                    self._calls[name](*args, **named)

        return call

    def _sync(self, handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if path.is_dir():
            self._sync_names(path)
        else:
            self._held.append(os.dup(handle))
            self._data[os.fstat(handle).st_ino] = Path(f"/proc/self/fd/{handle}").read_bytes()

    def _sync_names(self, folder: Path) -> None:
        self._names[folder] = {path.name: path.stat().st_ino for path in folder.iterdir() if path.is_file()}

    def _cut(self) -> None:
        """Leave what is on the disk, and end this process at once."""
        after = self._root.with_name("after")
        folders = (
            [self._root, *(path for path in self._root.rglob("*") if path.is_dir())] if self._root.exists() else []
        )
        for folder in folders:
            there = after / folder.relative_to(self._root)
            there.mkdir(mode=0o700, parents=True)
            names = {path.name: path.stat().st_ino for path in folder.iterdir() if path.is_file()}
            for name, number in (self._names.get(folder, {}) if self._lost == "all" else names).items():
                data = (folder / name).read_bytes() if self._lost == "nothing" else self._data.get(number, b"")
                (there / name).write_bytes(data)
                (there / name).chmod(0o600)
        os._exit(9)


def cut(root: Path, at: int, lost: Lost, step: Callable[[], object]) -> bool:
    """Take a step in a process of its own, whose power is cut; whether it was, before the step was over."""
    child = os.fork()
    if child == 0:
        try:
            Disk(root, at, lost).install()
            step()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) != 9:
        return False
    shutil.rmtree(root, ignore_errors=True)
    if root.with_name("after").exists():
        root.with_name("after").rename(root)
    return True
