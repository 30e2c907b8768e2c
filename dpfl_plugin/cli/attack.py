"""`dpfl attack`: what the server of a run could learn from its messages, with the configured noise and without."""

from __future__ import annotations

import math
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dpfl_plugin.api.attacks import NOISE, AttackReport, Options, attacked
from dpfl_plugin.api.experiment import Experiment
from dpfl_plugin.cli import fitting
from dpfl_plugin.runs.folder import to_json

FEW_NUMBERS = 8  # of a record; correlations over fewer are large by chance


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
        for guess in _guesses(report, row[0]):
            table.add_row(*guess)
    fitting.show(console, table)
    names = ["membership.png", *(["inversion.png"] if report.inversion else []), "attack.json"]
    for line in [*report.notes, *_verdicts(report), f"written: {', '.join(str(folder / name) for name in names)}"]:
        console.print(line, soft_wrap=True, markup=False)


def _guesses(report: AttackReport, label: str) -> list[list[str]]:
    """The row below an inversion's with what guessing reaches; none for other rows."""
    for name in next(iter(report.inversion.values())).against_guesses if report.inversion else ():
        if label.startswith("inversion: ") and label.endswith(f", {name}"):
            values = (one.against_guesses[name][0] for one in report.inversion.values())
            return [["  what a guess gets", *("-" if math.isnan(value) else f"{value:.3f}" for value in values)]]
    return []


def _verdicts(report: AttackReport) -> list[str]:
    """Where inversion told no more than a guess; and that few numbers correlate by chance."""
    if not report.inversion:
        return []
    lines = [
        "inversion: a guess is as many other records of the silo, drawn at random, as the message gave estimates; the "
        "best of them counts, as for the attack."
    ]
    lines += [
        f"inversion {setting}, {name}: no more than a guess."
        for setting, one in report.inversion.items()
        for name, (value, more) in one.against_guesses.items()
        if not more and not math.isnan(value)
    ]
    count = next(iter(report.inversion.values())).num_features
    if count < FEW_NUMBERS:
        lines.append(
            f"inversion: records have {count} numbers, and correlations over so few are large by chance: look at the "
            "difference from a guess alone."
        )
    return lines
