"""What the algorithms of `wrong` are compared with, in a module that does nothing by which noise would be fresh."""

from __future__ import annotations

from dataclasses import dataclass

from dpfl_plugin.algorithms.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class Right(FedAvg):
    """FedAvg; the others change one method of it."""


@dataclass(frozen=True, kw_only=True)
class ShortUploads(FedAvg):
    """Sends a number beside its update, as [m, 1] and as [m], and steps by their means."""

    def local_update(self, down, silos, oracle, plan):
        up, new = super().local_update(down, silos, oracle, plan)
        norm = up["model"].norm(dim=1, keepdim=True)
        return {**up, "column": norm, "number": norm.squeeze(1)}, new

    def aggregate(self, server, mean_up, plan):
        assert mean_up["column"].shape == mean_up["number"].shape == (1,)
        return {**server, "model": server["model"] + mean_up["model"] / (mean_up["column"] + mean_up["number"])}
