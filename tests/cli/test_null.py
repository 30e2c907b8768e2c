"""`--set sweep=null` and its like: what a file makes of its runs is left out, and its base run is what remains."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import dpfl, one_message, write

BASE: dict[str, Any] = {
    "rounds": 2,
    "privacy": {"noise_multiplier": None, "epsilon": 4.0, "delta": 1e-3, "record_rate": 0.2},
}
MORE: dict[str, Any] = {
    "sweep": {"seeds": 2},
    "tune": {"grid": {"algorithm.local_lr": [0.1, 0.5]}, "rungs": [1], "eta": 2, "share": 0.2},
    "compare": [["fedavg", "scaffold"]],
    "variants": {"fedavg": {"algorithm": {"name": "fedavg"}}, "scaffold": {}},
}
NULLS = [word for key in MORE for word in ("--set", f"{key}=null")]
COMMANDS: dict[str, list[str]] = {
    "account": ["account", "run.yaml", "--json"],
    "attack": ["attack", "run.yaml", "--out", "attack"],
    "audit": ["audit", "run.yaml", "--canaries", "4"],
    "check": ["check", "run.yaml"],
    "list": ["list", "engines", "--for", "run.yaml"],
    "plan": ["plan", "run.yaml", "--json"],
    "run": ["run", "run.yaml", "--json"],
}


def words(text: str) -> str:
    """Without numbers: times are those of the moment."""
    return " ".join(re.sub(r"[\d.,]+", "#", text).split())


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_null_leaves_the_base_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    outputs = []
    for more in ({}, MORE):
        write(tmp_path, BASE | more, "run.yaml")
        done = dpfl(*command, *NULLS)  # also where the file has no such key
        assert done.code == 0, done.err
        outputs.append(words(done.out))
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("command", ["sweep", "tune"])
def test_what_makes_several_runs_says_what_is_missing(tmp_path: Path, command: str) -> None:
    path = write(tmp_path, BASE | {key: MORE[key] for key in ("sweep", "tune")})
    one_message(dpfl(command, path, *NULLS), f"has no {command}. Add one")
    other = "tune" if command == "sweep" else "sweep"
    done = dpfl(command, path, "--set", f"{other}=null", *({"sweep": ["--dry-run"], "tune": ["--plan"]}[command]))
    assert done.code == 0, done.err
