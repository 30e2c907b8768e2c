"""SCAFFOLD whose server reads the run's ledger on disk whenever a round's messages have reached it.

It appends what it read to the file $DPFL_WITNESS: releases, and those of them that the ledger does not charge.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpfl_plugin.algorithms.base import RoundPlan, Setting
from dpfl_plugin.algorithms.scaffold import Scaffold
from dpfl_plugin.core.vectors import Vectors

LEDGER = "ledger.jsonl"


@dataclass(frozen=True, kw_only=True)
class Witnessed(Scaffold):
    """pause: seconds that each round takes more, so that it can be disturbed."""

    pause: float = 0.0

    def round_plan(self, server: Vectors, round: int, setting: Setting, rng: np.random.Generator) -> RoundPlan:
        return replace(super().round_plan(server, round, setting, rng), phase=str(round))

    def aggregate(self, server: Vectors, mean_up: Vectors, plan: RoundPlan) -> Vectors:
        round, path, known = int(plan.phase), _own_ledger(), Path(os.environ["DPFL_WITNESS"])
        attempts = noise_ids(_lines(path), round)
        before = [line for line in witnessed(known) if (line["ledger"], line["round"]) == (str(path), round)]
        for silo in plan.participants:  # each message that was ever seen has a name of noise of its own
            seen = sum(silo in line["silos"] for line in before) + 1
            if len(attempts.get(silo, ())) < seen:
                raise SystemExit(f"round {round}: silo {silo} released {seen} times and was charged less")
        line = {"ledger": str(path), "round": round, "silos": list(plan.participants)}
        with known.open("a") as file:
            file.write(json.dumps(line) + "\n")
        time.sleep(self.pause)
        return super().aggregate(server, mean_up, plan)


def witnessed(path: Path) -> list[dict[str, Any]]:
    """Each round that a server saw: the ledger, the round and the silos."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def noise_ids(charges: Iterable[dict[str, Any]], round: int) -> dict[int, set[str]]:
    """Names of noise under which silos are charged for a round."""
    found: dict[int, set[str]] = {}
    for charge in charges:
        for ranges, names in charge.get("silos", ()) if charge.get("round") == round else ():
            for first, last in ranges:
                for silo in range(first, last + 1):
                    found.setdefault(silo, set()).update(names)
    return found


def _lines(path: Path) -> Iterable[dict[str, Any]]:
    """What is on the disk, by a file of one's own."""
    return [json.loads(line) for line in path.read_bytes().splitlines() if line.endswith(b"}")]


def _own_ledger() -> Path:
    """The ledger that this process has open."""
    links = (os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd") if _is_open(number))
    return next(Path(link) for link in links if link.endswith(LEDGER))


def _is_open(number: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{number}")
