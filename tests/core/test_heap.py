"""Freed memory goes back to the system."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from dpfl_plugin.core import heap

MIB = 2**20


def resident() -> int:
    """Bytes that this process holds."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads a process's memory from /proc")
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library has no malloc_trim")
def test_what_was_freed_between_vectors_in_use_goes_back() -> None:
    """64 MiB in pieces that malloc keeps, with one in use after each: the heap's end cannot be cut off."""
    pieces = [(np.ones(100 * 1024, np.uint8), np.ones(64, np.uint8)) for _ in range(640)]
    kept = [small for _, small in pieces]
    del pieces
    before = resident()
    heap.give_back()
    assert before - resident() > 32 * MIB
    assert all(small.sum() == 64 for small in kept)


def test_without_it_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_trim", lambda: None)
    heap.give_back()
