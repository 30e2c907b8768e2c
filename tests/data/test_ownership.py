"""Processes that hold a federation together hold each silo as it is in the whole, and open no other silo's file."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from dpfl_plugin.data import files, table
from dpfl_plugin.data.base import Federation, Ownership, digest
from dpfl_plugin.data.digits import digits
from dpfl_plugin.data.federation import FederationSpec, build_federation
from dpfl_plugin.data.partition import iid, natural
from dpfl_plugin.errors import DataError

HEADERS = ["a,b,label", "b,a,label", "a,b,label", "label,a,b", "a,b,label"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five silos whose columns stand in different orders, and of whom only some know all classes."""
    rng = np.random.default_rng(0)
    for silo, header in enumerate(HEADERS):
        for part in ("", "-test"):
            rows = [
                {"a": rng.normal(), "b": silo, "label": ["no", "yes", "perhaps"][i % (2 if silo else 3)]}
                for i in range(9)
            ]
            text = "\n".join(",".join(str(row[name]) for name in header.split(",")) for row in rows)
            (tmp_path / f"silo{part}-{silo}.csv").write_text(f"{header}\n{text}\n")
    return tmp_path


def together(size: int, work: Callable[[Ownership], Any]) -> list[Any]:
    """What ``size`` processes, here threads, get; a thread that fails lets the others go."""
    said: list[Any] = [None] * size
    barrier = threading.Barrier(size, timeout=300)

    def process(rank: int) -> Any:
        def agree(value: Any) -> list[Any]:
            said[rank] = value
            barrier.wait()
            heard = list(said)
            barrier.wait()
            return heard

        try:
            return work(Ownership(lambda silo: silo % size == rank, agree))
        except DataError:
            barrier.abort()
            raise
        except threading.BrokenBarrierError:
            return None

    with ThreadPoolExecutor(size) as pool:
        return [future.result() for future in [pool.submit(process, rank) for rank in range(size)]]


def build(folder: Path, ownership: Ownership | None = None, **changes: Any) -> Federation:
    options = {
        "dataset": files.csv,
        "dataset_options": {"files": [f"silo-{silo}.csv" for silo in range(5)]},
        "partitioner": natural,
        "partition_options": {},
        "num_silos": None,
        "seed": 3,
        "base": folder,
        **changes,
    }
    return build_federation(FederationSpec(**options, ownership=ownership))


OWN_TEST = {"files": [f"silo-{i}.csv" for i in range(5)], "test_files": [f"silo-test-{i}.csv" for i in range(5)]}
CASES: dict[str, tuple[dict[str, Any], bool]] = {  # and whether others' files stay closed
    "plain": ({}, True),
    "own test files": ({"dataset_options": OWN_TEST, "test": "own"}, True),
    "data-free steps": ({"preprocess": ["unit_norm", {"name": "standardise", "fit": "silo"}]}, True),
    "few records": ({"max_records_per_silo": 4}, True),
    "pooled statistics": ({"preprocess": ["standardise"]}, False),
    "some silos only": ({"num_silos": 3}, False),
    "dealt out": ({"partitioner": iid, "num_silos": 4}, False),
    "not from files": ({"dataset": digits, "dataset_options": {}, "partitioner": iid, "num_silos": 5}, False),
}


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize(("changes", "closed"), CASES.values(), ids=CASES)
def test_each_process_holds_its_silos_as_they_are_in_the_whole(
    folder: Path, changes: dict[str, Any], closed: bool, size: int
) -> None:
    whole = build(folder, **changes)
    opened: list[tuple[str, str]] = []
    real = table.Columns.read

    def read(self: Any, path: Path) -> Any:
        opened.append((threading.current_thread().name, path.name))
        return real(self, path)

    with mock.patch.object(table.Columns, "read", read):
        parts = together(size, lambda ownership: build(folder, ownership, **changes))
    found = [pair for part in parts for pair in part.by_id().items()]
    assert sorted(silo for silo, _ in found) == list(range(whole.num_silos))
    for silo, records in found:
        assert digest(records) == digest(whole.silos[silo])
    for rank, part in enumerate(parts):
        assert list(part.by_id()) == [silo for silo in range(whole.num_silos) if silo % size == rank]
        assert (part.num_silos, part.num_classes) == (whole.num_silos, whole.num_classes)
        if part.silos:
            assert (part.feature_shape, part.caveats) == (whole.feature_shape, whole.caveats)
    names = [name for _, name in opened]
    if closed:
        assert sorted(names) == sorted(set(names)), "a file was opened by more than one process"


def test_what_is_wrong_in_a_file_is_told_by_its_owner(folder: Path) -> None:
    (folder / "silo-3.csv").write_text("label,a,c\nyes,1,2\nno,3,4\n")
    with pytest.raises(DataError, match=r"silo-3\.csv: other columns than .*silo-0\.csv: lacks \['b'\]"):
        together(2, lambda ownership: build(folder, ownership))
