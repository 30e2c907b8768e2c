"""What ends on stdout."""

import os
import pty
import subprocess
import sys

import pytest

PROGRAM = """
from dpfl_plugin.core import draws
from dpfl_plugin.gradients import fused
assert draws.load() and fused.kernels()
print("all")
"""


@pytest.mark.slow
def test_compiled_loops_leave_nothing_on_a_terminal():
    """Where colorama is installed numba has it write to stdout at the end."""
    pytest.importorskip("numba")
    pytest.importorskip("colorama")
    ours, theirs = pty.openpty()
    done = subprocess.run([sys.executable, "-c", PROGRAM], stdout=theirs, timeout=120, check=True)
    os.close(theirs)
    assert done.returncode == 0 and os.read(ours, 1000) == b"all\r\n"
    os.close(ours)
