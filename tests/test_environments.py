"""`launchers/env`: where it puts environments, what it does after a failure, and that platforms keep their packages."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# A Python that makes environments of itself and notes what it is asked for; its pip is the script $PIP.
FAKE_PYTHON = """#!/bin/bash
case $* in
  *_base_executable*) echo "$0" ;;
  *sys.version*) echo "3.11 of tests" ;;
  *"-m venv"*) echo venv >>"$CALLS"; mkdir -p "${@: -1}/bin"; cp "$0" "${@: -1}/bin/python"; eval "$AFTER_VENV" ;;
  *"-m pip install"*) echo "pip ${*: -1}" >>"$CALLS"; eval "$PIP" ;;
esac
"""
SUCCEEDS = """
echo Installing collected packages: all; echo Successfully installed all
printf '#!/bin/sh\necho trained' >"${0%python}dpfl"; chmod +x "${0%python}dpfl"
"""
NO_INDEX = "echo ERROR: No matching distribution found for torch; exit 1"
KILLED = "echo Installing collected packages: torch; kill -9 $$"
FULL_DISK = "echo Installing collected packages: torch; echo torch >/dev/full && echo Successfully installed torch"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return checkout_at(tmp_path / "checkout")


def checkout_at(folder: Path) -> Path:
    """A checkout with launchers and what they read."""
    shutil.copytree(ROOT / "launchers", folder / "launchers")
    for name in ("pyproject.toml", *(path.name for path in ROOT.glob("constraints*.txt"))):
        shutil.copy(ROOT / name, folder)
    python = folder.parent / "python"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    return folder


def launch(
    checkout: Path, launcher: str, *arguments: str, pip: str = SUCCEEDS, **variables: str
) -> subprocess.CompletedProcess[str]:
    tmp_path = checkout.parent
    environment = {
        **{"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        **{"DPFL_PYTHON": str(tmp_path / "python"), "CALLS": str(tmp_path / "calls"), "PIP": pip},
    }
    return subprocess.run(
        [checkout / "launchers" / launcher, *arguments],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def calls(checkout: Path) -> list[str]:
    """What Python was asked for since the last call of this function."""
    path = checkout.parent / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return [line.replace(str(checkout), "") for line in lines]


def test_an_environment_that_is_up_to_date_is_left_alone(checkout: Path) -> None:
    """It keeps the extras that it has when pyproject.toml changes, and is made anew where the checkout was moved."""
    assert launch(checkout, "env", "dev").returncode == 0 and calls(checkout) == ["venv", "pip [dev]"]
    assert launch(checkout, "env").returncode == 0 and not calls(checkout)
    assert launch(checkout, "env", "mpi").returncode == 0 and calls(checkout) == ["pip [dev,mpi]"]
    (checkout / "pyproject.toml").write_text("")
    quickstart = launch(checkout, "quickstart")
    assert quickstart.returncode == 0 and calls(checkout) == ["pip [dev,mpi]"] and quickstart.stdout == "trained\n"
    moved = checkout.rename(checkout.with_name("moved"))
    assert launch(moved, "env").returncode == 0 and calls(moved) == ["venv", "pip [dev,mpi]"]


@pytest.mark.parametrize("arguments", [["env"], ["env", "dev"], ["env", "fedml"], ["quickstart"]])
@pytest.mark.parametrize(
    ("pip", "last"), [(NO_INDEX, "distribution found for torch"), (KILLED, "packages: torch"), (FULL_DISK, "No space")]
)
def test_a_failure_of_pip_is_shown_and_the_next_run_repairs_it(
    checkout: Path, arguments: list[str], pip: str, last: str
) -> None:
    failed = launch(checkout, *arguments, pip=pip)
    assert failed.returncode == 1 and last in failed.stderr and "ready" not in failed.stderr
    assert not list(checkout.glob(".venv*/.installed"))
    again = launch(checkout, "quickstart", pip=pip)
    assert again.returncode == 1 and last in again.stderr
    assert launch(checkout, *arguments).returncode == 0 and list(checkout.glob(".venv*/.installed"))
    assert launch(checkout, "quickstart").stdout == "trained\n"


@pytest.mark.parametrize(
    ("pip", "repaired"), [(NO_INDEX, []), (KILLED, ["venv", "pip [dev]"]), (FULL_DISK, ["venv", "pip [dev]"])]
)
def test_an_environment_is_made_anew_where_pip_stopped_in_the_middle(
    checkout: Path, pip: str, repaired: list[str]
) -> None:
    """Where it did not begin to install, what is there stays usable."""
    launch(checkout, "env", "dev")
    assert launch(checkout, "env", "mpi", pip=pip).returncode == 1
    calls(checkout)
    assert launch(checkout, "env", "dev").returncode == 0 and calls(checkout) == repaired


def test_a_failure_is_shown_where_the_log_cannot_be_written(checkout: Path) -> None:
    done = launch(checkout, "env", pip=NO_INDEX, AFTER_VENV='ln -sf /dev/full "${@: -1}/install.log"')
    assert done.returncode == 1 and "distribution found for torch" in done.stderr


def test_a_second_install_that_fails_is_a_failure(checkout: Path) -> None:
    """FedML itself, after its dependencies."""
    done = launch(checkout, "env", "fedml", pip=f"if [[ ${{*: -1}} == fedml ]]; then {NO_INDEX}; fi; {SUCCEEDS}")
    assert done.returncode == 1 and "distribution found for torch" in done.stderr
    assert calls(checkout) == ["venv", "pip [fast,fedml]", "pip fedml"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "variables", "last"),
    [
        (resource.RLIM_INFINITY, {"PIP_NO_INDEX": "1"}, "No matching distribution found for setuptools"),
        (100_000, {}, "File too large"),
    ],
)
def test_a_real_pip_that_fails_is_a_failure(checkout: Path, limit: int, variables: dict[str, str], last: str) -> None:
    """No index, and files that cannot be written."""
    environment = {**os.environ, "DPFL_PYTHON": sys.executable, "PIP_FIND_LINKS": str(checkout / "launchers")}
    done = subprocess.run(
        [checkout / "launchers" / "quickstart"],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert done.returncode == 1 and last in done.stderr, done.stderr
    assert not (checkout / ".venv" / ".installed").exists()


@pytest.mark.parametrize(
    ("folder", "platform", "linked"),
    [
        ("plain", "flower", False),
        ("with space", "flower", True),
        ("with space", "nvflare", True),
        ("with space", "fedml", False),
    ],
)
def test_flower_and_nvflare_are_installed_where_there_are_no_spaces(
    tmp_path: Path, folder: str, platform: str, linked: bool
) -> None:
    """Or it finds neither its tables nor its interpreter."""
    checkout = checkout_at(tmp_path / folder)
    for _ in range(2):
        done = launch(checkout, "env", platform)
        assert done.returncode == 0, done.stderr
    venv = checkout / f".venv-{platform}"
    assert venv.is_symlink() == linked and venv.resolve().is_relative_to(tmp_path / "cache") == linked
    assert len(calls(checkout)) == (3 if platform == "fedml" else 2)


@pytest.mark.parametrize(
    "platform",
    [
        pytest.param("fedml", marks=pytest.mark.fedml),
        pytest.param("flower", marks=pytest.mark.flower),
        pytest.param("nvflare", marks=pytest.mark.nvflare),
    ],
)
def test_installing_beside_a_platform_changes_none_of_its_packages(tmp_path: Path, platform: str) -> None:
    """What the documents say of an environment that has the platform; pip is asked, and installs nothing."""
    python = ROOT / f".venv-{platform}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"there is no environment of {platform}: make it with launchers/env {platform}")
    report = tmp_path / "report.json"
    options = ["--dry-run", "--no-input", "--quiet", "--disable-pip-version-check", "--no-build-isolation"]
    command = [python, "-m", "pip", "install", *options, "--report", report, f"{ROOT}[{platform}]"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [one["metadata"]["name"] for one in json.loads(report.read_text())["install"]]
    assert found in (["dpfl-plugin"], []), "so many other packages would be installed, or be changed"
