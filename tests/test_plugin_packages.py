"""Strangers' packages, installed beside dpfl as pip installs them: they pass their own tests, and run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PIP = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
pytestmark = pytest.mark.slow


def done(*command: str, folder: Path, path: Path | None = None) -> str:
    """What a command printed; with the packages at ``path``, and with dpfl as it is installed here."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **({"PYTHONPATH": str(path)} if path else {})}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def installed(package: Path, site: Path) -> Path:
    """A folder with the package in it, and nothing in this environment changed."""
    done(*PIP, "--no-build-isolation", "--target", str(site), str(package), folder=package)
    return site


def passes_and_runs(package: Path, site: Path, config: str, name: str) -> None:
    # Strictly: warnings that a stranger's tests would show are ours.
    pytest_ = [sys.executable, "-W", "error::DeprecationWarning", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    assert " passed" in done(*pytest_, "-W", "error", folder=package, path=site)
    run = [sys.executable, "-m", "dpfl_plugin", "run", config, "--set", "rounds=2", "--json"]
    assert name in done(*run, folder=package, path=site)


def test_the_example_is_installed_passes_and_runs(tmp_path):
    package = tmp_path / "plugin"
    shutil.copytree(ROOT / "examples" / "plugin", package)
    passes_and_runs(package, installed(package, tmp_path / "site"), "feddyn.yaml", "feddyn")


def test_what_dpfl_new_writes_is_installed_passes_and_runs(tmp_path):
    """By the command, as a stranger does."""
    done(sys.executable, "-m", "dpfl_plugin", "new", "algorithm", "my_method", folder=tmp_path)
    package = tmp_path / "my-method"
    passes_and_runs(package, installed(package, tmp_path / "site"), "my_method.yaml", "my_method")
