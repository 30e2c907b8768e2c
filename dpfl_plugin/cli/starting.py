"""Ctrl-C while a command starts: libraries take seconds to load, and an interruption in one ends in silence or worse.

Imported before all others of the command line, so that there is a word from the first import on.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any, Final

TOLD: Final = b"\ndpfl: interrupted while it was starting: nothing was run, and nothing is lost.\n"
INTERRUPTED: Final = 7  # no round was finished


def begin() -> None:
    """End by one line on Ctrl-C, until `over`."""
    main = threading.current_thread() is threading.main_thread()
    # Neither where it is ignored, as in the background, nor where somebody handles it.
    if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def over() -> None:
    """There is something to lose: Ctrl-C is what it always was."""
    if signal.getsignal(signal.SIGINT) is _end and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: Any) -> None:
    # Not an exception: what imports a library may take it for the library's own failure, or swallow it.
    os.write(2, TOLD)
    os._exit(INTERRUPTED)


def _is_program() -> bool:
    """Whether this process is `dpfl`, and not a program that imports its modules."""
    called = Path(sys.argv[0]) if sys.argv else Path()
    return called.name == "dpfl" or called.parts[-2:] == ("dpfl_plugin", "__main__.py")


if _is_program():
    begin()
