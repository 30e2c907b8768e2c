"""The same run in this process and on MPI ranks, by the command line that users have."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from dpfl_plugin import registry
from dpfl_plugin.config.load import to_yaml
from dpfl_plugin.config.schema import Config
from dpfl_plugin.testing import resume
from dpfl_plugin.testing.contract_monitor import ContractError

__tracebackhide__ = True
SECONDS = 300  # after which a job counts as hanging
# Small machines have fewer cores than ranks, and containers run as root; MPICH does not read these.
_OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def missing() -> str | None:
    """Why nothing can be run under MPI here; None if it can."""
    if "mpi" not in registry.names("runtimes"):
        return "no runtime 'mpi' is registered"
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    if _mpirun() is None:
        return "there is no mpirun, next to the interpreter or on the PATH"
    return None


def _mpirun() -> str | None:
    return shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


def difference(config: Config, ranks: int) -> str | None:
    """What a run on ``ranks`` processes ends with that one in this process does not; None if they end alike.

    Raises:
        ContractError: the job fails, or hangs.
    """
    with tempfile.TemporaryDirectory() as folder:
        here = resume.go(config, Path(folder, "here"))
        path = Path(folder, "config.yaml")
        path.write_text(to_yaml(config))
        command = [str(_mpirun()), "-n", str(ranks), sys.executable, "-P", "-m", "mpi4py", "-m", "dpfl_plugin", "run"]
        command += [str(path), "--out", str(Path(folder, "there")), "--json", "--set", "evaluation.reveal=server"]
        paths = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # a plugin may lie beside its test
        environment = {**os.environ, **_OPEN_MPI, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=SECONDS)
        except subprocess.TimeoutExpired as error:
            raise ContractError(f"mpirun -n {ranks} did not end within {SECONDS} s.") from error
        if done.returncode:
            raise ContractError(f"mpirun -n {ranks} ended with exit code {done.returncode}:\n{done.stderr}")
        there = resume.ending(json.loads(done.stdout))
    for what in ("model", "metrics", "charges"):
        if getattr(here, what) != getattr(there, what):
            return f"another {'ledger' if what == 'charges' else what}"
    return None
