"""`dpfl tune`."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from dpfl_plugin.api.experiment import Experiment
from dpfl_plugin.api.runs import Run
from dpfl_plugin.api.tuning import REPORT, plan_tuning, tune_file
from dpfl_plugin.cli.progress import reporter_on
from dpfl_plugin.cli.run import EXIT_CODES, stopping
from dpfl_plugin.runs.folder import to_json
from dpfl_plugin.tuning.told import failed_winner


def print_plan(path: Path, settings: list[str], out: Path | None, *, as_json: bool) -> None:
    """Print what a tuning will release and cost; nothing is written or trained."""
    said = plan_tuning(Experiment(path, tuple(settings)), out=out)
    lines = said.pop("lines")
    print(to_json(said) if as_json else "\n".join(lines))


def score_of(winner: Run) -> str:
    """The winner's score on test records, as `dpfl run` reports it; it is for the owner, and not in the report."""
    if winner.score is None:
        return "The winner's model was not evaluated on test records."
    measures = winner.result.get("measures") or {}
    auc = ((measures.get("pooled") or measures.get("mean_of_silos") or {}).get("model") or {}).get("auc")
    return (
        f"The winner on its test records: {winner.score_name.replace('_', ' ')} {winner.score:.4f}"
        + ("" if auc is None else f", AUC {auc:.4f}")
        + ". It is computed from raw records, as dpfl run reports it; no epsilon covers it."
    )


def tune(path: Path, settings: list[str], out: Path | None, *, verbose: bool, as_json: bool) -> int:
    """Tune what a file describes, or go on with it, and print the report; returns the exit code."""
    console = Console(stderr=True)
    experiment = Experiment(path, tuple(settings))
    folder, result = tune_file(experiment, out, reporter=reporter_on(console, "", verbose), stopping=stopping)
    if result is None:
        print(f"dpfl: interrupted; what is done is saved in {folder}. The same command goes on.", file=sys.stderr)
        return EXIT_CODES["interrupted"]
    if as_json:
        print(to_json(result), end="")
    else:
        print((folder / REPORT).read_text(), end="")
        print(f"\n{score_of(Run.open(result['winner']['folder']))}")
    if failed := failed_winner(result, why=True):
        print(f"dpfl: {failed}", file=sys.stderr)
    return EXIT_CODES["failed"] if failed else 0
