"""What a command does not need, it does not import: torch takes a second of the processor and 180 MiB."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dpfl_plugin.privacy.events import Charge, SampledGaussian
from dpfl_plugin.privacy.ledger import Ledger

LIGHT = frozenset({"numpy", "pydantic", "yaml"})
HEAVY = frozenset({"torch", "scipy", "sklearn", "pandas", "matplotlib", "numba", "opacus", "dp_accounting", "jinja2"})
HEAVY |= {"scipy.signal", "scipy.stats"}  # most of what dp_accounting would take
ACCOUNTANTS = frozenset({"scipy", "dp_accounting"})
TOGETHER = """
import json, os, runpy, sys

asked, heavy = json.loads(sys.argv[1]), sys.argv[2].split()
for words in asked:  # forks of one process, which has imported nothing yet
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 0
        try:
            if words[0] == "import":
                __import__(words[1])
            else:
                sys.argv = ["dpfl", *words]
                from dpfl_plugin.cli.main import main

                main()
        except SystemExit as end:
            code = end.code or 0
        os.write(writing, json.dumps([code, sorted(set(heavy) & set(sys.modules))]).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as said:
        print(said.read(), flush=True)
"""

# As a user gives them, and what they may import of `LIGHT` and `HEAVY`.
COMMANDS: dict[str, frozenset[str]] = {
    "import dpfl_plugin": frozenset(),
    "--version": frozenset(),
    "--help": frozenset(),
    "run --help": frozenset({"pydantic"}),
    "plan --help": frozenset({"pydantic"}),
    "status {sweep}": LIGHT,
    "list accountants": LIGHT | ACCOUNTANTS,
    "list datasets": LIGHT,  # those whose plugins are no code of torch; algorithms, models and engines are
    "list schedules": LIGHT | ACCOUNTANTS,
    "init study --from {table} --label ill": LIGHT | {"pandas", "jinja2"},  # pandas is looked for by pyarrow
    "import dpfl_plugin.experiments.reports.report": LIGHT,
    "import dpfl_plugin.privacy.account": LIGHT,
    "account {run} --json": LIGHT | ACCOUNTANTS,
    "account {shared} --json": LIGHT | ACCOUNTANTS,
    "epsilon --noise-multiplier 2 --steps 3 --delta 1e-5": LIGHT | ACCOUNTANTS,
    "calibrate --noise-multiplier 2 --epsilon 3 --delta 1e-5": LIGHT | ACCOUNTANTS,
}


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, set[str]]]:
    """By command: (exit code, what it imported)."""
    folder = tmp_path_factory.mktemp("imports")
    places = {"run": _run(folder / "run"), "shared": _shared(folder / "shared.jsonl"), "sweep": folder / "sweep"}
    (folder / "sweep").mkdir()
    places["table"] = folder / "table.csv"
    places["table"].write_text("dose,ill\n" + "".join(f"{n / 7:.2f},{n % 2}\n" for n in range(40)))
    asked = [command.format(**places).split() for command in COMMANDS]
    done = subprocess.run(
        [sys.executable, "-c", TOGETHER, json.dumps(asked), " ".join(LIGHT | HEAVY)],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
        cwd=folder,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {command: (code, set(names)) for command, (code, names) in zip(COMMANDS, found, strict=True)}


def _charges() -> list[Charge]:
    release = SampledGaussian(noise_multiplier=4.0, sampler="fixed", rate=0.5, neighbouring="replace_one")
    return [
        Charge(round=round, silo=silo, release=release, count=1, noise_id=f"a.{round:032x}.0")
        for round in range(3)
        for silo in range(2)
    ]


def _run(folder: Path) -> Path:
    """A run's folder, of which the ledger and the configuration are left."""
    folder.mkdir()
    with Ledger(folder / "ledger.jsonl", {"noise_multiplier": 4.0, "num_records": [20, 20]}) as ledger:
        ledger.append(_charges())
    (folder / "config.yaml").write_text(
        "rounds: 3\n"
        "data: {dataset: {name: synthetic, records_per_silo: 20}, num_silos: 2}\n"
        "algorithm: {name: scaffold, local_steps: 1, local_lr: 0.1}\n"
        "privacy: {clip_norm: 1.0, noise_multiplier: 4.0, record_rate: 0.5, delta: 1.0e-5}\n"
    )
    return folder


def _shared(path: Path) -> Path:
    """A ledger that runs share, with one of them."""
    facts = {"data_sha256": "0" * 64, "num_silos": 2, "delta": 1e-5, "drawn": False, "draws_decided": False}
    with Ledger(path, {"shared": "1"}) as ledger:
        ledger.begin_run({**facts, "noise": "a", "name": "a", "largest_rate": 0.5, "started": "2026-01-01T00:00:00Z"})
        ledger.append(_charges())
    return path


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_imports_what_it_needs(command: str, imported: dict[str, tuple[int, set[str]]]) -> None:
    code, names = imported[command]
    assert code == (2 if command.startswith("status") else 0)  # no sweep is there
    assert names <= COMMANDS[command], f"dpfl {command} imported {sorted(names - COMMANDS[command])}"
