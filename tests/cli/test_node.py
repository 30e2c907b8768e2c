"""`dpfl doctor --slurm`: each line says ok, or what to do."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from dpfl_plugin.experiments import slurm
from dpfl_plugin.runs import folder
from tests.cli.command import dpfl
from tests.experiments.test_slurm import tool


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job of one task, as its environment tells; returns the folder of its tools."""
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    says(tools, "01:00:00")
    (tmp_path / "runs").mkdir(mode=0o700)
    return tools


def says(tools: Path, limit: str, mpi: str = "none") -> None:
    config, told = f'echo "MpiDefault              = {mpi}"', f'echo "JobId=17 TimeLimit={limit} X=1"'
    tool(tools, "scontrol", f'case "$*" in *config*) {config} ;; *) {told} ;; esac')


def checks(job: Path) -> dict[str, tuple[bool, str]]:
    done = dpfl("doctor", "--slurm", "--out", job.parent / "runs", "--json")
    found = {check["what"]: (check["ok"], check["text"]) for check in done.json["checks"]}
    assert done.code == (0 if all(ok for ok, _ in found.values()) else 1)
    return found


def test_a_job_in_which_nothing_is_wrong(job: Path) -> None:
    found = checks(job)
    assert all(ok for ok, _ in found.values()) and {"time limit", "locks", "GPUs"} == set(found), found
    done = dpfl("doctor", "--slurm", "--out", job.parent / "runs")
    assert done.code == 0 and "ok: locks: work in" in done.out and "WRONG" not in done.out
    assert [*(job.parent / "runs").iterdir()] == []
    assert checks_of_missing_folder(job)["locks"][1] == f"work in {job.parent}"


def checks_of_missing_folder(job: Path) -> dict[str, tuple[bool, str]]:
    (job.parent / "runs").rmdir()
    return checks(job)


@pytest.mark.parametrize(
    ("limit", "ok", "said"),
    [
        ("00:02:30", False, "ask for 3 minutes"),
        ("00:03:00", True, "180 s"),
        ("2-00:00:00", True, "172800 s"),
        ("UNLIMITED", True, "none"),
    ],
)
def test_the_time_limit_against_the_signal(job: Path, limit: str, ok: bool, said: str) -> None:
    says(job, limit)
    found = checks(job)["time limit"]
    assert found[0] == ok and said in found[1]


@pytest.mark.parametrize(
    ("library", "kind", "site", "ok", "said"),
    [
        ("MPICH Version: 5.0.2", None, "none", False, "export SLURM_MPI_TYPE=pmi2"),
        ("MPICH Version: 5.0.2", "pmi2", "none", True, "--mpi=pmi2"),
        ("Open MPI v5.0.11, package", None, "pmi2", False, "export SLURM_MPI_TYPE=pmix"),
        ("Open MPI v5.0.11, package", None, "pmix_v4", True, "Open MPI v5.0.11 under srun --mpi=pmix_v4"),
        ("", None, "pmix", False, "mpi4py finds no MPI library"),
    ],
)
def test_the_start_of_ranks_against_the_mpi_library(
    job: Path, monkeypatch: pytest.MonkeyPatch, library: str, kind: str | None, site: str, ok: bool, said: str
) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "3")
    if kind:
        monkeypatch.setenv("SLURM_MPI_TYPE", kind)
    says(job, "01:00:00", site)
    tool(job, "python", f'echo "{library}"')
    monkeypatch.setattr(sys, "executable", str(job / "python"))
    found = checks(job)["ranks"]
    assert found[0] == ok and said in found[1], found


def test_processes_that_no_mpi_joins(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "3")
    found = checks(job)["ranks"]
    assert not found[0] and "srun started 3 processes" in found[1] and "--mpi=pmi2" in found[1]


def test_a_folder_without_locks(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "_excludes", lambda path: False)
    found = checks(job)
    assert not found["locks"][0] and "file locks do not work there" in found["locks"][1]


@pytest.mark.parametrize(("seen", "ok"), [(0, False), (1, False), (2, True)])
def test_gpus_that_were_granted_against_those_that_torch_sees(
    job: Path, monkeypatch: pytest.MonkeyPatch, seen: int, ok: bool
) -> None:
    monkeypatch.setenv("SLURM_JOB_GPUS", "0,3")
    monkeypatch.setattr("torch.cuda.device_count", lambda: seen)
    found: Any = checks(job)["GPUs"]
    assert found[0] == ok and f"granted 2 on this node, torch sees {seen}" in found[1]


def test_outside_of_slurm_it_says_so(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID")
    assert "not a Slurm job" in checks(job)["job"][1]
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("PATH", str(job.parent))
    assert "there is no scontrol" in checks(job)["requeue"][1] and slurm.time_limit("17") is None
