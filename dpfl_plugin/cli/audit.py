"""`dpfl audit`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dpfl_plugin.api.audits import Options, Report, audits
from dpfl_plugin.api.experiment import Experiment
from dpfl_plugin.runs.folder import to_json


def audit_file(
    path: Path, settings: list[str], variant: str | None, options: Options, *, as_json: bool, picture: Path | None
) -> int:
    """Audit the private runs of a file, or the one that is named; 1 if one of them is contradicted, else 0."""
    experiment = Experiment(path, tuple(settings), variant)
    reports = audits(experiment, options)
    if picture is not None and reports:
        from dpfl_plugin.cli.plot import draw_audits

        draw_audits(picture, reports)
    if as_json:
        plain = {label: as_plain(report) for label, report in reports.items()}
        alone = variant is not None or experiment.loaded().variants[0].label is None
        print(to_json(next(iter(plain.values())) if alone else plain))
    else:
        show(reports, picture)
    return 0 if all(report.consistent for report in reports.values()) else 1


def as_plain(report: Report) -> dict[str, Any]:
    """A report as plain values, without single scores."""
    plain: dict[str, Any] = {"consistent": report.consistent, **dataclasses.asdict(report)}
    return {key: value for key, value in plain.items() if key not in ("scores", "bits")}


def show(reports: Mapping[str, Report], picture: Path | None) -> None:
    """A column for each run, a line for each thing that was looked at; then verdicts in words."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)
    for label, report in reports.items():
        table = Table(title=f"{label}: {report.title}", title_justify="left")
        for column, justify in (("seen by the server", "left"), ("found", "right"), ("claimed", "right")):
            table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
        for row in report.rows:
            table.add_row(*row)
        console.print(table, markup=False)
        for line in report.verdict:
            console.print(line, soft_wrap=True, markup=False)
        console.print()
    if picture is not None and reports:
        console.print(f"picture: {picture}", soft_wrap=True, markup=False)
