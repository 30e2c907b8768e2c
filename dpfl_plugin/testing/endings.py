"""Whole runs and how they end: undisturbed, interrupted and resumed, and on MPI ranks."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dpfl_plugin import registry
from dpfl_plugin.config.load import to_yaml
from dpfl_plugin.config.schema import Config
from dpfl_plugin.federation.progress import Progress
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.runs.hooks import Silent
from dpfl_plugin.runs.run import run_config
from dpfl_plugin.runtimes.in_process import InProcessBackend
from dpfl_plugin.testing.contract_monitor import ContractError

__tracebackhide__ = True
RANKS: Final = 3  # a server and two processes with silos
TIMEOUT: Final = 300  # seconds, after which a job counts as hanging
# Small machines have fewer cores than ranks, and containers run as root; MPICH does not read these.
_OPEN_MPI: Final = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


@dataclass(frozen=True)
class Ending:
    """What a run left behind: the digest of its model, its evaluations without times, its ledger."""

    model: str
    metrics: list[dict[str, Any]]
    ledger: set[Charge]

    @classmethod
    def of(cls, result: dict[str, Any]) -> Ending:
        """What the run that gave ``result`` left in its folder."""
        folder = RunFolder(Path(result["folder"]))
        lines = [{key: value for key, value in line.items() if key != "seconds"} for line in folder.read_metrics()]
        return cls(result["model_sha256"], lines, set(Ledger.open(folder.ledger, append=False)))

    def difference(self, other: Ending) -> str | None:
        """The first thing that differs: model, metrics or ledger; None if nothing does."""
        return next((name for name in vars(self) if getattr(self, name) != getattr(other, name)), None)


class _Stopper(Silent):
    """A reporter that asks the run to stop after ``rounds`` rounds; None: never."""

    def __init__(self, rounds: int | None) -> None:
        self._rounds, self.stopped = rounds, False

    def ticked(self, progress: Progress) -> None:
        self.stopped = progress.rounds == self._rounds


def run(config: Config, folder: Path, *, stop_after: int | None = None, resume: bool = False) -> Ending:
    """Run ``config`` in ``folder``, up to a round or to its end.

    Raises:
        ContractError: it fails.
    """
    stopper = _Stopper(stop_after)
    result = run_config(
        config.model_copy(update={"out": str(folder)}),
        Path(),
        resume=resume,
        backend=InProcessBackend(),
        reporter=stopper,
        stop=lambda: stopper.stopped,
    )
    if result["status"] != ("done" if stop_after is None else "interrupted"):
        raise ContractError(f"the run {result['status']}: {result['reason']}.")
    return Ending.of(result)


def check_resume(config: Config) -> None:
    """Raise ContractError unless the run, resumed after any round, ends as the undisturbed one.

    Every run is interrupted first, then one goes through, then the others go on: what an algorithm keeps outside of
    its states is by then what the last of them left.
    """
    rounds = config.rounds or 1
    with contextlib.ExitStack() as stack:
        folders = {k: Path(stack.enter_context(tempfile.TemporaryDirectory())) for k in range(rounds)}
        for k in range(1, rounds):
            run(config, folders[k], stop_after=k)
        whole = run(config, folders[0])
        for k in range(1, rounds):
            difference = whole.difference(run(config, folders[k], resume=True))
            if difference is not None:
                raise ContractError(
                    f"interrupted after round {k} and resumed, the run ends with another {difference} than without the "
                    "interruption. Keep what later rounds need in the server's or the silos' states: nothing else is "
                    "saved, neither attributes of self nor globals nor random generators."
                )


def mpi_missing() -> str | None:
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


def check_mpi(config: Config) -> None:
    """Raise ContractError unless the run ends the same on MPI ranks, started by the command that users have."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.yaml")
        path.write_text(to_yaml(config))
        command = [str(_mpirun()), "-n", str(RANKS), sys.executable, "-P", "-m", "mpi4py", "-m", "dpfl_plugin", "run"]
        command += [str(path), "--out", str(Path(folder, "ranks")), "--json", "--set", "evaluation.reveal=server"]
        paths = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # a plugin may lie beside its test
        environment = {**os.environ, **_OPEN_MPI, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        try:
            job = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=TIMEOUT)
        except subprocess.TimeoutExpired as error:
            raise ContractError(f"mpirun -n {RANKS} did not end within {TIMEOUT} s.") from error
        if job.returncode:
            raise ContractError(f"mpirun -n {RANKS} ended with exit code {job.returncode}:\n{job.stderr}")
        one_process = run(config, Path(folder, "one process"))
        difference = one_process.difference(Ending.of(json.loads(job.stdout)))
    if difference is not None:
        raise ContractError(
            f"mpirun -n {RANKS} ends with another {difference} than one process. Silos are in other processes there: "
            "keep what later rounds need in the states, and draw random numbers by round_plan's rng."
        )
