"""Small sweeps, and what they have to have left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from benchmarks.soak import Outcome, outcomes
from dpfl_plugin.config.sweep import Row
from dpfl_plugin.experiments import manifest
from dpfl_plugin.runs.checkpoint import load_facts
from tests.cli.command import BASE, merged

# At ranks the server gets what one process has anyway: losses and accuracies, to be compared.
REVEALED: dict[str, Any] = {"evaluation": {"reveal": "server"}}


def write(folder: Path, sweep: dict[str, Any], changes: dict[str, Any] | None = None, name: str = "sweep.yaml") -> Path:
    """A sweep file with `BASE`, changed."""
    path = folder / name
    path.write_text(yaml.safe_dump({**merged(BASE, changes or {}), "sweep": sweep}, sort_keys=False))
    return path


# SCAFFOLD that has time to be disturbed: after some rounds each call takes a second, until the file that $GO_ON names
# is there. Without $GO_ON it waits for nothing.
SLOW = """
import os
import time
from dataclasses import dataclass

from dpfl_plugin.algorithms.scaffold import Scaffold

CALLS = [0]


@dataclass(frozen=True, kw_only=True)
class Slow(Scaffold):
    def local_update(self, down, silos, oracle, plan):
        CALLS[0] += 1
        until = time.monotonic() + (CALLS[0] > 24)
        while "GO_ON" in os.environ and time.monotonic() < until and not os.path.exists(os.environ["GO_ON"]):
            time.sleep(0.01)
        return super().local_update(down, silos, oracle, plan)
"""
LONG: dict[str, Any] = {
    "rounds": 200,  # so many seconds, if nobody says that it may go on
    "checkpoint": {"every": 5},
    "algorithm": {"name": None, "module": "slow_rounds:Slow"},
}


def write_long(folder: Path, sweep: dict[str, Any] | None = None, name: str = "sweep.yaml") -> Path:
    """Two runs that take minutes until there is the file $GO_ON."""
    (folder / "slow_rounds.py").write_text(SLOW)
    return write(folder, {"seeds": 2, **(sweep or {})}, LONG, name)


def deep_in_all(out: Path) -> bool:
    """Whether each run of a folder has got past a checkpoint."""
    begun = any(out.glob("sweeps/*/manifest.jsonl"))
    if not begun:
        return False
    facts = [load_facts(folder) for run in rows(out) for folder in out.glob(f"runs/*/{run}/checkpoint")]
    return len(facts) == len(rows(out)) and all(found and found["rounds"] for found in facts)


def rows(out: Path) -> dict[str, Row]:
    """All runs of the sweeps in a folder, by id."""
    return {row.id: row for folder in manifest.sweeps_in(out) for row in manifest.read(folder).rows}


def left(out: Path) -> dict[str, Outcome]:
    """What every run of a folder that has ended came to, by id; all of them were done."""
    found = outcomes(out)
    assert len(found) == len([*out.glob("runs/*/*/result.json")])
    return found


def began(out: Path, run: str) -> list[int]:
    """The rounds from which a run was begun or went on, in order."""
    (log,) = out.glob(f"runs/*/{run}/log.txt")
    return [int(line.split()[3]) for line in log.read_text().splitlines() if line.split()[2:3] == ["rounds"]]


def check_same(out: Path, undisturbed: Path, *but: str) -> None:
    """Nothing but the runs ``but`` was lost, and each is to the bit, evaluation and charge what it is undisturbed."""
    expected, found = left(undisturbed), left(out)
    assert set(found) == set(rows(out)) - set(but) and set(found) <= set(expected)
    for run, what in found.items():
        assert what == expected[run], run
