"""Settings that name code, under every key of theirs that may, and whether that code is called; for all platforms."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from typing import Any
from unittest import mock

from tests.adapters.federation import NOISY, block

PATH = "tempfile:mkdtemp"  # called without arguments it makes a folder, and what it returns is no plugin
HERE = {"module": PATH}
NAMED: dict[str, dict[str, Any]] = {
    "algorithm.module": {"algorithm": HERE},
    "loss": {"loss": PATH},
    **{f"privacy.{key}.module": {"privacy": {**NOISY, key: HERE}} for key in ("clip", "mechanism", "schedule")},
    "privacy.accountant.module": {"privacy": {**NOISY, "accountant": HERE}},
    "algorithm.of.module": {"algorithm": {"name": "scaffold", "of": HERE}},  # an option, whatever becomes of it
}
"""{key: settings}, of platforms."""


def settings(key: str) -> dict[str, Any]:
    return block(**NAMED[key])


@contextlib.contextmanager
def recorded() -> Iterator[list[None]]:
    """The calls of `PATH` so far."""
    calls: list[None] = []

    def called(*given: Any, **more: Any) -> str:
        calls.append(None)
        raise ValueError("it was called")

    with mock.patch.object(tempfile, "mkdtemp", called):
        yield calls
