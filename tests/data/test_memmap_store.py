"""Records in mapped files: the same numbers, and nothing left on the disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpfl_plugin.data import memmap_store as module
from dpfl_plugin.data.memmap_store import Scratch
from dpfl_plugin.errors import ConfigError
from tests.cli.command import dpfl, metrics, one_message, run, write


@pytest.mark.parametrize("arena", [1, 1000, 2**20])
def test_arrays_do_not_overlap_and_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arena: int) -> None:
    monkeypatch.setattr(module, "ARENA", arena)
    made, rng = Scratch(tmp_path), np.random.default_rng(0)
    wanted = [rng.normal(size=(1 + i % 7, 3)).astype(np.float32) for i in range(50)]
    found = [made.empty(value.shape, value.dtype) for value in wanted]
    for value, into in zip(wanted, found, strict=True):
        into[:] = value
    assert all(np.array_equal(*pair) for pair in zip(wanted, found, strict=True))
    assert all(value.ctypes.data % module.ALIGNED == 0 for value in found)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mapped", [False, True])
def test_rows_are_copied_in_their_order(tmp_path: Path, mapped: bool) -> None:
    source = np.asfortranarray(np.arange(24.0).reshape(8, 3))
    rows = Scratch(tmp_path if mapped else None).rows(source, np.array([5, 0, 7]))
    assert np.array_equal(rows, source[[5, 0, 7]]) and rows.flags.c_contiguous and rows.flags.writeable
    rows[:] = 0
    assert source[5, 0] == 15.0


@pytest.mark.slow
def test_a_run_on_mapped_records_has_the_same_bits_and_name(tmp_path: Path) -> None:
    changes = {"data": {"preprocess": ["unit_norm"], "partition": "natural"}}
    (tmp_path / "mapped").mkdir()
    (tmp_path / "disk").mkdir()
    plain = run(write(tmp_path, changes))
    mapped = run(write(tmp_path / "mapped", changes), "--set", f"data.memory_map={tmp_path / 'disk'}")
    assert (plain["id"], plain["model_sha256"]) == (mapped["id"], mapped["model_sha256"])
    assert metrics(plain) == metrics(mapped)
    assert not list((tmp_path / "disk").iterdir())


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.memory_map=.*there is no such folder"):
        Scratch(tmp_path / "none").empty((3,), np.float32)


def test_the_key_is_named_as_it_is_in_the_file(tmp_path: Path) -> None:
    config = write(tmp_path)
    one_message(dpfl("run", config, "--set", "data.memory_map=none"), ": data.memory_map=", "there is no such folder")
