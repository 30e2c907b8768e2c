"""Every moment between two laps belongs to one part."""

from __future__ import annotations

import itertools
from unittest import mock

from dpfl_plugin.core.stopwatch import STOPPED, Stopwatch


def test_the_parts_are_all_of_the_time_since_the_start() -> None:
    with mock.patch("time.perf_counter", side_effect=itertools.accumulate([1.0, 10.0, 2.0, 3.0, 4.0, 5.0])):
        clock = Stopwatch()
        clock.start()  # what was before is nobody's
        for part in ("noise", "drift", "noise", "drift"):
            clock.lap(part)  # type: ignore[arg-type]
    assert clock.seconds == {"noise": 2.0 + 4.0, "drift": 3.0 + 5.0}


def test_a_stopped_watch_never_looks_at_the_time() -> None:
    with mock.patch("time.perf_counter", side_effect=AssertionError):
        STOPPED.start()
        STOPPED.lap("noise")
    assert STOPPED.seconds == {} and not STOPPED.on
