"""`dpfl tune`."""

from __future__ import annotations

import sys
from pathlib import Path

from dpfl_plugin.api.experiment import Experiment
from dpfl_plugin.api.progress import command_reporter
from dpfl_plugin.api.tuning import plan_tuning, tune_file
from dpfl_plugin.cli.output import show
from dpfl_plugin.interrupts import INTERRUPTED


def print_plan(path: Path, settings: list[str], out: Path | None, *, as_json: bool) -> None:
    """Print what a tuning will release and cost; nothing is written or trained."""
    show(plan_tuning(Experiment(path, tuple(settings)), out=out), as_json)


def tune(path: Path, settings: list[str], out: Path | None, *, verbose: bool, as_json: bool) -> int:
    """Tune what a file describes, or go on with it, and print the report; returns the exit code."""
    reporter = command_reporter(verbose=verbose)
    try:
        tuning = tune_file(Experiment(path, tuple(settings)), out, reporter=reporter, exits=True)
    except KeyboardInterrupt:
        return INTERRUPTED
    show(tuning, as_json)
    if tuning.failure:
        print(f"dpfl: {tuning.failure}", file=sys.stderr)
    return int(bool(tuning.failure))
