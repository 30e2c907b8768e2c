"""The records in a share of a silo: an interval of their order, of which only batches are copied."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfl_plugin.core.devices import to_device
from dpfl_plugin.core.shares import share_bounds
from dpfl_plugin.gradients.base import Records

Batches = Sequence[Sequence[NDArray[np.int64] | Tensor | None]]
"""Which of a share's records are drawn, (b,), by silo and step; None for all."""


def part_of(records: Records, share: tuple[float, float]) -> Records:
    """A share of a silo's records, as views: an interval of their order (`dpfl_plugin.data.record_order`)."""
    return Part(records, share).records


def moved(batches: Batches, device: torch.device) -> Batches:
    """Batches of each silo and step, moved to ``device`` at once: each transfer to a GPU waits for it."""
    if device.type == "cpu":
        return batches
    known = [np.asarray(index) for own in batches for index in own if index is not None]
    there = to_device(torch.from_numpy(np.concatenate(known or [np.empty(0, np.int64)])), device)
    parts = iter(there.split([len(index) for index in known]))
    return [[None if index is None else next(parts) for index in own] for own in batches]


class Part:
    """A share of a silo's records.

    Attributes:
        records: all of them, as views.
    """

    def __init__(self, records: Records, share: tuple[float, float]) -> None:
        self._first, last = share_bounds(share, len(records))
        self.records = records if share == (0.0, 1.0) else records.between(self._first, last)

    def __len__(self) -> int:
        return len(self.records)

    def rows(self, index: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """Where in the silo the records at ``index`` (b,) of the share are; None for all of it."""
        found = np.arange(len(self)) if index is None else index
        return found + self._first if self._first else found

    def num_usable(self, index: NDArray[np.int64] | None) -> int:
        """How many of the records at ``index`` (b,) of the share are usable; None for all of it."""
        if self.records.usable is None:
            return len(self) if index is None else len(index)
        return self.batch(index).num_usable

    def batch(self, index: NDArray[np.int64] | Tensor | None) -> Records:
        """The records at ``index`` (b,) of the share; None for all of it."""
        if index is None:
            return self.records
        features, places = self.records.features, index if isinstance(index, Tensor) else torch.from_numpy(index)
        return self.records.select(places if features.is_cpu else places.to(features.device))
