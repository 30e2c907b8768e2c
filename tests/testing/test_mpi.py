"""The MPI check without MPI: what stands in for mpirun runs the command in one process, rightly or wrongly."""

import unittest

import pytest

from dpfl_plugin.testing import AlgorithmContract, ContractError, mpi


@pytest.fixture
def mpirun(tmp_path, monkeypatch):
    """Installs a script for `mpirun -n N python -m mpi4py -m dpfl_plugin run ...` that changes the command's end."""

    def install(more=""):
        script = tmp_path / "mpirun"
        script.write_text(f'#!/bin/sh\ntest "$1 $4 $5 $6" = "-n -P -m mpi4py" || exit 9\npython=$3; shift 6\n{more}\n')
        script.chmod(0o755)
        monkeypatch.setattr(mpi, "_mpirun", lambda: str(script))
        monkeypatch.setattr(mpi, "missing", lambda: None)

    return install


def contract():
    made = AlgorithmContract()
    made.algorithm = {"module": "tests.testing.right:Right", "local_steps": 2, "local_lr": 0.1}
    made.config = {"rounds": 2}
    made.ranks = (2,)
    return made


def test_another_result_is_noticed(mpirun):
    mpirun('exec "$python" "$@" --set algorithm.local_lr=0.2')
    with pytest.raises(ContractError, match=r"mpirun -n 2 gives another result than one process: another model"):
        contract().test_mpi()


def test_a_job_that_fails_is_told_with_what_it_said(mpirun):
    mpirun("echo no slots left >&2; exit 3")
    with pytest.raises(ContractError, match=r"exit code 3:\nno slots left"):
        contract().test_mpi()


def test_without_mpi_it_is_skipped_with_the_reason(monkeypatch):
    monkeypatch.setattr(mpi, "missing", lambda: "no runtime 'mpi' is registered")
    with pytest.raises(unittest.SkipTest, match="no runtime 'mpi'"):
        contract().test_mpi()
