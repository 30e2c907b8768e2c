"""What a silo rank's process writes, wherever it comes from, goes to its own file, and no file is left for nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys
from pathlib import Path
from dpfl_plugin.runtimes.mpi.rank_log import RankLog

log = RankLog(1, alone=True)
log.tell("before")
log.keep()
first = log.path
print("by print")
log.keep()
assert not first.exists(), "nobody was sent to it"
os.write(2, b"by a library\\n")
log.move(Path(sys.argv[1]), own=True)
assert not list(Path(sys.argv[2]).glob("dpfl-rank-1-*")), "it goes along"
log.tell("of the run")
log.refer("failed")
log.keep()
log.tell("of the next")
log.refer("failed again")
log.close()
assert log.path.read_text().startswith("dpfl: rank 1: of the next"), "somebody was sent to it"
"""


def test_it_goes_along_with_the_run(tmp_path: Path) -> None:
    folder, passing = tmp_path / "silos", tmp_path / "tmp"
    passing.mkdir()
    there = {"TMPDIR": str(passing)}
    command = [sys.executable, "-c", PROGRAM, str(folder), str(passing)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **there})
    (left,) = passing.glob("dpfl-rank-1-*")
    assert done.returncode == 0, left.read_text()
    before, failed, again = done.stderr.splitlines()
    assert (done.stdout, before) == ("", "dpfl: rank 1: before")
    log = folder / "rank-1.log"
    assert "rank 1 on" in failed and ": failed; " in failed and str(log) in failed and str(left) in again
    assert log.read_text() == "by a library\ndpfl: rank 1: of the run\n"
    assert [path.stat().st_mode & 0o777 for path in (log, folder, left)] == [0o600, 0o700, 0o600]
