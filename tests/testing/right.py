"""What the algorithms of `wrong` are compared with, in a module that does nothing by which noise would be fresh."""

from __future__ import annotations

from dataclasses import dataclass

from dpfl_plugin.algorithms.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class Right(FedAvg):
    """FedAvg; the others change one method of it."""
