"""What a stop and a kill cost a run with fresh noise, and what saving its state does: `python -m benchmarks.kills`.

Runs of 60 rounds within epsilon 4 are sent a signal in a drawn round and go on. Writes the table in docs/faq.md. The
disk is that of $TMPDIR.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.pages import put
from benchmarks.table import table
from dpfl_plugin.cli.main import main as main_of_dpfl
from dpfl_plugin.experiments.supervisor import import_for_runs

ROUNDS: Final = 60
EPSILON: Final = 4.0
SECONDS: Final = (0.01, 1.0)  # of a round
NEVER: Final = ("--set", "checkpoint.seconds=1000000")
CONFIG: Final[dict[str, Any]] = {
    "name": "kills",
    "rounds": ROUNDS,
    "data": {
        "dataset": {"name": "synthetic", "num_features": 40, "num_classes": 10, "records_per_silo": 400},
        "num_silos": 10,
    },
    "algorithm": {"name": "scaffold", "local_steps": 1, "local_lr": 0.1},
    "privacy": {"randomness": "fresh", "clip_norm": 1.0, "epsilon": EPSILON, "record_rate": 0.2},
    "evaluation": {"every": ROUNDS},
}


@dataclass(frozen=True)
class Runs:
    """Runs of one configuration, each in a folder of its own."""

    folder: Path
    local_steps: int

    def begin(self, name: str, *more: str) -> BaseProcess:
        """`dpfl run` in a process that is forked, so that only this one imports its libraries."""
        path, out = self.folder / f"{self.local_steps}.yaml", self.folder / name
        path.write_text(yaml.safe_dump(CONFIG | {"algorithm": CONFIG["algorithm"] | {"local_steps": self.local_steps}}))
        argv = ["dpfl", "run", str(path), "--out", str(out), "--resume", *more]
        process = multiprocessing.get_context("fork").Process(target=_dpfl, args=(argv,))
        process.start()
        return process

    def result(self, name: str, *more: str) -> dict[str, Any]:
        self.begin(name, *more).join()
        (path,) = (self.folder / name).glob("*/*/result.json")
        result: dict[str, Any] = json.loads(path.read_text())
        return result

    def after_a_signal(self, name: str, number: int, rng: random.Random, seconds: float) -> dict[str, Any]:
        """The result of a run that got a signal ``seconds`` or less after a drawn round was charged, and went on."""
        process, wanted = self.begin(name), rng.randrange(5, ROUNDS - 5)
        while _charged(self.folder / name) < wanted:
            if not process.is_alive():
                raise RuntimeError(f"{self.folder / name}: it ended before it got a signal")
            time.sleep(0.002)
        time.sleep(rng.uniform(0, seconds))
        assert process.pid is not None
        os.kill(process.pid, number)
        process.join()
        return self.result(name)


def _dpfl(argv: list[str]) -> None:
    sys.argv = argv
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    main_of_dpfl()


def _charged(out: Path) -> int:
    """How many rounds a run's ledger has charges of."""
    return sum(len(set(re.findall(r'"round": ?(\d+)', path.read_text()))) for path in out.glob("*/*/ledger.jsonl"))


def _io(result: dict[str, Any]) -> float:
    """Seconds of a round that went into files."""
    profile = json.loads((Path(result["folder"]) / "profile.json").read_text())
    return float(profile["process"]["I/O"] / profile["rounds"])


def measure(folder: Path, seconds: float, tries: int, rng: random.Random) -> list[list[str]]:
    """Rows of the table, of rounds that take about ``seconds``."""
    steps = 20
    trial = Runs(folder, steps).result("trial", "--set", "rounds=10", *NEVER, "--profile")
    steps = max(1, round(steps * seconds / (trial["seconds"] / 10)))
    runs = Runs(folder, steps)
    whole, unsaved = (runs.result(name, "--profile", *more) for name, more in (("saved", ()), ("unsaved", NEVER)))
    took = unsaved["seconds"] / unsaved["rounds"]
    rows = [["none", [whole]]]
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL):
        name = f"{number.name}-{seconds}"
        rows.append([number.name, [runs.after_a_signal(f"{name}-{i}", number, rng, took) for i in range(tries)]])
    return [
        [
            f"{1000 * took:.0f} ms",
            name,
            str(len(results)),
            ", ".join(map(str, sorted({result["rounds"] for result in results}))),
            f"{max(result['epsilon']['server']['epsilon'] for result in results):.3f}",
            f"{1000 * (_io(whole) - _io(unsaved)):.1f} ms" if name == "none" else "",
        ]
        for name, results in rows
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kills", description=__doc__.splitlines()[0])
    parser.add_argument("--tries", type=int, default=3, help="runs that get a signal, for each signal (default: 3)")
    parser.add_argument("--seconds", type=float, action="append", help=f"of a round; default: {SECONDS}")
    parser.add_argument("--seed", type=int, default=0, help="of when signals come")
    options = parser.parse_args(arguments)
    rows, rng = [], random.Random(options.seed)
    import_for_runs()
    with tempfile.TemporaryDirectory() as folder:
        for seconds in options.seconds or SECONDS:
            where = Path(folder) / f"{seconds}"
            where.mkdir()
            rows += measure(where, seconds, options.tries, rng)
    made = table(["a round", "signal", "runs", "rounds in all", "epsilon, at most", "state saved in"], rows, ["signal"])
    print(made)
    if not options.seconds:
        put("docs/faq.md", "kills", made)


if __name__ == "__main__":
    main()
