"""Freed memory goes back to the system."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from dpfl_plugin.core import heap

# 64 MiB in pieces that malloc keeps, with one in use after each: the heap's end cannot be cut off.
PIECES = """
from pathlib import Path
from dpfl_plugin.core import heap

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))

pieces = [(bytearray(b"1" * 102400), bytearray(b"1" * 640)) for _ in range(640)]
kept = [small for _, small in pieces]
del pieces
before = resident()
heap.give_back()
assert all(sum(small) == 640 * ord("1") for small in kept)
print(before - resident())
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads a process's memory from /proc")
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library has no malloc_trim")
def test_what_was_freed_between_pieces_in_use_goes_back() -> None:
    """In a process of its own: what another test left in this one's heap would decide."""
    done = subprocess.run([sys.executable, "-c", PIECES], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 32 * 2**20


def test_it_is_asked_once_where_it_is_there_and_not_missed_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    for found in (asked.append, None):
        monkeypatch.setattr(heap, "_trim", lambda found=found: found)
        heap.give_back()
    assert asked == [0]
