"""SCAFFOLD whose rank fails at a given place, once: a marker file says that it has.

Places are methods of a silo rank or of its silos; the failure comes when one is called for the n-th time.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfl_plugin.algorithms.scaffold import Scaffold
from dpfl_plugin.runtimes.mpi.silos import SiloRank
from dpfl_plugin.training.host import SiloHost

RANK = next((int(os.environ[name]) for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK") if name in os.environ), 0)
PATCHED: set[int] = set()
PLACES = {
    "compute": (SiloHost, "run"),  # before anything is released
    "send": (SiloRank, "_do_send"),  # charged, and about to leave
    "commit": (SiloRank, "_do_commit"),  # after the upload
    "evaluate": (SiloHost, "evaluate"),
    "states": (SiloRank, "_do_states"),  # asked for its state, for a checkpoint
    "load": (SiloRank, "_do_load"),
}


@dataclass(frozen=True, kw_only=True)
class Lossy(Scaffold):
    """SCAFFOLD with faults.

    Attributes:
        faults: [rank, place, n, what] each; what is kill, stop, raise or exit. Place "begin": when it is made.
        folder: of the markers.
    """

    faults: list[list[Any]]
    folder: str

    def __post_init__(self) -> None:
        super().__post_init__()
        for number, (rank, place, n, what) in enumerate(self.faults):
            marker = Path(self.folder) / f"failed-{number}"
            if rank != RANK:
                continue
            if place == "begin":
                once(marker, what)
            elif number not in PATCHED:  # which is made more than once
                PATCHED.add(number)
                patch(*PLACES[place], n, functools.partial(once, marker, what))


def patch(owner: type, name: str, n: int, then: Callable[[], None]) -> None:
    """Do something when ``name`` is called for the n-th time, before it does its work."""
    real, calls = getattr(owner, name), [0]

    def wrapped(self: Any, *args: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == n:
            then()
        return real(self, *args, **options)

    setattr(owner, name, wrapped)


def once(marker: Path, what: str) -> None:
    if marker.exists():
        return
    marker.touch()
    if what == "raise":
        raise ValueError("the disk of this silo is on fire")
    if what == "exit":
        sys.exit(3)
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[what])
