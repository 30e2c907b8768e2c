"""How long the command line takes to start: `python -m benchmarks.startup [--runs 10] [--json]`.

Whole processes, in turns, after one of each that is not counted; `python -c pass` is the interpreter's own part.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.table import table

Times = dict[str, list[float]]
"""Seconds of each run, by command."""

COMMANDS: Final[dict[str, list[str]]] = {
    "dpfl --help": [str(Path(sys.executable).with_name("dpfl")), "--help"],
    'python -c "import dpfl_plugin.cli.main"': [sys.executable, "-c", "import dpfl_plugin.cli.main"],
    'python -c "import torch"': [sys.executable, "-c", "import torch"],
    'python -c "pass"': [sys.executable, "-c", "pass"],
}


def measure(runs: int) -> Times:
    """Wall-clock seconds of ``runs`` runs of each command.

    Raises:
        subprocess.CalledProcessError: a command failed.
    """
    times: Times = {name: [] for name in COMMANDS}
    for number in range(runs + 1):
        for name, command in COMMANDS.items():
            began = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            if number:
                times[name].append(time.perf_counter() - began)
    return times


def times_table(times: Times) -> str:
    """Median, minimum and maximum."""
    rows = [
        [f"`{name}`", *(f"{value:.3f}" for value in (statistics.median(seconds), min(seconds), max(seconds)))]
        for name, seconds in times.items()
    ]
    return table(["command", "median s", "min s", "max s"], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description="Start-up time.")
    parser.add_argument("--runs", type=int, default=10, help="of each command (default: 10)")
    parser.add_argument("--json", action="store_true", help="median seconds as JSON")
    options = parser.parse_args(arguments)
    times = measure(options.runs)
    if options.json:
        print(json.dumps({name: statistics.median(seconds) for name, seconds in times.items()}))
    else:
        print(times_table(times))


if __name__ == "__main__":
    main()
