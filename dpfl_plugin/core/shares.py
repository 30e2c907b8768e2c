"""Shares of a silo: which of its records, by their places."""

from __future__ import annotations

from dpfl_plugin.errors import require


def share_bounds(share: tuple[float, float], num_records: int) -> tuple[int, int]:
    """The records [first, last) of a share of a silo; shares that are disjoint give disjoint records."""
    first, last = (round(part * num_records) for part in share)
    require(0 <= first < last <= num_records, "share", share, f"hold at least one of {num_records} records")
    return first, last
