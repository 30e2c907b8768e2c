"""Which process this is. A fork may have its parent's number: in a container, where both are the first of theirs."""

from __future__ import annotations

import os
from typing import NamedTuple


class Process(NamedTuple):
    """A process by its number, and by how many forks it is from the one that imported this."""

    number: int
    forks: int


_forks = 0


def _forked() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):  # no other system forks
    os.register_at_fork(after_in_child=_forked)


def this_process() -> Process:
    """Other than that of every process that it was forked from."""
    return Process(os.getpid(), _forks)
