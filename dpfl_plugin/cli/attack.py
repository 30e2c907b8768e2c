"""`dpfl attack`: what the server of a run could learn from its messages, with the configured noise and without."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dpfl_plugin.api.attacks import FPR, NOISE, AttackReport, Measured, Options, attacked
from dpfl_plugin.api.experiment import Experiment
from dpfl_plugin.cli import fitting
from dpfl_plugin.runs.folder import to_json


def attack_file(experiment: Experiment, options: Options, out: Path | None, *, as_json: bool) -> None:
    """Attack one run of a file by both attacks; print what came of it, and draw it in a folder."""
    folder = out or Path("attack") / experiment.loaded().variants[0].config.name

    def say(text: str) -> None:
        if not as_json:
            print(text, file=sys.stderr, flush=True)

    report = attacked(experiment, options, say, folder)
    if as_json:
        print(to_json(report.as_plain()))
    else:
        _show(report, folder)


def _show(report: AttackReport, folder: Path) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    table = Table(title=report.title, title_justify="left")
    table.add_column("what the server achieves")
    for name in report.membership:
        table.add_column(name, justify="right")
    if NOISE in report.membership:
        table.add_column("no attack can\nexceed, on average", justify="right")
    for row in _rows(report):
        table.add_row(*row)
    fitting.show(console, table)
    names = ["membership.png", *(["inversion.png"] if report.inversion else []), "attack.json"]
    for line in [*report.notes, f"written: {', '.join(str(folder / name) for name in names)}"]:
        console.print(line, soft_wrap=True, markup=False)


def _rows(report: AttackReport) -> list[list[str]]:
    """A line of the table for each number."""
    measured, inverted = report.membership, report.inversion
    noisy = measured.get(NOISE)
    bounds = [] if noisy is None else [f"{noisy.bound.auc():.3f}", f"{float(noisy.bound.tpr(FPR)):.3f}"]
    rows = [
        ["membership: area under the ROC curve (chance: 0.5)", *(_range(one.auc) for one in measured.values())],
        [f"membership: members found at {FPR:.0%} false alarms", *(_range(one.tpr) for one in measured.values())],
    ]
    rows = [[*row, *limit] for row, limit in zip(rows, [bounds[:1], bounds[1:]], strict=True)]
    if inverted:
        single = [f"{one.correlation_single:.3f}" for one in inverted.values()]
        rows.append(["inversion: correlation with the record, batch of 1", *single])
        whole = [one.batch for one in inverted.values() if one.batch is not None]
        if whole:
            count = len(whole[0].originals)
            rows.append([f"inversion: the same, batch of {count}", *(f"{b.correlations.mean():.3f}" for b in whole)])
            rows.append(["inversion: with records that were not in that batch", *(f"{b.control:.3f}" for b in whole)])
    return rows


def _range(value: Measured) -> str:
    return f"{value.value:.3f} ({value.low:.3f} to {value.high:.3f})"
