"""The coupling of `dpfl_plugin.data.record_order`: the same hashes under neighbouring data sets but for one label."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.data import record_order

Made = TypeVar("Made")


def coupled(*makers: Callable[[], Made]) -> list[Made]:
    """What each of the makers gives, where the k-th hash of labels has the same values in all of them: labels that are
    new get those of labels that went. The law of the hashes is theirs under a pseudorandom function in each."""
    tables: list[dict[bytes, NDArray[np.uint64]]] = []
    return [_made(make, tables) for make in makers]


def _made(make: Callable[[], Made], tables: list[dict[bytes, NDArray[np.uint64]]]) -> Made:
    calls = iter(range(10**6))

    def uniform(key: bytes, labels: NDArray[np.uint8]) -> Any:
        call = next(calls)
        if call == len(tables):
            tables.append({})
        known, mine = tables[call], [label.tobytes() for label in labels]
        assert len(set(mine)) == len(mine), "labels are distinct"
        rng = np.random.default_rng([call, len(known)])
        free = [value for label, value in known.items() if label not in set(mine)]
        for label in mine:
            if label not in known:
                known[label] = free.pop() if free else rng.integers(2**63, size=2).astype(np.uint64)
        return np.array([known[label] for label in mine], dtype=np.uint64).reshape(-1, 2)

    with mock.patch.object(record_order, "_uniform", uniform):
        return make()
