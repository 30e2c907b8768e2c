"""`launchers/mpirun` and `launchers/srun`: what they refuse, and ranks as `dpfl doctor` sees them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.mpi.launch import ALLOWED, FOUND, needs_mpi

ROOT = Path(__file__).parents[2]


def launcher(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if key not in ALLOWED}
    command = [str(ROOT / "launchers" / name), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**kept, **environment}, timeout=600
    )


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("mpirun", ["run", "x.yaml"], "the first argument must be -n N"),
        ("mpirun", ["-n", "1", "run", "x.yaml"], "at least 2 ranks are needed"),
        ("mpirun", ["-n", "3"], "a command of dpfl is missing"),
        ("srun", ["--ntasks=3", "run", "x.yaml"], "write -- between"),
        ("srun", ["--ntasks=3", "run", "a -- b.yaml"], "write -- between"),
        ("srun", ["--ntasks=3", "--"], "a command of dpfl is missing"),
    ],
)
def test_a_wrong_call_is_one_message(name: str, arguments: list[str], said: str) -> None:
    done = launcher(name, *arguments)
    assert done.returncode == 1 and said in done.stderr and not done.stdout


@pytest.mark.parametrize("name", ["mpirun", "srun"])
def test_help_shows_how_to_call_it(name: str) -> None:
    done = launcher(name, "--help")
    assert done.returncode == 0 and f"launchers/{name}" in done.stdout and "set -euo" not in done.stdout


@pytest.mark.parametrize("mpi", FOUND or [pytest.param("none", marks=needs_mpi)])
@pytest.mark.mpi
@pytest.mark.skipif(not (ROOT / ".venv").exists(), reason="launchers need the environment .venv of the checkout")
def test_the_doctor_sees_every_rank_without_help_from_the_environment(mpi: str) -> None:
    """As root and with more ranks than cores too; the mpirun named decides on the library."""
    done = launcher("mpirun", "-n", "3", "doctor", "--json", DPFL_MPIRUN=FOUND[mpi][0])
    found = json.loads(done.stdout)
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1, 2], done.stderr
    assert all(rank["latency"] > 0 and rank["mb_per_second"] > 0 for rank in found["ranks"][1:])
    assert ("Open MPI" in found["mpi"]["library"]) == (mpi == "openmpi")
    assert not any("mpirun" in text for text in found["wrong"])
    assert len({rank["package"] for rank in found["ranks"]}) == 1


@pytest.mark.parametrize(
    ("name", "arguments", "asked"),
    [("mpirun", ["-n", "2", "doctor"], "--version"), ("srun", ["--", "doctor"], "--mpi=list")],
)
def test_a_program_that_goes_on_talking_does_not_end_the_launcher(
    tmp_path: Path, name: str, arguments: list[str], asked: str
) -> None:
    """What is wanted is in its first line; whoever stopped reading there would kill it by SIGPIPE, at random."""
    lines = f'case "$*" in *{asked}*) printf "pmi2 Open MPI) 5.0\\n"; sleep 0.2; printf "more\\n"; exit;; esac'
    done = with_a_program(tmp_path, name, f"{lines}\necho started", *arguments)
    assert (done.returncode, done.stdout) == (0, "started\n"), done.stderr


ENDS = {
    "kill -TERM $PPID; sleep 1; kill -USR1 $$": (7, "interrupted while the ranks were starting: nothing was run"),
    "exit 137": (137, "Continue from the last checkpoint, if there is one, by:  {} -n 2 run a\\ b.yaml --resume\n"),
    "exit 4": (4, ""),
}


@pytest.mark.parametrize(("does", "code", "word"), [(does, *ends) for does, ends in ENDS.items()], ids=ENDS)
def test_how_a_job_ended_is_said(tmp_path: Path, does: str, code: int, word: str) -> None:
    does = f'[[ $* == *--version* ]] && echo "Open MPI) 5.0" && exit\n{does}'
    for resume in ((), ("--resume",)):
        done = with_a_program(tmp_path, "mpirun", does, "-n", "2", "run", "a b.yaml", *resume)
        assert done.returncode == code, done.stderr
        assert word.format(tmp_path / "launchers" / "mpirun") in done.stderr and bool(word) == bool(done.stderr)


def test_an_srun_that_reaches_no_cluster_is_not_taken_for_one_without_mpi(tmp_path: Path) -> None:
    said = 'echo "srun: error: lookup failed"; echo "srun: fatal: no configuration source"; exit 1'
    done = with_a_program(tmp_path, "srun", said, "--", "doctor")
    assert done.returncode == 1 and "srun does not work here: srun: fatal: no configuration source" in done.stderr
    assert "dev-cluster env" in done.stderr and "--mpi" not in done.stderr


def with_a_program(tmp_path: Path, name: str, does: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A launcher, with another program for the one that it starts."""
    folder = shutil.copytree(ROOT / "launchers", tmp_path / "launchers", dirs_exist_ok=True)
    bin = tmp_path / ".venv" / "bin"
    bin.mkdir(parents=True, exist_ok=True)
    (bin / name).write_text(f"#!/bin/bash\n{does}\n")
    (bin / "python").write_text("#!/bin/bash\necho MPICH\n")
    for program in bin.iterdir():
        program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{bin}:{os.environ['PATH']}", "DPFL_MPIRUN": "mpirun"}
    return subprocess.run([folder / name, *arguments], capture_output=True, text=True, check=False, env=environment)
