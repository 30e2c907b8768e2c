"""What a library writes to the terminal that is not ours to write."""

from __future__ import annotations

import atexit
import sys


def keep_stdout_plain() -> None:
    """Call it once numba has compiled something. It has colorama, if that is installed, write a code for plain letters
    to stdout when the process ends: behind JSON, wherever stdout is a terminal, as that of Open MPI's ranks is."""
    colorama = sys.modules.get("colorama.initialise")
    if colorama is not None:
        atexit.unregister(colorama.reset_all)
