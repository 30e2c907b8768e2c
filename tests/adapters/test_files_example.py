"""The third platform: an example over plain files, with its processes killed in the middle."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dpfl_plugin.privacy.ledger import Ledger

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "files" / "federation.py"
PATIENCE = 300.0  # for what takes seconds on a quiet machine


def test_a_platform_is_one_short_file():
    assert len(EXAMPLE.read_text().splitlines()) <= 150


def limits(folder, role):
    """What the owner of a silo's data sets on the silo's machine."""
    path = folder / f"limits-{role}.yaml"
    path.write_text(f"folder: {folder / f'owner-{role}'}\nepsilon: 6\ndelta: 1e-4\nmin_records: 100\nnum_classes: 10\n")
    path.chmod(0o600)
    return path


def start(folder, *role):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DPFL_LIMITS": str(limits(folder, "-".join(role)))}
    with (folder / f"log-{'-'.join(role)}").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, str(EXAMPLE), *role, "--folder", str(folder)], env=environment, stdout=log, stderr=log
        )


def wait_for(condition, folder):
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, "\n".join(path.read_text() for path in folder.glob("log-*"))
        time.sleep(0.05)


def rounds(folder):
    path = folder / "server" / "summary.json"
    return json.loads(path.read_text())["rounds"] if path.exists() else 0


@pytest.mark.slow
def test_a_silo_and_the_server_that_are_killed_come_back_and_the_run_ends_as_agreed(tmp_path):
    running = {name: start(tmp_path, *name.split()) for name in ("server", "silo 0", "silo 1", "silo 2")}
    try:
        for name, after in (("silo 1", 3), ("server", 6), ("silo 2", 9)):
            wait_for(lambda after=after: rounds(tmp_path) >= after, tmp_path)
            running[name].kill()
            running[name].wait()
            running[name] = start(tmp_path, *name.split())
        wait_for(lambda: all(one.poll() is not None for one in running.values()), tmp_path)
        assert [one.returncode for one in running.values()] == [0, 0, 0, 0]
    finally:
        for one in running.values():
            one.kill()
            one.wait()
    said = json.loads((tmp_path / "server" / "summary.json").read_text())
    # Each kill may cost a silo one more release, for which its budget has no room in the end: then it takes no part.
    assert said["status"] == ("done" if said["rounds"] == 20 else "budget_exhausted")
    assert said["rounds"] >= 17
    for silo in range(3):
        (own,) = (tmp_path / f"owner-silo-{silo}").glob(f"silo-{silo}-*")
        charges = list(Ledger.open(own / "ledger.jsonl", append=False))
        assert set(charges) == set(Ledger.open(own.parent / "data.lifetime.jsonl", append=False))
        assert said["silos"][str(silo)]["epsilon"] <= 6
        assert said["silos"][str(silo)]["rounds"] <= len(charges) <= 20
        assert "# Privacy statement: run, silo" in (own / "privacy.md").read_text()
