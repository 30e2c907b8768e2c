"""What a process of a sweep does: some rows of its manifest, one after another or at the same time, or one over MPI."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from dpfl_plugin import own_folders
from dpfl_plugin.config.sweep import Row, config_of
from dpfl_plugin.errors import BusyError, ConfigError, DpflError, is_full, system_says
from dpfl_plugin.experiments import manifest, state
from dpfl_plugin.experiments.manifest import Sweep
from dpfl_plugin.experiments.supervisor import BUSY, FAILED, FULL, INTERRUPTED, LOST, NO_ROUND, Stop, Supervisor
from dpfl_plugin.federation.outcome import EXIT_CODES
from dpfl_plugin.runs.folder import RunFolder, to_json

IMPORTED_BY_RUNS: Final = (  # as they need it
    "dpfl_plugin.runs.run",
    "dpfl_plugin.runtimes.choice",
    "jinja2",
    "scipy.fft",
    "scipy.linalg.blas",
    "scipy.optimize",
    "scipy.special",
)


def run_task(folder: Path, task: int, pack: int, jobs: int) -> int:
    """Do what a batch task does: its rows of the manifest, those that are not finished; returns the exit code."""
    sweep = manifest.read(folder)
    rows = sweep.rows_of(task, pack)
    if not rows:
        raise ConfigError(f"{folder}: there is no task {task} of {pack} runs: the manifest has {len(sweep.rows)}.")
    _fail_those_requeued(sweep, rows)
    before = [state.progress(sweep.folder_of(row)) for row in rows]
    code = run_rows(sweep, list(rows), jobs, with_parent=True)
    idle = before == [state.progress(sweep.folder_of(row)) for row in rows]
    return NO_ROUND if code == INTERRUPTED and idle else code


def run_rows(sweep: Sweep, rows: list[Row], jobs: int, *, with_parent: bool = False) -> int:
    """Run rows, at most ``jobs`` at the same time; returns 0, 1 (some failed) or 4 (interrupted)."""
    with Stop(with_parent=with_parent).listening() as stop:
        launched = sweep.spec.ranks is not None
        gpus = [] if launched else _gpus(jobs)  # ranks of a run share the GPUs of their node by themselves
        supervisor = Supervisor(begin(sweep), sweep.folder_of, jobs, stop, say, _where(), launched, gpus)
        return supervisor.run(rows)


def run_ranks(folder: Path, index: int) -> int:
    """Do what each rank of a run over MPI does: the first runs it, the others hold silos and do what it asks."""
    from dpfl_plugin.runtimes.mpi import job
    from dpfl_plugin.runtimes.mpi.ranks import SiloLostError

    joined = job.join()
    if joined is not None and joined.rank > 0:
        joined.serve()
        return 0
    sweep = manifest.read(folder)
    row = sweep.rows[index]
    with Stop().listening() as stop:
        code, reason = FAILED, ""
        try:
            code, reason = _run_row(sweep, row, lambda: stop.asked)
        except BusyError as error:
            code, reason = BUSY, str(error)
            raise
        except SiloLostError as error:
            code, reason = LOST, str(error)
            raise
        except (DpflError, OSError) as error:
            code, reason = FULL if is_full(error) else FAILED, system_says(error)
            raise
        except BaseException as error:
            code = LOST if job.is_of_mpi(error) else FAILED  # whose calls fail where a peer is gone
            reason = f"{type(error).__name__}: {error}."
            raise
        finally:
            with contextlib.suppress(OSError):  # a full disk
                state.note_end(sweep.folder_of(row), code, reason)
    return code


def begin(sweep: Sweep) -> Callable[[Row, Callable[[], bool]], tuple[int, str]]:
    """What a process of its own does with a row, see `Supervisor`."""
    if sweep.spec.ranks is not None:
        return lambda row, stop: _become_ranks(sweep, row)
    import_for_runs()
    return lambda row, stop: _run_row(sweep, row, stop)


def import_for_runs() -> None:
    """Import what runs need, before a process is forked for each: it would import it anew, in about two seconds."""
    for name in IMPORTED_BY_RUNS:
        importlib.import_module(name)
    importlib.import_module("dpfl_plugin.gradients.fused").kernels()


def _run_row(sweep: Sweep, row: Row, stop: Callable[[], bool]) -> tuple[int, str]:
    from dpfl_plugin.runs.hooks import Silent
    from dpfl_plugin.runs.ledgers import Wait
    from dpfl_plugin.runs.run import run_config
    from dpfl_plugin.runtimes.choice import backend_of

    base = sweep.source.parent
    own_folders.look_in(base)
    config = config_of(sweep.base, row, sweep.runs)
    result = run_config(
        config,
        base,
        resume=True,
        backend=backend_of(config),
        reporter=Silent(),
        stop=stop,
        label=row.label,
        ledger=sweep.ledger,
        wait=Wait(math.inf, lambda text: say(f"{row.index}: {text}"), stop),
    )
    return EXIT_CODES[result["status"]], result["reason"]


def _gpus(jobs: int) -> list[str]:
    """The GPUs that this process was given, if its runs can each have one of them."""
    gpus = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu.strip()]
    if jobs > 1 and len(gpus) > 1:
        much = f"{len(gpus) - jobs} of them are idle" if len(gpus) > jobs else "some share one"
        odd = f"; --jobs {jobs}: {much}" if jobs != len(gpus) else ""
        say(f"each run gets one of the {len(gpus)} GPUs in CUDA_VISIBLE_DEVICES{odd}.")
        return gpus
    return []


def _where() -> dict[str, str]:
    """The batch job that this is, for `task.json`."""
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        return {"job": f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"}
    return {"job": os.environ["SLURM_JOB_ID"]} if "SLURM_JOB_ID" in os.environ else {}


def _fail_those_requeued(sweep: Sweep, rows: Sequence[Row]) -> None:
    """Count as failed what this task's job was queued again for more often than the sweep allows."""
    most, job = sweep.spec.max_requeues, _where().get("job")
    if most is None or job is None:
        return
    for row in rows:
        folder = sweep.folder_of(row)
        times = requeues_of(folder, job, int(os.environ.get("SLURM_RESTART_COUNT", "0")))
        if times > most and not state.finished(folder):
            reason = f"Slurm queued it again {times} times in job {job}, more than sweep.max_requeues={most}"
            state.write_task(folder, "failed", reason=reason, job=job)
            say(f"{row.index}: FAILED: {reason}; --retry tries it again  {row.label}")


def requeues_of(folder: RunFolder, job: str, restarts: int) -> int:
    """How often the run had begun in this very job when Slurm queued its task again; to be asked as the task starts.

    Args:
        restarts: of the task, as SLURM_RESTART_COUNT has it; what it was counted for already is not counted again.
    """
    known, task = _read_requeues(folder), state.task_of(folder)
    if known.get("job") != job:
        known = {"job": job, "restarts": 0, "count": 0}
    begun = task is not None and task.get("job") == job and task.get("state") in ("running", "stopped")
    if begun and restarts > known["restarts"]:
        known = {"job": job, "restarts": restarts, "count": known["count"] + 1}
        folder.write(folder.path / "requeues.json", to_json(known, None))
    return int(known["count"])


def _read_requeues(folder: RunFolder) -> dict[str, Any]:
    try:
        known = json.loads((folder.path / "requeues.json").read_bytes())
        return {"job": str(known["job"]), "restarts": int(known["restarts"]), "count": int(known["count"])}
    except (OSError, ValueError, KeyError, TypeError):  # none yet, or torn: counted from 0
        return {}


def try_again(folder: RunFolder) -> None:
    """Have a failed run tried again, with requeues counted from 0."""
    state.write_task(folder, "pending")
    (folder.path / "requeues.json").unlink(missing_ok=True)


def _become_ranks(sweep: Sweep, row: Row) -> tuple[int, str]:
    """Become the launcher of a run's MPI ranks."""
    default = "srun --kill-on-bad-exit=1 --ntasks={ranks}" if "SLURM_JOB_ID" in os.environ else "mpirun -n {ranks}"
    words = shlex.split(sweep.spec.launcher or default)  # the configuration has checked that it can be split
    launcher = [word.replace("{ranks}", str(sweep.spec.ranks)) for word in words]
    # mpi4py ends all ranks when one of them raises; else the others would wait for it for ever.
    python = [sys.executable, "-P", "-m", "mpi4py", "-m", "dpfl_plugin"]
    command = [*python, "sweep-run", str(sweep.folder), str(row.index)]
    try:
        os.execvpe(launcher[0], [*launcher, *command], {**_fit_for(launcher[0]), **os.environ})
    except OSError as error:
        raise ConfigError(
            f"sweep.launcher: {launcher[0]} cannot be started ({error.strerror}); it should start the ranks of a run. "
            "It is split into words as by a shell: a path with spaces needs quotes of its own."
        ) from error


def _fit_for(launcher: str) -> dict[str, str]:
    """What MPICH needs in its environment under srun: Slurm's pmi2 reads 1,023 bytes of a message.

    Over UCX MPICH's have any length, by what happens to lie behind its address in memory; over OFI they are short.
    """
    if Path(launcher).name != "srun":
        return {}
    ask = [sys.executable, "-P", "-m", "mpi4py", "--mpi-lib-version"]
    version = subprocess.run(ask, capture_output=True, text=True, check=False).stdout
    return {"MPIR_CVAR_CH4_NETMOD": "ofi"} if "ch4:ucx ofi" in version else {}


def say(text: str) -> None:
    """Tell how far the sweep is, on stderr."""
    print(f"dpfl: {text}", file=sys.stderr, flush=True)
