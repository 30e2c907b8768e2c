"""Records as their owner's file says that they are (`Limits.min_records`, ``num_classes``, ``ranges``).

Settings are checked against that file alone, and from there on no content of a record makes a silo fail, as who asks
would learn from each failure, uncharged, what is in it. So a record that is not as the file says keeps its place and
adds exactly 0 to every sum: a placeholder stands there, which is not usable (see `Records.usable`). Whether it is so is
decided by that record and the file alone. Where there are fewer records than the file says, places that are not usable
fill up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpfl_plugin.models.fields import Fields
from dpfl_plugin.owners.limits import Limits


def as_stated(
    x: NDArray[Any], y: NDArray[np.int64], usable: NDArray[np.bool_] | None, limits: Limits, fields: Fields | None
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.bool_] | None, list[str]]:
    """(features (m, *shape), labels (m,), which are usable (m,) or None for all, what their owner should know).

    Args:
        x, y: of records as they were read, (n, *shape) and (n,). usable: of those that reading left out; None for all.
        fields: of the model, where it has any: a record that is none of them is not usable either.

    Raises:
        LimitError: the file has a number of ranges that is not that of the features.
    """
    least, most = _ends(x, limits)
    flat, notes = x.reshape(len(x), -1), list[str]()
    good = np.ones(len(x), np.bool_) if usable is None else usable.copy()

    def leave_out(bad: Any, what: str) -> None:
        if (count := int((bad & good).sum())) > 0:
            notes.append(f"{count} of {len(x)} records {what}, the first of them record {int(bad.argmax())} (from 0)")
        good[bad] = False

    if x.dtype.kind == "f":
        leave_out(~np.isfinite(flat).all(axis=1), "have a feature that is not finite")
    if x.dtype == np.uint64:
        leave_out((flat > np.iinfo(np.int64).max).any(axis=1), "have a feature above the greatest of int64")
    if limits.ranges is not None:
        leave_out(((flat < least) | (flat > most)).any(axis=1), "have a feature outside ranges")
    if limits.num_classes is not None:
        leave_out((y < 0) | (y >= limits.num_classes), "have a label outside num_classes")
    if fields is not None and fields.wrong_width(flat.shape[1]) is None:
        leave_out(
            fields.wrong_rows(torch.from_numpy(flat.astype(np.float64))).numpy(), "are none of the model's fields"
        )
    if not good.all():
        flat, y = flat.copy(), y.copy()
        flat[~good], y[~good] = np.clip(0, least, most), 0
        x = flat.reshape(x.shape)
    lacking = (limits.min_records or 0) - len(x)
    if lacking > 0:
        notes.append(f"there are {len(x)} records, fewer than min_records: {limits.min_records}")
        filled = np.broadcast_to(np.clip(0, least, most).astype(x.dtype), (lacking, flat.shape[1]))
        x, y = np.concatenate([x, filled.reshape(lacking, *x.shape[1:])]), np.pad(y, (0, lacking))
        good = np.pad(good, (0, lacking))
    return x, y, None if good.all() else good, notes


def _ends(x: NDArray[Any], limits: Limits) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The least and the greatest value of each feature (d,), or of all of them (1,)."""
    ranges = limits.ranges or ((-np.inf, np.inf),)
    width = int(np.prod(x.shape[1:]))
    if len(ranges) not in (1, width):
        limits.refuse(f"ranges has {len(ranges)} pairs, and a record has {width} features", "give one pair, or so many")
    ends = np.array(ranges)
    return ends[:, 0], ends[:, 1]
