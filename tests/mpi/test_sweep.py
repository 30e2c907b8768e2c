"""Runs of a sweep on real MPI ranks."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dpfl_plugin.config.sweep import expand
from dpfl_plugin.errors import BusyError, TrainingError
from dpfl_plugin.experiments import manifest, supervisor
from dpfl_plugin.experiments.supervisor import run_ranks
from dpfl_plugin.runs.run_status import task_of
from dpfl_plugin.runtimes.mpi.ranks import SiloLostError
from tests.cli.sweeping import LONG, REVEALED, SLOW, began, check_same, deep_in_all, rows, write, write_long
from tests.cli.test_sweep import ENVIRONMENT, status, sweep
from tests.experiments.test_supervisor import wait_for
from tests.mpi.launch import ALLOWED, ANY, FOUND, needs_mpi

pytestmark = needs_mpi


def with_ranks(folder: Path, changes: dict[str, object] | None = None) -> Path:
    launcher, library = FOUND[ANY]
    given = [f"{name}={value}" for name, value in {**ALLOWED, **library}.items()]
    started = shlex.join(["env", *given, launcher, "-n", "{ranks}"])  # the checkout's path may have spaces
    return write(folder, {"seeds": 2, "ranks": 3, "launcher": started}, {**(changes or {}), **REVEALED}, "ranks.yaml")


def test_ranks_give_the_bits_of_one_process(tmp_path: Path) -> None:
    done = sweep(with_ranks(tmp_path, {"runtime": {"kind": "mpi"}}))  # which one process alone refuses
    assert done.code == 0, done.err
    plain = write(tmp_path, {"seeds": 2})
    assert sweep(plain, out="undisturbed").code == 0
    check_same(tmp_path / "out", tmp_path / "undisturbed")


def _of_mpi() -> BaseException:
    from mpi4py import MPI

    return MPI.Exception(MPI.ERR_OTHER)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (lambda: SiloLostError("silo rank 2: was killed.", {2: "was killed"}), supervisor.LOST),
        (_of_mpi, supervisor.LOST),
        (lambda: BusyError("another process is at it"), supervisor.BUSY),
        (lambda: TrainingError("not finite"), supervisor.FAILED),
        (lambda: RuntimeError("unforeseen"), supervisor.FAILED),
    ],
)
def test_a_rank_that_is_lost_is_not_noted_as_a_failure_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Callable[[], BaseException], code: int
) -> None:
    """Whoever finds it lost first: the launcher, the server's look at its silos' processes, or a call of MPI's."""
    path = write(tmp_path, {"seeds": 1})
    made = manifest.plan(expand(path), path, tmp_path / "out")
    manifest.write(made)
    raised = error()

    def fail(*_: object) -> tuple[int, str]:
        raise raised

    monkeypatch.setattr("dpfl_plugin.experiments.supervisor._run_row", fail)
    with pytest.raises(type(raised)):
        run_ranks(made.folder, 0)
    task = task_of(made.folder_of(made.rows[0]))
    assert task is not None and task["code"] == code and str(raised).rstrip(".") in task["reason"]


@pytest.mark.slow
def test_interrupted_they_go_on_to_the_same_bits(tmp_path: Path) -> None:
    (tmp_path / "slow_rounds.py").write_text(SLOW)
    path = with_ranks(tmp_path, LONG)
    command = [sys.executable, "-m", "dpfl_plugin", "sweep", str(path), "--out", str(tmp_path / "out"), "--jobs", "2"]
    slow = {**ENVIRONMENT, "GO_ON": str(tmp_path / "go on")}
    process = subprocess.Popen(command, env=slow, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: deep_in_all(tmp_path / "out"))
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 4, said
    assert status(path)["counts"]["pending"] == 2
    assert sweep(path).code == 0
    assert sweep(write_long(tmp_path), "--jobs", 2, out="undisturbed").code == 0
    check_same(tmp_path / "out", tmp_path / "undisturbed")
    assert all(len(began(tmp_path / "out", run)) == 2 for run in rows(tmp_path / "out"))
