"""Slurm by submitit, for those who manage their jobs with it; its own files (pickles among them) are its business."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from dpfl_plugin.errors import ConfigError, DpflError
from dpfl_plugin.experiments.manifest import Options, Request, Sweep
from dpfl_plugin.experiments.scripts import LEAD_SECONDS
from dpfl_plugin.experiments.slurm import minutes

DEFAULT_MINUTES = 60


class Task:
    """A task of a sweep as submitit wants it: something to call, which can say how to go on."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = list(command)
        self._pid = 0

    def __call__(self) -> None:
        # All signals wait, so that none comes between the start of the process and its number.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._pid = os.posix_spawn(self.command[0], self.command, os.environ, setsigmask=before)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        code = self._wait()
        if code:
            raise DpflError(f"exit code {code} of {shlex.join(self.command)}: see dpfl status.")

    def checkpoint(self) -> Any:
        """Called by submitit in its signal handler, before it queues the job again."""
        from submitit.helpers import DelayedSubmission

        if self._pid:  # else it has not begun: there is nothing to save
            os.kill(self._pid, signal.SIGUSR1)
            self._wait()
        return DelayedSubmission(Task(self.command))

    def _wait(self) -> int:
        # By hand, as the handler above interrupts this very function: subprocess would wait for its own lock.
        while True:
            try:
                ended, status = os.waitpid(self._pid, os.WNOHANG)
            except ChildProcessError:
                return 0
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.1)


def submit(sweep: Sweep, tasks: Sequence[int], name: str, request: Request, options: Options) -> str:
    """Hand the tasks to Slurm as one array, with a job's ``name`` and what it asks Slurm for; returns the job's number.

    Raises:
        ConfigError: submitit is not installed, or finds no Slurm.
    """
    try:
        import submitit
    except ImportError as error:
        raise ConfigError("--on submitit: it is not installed. pip install 'dpfl-plugin[slurm]'.") from error
    try:
        executor = submitit.SlurmExecutor(folder=sweep.folder / "submitit" / "%j")
    except RuntimeError as error:
        raise ConfigError(f"--on submitit: {error}. Use --on local, or slurm/dev-cluster.") from error
    more = {key: value for key, value in request.items() if value is not False}
    executor.update_parameters(
        job_name=name,
        time=minutes(str(more.pop("time", DEFAULT_MINUTES))),
        array_parallelism=options.at_once or len(tasks),
        signal_delay_s=LEAD_SECONDS,
        # submitit's own first lines run there, too: none of them from the working folder.
        setup=["export PYTHONSAFEPATH=1", *sweep.spec.setup],
        cpus_per_task=int(more.pop("cpus-per-task", options.jobs)),
        additional_parameters=more,
    )
    words = [sys.executable, "-P", "-m", "dpfl_plugin", "sweep-task", str(sweep.folder)]
    packing = ["--pack", str(options.pack), "--jobs", str(options.jobs)]
    with executor.batch():
        array = [executor.submit(Task([*words, str(task), *packing])) for task in tasks]
    return str(array[0].job_id).partition("_")[0]
