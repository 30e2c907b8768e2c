"""Processes that srun started and that MPI does not join: refused, or each would run all of the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpfl_plugin.errors import ConfigError
from dpfl_plugin.runtimes.mpi import job
from tests.cli.command import dpfl, one_message, write


@pytest.mark.parametrize("kind", ["auto", "mpi"])
def test_tasks_of_srun_that_are_no_ranks_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "5")
    command = ["run", write(tmp_path, {"rounds": 1, "runtime": {"kind": kind}}), "--out", tmp_path / "runs"]
    one_message(dpfl(*command), "srun started 5 processes", "--mpi=pmi2", "kind: in_process")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("tasks", "kind"), [("5", "in_process"), ("1", "auto")])
def test_runs_that_are_meant_to_be_alone_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: str, kind: str
) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", tasks)
    monkeypatch.setenv("SLURM_NTASKS", "5")  # of a batch script's own step, too
    config = write(tmp_path, {"rounds": 1, "runtime": {"kind": kind}})
    assert dpfl("run", config, "--out", tmp_path / "runs").code == 0


@pytest.mark.parametrize("rank", ["0", "2"])
def test_the_first_rank_has_time_to_say_why_none_can_go_on(monkeypatch: pytest.MonkeyPatch, rank: str) -> None:
    """srun --kill-on-bad-exit ends all when one ends: a silent one must not be it."""

    def no_mpi() -> None:
        raise ConfigError("cannot load MPI library")

    slept: list[float] = []
    for name in (*job.SIZES, *job.RANKS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PMI_SIZE", "3")
    monkeypatch.setenv("PMI_RANK", rank)
    monkeypatch.setattr(job, "_job", None)
    monkeypatch.setattr(job, "Job", no_mpi)
    monkeypatch.setattr(job.time, "sleep", slept.append)
    with pytest.raises(ConfigError if rank == "0" else SystemExit):
        job.join()
    assert slept == ([] if rank == "0" else [job.SAY_SECONDS])
