"""What ``--json`` of every command says, and its exit code; without times, places, versions, digests and prose."""

from __future__ import annotations

import functools
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from unittest import mock

import yaml

from tests.cli.command import dpfl, merged
from tests.goldens import runs
from tests.goldens.rows import HERE, Row

TABLES: Final = {
    "data": merged(runs.TABLES["data"], {"schema": {"columns": {"a": {"scale": None}, "b": {"scale": None}}}}),
}
SOLVED: Final[dict[str, Any]] = {"privacy": {"noise_multiplier": None, "epsilon": 3.0, "delta": 1e-3}}
TUNED: Final[dict[str, Any]] = {
    "rounds": 3,
    "evaluation": None,
    "privacy": {**SOLVED["privacy"], "sampler": "poisson"},
    "tune": {"grid": {"algorithm.local_lr": [0.1, 1.0]}, "rungs": [1], "eta": 2, "share": 0.25},
}
CONFIGURATIONS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "variants": {"variants": {"scaffold": {}, "fedavg": {"algorithm": {"name": "fedavg"}}}},
    "spent": {"rounds": 50, "privacy": {"epsilon": 1.0, "noise_multiplier": 8.0}},
    "diverges": {"algorithm": {"name": "fedavg", "local_lr": 1e308}, "rounds": 9},
    "wrong": {"rounds": 0},
    "solved": SOLVED,
    "third party": {**SOLVED, "silo_rate": 0.5, "max_participations": 2},
    "persons": runs.PERSONS,
    "tables": TABLES,
    "tuned": TUNED,
    "tuned tables": {**runs.TABLES, **TUNED},
    "swept": {"rounds": 2, "sweep": {"grid": {"algorithm.name": ["fedavg", "scaffold"]}, "seeds": [3]}},
    "large": {"data": {"dataset": {"records_per_silo": 60}}},
}
LEFT_OUT: Final = re.compile(
    r".*seconds.*|.*_us|.*_ms|time|finished|started|.*_at|since|.*sha256|.*hash|digest|fingerprint|key|id|run|code|package"
    r"|.*version.*|from|.*folder.*|memory.*|reason|.*_reason|why|text|description|summary|command.*|page|cost|current|changed"
)
PROSE: Final = "words"
MOST_OF_A_NAME: Final = 40  # letters; what is longer is prose
Words = tuple[object, ...]


class Stage:
    """A folder with configurations and records, and what earlier commands made of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        runs.write_records(folder)
        shutil.copy(HERE / "shared.jsonl", folder)  # of one run, on other records
        for name, changes in CONFIGURATIONS.items():
            self.write(name, merged(runs.BASE, changes))

    def write(self, name: str, values: dict[str, Any]) -> None:
        (self.folder / f"{name}.yaml").write_text(yaml.safe_dump(values, sort_keys=False))

    @functools.cached_property
    def finished(self) -> Path:
        """The folder of a run."""
        done = dpfl("run", "plain.yaml", "--out", "finished", "--json")
        assert done.code == 0, done.err
        return Path(done.json["folder"])

    @functools.cached_property
    def of_tables(self) -> Path:
        done = dpfl("run", "tables.yaml", "--out", "tables", "--json")
        assert done.code == 0, done.err
        return Path(done.json["folder"])

    @functools.cached_property
    def sweep(self) -> Path:
        done = dpfl("sweep", "swept.yaml", "--out", "swept")
        assert done.code == 0, done.err
        return Path("swept")

    @functools.cached_property
    def members(self) -> Path:
        done = dpfl("keys", "new", "north")
        assert done.code == 0, done.err
        return Path("north.key")

    @functools.cached_property
    def limits(self) -> Path:
        path = Path("limits.yaml")
        path.write_text(f"folder: {self.folder / 'owner'}\nepsilon: 8\ndelta: 1e-4\n")
        path.chmod(0o600)
        return path


NUMBERS: Final[Words] = ("--record-rate", "0.1", "--steps", "100", "--delta", "1e-5")
COMMANDS: Final[dict[str, Callable[[Stage], Words]]] = {
    "run": lambda stage: ("run", "plain.yaml", "--out", "run"),
    "run, finished before": lambda stage: ("run", "plain.yaml", "--out", stage.finished.parents[1]),
    "run, variants": lambda stage: ("run", "variants.yaml", "--out", "variants"),
    "run, budget spent": lambda stage: ("run", "spent.yaml", "--out", "spent"),
    "run, diverged": lambda stage: ("run", "diverges.yaml", "--out", "diverges"),
    "run, wrong": lambda stage: ("run", "wrong.yaml", "--out", "wrong"),
    "run, persons": lambda stage: ("run", "persons.yaml", "--out", "persons"),
    "tune": lambda stage: ("tune", "tuned.yaml", "--out", "tuned"),
    "tune, plan": lambda stage: ("tune", "tuned.yaml", "--out", "tuning", "--plan"),
    "tune, plan with statistics": lambda stage: ("tune", "tuned tables.yaml", "--out", "tuning", "--plan"),
    "limits": lambda stage: ("limits", stage.limits),
    "status of runs": lambda stage: ("status", stage.finished.parent.parent),
    "status of a sweep": lambda stage: ("status", stage.sweep),
    "account": lambda stage: ("account", "solved.yaml"),
    "account, variants": lambda stage: ("account", "variants.yaml"),
    "account of a run": lambda stage: ("account", stage.finished),
    "epsilon": lambda stage: ("epsilon", *NUMBERS, "--noise-multiplier", "1.1"),
    "calibrate": lambda stage: ("calibrate", *NUMBERS, "--epsilon", "2"),
    "plan": lambda stage: ("plan", "solved.yaml"),
    "plan, rounds": lambda stage: ("plan", "plain.yaml", "--solve", "rounds", "--epsilon", "5"),
    "plan, third party": lambda stage: ("plan", "third party.yaml", "--view", "third_party"),
    "audit": lambda stage: ("audit", "large.yaml", "--canaries", "20", "--rounds", "2"),
    "audit, wrong": lambda stage: ("audit", "plain.yaml", "--canaries", "0"),
    "attack": lambda stage: ("attack", "plain.yaml", "--repeats", "1", "--rounds", "2", "--out", "attack"),
    "check": lambda stage: ("check", "plain.yaml"),
    "check, tables": lambda stage: ("check", "tables.yaml"),
    "check, a table": lambda stage: ("check", "tables.yaml", "--file", "hospital-1.csv"),
    "check, wrong": lambda stage: ("check", "wrong.yaml"),
    "describe": lambda stage: ("describe", "tables.yaml", "--epsilon", "1", "--cross", "a,label", "--bins", "4"),
    "predict": lambda stage: ("predict", stage.of_tables, "hospital-0.csv", "--id", "patient"),
    "coefficients": lambda stage: ("coefficients", stage.of_tables),
    "list": lambda stage: ("list",),
    "list, engines": lambda stage: ("list", "engines", "--for", "plain.yaml"),
    "quickstart": lambda stage: ("quickstart", "--seeds", "1", "--set", "rounds=2", "--out", "quickstart"),
    "doctor": lambda stage: ("doctor",),
    "keys": lambda stage: ("keys", "show", stage.members),
}
OF_THE_MACHINE: Final = ("doctor",)
NAMES: Final = tuple(COMMANDS)
EVERYDAY: Final = ("run", "run, wrong", "account", "plan", "check", "predict", "limits")


def row(name: str, stage: Stage) -> Row:
    words = COMMANDS[name](stage)
    with mock.patch("dpfl_plugin.api.attack.write_pictures"):
        done = dpfl(*words, "--json")
    if name in OF_THE_MACHINE:
        return {"keys": sorted(done.json)}
    return {"code": done.code, "json": _lasting(done.json, stage.folder) if done.out else None}


def _lasting(value: Any, folder: Path) -> Any:
    """What a later version, on another machine, has to say again."""
    if isinstance(value, dict):
        return {key: _lasting(one, folder) for key, one in value.items() if not LEFT_OUT.fullmatch(key)}
    if isinstance(value, list):
        return [_lasting(one, folder) for one in value]
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, str):
        value = value.replace(str(folder), "FOLDER")
        return PROSE if len(value) > MOST_OF_A_NAME else value
    return value
