"""Who besides their owner may read the files that are written: nobody, unless it is asked for.

A run's folder holds its seed, its ledger and states of silos: whoever reads them can compute the noise, or sees what no
epsilon covers. Modes are set, not left to the umask.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

Access = Literal["owner", "group", "everyone"]
FOLDERS: Final[dict[Access, int]] = {"owner": 0o700, "group": 0o750, "everyone": 0o755}
FILES: Final[dict[Access, int]] = {"owner": 0o600, "group": 0o640, "everyone": 0o644}


def make_folder(path: Path, access: Access) -> None:
    """Make a folder, and those above it that are missing; one that is there stays as it is.

    Raises:
        OSError: it cannot be made.
    """
    if path.is_dir():
        return
    for folder in reversed((path, *path.parents)):
        try:
            folder.mkdir(mode=FOLDERS[access])
        except FileExistsError:
            if not folder.is_dir():
                raise
        except OSError:
            if not folder.is_dir():  # one above that is there may be on a file system that is read only
                raise
        else:
            folder.chmod(FOLDERS[access])


def try_folder(path: Path) -> None:
    """See that files can be made in a folder, which may be missing, before anything is computed for it; leaves nothing.

    Permissions alone do not tell: a file system may be read only, or take no files.

    Raises:
        OSError: they cannot.
    """
    made: list[Path] = []
    try:
        for folder in reversed((path, *path.parents)):
            if not folder.is_dir():
                folder.mkdir()
                made.append(folder)
        tempfile.TemporaryFile(dir=path).close()
    finally:
        for folder in reversed(made):
            folder.rmdir()


def try_file(path: Path) -> None:
    """See that a new file can be made, as `try_folder`."""
    path.open("x").close()
    path.unlink()


def opener(access: Access | None) -> Callable[[str, int], int]:
    """For `open`: the mode of a file that it makes; one that is there keeps its own.

    Args:
        access: None: as the umask says, and no more open than the folder.
    """

    def opened(path: str, flags: int) -> int:
        if access is None:
            return os.open(path, flags, 0o600 | (os.stat(Path(path).parent).st_mode & 0o066))
        try:
            handle = os.open(path, flags | os.O_EXCL, FILES[access]) if flags & os.O_CREAT else os.open(path, flags)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
            return os.open(path, flags, FILES[access])
        if flags & os.O_CREAT:
            os.fchmod(handle, FILES[access])
        return handle

    return opened
