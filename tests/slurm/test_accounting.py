"""`dpfl status` beside a real sacct: a Slurm with its database."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.soak import of_the_cluster
from dpfl_plugin.experiments import slurm
from tests.cli.sweeping import deep_in_all, write_long
from tests.cli.test_sweep import status
from tests.slurm.conftest import Cluster, in_use, started
from tests.slurm.test_sweeps import submit

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


@pytest.fixture
def accounted(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    own = {"DPFL_CLUSTER_ACCOUNTING": "yes", "DPFL_CLUSTER_NODES": "1"}
    with started(tmp_path_factory.mktemp("accounted"), **own) as cluster:
        yield from in_use(cluster, monkeypatch)


def test_of_a_lost_run_it_says_how_its_task_ended(accounted: Cluster, go_on: Path, tmp_path: Path) -> None:
    path = write_long(tmp_path)
    job = submit(path, "--pack", 2, "--jobs", 2)
    accounted.wait(lambda: deep_in_all(tmp_path / "out"))
    accounted.wait(lambda: slurm.accounting([job]) == {f"{job}_0": "RUNNING"})  # the database is told by and by
    processes = [pid for pid, _ in of_the_cluster(accounted.environment["SLURM_CONF"], b"sweep-task")]
    for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that none sees another's end
        for pid in processes:
            os.kill(pid, number)
    accounted.drained()
    accounted.wait(lambda: slurm.accounting([job])[f"{job}_0"] != "RUNNING")
    ended = slurm.accounting([job])[f"{job}_0"]
    assert ended == "FAILED"
    runs = status(path)["runs"]
    assert [run["status"] for run in runs] == ["lost", "lost"]
    assert all(f"job {job}_0 ended without a word ({ended})" in run["reason"] for run in runs), runs
    go_on.touch()
    submit(path, "--pack", 2, "--jobs", 2)
    accounted.drained()
    assert status(path)["counts"]["done"] == 2
