"""The records in a share of a silo, of which only batches are copied."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dpfl_plugin.core.shares import share_bounds
from dpfl_plugin.core.streams import stream
from dpfl_plugin.gradients.base import Records


def part_of(records: Records, share: tuple[float, float], silo: int) -> Records:
    """A share of a silo's records, in a random order: files are often sorted, by label say.

    The order is the same for every seed: shares that are disjoint have to be so over all runs that one ledger holds.
    """
    return share_of(records, share, silo, Cuts()).batch(None)


class Cuts:
    """Which records are in a share of a silo, kept for the round after: drawing an order takes a pass over a silo."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[tuple[float, float], int, NDArray[np.int64]]] = {}

    def of(self, silo: int, share: tuple[float, float], num_records: int) -> NDArray[np.int64] | None:
        """Indices of the share's records; None for all of them."""
        if share == (0.0, 1.0):
            return None
        kept = self._kept.get(silo)
        if kept is None or kept[:2] != (share, num_records):
            first, last = share_bounds(share, num_records)
            order = stream(0, "share", silo=silo).permutation(num_records)
            kept = self._kept[silo] = share, num_records, order[first:last].copy()
        return kept[2]


class Part:
    """A share of a silo's records. Only batches of it are copied."""

    def __init__(self, records: Records, rows: NDArray[np.int64] | None) -> None:
        self._records, self._rows = records, rows
        self._whole = records if rows is None else None

    def __len__(self) -> int:
        return len(self._records) if self._rows is None else len(self._rows)

    def rows(self, index: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """Where in the silo the records at ``index`` (b,) of the share are; None for all of it."""
        if self._rows is None:
            return np.arange(len(self)) if index is None else index
        return self._rows if index is None else self._rows[index]

    def batch(self, index: NDArray[np.int64] | None) -> Records:
        """The records at ``index`` (b,) of the share; None for all of it."""
        if index is None and self._whole is not None:
            return self._whole
        rows = self._rows if index is None else index if self._rows is None else self._rows[index]
        features, places = self._records.features, torch.from_numpy(rows)
        found = self._records.select(places if features.is_cpu else places.to(features.device))
        if index is None:
            self._whole = found
        return found


def share_of(records: Records, share: tuple[float, float], silo: int, cuts: Cuts) -> Part:
    """As `part_of`, without a copy of all of it."""
    return Part(records, cuts.of(silo, share, len(records)))
