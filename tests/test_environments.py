"""Where `launchers/env` puts environments."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

LAUNCHER = Path(__file__).parents[1] / "launchers" / "env"
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
    [("plain", "flower", False), ("with space", "flower", True), ("with space", "fedml", False)],
)
def test_flower_is_installed_where_there_are_no_spaces(
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
