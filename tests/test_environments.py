"""Where `launchers/env` puts environments, and what installing into one that is there changes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAUNCHER = ROOT / "launchers" / "env"
# What `launchers/env PLATFORM` does before it installs, by a stand-in for Python that writes down its arguments.
MAKE = """
source "$1"; ROOT=$2; PLATFORM=$3; place "$3"
find_python() { BASE=python_of_tests; }
python_of_tests() { printf '%s' "${@: -1}" >"$ROOT/made"; mkdir -p "${@: -1}/bin"; }
make_venv
place "$3"; printf '%s' "$PYTHON"
"""


@pytest.mark.parametrize(
    ("checkout", "platform", "linked"),
    [
        ("plain", "flower", False),
        ("with space", "flower", True),
        ("with space", "nvflare", True),
        ("with space", "fedml", False),
    ],
)
def test_flower_and_nvflare_are_installed_where_there_are_no_spaces(
    tmp_path: Path, checkout: str, platform: str, linked: bool
) -> None:
    """Or it finds neither its tables nor its interpreter."""
    root, cache = tmp_path / checkout, tmp_path / "cache"
    root.mkdir()
    done = subprocess.run(
        ["bash", "-c", MAKE, "bash", LAUNCHER, root, platform],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    venv, made = root / f".venv-{platform}", Path((root / "made").read_text())
    assert venv.is_symlink() == linked and venv.resolve() == made == Path(done.stdout).parent.parent
    assert made.is_relative_to(cache) == linked and ("is a link to" in done.stderr) == linked


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
