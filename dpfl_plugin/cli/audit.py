"""`dpfl audit`."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from dpfl_plugin.api.audits import FALSE_ALARM, Correlation, Interval, Options, Report, audits
from dpfl_plugin.api.experiment import Experiment
from dpfl_plugin.core.grid import SUM_SLACK
from dpfl_plugin.data.names import listed
from dpfl_plugin.runs.folder import to_json

LEGEND: Final = (
    "canaries: made-up records (or persons) that are as visible as any can be; |r|: correlation, 0 for independent "
    "noise; C: the clipping norm; in brackets 95 % intervals. Line by line: docs/privacy.md, Audit."
)


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
        table = Table(title=f"{label}: {_what(report)}", title_justify="left")
        for column, justify in (("seen by the server", "left"), ("found", "right"), ("claimed", "right")):
            table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
        for row in rows(report):
            table.add_row(*row)
        console.print(table, markup=False)
        for line in verdict(report):
            console.print(line, soft_wrap=True, markup=False)
        console.print()
    if picture is not None and reports:
        console.print(f"picture: {picture}", soft_wrap=True, markup=False)


def _what(report: Report) -> str:
    which = f" ({listed(report.canary_silos, report.silo_names)})" if report.silo_names else ""
    return f"{report.canaries} canaries in {report.silos} silos{which}, {report.rounds} rounds, {report.seconds:.1f} s"


def rows(report: Report) -> list[tuple[str, str, str]]:
    """(what, found, claimed) for a table."""
    claimed, strict = _epsilon(report.epsilon, report), _epsilon(report.strict_epsilon, report)
    lines = [
        (f"epsilon that the canaries prove (delta {report.delta:g}, 95 %)", f"{report.epsilon_bound:.2f}", claimed),
        (f"the same at delta {report.strict_delta:g}, sure to {_strict()}", f"{report.strict_bound:.2f}", strict),
    ]
    if report.gaussian is not None:
        lines.append(("epsilon estimated, if noise is Gaussian", _interval(report.gaussian, 2), claimed))
    if report.separation is not None and report.expected is not None:
        lines.append(
            ("how far apart canaries are, in noise", _interval(report.separation, 2), f"{report.expected:.2f}")
        )
    if report.noise is not None:
        lines.append(("strength of the noise / claimed", _interval(report.noise, 3), "1"))
    if report.spread is not None:
        lines.append(("spread by batches / if drawn afresh", _interval(report.spread, 2), "1"))
    between = (
        (report.between_silos, "noise alike at two silos? largest |r|"),
        (report.between_rounds, "noise alike in two rounds? largest |r|"),
        (report.between_runs, "noise alike in two runs? largest |r|"),
    )
    for correlation, what in between:
        if correlation.pairs:
            lines.append((what, *_correlated(correlation)))
    if report.normality is not None:
        lines.append(("is the noise Gaussian? p-value", f"{report.normality:.2g}", f"above {FALSE_ALARM:g}"))
    if report.influence is not None:
        one = "person" if report.unit == "person" else "record"
        lines.append((f"most that one {one} changes a sum, in C", f"{report.influence:.3f}", "at most 1"))
    if report.worst_pair is not None:
        most = f"at most {1 + SUM_SLACK:.6f}"
        lines.append(("the same by rounding, in sensitivities", f"{report.worst_pair:.6f}", most))
    lines.append(("releases in the ledger / made", f"{report.charged} / {report.made}", "all"))
    return lines


def _epsilon(value: float | None, report: Report) -> str:
    return "none" if value is None else f"at most {value:.2f} ({report.accountant})"


def _strict() -> str:
    return f"{100 * (1 - FALSE_ALARM):.5f} %"


def _interval(interval: Interval, digits: int) -> str:
    low, estimate, high = (
        f"{value:.{digits}f}" if math.isfinite(value) else "inf"
        for value in (interval.low, interval.estimate, interval.high)
    )
    return f"{estimate} ({low} to {high})"


def _correlated(correlation: Correlation) -> tuple[str, str]:
    return f"{correlation.largest:.3f}", f"0; by chance up to {correlation.threshold:.3f}"


def verdict(report: Report) -> list[str]:
    """The result in words."""
    relation = report.neighbouring.replace("_", "-")
    lines = [LEGEND, *(f"note: {note}" for note in report.notes)]
    if report.epsilon is None:
        return [*lines, "NOTHING CLAIMED, nothing to contradict. To conclude: this run protects nobody."]
    if report.consistent:
        return [
            *lines,
            f"CONSISTENT: nothing in the server's transcript contradicts epsilon {report.epsilon:.2f} at delta "
            f"{report.delta:g} ({report.unit} level, {relation} neighbours).",
            "To conclude: no defect was found in how noise, batches and charges are made. This does not prove epsilon: "
            "the proof is the accountant's. A proven epsilon below the claimed one is expected.",
        ]
    return [
        *lines,
        *(f"CONTRADICTED: {violation}." for violation in report.violations),
        "To conclude: do not rely on the stated epsilon, nor train on records that matter, before this is fixed.",
    ]
