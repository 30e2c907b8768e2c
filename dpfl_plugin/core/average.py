"""The weighted sum of silo messages, in silo order.

Floating-point addition does not associate. Adding one silo after another in the order of their ids gives the
same bits in process, on any number of ranks and for any stack size.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpfl_plugin.core.vectors import Vectors


class WeightedSum:
    """sum_i weight_i * message_i, accumulated as the messages come in; holds O(d)."""

    def __init__(self) -> None:
        self.total: Vectors = {}

    def add(self, messages: Vectors, weights: Sequence[float]) -> None:
        """Add a stack of messages (m, d), one row after another, with ``weights`` (m,)."""
        for name, value in messages.items():
            for row, weight in zip(value, weights, strict=True):
                if name in self.total:
                    self.total[name].add_(row, alpha=weight)
                else:
                    self.total[name] = row * weight
