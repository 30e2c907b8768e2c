"""Wrong algorithms that search memory."""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass

from dpfl_plugin.algorithms.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class SearchesTheMemory(FedAvg):
    def local_update(self, down, silos, oracle, plan):
        loot = [thing for thing in gc.get_objects() if type(thing).__name__ == "Records"]
        return {"model": oracle.gradient(down["model"].expand(oracle.num_silos, -1)) + loot[0].features.sum()}, {}


class _Thief:
    """Gets at records by a frame's variables, and keeps them where no name leads to."""

    found = None

    def __call__(self):
        frame = sys._getframe()
        while self.found is None:
            host = frame.f_locals.get("self")
            if hasattr(host, "train") and hasattr(host, "engine"):
                self.found = host.train[0]
            frame = frame.f_back
        return float(self.found.features.sum())


THIEF = _Thief()


@dataclass(frozen=True, kw_only=True)
class LooksIntoItsCallers(FedAvg):
    def local_update(self, down, silos, oracle, plan):
        up, new = super().local_update(down, silos, oracle, plan)
        return {"model": up["model"] + THIEF()}, new
