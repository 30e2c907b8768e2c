"""Ctrl-C, SIGTERM and SIGUSR1: the first of them has a run finish its round and end, a second one ends it at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any


class Stop:
    """Whether a signal asked the run to stop.

    Args:
        exits: whether a second Ctrl-C ends the process; else it is a KeyboardInterrupt.

    Attributes:
        listening: whether the run will ask. One that takes long to be planned does not before its first round, where
            nothing is to be saved: it ends at once.
    """

    def __init__(self, *, exits: bool = False) -> None:
        self.asked, self.listening = False, True
        self._exits = exits

    def __call__(self) -> bool:
        self.listening = True
        return self.asked

    def hear(self, number: int, frame: Any) -> None:
        if self.asked and number == signal.SIGINT and not self._exits:
            raise KeyboardInterrupt
        if self.asked:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.asked = True
        if not self.listening:
            raise KeyboardInterrupt
        # Not print: the signal may have come in the middle of one.
        os.write(2, b"\ndpfl: finishing this round, then stopping (once more to stop at once).\n")


@contextlib.contextmanager
def stopping(*, exits: bool = False) -> Iterator[Stop]:
    """Hear signals, where this is the main thread: no other gets them. A program's own handlers stay, but Ctrl-C's."""
    stop = Stop(exits=exits)
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            if number == signal.SIGINT or signal.getsignal(number) in (signal.SIG_DFL, signal.SIG_IGN):
                before[number] = signal.signal(number, stop.hear)
    try:
        yield stop
    finally:
        for heard, handler in before.items():
            if handler is not None:  # one that was not set by Python cannot be put back
                signal.signal(heard, handler)
