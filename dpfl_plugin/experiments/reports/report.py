"""`report`: tables, plots and a page from run folders; nothing here needs torch."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

import dpfl_plugin
from dpfl_plugin.config.load import flat
from dpfl_plugin.core.text import Printed
from dpfl_plugin.errors import ConfigError, nearest, require
from dpfl_plugin.experiments.reports import tables
from dpfl_plugin.experiments.reports.groups import grouped, select, whole_keys
from dpfl_plugin.experiments.reports.page import page
from dpfl_plugin.experiments.reports.plots import MOST_BANDS, left_out, plot, plot_tradeoff
from dpfl_plugin.experiments.reports.runs import AXES, Problem, Run, scan
from dpfl_plugin.experiments.reports.section import Section, by_data, section_of
from dpfl_plugin.experiments.reports.tables import Table
from dpfl_plugin.runs.csv_cells import csv_text
from dpfl_plugin.runs.folder import write_atomic
from dpfl_plugin.terminal import printed, show_table

DEFAULT_AXES: Final = ("rounds", "epsilon")
MOST_ROWS: Final = 40  # displayed; the files have all
TABLES: Final = frozenset(
    f"{name}.{kind}" for name in ("summary", "comparisons", "pivot") for kind in ("csv", "md", "tex")
) | {"runs.csv", "measures.md"}


@dataclass(frozen=True, slots=True)
class Report(Printed):
    """What was made of run folders.

    Attributes:
        out: the folder of all files. sections: one for each data set.
        problems: folders that were left out, and why. lines: where the files are, in words.
    """

    out: Path
    sections: tuple[Section, ...]
    problems: Sequence[Problem]
    lines: Sequence[str]

    @property
    def table(self) -> Table:
        """The rows of the first data set."""
        return self.sections[0].table

    def __str__(self) -> str:
        lines: list[str] = []
        for section in self.sections:
            more_tables = [section.comparisons] * bool(section.comparisons.rows)
            for table in filter(None, [section.table, *more_tables, section.pivot]):
                lines += [section.name] * bool(section.name) + [printed(lambda c, t=table: _show(t, c), width=200)]  # type: ignore[misc]
                more = len(table.rows) - MOST_ROWS
                lines += [f"{more} more rows in the files."] if more > 0 else []
            lines += [section.table.note, *section.notes, section.result]
        lines += [f"left out: {problem.folder}: {problem.reason}" for problem in self.problems[:MOST_ROWS]]
        if len(self.problems) > MOST_ROWS:
            lines.append(f"left out: {len(self.problems) - MOST_ROWS} more folders; the page names all.")
        return "\n".join([*lines, *self.lines])

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        sections = [
            {
                "data": section.name,
                "result": section.result,
                "rows": _rows(section.table),
                "comparisons": _rows(section.comparisons),
                "pivot": None if section.pivot is None else _rows(section.pivot),
                "note": section.table.note,
                "notes": list(section.notes),
            }
            for section in self.sections
        ]
        problems = {str(problem.folder): problem.reason for problem in self.problems}
        return {"out": str(self.out), "sections": sections, "left_out": problems}


def _rows(table: Table) -> list[dict[str, str]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def _show(table: Table, console: Console) -> None:
    shown = RichTable()
    for column, numeric in zip(table.columns, table.numeric, strict=True):
        shown.add_column(escape(column), justify="right" if numeric else "left")
    for row in table.rows[:MOST_ROWS]:
        shown.add_row(*map(escape, row))
    show_table(console, shown)


def report(
    folders: str | Path | Sequence[str | Path],
    out: str | Path = "report",
    *,
    metrics: Sequence[str] = (),
    against: Sequence[str] = (),
    group_by: Sequence[str] = (),
    where: Mapping[str, Any] | None = None,
    baseline: str | None = None,
    pivot: tuple[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    html: bool = True,
) -> Report:
    """Read run folders, and write tables, plots and a page to ``out``.

    Runs that differ in their seed only are one row: mean and 95 % confidence interval (Student's t). Partial and failed
    runs are shown as such and never averaged. Runs on different data sets are in sections of their own.

    Args:
        folders: of runs, or above them. out: is made; files of an earlier report there are replaced.
        metrics: of metrics.jsonl, or measures of the final models on all test records ("auc"); rows are ranked by the
            first. None: what the runs themselves are judged by.
        against: axes of plots: rounds, epsilon, epsilon_third_party, bytes, seconds; none: the first two.
        group_by: keys ("algorithm.name"): average over all else, not over seeds only.
        where: only runs with these values, {"algorithm.name": "scaffold"} or nested as in a file.
        baseline: the label of a row; others get their difference to it, over the seeds that both have. Without noise
            ("fedavg", of "fedavg, epsilon=2"): their difference to the row that has the same noise.
        pivot: two keys: also a table of the first metric by their values ("algorithm.name", "privacy.epsilon").
        labels: names of rows in place of these, or of a word in them: {"scaffold": "DP-SCAFFOLD"}.
        html: whether to write the page.

    Raises:
        ConfigError: a folder is not there, none holds a run, or an argument names what no run has.
    """
    several = isinstance(folders, Path | Iterable)
    require(several, "folders", folders, "be a folder, or a list of folders")
    named = [folders] if isinstance(folders, str | Path) else folders
    require(isinstance(where, Mapping | None), "where", where, "be a mapping of keys to values")
    for name, value in {"metrics": metrics, "against": against, "group_by": group_by}.items():
        require(not isinstance(value, str), name, value, f"be a list: [{value!r}]")
    two = pivot is None or (not isinstance(pivot, str) and len(pivot) == 2)
    require(two, "pivot", pivot, 'be two keys: ("algorithm.name", "privacy.epsilon")')
    for axis in against:
        if axis not in AXES:
            known = ", ".join(AXES)
            raise ConfigError(f"against {axis} is not an axis{nearest(axis, list(AXES))}. Known: {known}.")
    runs, problems = _read([Path(folder) for folder in named], flat(where or {}))
    by = whole_keys(runs, group_by, "group_by") or None
    across = None if pivot is None else (*whole_keys(runs, pivot, "pivot"),)
    every = list(dict.fromkeys(name for run in runs for name in (*run.numbers, *run.measures)))
    for metric in metrics:
        if metric not in every:
            raise ConfigError(f"metric {metric}: no run has it{nearest(metric, every)}. Known: {', '.join(every)}.")
    _require_labels(runs, by, labels or {})
    sections = [
        section_of(name, members, by, metrics, baseline, across, labels) for name, members in by_data(runs).items()
    ]
    groups = [group for section in sections for group in section.groups]
    rows = list(dict.fromkeys([*(group.label for group in groups), *(group.series for group in groups)]))
    if baseline is not None and baseline not in rows:
        raise ConfigError(
            f"baseline {baseline}: no row is called so{nearest(baseline, rows)}. Rows: {'; '.join(rows)}."
        )
    lines = _write(Path(out), sections, list(against) or list(DEFAULT_AXES), problems, html=html)
    return Report(Path(out), tuple(sections), problems, lines)


def _require_labels(runs: Sequence[Run], by: Sequence[str] | None, labels: Mapping[str, str]) -> None:
    """Check that each label is a row, or a word of one, in some data set."""
    groups = [group for members in by_data(runs).values() for group in grouped(members, by)] if labels else []
    known = list(dict.fromkeys([group.label for group in groups] + [word for group in groups for word in group.words]))
    for label in labels:
        if label not in known:
            raise ConfigError(f"label {label}: no row is called so{nearest(label, known)}. Rows: {'; '.join(known)}.")


def _read(folders: Sequence[Path], where: Mapping[str, Any]) -> tuple[list[Run], list[Problem]]:
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder} is not a folder. Give folders of run folders, e.g. runs.")
    runs, problems = scan(folders)
    if runs:
        runs = select(runs, where)
    if not runs:
        reasons = "".join(f"\n  {problem.folder}: {problem.reason}" for problem in problems[:10])
        asked = "is as --where says" if where else ""
        raise ConfigError(f"{', '.join(map(str, folders))}: no run {asked}{reasons}")
    return list(runs), list(problems)


def _write(
    out: Path, sections: Sequence[Section], against: Sequence[str], problems: Sequence[Problem], *, html: bool
) -> list[str]:
    """All files; returns lines that say where they are."""
    for folder in (out / "tables", out / "plots"):
        folder.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    written: list[str] = []
    drawn: list[Path] = []
    prefixes: list[str] = []
    for section in sections:
        prefix = _prefix(section.name, prefixes)
        prefixes.append(prefix)
        for name, content in _tables(section).items():
            write_atomic(out / "tables" / f"{prefix}{name}", content)
            written.append(f"{prefix}{name}")
        files, missing = _plots(section, out / "plots", prefix, against)
        drawn += files
        lines += missing
    for path in (out / "tables").iterdir():  # of an earlier report
        if path.name not in written and path.name.rpartition("-")[2] in TABLES:
            path.unlink()
    lines.insert(0, f"tables: {out / 'tables'}/{', '.join(written)}")
    lines.insert(1, f"plots: {out / 'plots'}/, {len(drawn)} files")
    if html:
        text = page(sections, problems=problems, made_by=f"dpfl {dpfl_plugin.__version__}")
        write_atomic(out / "index.html", text)
        lines.append(f"page: {out / 'index.html'}")
    return lines


def _prefix(name: str, known: Sequence[str]) -> str:
    """Of the files of a section, which no other section of the report has."""
    if not name and not known:
        return ""
    words = re.sub("[^A-Za-z0-9]+", "-", name).strip("-") or "data"
    count = next(number for number in itertools.count(1) if _numbered(words, number) not in known)
    return _numbered(words, count)


def _numbered(words: str, number: int) -> str:
    return f"{words}-" if number == 1 else f"{words}-{number}-"


def _tables(section: Section) -> dict[str, str]:
    groups, metrics, measured = section.groups, section.metrics, tables.measures(section.groups)
    table = replace(section.table, note=" ".join([section.table.note, *section.notes]))
    files = {
        "summary.csv": tables.summary_csv(groups, metrics, section.baseline),
        "summary.md": tables.to_markdown(table),
        "summary.tex": tables.to_latex(table),
        "runs.csv": tables.runs_csv([run for group in groups for run in group.runs], metrics),
    }
    for name, more in (("comparisons", section.comparisons), ("pivot", section.pivot)):
        if more is not None and more.rows:
            files |= {f"{name}.md": tables.to_markdown(more), f"{name}.tex": tables.to_latex(more)}
            files[f"{name}.csv"] = csv_text(more.data)
    return files | ({"measures.md": tables.to_markdown(measured)} if measured.rows else {})


def _plots(section: Section, folder: Path, prefix: str, against: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The files, and in words what is not drawn in them."""
    files: list[Path] = []
    missing: list[str] = []
    for metric in section.metrics:
        files += plot_tradeoff(folder / f"{prefix}{metric}-tradeoff", section.groups, metric)
        if not any(metric in run.curve for group in section.groups for run in group.runs):
            continue  # final models have no curves
        for axis in against:
            drawn = plot(folder / f"{prefix}{metric}-{axis}", section.groups, metric, axis)
            files += drawn
            if drawn and len(section.groups) > MOST_BANDS:
                missing.append(
                    f"no bands in {prefix}{metric}-{axis}: {len(section.groups)} configurations would overlap. "
                    f"--where chooses {MOST_BANDS} or fewer."
                )
            if not drawn:
                missing.append(f"not drawn, no run has values for it: {metric} against {axis}")
            elif absent := left_out(section.groups, metric, axis):
                missing.append(
                    f"not in {prefix}{metric}-{axis}, since a run has no finite values there or its runs have no range "
                    f"in common: {'; '.join(group.label for group in absent)}"
                )
    return files, missing
