"""Silo ranks of several owners: each keeps its limits, whatever rank 0 asks for."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dpfl_plugin.owners.lifetime import read_reservations
from dpfl_plugin.privacy.ledger import Ledger
from tests.cli.command import write
from tests.mpi.launch import ALLOWED, ANY, FOUND, needs_mpi

pytestmark = [*needs_mpi, pytest.mark.slow]
PRIVACY = {"noise_multiplier": None, "epsilon": 3.0, "delta": 1e-5, "randomness": "fresh"}
EACH = (
    'export DPFL_LIMITS=$LIMITS/limits-${OMPI_COMM_WORLD_RANK:-$PMI_RANK}.yaml; exec "$0" -m mpi4py -m dpfl_plugin "$@"'
)


def limits(folder, rank, **values):
    path, send = folder / f"limits-{rank}.yaml", ["metrics", "record_counts"]
    given = {"folder": folder / f"owner-{rank}", "epsilon": 8, "delta": "1e-4", "send": send, **values}
    path.write_text("".join(f"{key}: {value}\n" for key, value in given.items()))
    path.chmod(0o600)


def job(folder, config):
    """A server and two silo ranks; rank 0 has no records, and its limits do not matter."""
    mpirun, library = FOUND[ANY]
    command = [mpirun, "-n", "3", "bash", "-c", EACH, sys.executable, "run", str(config), "--out", str(folder / "runs")]
    environment = {**os.environ, **ALLOWED, **library, "LIMITS": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)


def test_each_rank_keeps_the_limits_of_its_owner(tmp_path):
    for rank in (0, 1, 2):
        limits(tmp_path, rank)
    done = job(tmp_path, write(tmp_path, {"name": "one", "privacy": PRIVACY}))
    assert done.returncode == 0, done.stderr
    for rank, silos in ((1, {0, 2}), (2, {1, 3})):
        path = tmp_path / f"owner-{rank}" / "data.lifetime.jsonl"
        assert {charge.silo for charge in Ledger.open(path, append=False)} == silos
        assert [one.epsilon for one in read_reservations(path)] == [3.0]
        log = tmp_path / f"owner-{rank}" / f"rank-{rank}.log"
        assert f"rank {rank}: silos {', '.join(map(str, sorted(silos)))}: agreed epsilon 3" in log.read_text()
    limits(tmp_path, 2, epsilon=3.5)
    done = job(tmp_path, write(tmp_path, {"name": "two", "privacy": PRIVACY}))
    assert done.returncode != 0
    (log,) = re.findall(r"rank 2 on .* is in (\S+\.log)", done.stderr)
    said = Path(log).read_text()
    Path(log).unlink()
    assert "dpfl: rank 2: error: " in said and " is left. Nothing was released" in said.split("limits-2.yaml")[-1]
    assert "limits-2.yaml" not in done.stderr and "is left" not in done.stderr and "lifetime" not in done.stderr
    assert "not within this owner's limits" in done.stderr
    assert [one.epsilon for one in read_reservations(tmp_path / "owner-2" / "data.lifetime.jsonl")] == [3.0]


def test_what_the_owner_does_not_let_be_sent_is_not_sent(tmp_path):
    for rank in (0, 1, 2):
        limits(tmp_path, rank, send=[])
    done = job(tmp_path, write(tmp_path, {"privacy": PRIVACY}))
    assert done.returncode != 0
    assert "not within this owner's limits" in done.stderr and "record_counts" not in done.stderr
    log = Path(re.findall(r"rank [12] on .* is in (\S+\.log)", done.stderr)[0])
    assert "does not let numbers of records be sent (record_counts)" in log.read_text()
