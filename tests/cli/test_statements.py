"""Whatever became of a run: ledger, `ledger.json`, `privacy.md`, `silos.csv` and `dpfl account` say one epsilon.

It is worked out here once more, from the ledger's lines and by other code (`tests.privacy.oracle`); and all that got
noise is counted, by its bits.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from dpfl_plugin.privacy.correlation import Chain
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.runs.folder import RunFolder
from tests.cli.command import dpfl, run, write
from tests.cli.losing import losing
from tests.cli.test_resume import crash, folder_of
from tests.privacy import oracle

M = 4
PHASES = {"name": "localized_mb_sgd", "phase_rounds": [2, 2], "regularisation": 0.5, "lr": 0.1}
OF_GAO = {"local_steps": None, "local_lr": None}  # of the file's algorithm
LOSE: dict[str, Any] = {"runtime": {"on_silo_failure": "continue"}}
RUNS: dict[str, tuple[dict[str, Any], str]] = {
    "phases, drawn": (
        {"algorithm": {**PHASES, **OF_GAO}, "rounds": 4, "silo_rate": 0.5, "privacy": {"sampler": "poisson"}},
        "nothing",
    ),
    "phases, made again": (
        {"algorithm": {**PHASES, **OF_GAO, "passes": "one"}, "rounds": 4, "silo_rate": 0.5, "checkpoint": {"every": 1}},
        "made again",
    ),
    "phases, lost": ({"algorithm": {**PHASES, **OF_GAO}, "rounds": 4, "silo_rate": 0.5, **LOSE}, "lost"),
    "correlated": (
        {
            "algorithm": {"local_steps": 3},
            "privacy": {"sampler": "cyclic", "record_rate": 0.25},
            "checkpoint": {"every": 2},
        },
        "crash",
    ),
    "scores, and a budget": (
        {
            "rounds": 4,
            "algorithm": {"name": "fedavg"},
            "silo_rate": 0.5,
            "privacy": {"epsilon": 4.0, "noise_multiplier": None, "budget_view": "third_party"},
            "private_evaluation": {"share": 0.25, "every": 2, "noise_multiplier": 6.0},
            "personalise": {"local_steps": 2, "local_lr": 0.1},
            "checkpoint": {"every": 1},
        },
        "made again",
    ),
    "stopped by scores": (
        {
            "early_stopping": {"every": 1, "patience": 1, "share": 0.25, "noise_multiplier": 2.0},
            "privacy": {"sampler": "full", "record_rate": None},
        },
        "nothing",
    ),
    "budgets of single silos, and a cap": (
        {
            "max_participations": 3,
            "privacy": {"epsilon": 3.0, "noise_multiplier": None},
            "silos": {"1": {"epsilon": 1.0}, "2": {"record_rate": 0.25}},
        },
        "nothing",
    ),
    "lost, with noise that changes": ({"privacy": {"schedule": {"name": "geometric", "beta": 0.8}}, **LOSE}, "lost"),
}


@contextlib.contextmanager
def seen() -> Iterator[set[bytes]]:
    """Digests of all values that got noise."""
    found: set[bytes] = set()
    add, chain, inside = Gaussian.__call__, Chain.__call__, [False]

    def added(self: Gaussian, total: Any, sensitivity: float, rng: Any, out: Any, factor: float = 1.0) -> None:
        add(self, total, sensitivity, rng, out, factor)
        if not inside[0]:
            found.add(hashlib.sha256(out.contiguous().numpy().tobytes()).digest())

    def chained(self: Chain, total: Any, sensitivity: float, rng: Any, out: Any) -> None:
        inside[0] = True
        chain(self, total, sensitivity, rng, out)
        inside[0] = False
        found.add(hashlib.sha256(out.contiguous().numpy().tobytes()).digest())

    with mock.patch.object(Gaussian, "__call__", added), mock.patch.object(Chain, "__call__", chained):
        yield found


def ran(config: Path, how: str) -> RunFolder:
    """A run that something became of."""
    fresh = ("--set", "privacy.randomness=fresh") if how in ("made again", "lost") else ()
    if how == "lost":
        with losing({2: {1: "rank 2 was killed"}}, late=True):
            return RunFolder(Path(run(config, *fresh)["folder"]))
    if how == "nothing":
        done = dpfl("run", config, "--out", config.parent / "runs")
    else:
        crash(config, 3, *fresh)
        done = dpfl("run", config, "--out", config.parent / "runs", "--resume", *fresh)
    assert done.code in (0, 3), done.err
    return RunFolder(folder_of(config))


@pytest.mark.parametrize(("changes", "how"), RUNS.values(), ids=RUNS)
def test_all_say_the_epsilon_that_follows_from_the_ledger(tmp_path: Path, changes: dict[str, Any], how: str) -> None:
    with seen() as made:
        files = ran(write(tmp_path, changes), how)
    facts, held = oracle.read(files.ledger)
    said, delta = json.loads(files.statement.read_text()), 1e-5
    assert len(made) == sum(count for line, (count, _) in held.items() if line.noise != "not-run")
    views, near = said["views"], {"rel": 1e-3, "abs": 1e-4}
    realised = dict.fromkeys(range(M), 0.0) | oracle.by_silo(held, delta)
    assert views["server"]["epsilon"] == pytest.approx(max(realised.values()), **near)
    assert {one["silo"]: one["epsilon"] for one in said["silos"]} == pytest.approx(realised, **near)
    with files.silos.open() as table:
        for row in csv.DictReader(table):
            own = realised[int(row["silo"])]
            assert float(row.get("epsilon") or own) == pytest.approx(own, **near)
    lines = r"^\| (server, for the rounds that took place|server, worst case|third party) \| (\S+) \|"
    page = dict(re.findall(lines, files.privacy.read_text(), re.MULTILINE))
    worst, third = views["server"]["worst_case_epsilon"], views["third_party"]["epsilon"]
    for name, value in zip(page, (views["server"]["epsilon"], worst, third), strict=True):
        assert value <= float(page[name]) <= value * 1.001
    rows = {
        row["view"]: row["epsilon"] for row in dpfl("account", files.path, "--json").json if row["accountant"] == "PLD"
    }
    assert (rows["server"], rows["server, worst case"], rows["third party"]) == (
        views["server"]["epsilon"],
        worst,
        third,
    )
    if "max_participations" in changes:  # no silo was in more rounds than it may be
        assert worst == pytest.approx(max(realised.values()), **near)
        for silo, own in facts["silos"].items():
            assert realised[int(silo)] <= own.get("epsilon", 3.0)
        return
    assert worst == pytest.approx(max(oracle.everywhere(held, silo, delta) for silo in realised), **near)
    drawn = changes.get("silo_rate", 1.0)
    mixture = max(oracle.everywhere(held, silo, delta, lambda _: drawn) for silo in realised)
    assert third == pytest.approx(worst if said["lost"] else mixture, **near)
