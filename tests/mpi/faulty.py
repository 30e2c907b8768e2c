"""SCAFFOLD that fails on one rank, in one call of `local_update`, once: a marker file says that it has."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from dpfl_plugin.algorithms.base import Oracle, RoundPlan
from dpfl_plugin.algorithms.scaffold import Scaffold
from dpfl_plugin.core.vectors import Vectors

CALLS = [0]
RANK = next((int(os.environ[name]) for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK") if name in os.environ), 0)


@dataclass(frozen=True, kw_only=True)
class Faulty(Scaffold):
    """what: raise, device, memory, sysexit, kill, stop (as SIGSTOP does), or pause until a file "go on" is there.

    call: from 1.
    """

    what: str
    marker: str
    rank: int = 2
    call: int = 3

    def local_update(self, down: Vectors, silos: Vectors, oracle: Oracle, plan: RoundPlan) -> tuple[Vectors, Vectors]:
        CALLS[0] += 1
        if self.rank == RANK and CALLS[0] == self.call and not Path(self.marker).exists():
            Path(self.marker).touch()
            fail(self.what, Path(self.marker).parent)
        return super().local_update(down, silos, oracle, plan)


def fail(what: str, folder: Path) -> None:
    if what == "raise":
        os.write(2, b"a library says what it has read\n")
        raise ValueError("the disk of this silo is on fire")
    if what == "device":
        raise torch.AcceleratorError("CUDA error: unspecified launch failure\nSearch for `cudaErrorLaunchFailure'")
    if what == "memory":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 TiB.")
    if what == "sysexit":
        raise SystemExit(3)
    while what == "pause" and not (folder / "go on").exists():
        time.sleep(0.01)
    if what in ("kill", "stop"):
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[what])
