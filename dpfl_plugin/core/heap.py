"""Memory that was freed goes back to the system, where the C library offers that."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any


def give_back() -> None:
    """Hand freed memory back; does nothing without glibc.

    Its malloc keeps vectors of up to 32 MiB that were freed, and what is allocated between them leaves gaps that the
    next vectors do not fit into. After much was tried, the process would hold half as much again as it uses.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], Any] | None:
    try:
        found = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # musl, macOS; Windows has no such handle
        return None
    found.argtypes, found.restype = [ctypes.c_size_t], ctypes.c_int
    trim: Callable[[int], Any] = found
    return trim
