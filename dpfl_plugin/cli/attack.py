"""`dpfl attack`: what the server of a run could learn from its messages, with the configured noise and without."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dpfl_plugin import terminal
from dpfl_plugin.api.attacks import NOISE, AttackReport, Options, attacked
from dpfl_plugin.api.experiment import Experiment
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
    for row in report.rows:
        table.add_row(*row)
    terminal.show_table(console, table)
    names = ["membership.png", *(["inversion.png"] if report.inversion else []), "attack.json"]
    for line in [*report.notes, f"written: {', '.join(str(folder / name) for name in names)}"]:
        console.print(line, soft_wrap=True, markup=False)
