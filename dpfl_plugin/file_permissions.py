"""Folders of runs, ledgers and keys are their owner's alone, whatever the umask."""

from __future__ import annotations

import os
from pathlib import Path


def private_folder(path: Path) -> None:
    """Make a folder with mode 0700, and those above it that are missing; one that is there stays as it is.

    Raises:
        OSError: it cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def private_file(path: str, flags: int) -> int:
    """For `open`, as its opener: a file that it makes has mode 0600."""
    return os.open(path, flags, 0o600)
