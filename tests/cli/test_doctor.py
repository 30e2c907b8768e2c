"""What `dpfl doctor` finds, and what it calls wrong; on real ranks in tests/mpi."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from dpfl_plugin.cli import doctor
from tests.cli.command import dpfl


def rank(number: int, **changes: Any) -> dict[str, Any]:
    same = {"host": "a", "cores": 4, "gpus": 0, "device": "cpu", "package": "p", "torch": "2", "numpy": "2"}
    return {"rank": number, "processor": "x", **same, **changes}


def test_alone_it_shows_versions_and_this_machine() -> None:
    done = dpfl("doctor", "--json")
    found = done.json
    assert found["versions"]["torch"] and found["ranks"][0]["cores"] >= 1
    assert done.code == bool(found["wrong"])
    text = dpfl("doctor").out
    assert f"torch {found['versions']['torch']}" in text and "rank 0 on" in text
    assert ("nothing is wrong" in text) == (not found["wrong"])


def test_equal_ranks_are_right() -> None:
    assert list(doctor.wrong_with_ranks([rank(0), rank(1), rank(2, host="b")])) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"package": "q"}, "ranks 2 run other code of dpfl_plugin"),
        ({"torch": "3"}, "ranks 2 have another torch"),
        ({"numpy": "3"}, "ranks 2 have another numpy"),
        ({"processor": "y"}, "ranks 2 have another processor"),
    ],
)
def test_ranks_that_differ_are_named(changes: dict[str, Any], said: str) -> None:
    (wrong,) = doctor.wrong_with_ranks([rank(0), rank(1), rank(2, **changes)])
    assert said in wrong


def test_more_silo_ranks_than_cores_are_told_of() -> None:
    """As a note: a trial on a laptop does it."""
    ranks = [rank(number, cores=2) for number in range(4)]
    assert not list(doctor.wrong_with_ranks(ranks))
    (note,) = doctor.crowded(ranks)
    assert "a: 3 silo ranks share 2 cores" in note


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            {"library": None, "mpirun": "/m", "mpirun_of": "MPICH", "problem": "no module"},
            "cannot be used: no mod",
        ),
        ({"library": "Open MPI v5", "mpirun": None, "mpirun_of": None}, "there is no mpirun"),
        ({"library": "Open MPI v5", "mpirun": "/m", "mpirun_of": "MPICH"}, "every rank would be alone"),
        ({"library": "MPICH Version: 5", "mpirun": "/m", "mpirun_of": "Open MPI"}, "every rank would be alone"),
    ],
)
def test_an_mpirun_and_a_library_that_do_not_fit_are_told_of(found: dict[str, Any], said: str) -> None:
    (wrong,) = doctor.wrong_with_mpi(found)
    assert said in wrong


@pytest.mark.parametrize(
    "found",
    [
        {"library": None, "mpirun": None, "mpirun_of": None, "problem": "no module"},
        {"library": "Open MPI v5.0.11", "mpirun": "/m", "mpirun_of": "Open MPI"},
        {"library": "Intel(R) MPI Library 2021", "mpirun": "/m", "mpirun_of": "Intel MPI"},
        {"library": "MPICH Version: 5.0.2", "mpirun": "/m", "mpirun_of": "another MPI"},
    ],
)
def test_what_fits_or_is_not_there_at_all_is_right(found: dict[str, Any]) -> None:
    assert list(doctor.wrong_with_mpi(found)) == []


def test_extras_that_are_missing_are_listed_with_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None if name in ("numba", "flwr") else name)
    text = dpfl("doctor").out
    assert "not installed: fast (compiled loops). To have them: launchers/env fast, or" in text
    assert "pip install 'dpfl-plugin[fast]'" in text and "not in this environment: flower;" in text
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    others = {"openmpi", "mpich", "docs", "dev", "mutants"}  # mpi with its own library; for developers
    assert {*doctor.EXTRAS, *doctor.APART, *others} == set(declared["optional-dependencies"])
    for extra, (package, _) in doctor.EXTRAS.items():
        called = {"skimage": "scikit-image"}.get(package, package)
        assert any(one.startswith(called) for one in declared["optional-dependencies"][extra])
