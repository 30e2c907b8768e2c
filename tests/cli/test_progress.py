"""Progress lines: no time is left after the last round."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dpfl_plugin.cli.progress import PlainReporter


def test_time_left_is_told_until_the_last_round(capsys: pytest.CaptureFixture[str]) -> None:
    def line(at: int) -> dict[str, Any]:
        return {"round": at, "train_loss": 1.0, "test_accuracy": 0.5, "epsilon": {"server": None}}

    reporter = PlainReporter("")
    reporter.start(3, 0)
    for at in (1, 2, 3):
        reporter.evaluated(line(at))
        reporter.ticked(SimpleNamespace(rounds=at))  # type: ignore[arg-type]
    reporter.end()
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("round 1/3") and first.endswith(" left")
    assert last.startswith("round 3/3") and "left" not in last


def test_details_are_for_who_asks_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    for verbose in (False, True):
        PlainReporter("", verbose).detail("engine vmap: estimated 3 us")
        assert ("engine vmap" in capsys.readouterr().err) == verbose
