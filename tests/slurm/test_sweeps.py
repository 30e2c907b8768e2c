"""Sweeps on a real Slurm, disturbed in every way: nothing is lost, nothing is run twice, every bit is the same."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.soak import outcomes
from dpfl_plugin.experiments import slurm
from tests.cli.command import dpfl
from tests.cli.sweeping import began, check_same, deep_in_all, rows, write, write_long
from tests.cli.test_sweep import status, sweep
from tests.slurm.conftest import Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

SHORT = {"list": [{"algorithm.name": "fedavg"}, {"algorithm.name": "scaffold"}], "seeds": 6, "slurm": {"mem": "2G"}}


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve short runs, undisturbed."""
    path = write(tmp_path_factory.mktemp("short"), SHORT)
    assert sweep(path, "--jobs", 2).code == 0
    return path.parent / "out"


def submit(path: Path, *args: object, out: str = "out") -> str:
    """Submit a sweep; the number of its job."""
    done = sweep(path, "--on", "slurm", *args, out=out)
    assert done.code == 0, done.err
    return done.err.partition("as job ")[2].partition(":")[0]


def test_an_array_of_six_three_at_a_time_beside_a_second_sweep_and_a_crash(
    cluster: Cluster, short: Path, tmp_path: Path
) -> None:
    first = write(tmp_path, {**SHORT, "seeds": 3})
    crash = "import os, signal\ndef make(*shape, seed=0):\n    os.kill(os.getpid(), signal.SIGSEGV)\n"
    (tmp_path / "models_that_crash.py").write_text(crash)
    crashing = {"model": {"module": "models_that_crash:make"}}
    second = write(tmp_path, {"list": [{"seed": 1}, {"seed": 2}, crashing]}, name="second.yaml")
    job = submit(first, "--at-once", 3)
    other = submit(second, "--pack", 3)  # in the same folder: two of its runs are the first sweep's, too
    most = 0
    while waiting := cluster.queue():
        mine = [state for task, state in waiting.items() if task.startswith(f"{job}_")]
        most = max(most, mine.count("RUNNING"))
    assert most == 3
    assert cluster.field(f"{job}_5", "JobState") == "COMPLETED"
    assert cluster.field(f"{other}_0", "JobState") == "FAILED"
    found = status(first)
    assert found["counts"] == {"running": 0, "failed": 1, "lost": 0, "pending": 0, "done": 6}
    (failed,) = [run for run in found["runs"] if run["status"] == "failed"]
    assert "killed by SIGSEGV" in failed["reason"]
    assert all(began(tmp_path / "out", run["id"]) == [1] for run in found["runs"] if run["status"] == "done")
    check_same(tmp_path / "out", short, failed["id"])


def test_before_the_time_limit_it_is_saved_queued_again_and_goes_on(
    cluster: Cluster, long: Path, go_on: Path, tmp_path: Path
) -> None:
    path = write_long(tmp_path)
    job = submit(path, "--pack", 2, "--jobs", 2)
    cluster.wait(lambda: deep_in_all(tmp_path / "out"))
    assert status(path)["counts"]["running"] == 2 and status(path)["slurm"] == {"RUNNING": 1}
    cluster.ask("scancel", "--batch", "--signal=USR1", f"{job}_0")  # as Slurm itself does, but not at a whole minute
    goes_on(cluster, job, go_on)
    assert cluster.field(f"{job}_0", "JobState") == "COMPLETED"
    went_on(path, long)


def goes_on(cluster: Cluster, job: str, go_on: Path) -> None:
    """Slurm queues the one task of the job again, once, and it comes to its end."""
    cluster.wait(lambda: cluster.field(f"{job}_0", "Restarts") == "1")
    go_on.touch()
    cluster.drained()
    assert cluster.field(f"{job}_0", "Restarts") == "1"


def went_on(path: Path, undisturbed: Path) -> None:
    """All runs were begun twice, the second time not at the beginning, and came to what they do undisturbed."""
    out = path.parent / "out"
    check_same(out, undisturbed)
    for run in rows(out):
        first, second = began(out, run)
        assert first == 1 and second > 1


def test_preempted_it_is_saved_and_slurm_queues_it_again(
    cluster: Cluster, long: Path, go_on: Path, tmp_path: Path
) -> None:
    path = write_long(tmp_path)
    job = submit(path, "--pack", 2, "--jobs", 2)
    cluster.wait(lambda: deep_in_all(tmp_path / "out"))
    cluster.ask("sbatch", "--partition=urgent", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")
    goes_on(cluster, job, go_on)
    went_on(path, long)


def test_a_node_that_fails_takes_no_run_with_it(cluster: Cluster, long: Path, go_on: Path, tmp_path: Path) -> None:
    path = write_long(tmp_path)
    job = submit(path, "--pack", 2, "--jobs", 2)
    cluster.wait(lambda: deep_in_all(tmp_path / "out"))
    node = cluster.field(f"{job}_0", "NodeList")
    cluster.control("node", node, "crash")
    try:
        cluster.wait(lambda: status(path)["counts"]["lost"] == 2)  # the processes were this machine's
        goes_on(cluster, job, go_on)
        assert cluster.field(f"{job}_0", "NodeList") != node
    finally:
        cluster.control("node", node, "up")
        cluster.wait(lambda: "down" not in cluster.ask("sinfo", "-h", "-o", "%t"))
    went_on(path, long)


def test_cancelled_it_is_saved_and_not_queued_again_but_the_same_command_goes_on(
    cluster: Cluster, long: Path, go_on: Path, tmp_path: Path
) -> None:
    path = write_long(tmp_path)
    with cluster.closed():
        job = submit(path, "--pack", 2, "--jobs", 2)
        assert "are in the queue already" in sweep(path, "--on", "slurm", "--pack", 2).err
    cluster.wait(lambda: deep_in_all(tmp_path / "out"))
    cluster.ask("scancel", job)
    cluster.drained()
    assert cluster.field(f"{job}_0", "JobState") == "CANCELLED"
    assert status(path)["counts"] == {"running": 0, "failed": 0, "lost": 0, "pending": 2, "done": 0}
    go_on.touch()
    submit(path, "--jobs", 2, "--pack", 2)
    cluster.drained()
    went_on(path, long)


def test_a_task_that_is_queued_again_disturbs_no_other_of_its_array(
    cluster: Cluster, long: Path, go_on: Path, tmp_path: Path
) -> None:
    """The last one, whose number is the array's; one was cancelled, and stays so."""
    path = write_long(tmp_path, {"seeds": [2, 0, 1]})
    job = submit(path)
    cluster.wait(lambda: deep_in_all(tmp_path / "out"))
    assert cluster.field(f"{job}_2", "JobId") == job
    cluster.ask("scancel", f"{job}_0")
    cluster.wait(lambda: cluster.field(f"{job}_0", "JobState") == "CANCELLED")
    cluster.ask("scancel", "--batch", "--signal=USR1", f"{job}_2")
    cluster.wait(lambda: cluster.field(f"{job}_2", "Restarts") == "1" and f"{job}_2" in cluster.queue())
    assert cluster.queue().keys() == {f"{job}_1", f"{job}_2"}
    go_on.touch()
    cluster.drained()
    states = [
        (cluster.field(f"{job}_{task}", "JobState"), cluster.field(f"{job}_{task}", "Restarts")) for task in range(3)
    ]
    assert states == [("CANCELLED", "0"), ("COMPLETED", "0"), ("COMPLETED", "1")]
    assert "could not be queued again" not in "".join(log.read_text() for log in tmp_path.glob("out/sweeps/*/log/*"))
    assert status(path)["counts"] == {"running": 0, "failed": 0, "lost": 0, "pending": 1, "done": 2}
    assert outcomes(tmp_path / "out") == outcomes(long)


def test_a_task_that_never_finishes_a_round_is_not_queued_again_for_ever(cluster: Cluster, tmp_path: Path) -> None:
    path = write_long(tmp_path, {"seeds": 1, "setup": ["kill -s USR1 $$"]})
    job = submit(path)
    cluster.drained()
    assert (cluster.field(f"{job}_0", "JobState"), cluster.field(f"{job}_0", "Restarts")) == ("FAILED", "3")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "dpfl", folder], check=False)
    if done.returncode:
        pytest.skip("no small file system can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)  # a job of a failed test may still be in it


def test_a_full_disk_loses_nothing(cluster: Cluster, short: Path, small_disk: Path) -> None:
    path = write(small_disk, SHORT)
    submit(path, "--pack", 6)
    cluster.drained()
    counts = status(path)["counts"]
    assert counts["done"] < 12 and counts["running"] == 0
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    submit(path, "--pack", 6, "--retry")
    cluster.drained()
    assert status(path)["counts"]["done"] == 12, dpfl("status", small_disk / "out").out
    check_same(small_disk / "out", short)


def test_more_tasks_than_the_site_takes_are_refused_with_the_pack_that_fits(cluster: Cluster, tmp_path: Path) -> None:
    most = slurm.largest_array()
    assert most is not None
    path = write(tmp_path, {"seeds": most + 1})
    done = sweep(path, "--on", "slurm")
    assert done.code == 2 and "--pack 2 or more" in done.err


def test_what_sbatch_refuses_is_said(cluster: Cluster, tmp_path: Path) -> None:
    path = write(tmp_path, {"seeds": 1, "slurm": {"partition": "nowhere"}})
    done = sweep(path, "--on", "slurm")
    assert done.code == 1 and "sbatch refuses" in done.err and "partition" in done.err


def test_submitit_does_the_same(cluster: Cluster, long: Path, go_on: Path, tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    path = write_long(tmp_path, {"slurm": {"time": "0:30:00"}})
    with cluster.closed():
        done = sweep(path, "--on", "submitit", "--pack", 2, "--jobs", 2)
        assert done.code == 0, done.err
        job = done.err.partition("as job ")[2].partition(":")[0]
        assert "are in the queue already" in sweep(path, "--on", "submitit", "--pack", 2, "--jobs", 2).err
    cluster.wait(lambda: deep_in_all(tmp_path / "out"))
    assert "2 runs that are at work" in sweep(path, "--on", "submitit", "--pack", 2, "--jobs", 2).err
    cluster.ask("scancel", "--signal=USR2", job)  # the signal that submitit asks Slurm for
    cluster.wait(lambda: cluster.field(job, "Restarts") == "1")
    go_on.touch()
    cluster.drained()
    assert cluster.field(job, "Restarts") == "1"
    went_on(path, long)
