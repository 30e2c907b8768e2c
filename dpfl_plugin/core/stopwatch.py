"""Where the time of a run goes: every moment between two laps belongs to the part that the second one names."""

from __future__ import annotations

import time
from typing import Final, Literal

from dpfl_plugin.late import torch

Part = Literal[
    "start", "sampling", "gather", "forward/backward", "noise", "drift", "communication", "server", "evaluation", "I/O"
]

Seconds = dict[Part, float]
"""By part."""

PARTS: Final[dict[Part, str]] = {
    "start": "reading records, choosing the engine, solving for noise",
    "sampling": "drawing batches",
    "gather": "copying a batch's records together",
    "forward/backward": "the engine: clipped sums of gradients; in lockstep also copying their records together",
    "noise": "drawing it and adding it",
    "drift": "the algorithm's own steps between gradients, and silos' states",
    "communication": "adding up uploads; on MPI ranks also sending them, and waiting for others",
    "server": "who takes part, the budget, the server's step",
    "evaluation": "metrics of the global model",
    "I/O": "ledger, checkpoints, metrics and log on disk",
}


class Stopwatch:
    """Adds up seconds by part; the parts together are all of the time between `start` and the last lap."""

    on = True

    def __init__(self) -> None:
        self.seconds: Seconds = {}
        self._device: torch.device | None = None
        self._last = time.perf_counter()

    def start(self, device: torch.device | None = None) -> None:
        """What was before this belongs to nothing. With a GPU, each lap waits for it, or its time would be a later
        part's."""
        self._device = device if device is not None and device.type == "cuda" else None
        self._wait()
        self._last = time.perf_counter()

    def lap(self, part: Part) -> None:
        """The time since the last lap was spent on ``part``."""
        self._wait()
        now = time.perf_counter()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now

    def _wait(self) -> None:
        if self._device is not None:
            torch.cuda.synchronize(self._device)


class _Stopped(Stopwatch):
    """Measures nothing."""

    on = False

    def start(self, device: torch.device | None = None) -> None:
        pass

    def lap(self, part: Part) -> None:
        pass


STOPPED: Final[Stopwatch] = _Stopped()
