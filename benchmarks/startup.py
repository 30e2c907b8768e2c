"""What commands take before they do anything: `python -m benchmarks.startup [--runs 5] [--json]`.

Processor seconds of whole processes, in turns, after one of each that is not counted; and their ratio to those of
`python -c "import torch"` in the same turns.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.table import table

Times = dict[str, list[float]]
"""Processor seconds of each run, by command."""

DPFL: Final = str(Path(sys.executable).with_name("dpfl"))
TORCH: Final = 'python -c "import torch"'
COMMANDS: Final[dict[str, list[str]]] = {
    "dpfl --help": [DPFL, "--help"],
    "dpfl account LEDGER": [DPFL, "account", "shared.jsonl"],
    "dpfl run, one private round": [DPFL, "run", "one.yaml", "--out", "{number}"],
    TORCH: [sys.executable, "-c", "import torch"],
    'python -c "pass"': [sys.executable, "-c", "pass"],
}
CONFIG: Final = """
name: one
rounds: 1
data: {dataset: {name: csv, files: "*.csv", label_column: ill, classes: [0, 1]}, partition: natural}
model: logistic
algorithm: {name: fedavg, local_steps: 5, local_lr: 0.5}
privacy: {epsilon: 4, delta: 1.0e-5}
"""


def prepare(folder: Path) -> None:
    """A small table of each of three sites, a configuration, and a ledger that its run began."""
    rng = random.Random(0)
    for site in range(3):
        rows = [(rng.gauss(0, 1), rng.gauss(0, 1)) for _ in range(200)]
        lines = ["age,pressure,ill", *(f"{a:.3f},{b:.3f},{int(a + b > 0)}" for a, b in rows)]
        (folder / f"{site}.csv").write_text("\n".join(lines) + "\n")
    (folder / "one.yaml").write_text(CONFIG)
    command = [DPFL, "run", "one.yaml", "--out", "first", "--ledger", "shared.jsonl"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def measure(runs: int) -> Times:
    """Processor seconds of ``runs`` runs of each command.

    Raises:
        subprocess.CalledProcessError: a command failed.
    """
    times: Times = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        for number in range(runs + 1):
            for name, command in COMMANDS.items():
                began = _processor()
                words = [word.format(number=number) for word in command]
                environment = {**os.environ, "OMP_NUM_THREADS": "1"}
                subprocess.run(words, check=True, cwd=folder, env=environment, capture_output=True)
                if number:
                    times[name].append(_processor() - began)
    return times


def _processor() -> float:
    """Seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def times_table(times: Times) -> str:
    """Medians: seconds, seconds above torch's, and the ratio to it."""
    rows = []
    for name, seconds in times.items():
        pairs = list(zip(seconds, times[TORCH], strict=True))
        more, ratio = (statistics.median(found) for found in ([a - b for a, b in pairs], [a / b for a, b in pairs]))
        rows.append([f"`{name}`", f"{statistics.median(seconds):.2f}", f"{more:+.2f}", f"{ratio:.2f}"])
    return table(["command", "processor s", "more than torch", "ratio"], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description="Start-up time.")
    parser.add_argument("--runs", type=int, default=5, help="of each command (default: 5)")
    parser.add_argument("--json", action="store_true", help="median seconds as JSON")
    options = parser.parse_args(arguments)
    times = measure(options.runs)
    if options.json:
        print(json.dumps({name: statistics.median(seconds) for name, seconds in times.items()}))
    else:
        print(times_table(times))


if __name__ == "__main__":
    main()
