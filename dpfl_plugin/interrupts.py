"""Ctrl-C, SIGTERM and SIGUSR1: one line while a command starts; later the first has a run finish its round and end.

The command line imports this module before all others: libraries take seconds to load, and an interruption in one ends
in silence or worse.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

WHILE_STARTING: Final = b"\ndpfl: interrupted while it was starting: nothing was run, and nothing is lost.\n"
INTERRUPTED, NO_ROUND = 4, 7  # exit codes: a round was finished and saved, or none was
CONTINUED_BY_THE_SAME_COMMAND: Final = {"sweep", "tune"}  # which end with INTERRUPTED in either case


def startup_begins() -> None:
    """End by one line on Ctrl-C, until `startup_is_over`."""
    # Neither where it is ignored, as in the background, nor where somebody handles it.
    if _in_main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def startup_is_over() -> None:
    """There is something to lose: Ctrl-C is what it always was."""
    if signal.getsignal(signal.SIGINT) is _end and _in_main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: Any) -> None:
    # Not an exception: what imports a library may take it for the library's own failure, or swallow it.
    os.write(2, WHILE_STARTING)
    os._exit(INTERRUPTED if {*sys.argv[1:2]} & CONTINUED_BY_THE_SAME_COMMAND else NO_ROUND)


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
    startup_is_over()
    stop = Stop(exits=exits)
    before: dict[int, Any] = {}
    if _in_main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            if number == signal.SIGINT or signal.getsignal(number) in (signal.SIG_DFL, signal.SIG_IGN):
                before[number] = signal.signal(number, stop.hear)
    try:
        yield stop
    finally:
        for heard, handler in before.items():
            if handler is not None:  # one that was not set by Python cannot be put back
                signal.signal(heard, handler)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _is_program() -> bool:
    """Whether this process is `dpfl`, and not a program that imports its modules."""
    program = Path(sys.argv[0]) if sys.argv else Path()
    return program.name == "dpfl" or program.parts[-2:] == ("dpfl_plugin", "__main__.py")


if _is_program():
    startup_begins()
