"""MPI ranks that a real Slurm starts: the bits of one process, whatever happens to a rank or to its job."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.soak import of_the_cluster
from dpfl_plugin.config.sweep import expand
from dpfl_plugin.experiments import manifest
from dpfl_plugin.experiments.supervisor import _become_ranks
from tests.cli.command import run
from tests.cli.command import write as write_run
from tests.cli.sweeping import LONG, REVEALED, SLOW, began, check_same, deep_in_all, rows, write
from tests.cli.test_sweep import status
from tests.mpi.launch import FOUND, needs_mpi
from tests.mpi.test_same_bits import compare
from tests.slurm.conftest import Cluster
from tests.slurm.test_sweeps import submit

ROOT = Path(__file__).parents[2]
pytestmark = [
    *needs_mpi,
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.skipif("mpich" not in FOUND, reason="no MPICH, which Slurm's own pmi2 starts; see $DPFL_MPI"),
]
NODES_AND_RANKS = {"nodes": 2, "ntasks": 3}
SHOWN = {"data": {"num_silos": 7}, **REVEALED}


KINDS = {"pmi2": "mpich", "pmix": "openmpi"}


def ready(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, kind: str) -> Cluster:
    """The cluster, with what starts the ranks of an MPI in the environment that jobs inherit."""
    if KINDS[kind] not in FOUND:
        pytest.skip(f"no mpirun of {KINDS[kind]}; see $DPFL_MPI")
    if kind == "pmix":
        try_it = ["srun", "--mpi=pmix", "true"]
        tried = subprocess.run(try_it, env=cluster.environment, capture_output=True, text=True, check=False)
        if tried.returncode:
            pytest.skip(f"this Slurm cannot start ranks by pmix (Debian: libpmix-dev): {tried.stderr.strip()}")
    for name, value in {"SLURM_MPI_TYPE": kind, "DPFL_PYTHON": sys.executable, **FOUND[KINDS[kind]][1]}.items():
        monkeypatch.setenv(name, value)
    return cluster


@pytest.fixture
def pmi2(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return ready(cluster, monkeypatch, "pmi2")


def test_the_script_for_many_nodes_gives_the_bits_of_one_process(
    pmi2: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = run(write_run(tmp_path, SHOWN))
    config = write_run(tmp_path, {**SHOWN, "runtime": {"kind": "mpi"}}, "ranks.yaml")
    monkeypatch.setenv("CONFIG", str(config))
    monkeypatch.setenv("OUT", str(tmp_path / "there"))
    options = [f"--{name}={value}" for name, value in NODES_AND_RANKS.items()]
    script = [str(ROOT / "slurm" / "many_nodes.sbatch")]
    submitted = ["sbatch", "--wait", "--parsable", *options, f"--output={tmp_path}/said", *script]
    monkeypatch.setenv("SLURM_MPI_TYPE", "none")  # the ranks would not see each other
    done = subprocess.run(submitted, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode and not (tmp_path / "there").exists()
    assert "srun started 3 processes" in (tmp_path / "said").read_text()
    monkeypatch.setenv("SLURM_MPI_TYPE", "pmi2")
    done = subprocess.run(submitted, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, (done.stderr, (tmp_path / "said").read_text())
    (result,) = (tmp_path / "there").glob("*/*/result.json")
    compare(here, json.loads(result.read_text()), "many nodes")


@pytest.mark.parametrize("own", [None, "ucx"])
@pytest.mark.parametrize("name", ["script", "launcher", "sweep"])
def test_mpich_is_told_to_keep_its_messages_short_unless_the_user_says_otherwise(
    pmi2: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, own: str | None
) -> None:
    """Slurm's pmi2 cannot read what MPICH sends over UCX once it has more than 1,023 bytes: a matter of luck."""
    said = tmp_path / "netmod"
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text(f'#!/bin/sh\necho pmi2 "${{MPIR_CVAR_CH4_NETMOD:-none}}" | tee {said}\n')
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{srun.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CONFIG", "unused")
    if own:
        monkeypatch.setenv("MPIR_CVAR_CH4_NETMOD", own)
    if name == "script":
        command = ["bash", str(ROOT / "slurm" / "many_nodes.sbatch")]
    elif name == "launcher":
        if not (ROOT / ".venv").exists():
            pytest.skip("launchers need the environment .venv of the checkout")
        command = [str(ROOT / "launchers" / "srun"), "--ntasks=3", "--", "doctor"]
    else:
        path = write(tmp_path, {"seeds": 1, "ranks": 3, "launcher": "srun"})
        made = manifest.plan(expand(path), path, tmp_path / "out")
        monkeypatch.setattr(os, "execvpe", lambda name, words, given: subprocess.run(words, env=given, check=True))
        _become_ranks(made, made.rows[0])
        command = ["true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert said.exists() and said.read_text().split() == ["pmi2", own or "ofi"], done.stderr


@pytest.mark.skipif(not (ROOT / ".venv").exists(), reason="launchers need the environment .venv of the checkout")
@pytest.mark.parametrize("kind", KINDS)
def test_the_launcher_srun_gives_the_bits_of_one_process(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The launcher chooses pmix for Open MPI and pmi2 for MPICH by itself."""
    ready(cluster, monkeypatch, kind)
    monkeypatch.delenv("SLURM_MPI_TYPE")
    here = run(write_run(tmp_path, SHOWN))
    command = ["run", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "there"), "--json"]
    asked = [f"--{name}={value}" for name, value in NODES_AND_RANKS.items()]
    done = subprocess.run(
        [ROOT / "launchers" / "srun", *asked, "--", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    compare(here, json.loads(done.stdout), "srun")


def test_the_launcher_mpirun_works_in_an_allocation(cluster: Cluster, tmp_path: Path) -> None:
    """Without any help of Slurm's: for an MPI that this Slurm cannot start."""
    here = run(write_run(tmp_path, SHOWN))
    command = [str(ROOT / "launchers" / "mpirun"), "-n", "3", "run", str(tmp_path / "config.yaml"), "--out"]
    wrap = shlex.join([*command, str(tmp_path / "there")])
    if not (ROOT / ".venv" / "bin" / "mpirun").exists():
        pytest.skip("launchers need the environment .venv of the checkout, with an MPI in it")
    cluster.ask("sbatch", "--wait", "--ntasks=3", "--nodes=1", f"--output={tmp_path}/said", f"--wrap={wrap}")
    (result,) = (tmp_path / "there").glob("*/*/result.json")
    compare(here, json.loads(result.read_text()), "mpirun")


def with_ranks(folder: Path) -> Path:
    (folder / "slow_rounds.py").write_text(SLOW)
    return write(folder, {"seeds": 2, "ranks": 3, "slurm": {"nodes": 2}}, {**LONG, **REVEALED}, "ranks.yaml")


@pytest.mark.parametrize(
    ("kind", "disturbance"), [("pmi2", "time limit"), ("pmi2", "rank"), ("pmi2", "node"), ("pmix", "rank")]
)
def test_a_sweep_that_asks_for_ranks(
    cluster: Cluster, long: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, disturbance: str
) -> None:
    ready(cluster, monkeypatch, kind)
    go_on, out = tmp_path / "go on", tmp_path / "out"
    monkeypatch.setenv("GO_ON", str(go_on))
    path = with_ranks(tmp_path)
    job = submit(path)  # two tasks of three ranks on two nodes each
    cluster.wait(lambda: deep_in_all(out))
    disturb(cluster, job, disturbance)
    go_on.touch()
    cluster.drained()
    if disturbance == "node":
        cluster.control("node", "n2", "up")
        cluster.wait(lambda: "down" not in cluster.ask("sinfo", "-h", "-o", "%t"))
    assert status(path)["counts"]["done"] == 2, status(path)
    check_same(out, long)
    times = [len(began(out, run)) for run in rows(out)]
    assert set(times) <= ({1, 2} if disturbance == "rank" else {2}) and 2 in times, times


def disturb(cluster: Cluster, job: str, what: str) -> None:
    """Do something to a sweep of two tasks, and wait until it has had its effect."""
    tasks = [f"{job}_{task}" for task in (0, 1)]
    if what == "rank":
        # A rank is killed of one of the runs, which is then begun again. The command line of `srun` has the word, too.
        processes = [pid for pid, _ in of_the_cluster(os.environ["SLURM_CONF"], b"sweep-run")]
        names = (b"\0PMI_RANK=", b"\0PMIX_RANK=")
        killed = next(
            pid for pid in processes if any(name in Path(f"/proc/{pid}/environ").read_bytes() for name in names)
        )
        with contextlib.suppress(ProcessLookupError):
            os.kill(killed, signal.SIGKILL)
        cluster.wait(lambda: killed not in dict(of_the_cluster(os.environ["SLURM_CONF"], b"sweep-run")))
        return
    if what == "time limit":
        for task in tasks:
            cluster.ask("scancel", "--batch", "--signal=USR1", task)
    elif what == "node":
        cluster.control("node", "n2", "crash")
    cluster.wait(lambda: all(cluster.field(task, "Restarts") == "1" for task in tasks))
