"""The oldest and the newest version of Flower that the adapter knows, at the seam."""

import os
import subprocess

import pytest

from tests.flower.processes import BIN, OFF, ROOT, needs_flower

pytestmark = [pytest.mark.flower, pytest.mark.slow, needs_flower]


@pytest.mark.parametrize("version", ["1.38.0", "1.42.0"])
def test_the_seam_holds_at_both_ends_of_what_is_supported(tmp_path, version):
    """Flower alone is installed anew: its pins on other packages are those of the environment's version."""
    python, place = str(BIN / "python"), tmp_path / "flwr"
    install = [python, "-m", "pip", "install", "-q", "--no-deps", "--target", str(place), f"flwr=={version}"]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"flwr {version} cannot be installed here: {done.stderr[-300:]}")
    environment = {**os.environ, **OFF, "PYTHONPATH": f"{place}{os.pathsep}{ROOT}"}
    shown = [python, "-c", "from importlib import metadata; print(metadata.version('flwr'))"]
    assert subprocess.run(shown, env=environment, capture_output=True, text=True).stdout.strip() == version
    chosen = "relied_on or (same_bits and linear) or plain_training or (own_privacy and Fixed) or stays_there"
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default", "-k", chosen]
    ran = subprocess.run(
        [*command, f"--rootdir={ROOT}", "inside.py"],
        cwd=ROOT / "tests" / "flower",
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-2000:]
