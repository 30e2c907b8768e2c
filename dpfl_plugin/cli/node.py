"""`dpfl doctor --slurm`: whether a node, and the job that has it, are fit for a run; each line says ok or what to do.

It is cheap enough to begin a batch script with: torch and MPI are imported where GPUs or ranks were asked for only.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dpfl_plugin.errors import BusyError, ConfigError, system_says
from dpfl_plugin.experiments import slurm
from dpfl_plugin.experiments.scripts import LEAD_SECONDS, LEAST_SECONDS
from dpfl_plugin.runs.folder import locked, to_json


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; what to do, if it is not as it should be."""

    what: str
    ok: bool
    text: str


def check_node(out: Path, *, as_json: bool) -> int:
    """Print what is found of this job and of the folder ``out``; 0 if nothing is wrong, else 1."""
    ranks, code = _ranks()
    if code is not None:
        return code
    found = [*ranks, *_job(), *_folder(out), *_gpus()]
    if as_json:
        print(to_json({"checks": [{"what": c.what, "ok": c.ok, "text": c.text} for c in found]}))
    else:
        for check in found:
            print(f"{'ok' if check.ok else 'WRONG'}: {check.what}: {check.text}", flush=True)
    return 0 if all(check.ok for check in found) else 1


def _ranks() -> tuple[list[Check], int | None]:
    """Whether MPI sees the processes that srun started; an exit code for those that are not the first of them."""
    what = "ranks"
    step = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if not step.isdigit() or int(step) < 2:
        return list(_planned_ranks()), None
    from dpfl_plugin.runtimes.mpi import job

    try:
        job.check_alone()
        joined = job.join()
    except ConfigError as error:
        return [Check(what, False, str(error))], None
    if joined is None:
        return [Check(what, False, f"srun started {step} processes, and MPI joined none of them")], None
    if joined.rank > 0:
        joined.serve()
        return [], 0
    seen = len(joined.reports())
    if seen != int(step):
        return [
            Check(what, False, f"srun started {step} processes, MPI sees {seen}: use the srun and the PMI of one MPI")
        ], None
    return [Check(what, True, f"MPI sees the {seen} processes that srun started")], None


def _planned_ranks() -> Iterator[Check]:
    """Before srun: whether the kind of start that it would use is one of this MPI library's."""
    tasks = os.environ.get("SLURM_NTASKS", "1")
    if not tasks.isdigit() or int(tasks) < 2:
        return
    ask = [sys.executable, "-P", "-m", "mpi4py", "--mpi-lib-version"]
    said = subprocess.run(ask, capture_output=True, text=True, check=False)
    library = said.stdout.replace("\0", "").strip().partition(",")[0].partition("\n")[0]
    if said.returncode or not library:
        yield Check(
            "ranks", False, f"{tasks} tasks, and mpi4py finds no MPI library: load its module, or launchers/env mpi"
        )
        return
    kind = os.environ.get("SLURM_MPI_TYPE") or slurm.setting("MpiDefault") or "none"
    fit = "pmix" if "Open MPI" in library else "pmi2"
    ok = kind.startswith("pmi") and (fit != "pmix" or kind.startswith("pmix"))
    mend = "" if ok else f": it would see no ranks; export SLURM_MPI_TYPE={fit} (srun --mpi=list shows what there is)"
    yield Check("ranks", ok, f"{library} under srun --mpi={kind}{mend}")


def _job() -> Iterator[Check]:
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        yield Check("job", False, "this is not a Slurm job: call it in a batch script, or by srun dpfl doctor --slurm")
        return
    seconds = slurm.time_limit(job)
    if seconds is None:
        yield Check("time limit", True, "none that scontrol knows")
    elif seconds < LEAST_SECONDS:
        yield Check(
            "time limit",
            False,
            f"{seconds} s, and Slurm asks for the checkpoint {LEAD_SECONDS} s before it: ask for "
            f"{LEAST_SECONDS // 60} minutes at least, and for as long as one round takes besides (sbatch --time)",
        )
    else:
        yield Check("time limit", True, f"{seconds} s, with the signal {LEAD_SECONDS} s before it")
    if shutil.which("scontrol") is None:
        yield Check(
            "requeue", False, "there is no scontrol on this node: after the time limit submit the job once more by hand"
        )


def _folder(out: Path) -> Iterator[Check]:
    """Of the folder of runs, or the nearest one above it that is there."""
    folder = next(path for path in (out.absolute(), *out.absolute().parents) if path.is_dir())
    probe = folder / f".dpfl-doctor-{os.uname().nodename}-{os.getpid()}"
    try:
        with locked(probe, f"{folder}: locks are not let go of", other="--out"):
            pass
        yield Check("locks", True, f"work in {folder}")
    except (BusyError, ConfigError) as error:
        yield Check("locks", False, str(error))
    except OSError as error:
        yield Check("locks", False, system_says(error))
    finally:
        with contextlib.suppress(OSError):  # one that could not be made
            probe.unlink()


def _gpus() -> Iterator[Check]:
    granted = _granted()
    if granted == 0:
        there = len([*Path("/dev").glob("nvidia[0-9]*")])
        yield Check("GPUs", True, "none asked for" + (f", though the node has {there}: --gres=gpu:1" if there else ""))
        return
    import torch

    seen = torch.cuda.device_count()
    ok = seen >= granted
    mend = "" if ok else ": install a CUDA build of torch (constraints.txt), or ask for GPUs that it knows (nvidia-smi)"
    yield Check("GPUs", ok, f"Slurm granted {granted} on this node, torch sees {seen}{mend}")


def _granted() -> int:
    """GPUs on this node for this job, by the variables that Slurm sets."""
    count = os.environ.get("SLURM_GPUS_ON_NODE", "")
    if count.isdigit():
        return int(count)
    names = os.environ.get("SLURM_STEP_GPUS") or os.environ.get("SLURM_JOB_GPUS") or ""
    return len(re.findall(r"[^,\s]+", names))
