"""Small sweeps, and what they have to have left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from benchmarks.soak import Outcome, outcomes
from dpfl_plugin.config.sweep import Row
from dpfl_plugin.sweeps import manifest
from tests.cli.command import BASE, merged


def write(folder: Path, sweep: dict[str, Any], changes: dict[str, Any] | None = None, name: str = "sweep.yaml") -> Path:
    """A sweep file with `BASE`, changed."""
    path = folder / name
    path.write_text(yaml.safe_dump({**merged(BASE, changes or {}), "sweep": sweep}, sort_keys=False))
    return path


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
