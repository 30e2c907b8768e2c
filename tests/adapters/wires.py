"""What classes that run the contract of adapters share, in whichever environment they run."""

from __future__ import annotations

import os
from typing import Any

import pytest

from benchmarks.wires import PAGE, ROOT, expected, stated
from dpfl_plugin.testing.wire import WireContract


@pytest.fixture(autouse=True)
def no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here waits for the disk: that is most of the time of such small rounds."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def flat(values: dict[str, Any], prefix: str = "dpfl") -> dict[str, Any]:
    """As Flower has tables of tables."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}.{key}") if isinstance(value, dict) else {f"{prefix}.{key}": value}
    return found


def check_page(wire: str, kind: type[WireContract]) -> None:
    """That the table of wires is what this class runs and declares."""
    found = stated((ROOT / PAGE).read_text(), wire)
    assert found == expected(kind, wire), f"{PAGE} has another table of wires: python -m benchmarks.wires"
