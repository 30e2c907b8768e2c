"""``dpfl`` whose rank fails at a given place, once: a marker file says that it has.

    python -m tests.mpi.lossy FAULTS [ARGUMENT ...]

FAULTS is a file of JSON, and markers come beside it: [rank, place, n, what] each; what is kill, stop, raise or exit.
Places are methods of a silo rank, of its silos or of the algorithm; the failure comes when one is called for the n-th
time.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpfl_plugin.algorithms.scaffold import Scaffold
from dpfl_plugin.cli.main import main
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.runtimes.mpi.silos import SiloRank
from tests.mpi.unmeasured import switch_off

RANK = next((int(os.environ[name]) for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK") if name in os.environ), 0)
PLACES: dict[str, tuple[type, str]] = {
    "begin": (Scaffold, "__post_init__"),
    "compute": (SiloGroup, "run"),  # before anything is released
    "send": (SiloRank, "_do_send"),  # charged, and about to leave
    "commit": (SiloRank, "_do_commit"),  # after the upload
    "evaluate": (SiloGroup, "evaluate"),
    "states": (SiloRank, "_do_states"),  # asked for its state, for a checkpoint
    "load": (SiloRank, "_do_load"),
}


def arrange(faults: Path) -> None:
    for number, (rank, place, n, what) in enumerate(json.loads(faults.read_text())):
        if rank == RANK:
            patch(*PLACES[place], n, functools.partial(once, faults.parent / f"failed-{number}", what))


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


if __name__ == "__main__":
    _, faults, *rest = sys.argv
    switch_off()
    arrange(Path(faults))
    sys.argv[1:] = rest
    main()
