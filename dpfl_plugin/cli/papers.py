"""`dpfl papers`: figures and tables of papers, listed and repeated."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from dpfl_plugin.api import papers as api
from dpfl_plugin.api.progress import duration
from dpfl_plugin.core.text import aligned
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.published import catalog

OLDER: Final = "of older code: some that these runs use has changed since. Their numbers are kept until made anew."


def list_papers(*, as_json: bool) -> None:
    """What there is, how long it takes, and whether numbers are there."""
    found = api.papers()
    if as_json:
        print(json.dumps([asdict(one) for one in found], indent=2))
        return
    rows = [("paper", "item", "what", "runs", "takes", "--quick", "numbers")]
    for one in found:
        times = ("at once", "") if one.numbers == "computed" else (_two(one.seconds), _two(one.quick_seconds))
        old = " *" if one.current is False else ""
        item = f"--{one.kind} {one.number}"
        rows.append((one.paper, item, one.title, str(one.runs), *times, f"{one.numbers}{old}"))
    head, *lines = aligned(rows).splitlines()
    references = {paper.name: paper.reference for paper in catalog.papers()}
    print(head)
    for name, group in itertools.groupby(zip(found, lines, strict=True), key=lambda pair: pair[0].paper):
        print("\n".join(["", references[name], *(line for _, line in group)]))
    print(
        "\ntakes: on two cores. dpfl papers PAPER --figure N runs one; --quick the direction of it in minutes, "
        "--seeds 0 all rounds of one seed."
    )
    if any(one.current is False for one in found):
        print(f"* {OLDER}")


def _two(seconds: float | None) -> str:
    return "not measured" if seconds is None else duration(seconds / 2)


def run_papers(
    paper: str,
    *,
    figure: str | None,
    table: str | None,
    quick: bool,
    seeds: Sequence[int],
    out: Path,
    data: Path | None,
    jobs: int | None,
    as_json: bool,
) -> int:
    """Repeat figures and tables here; returns an exit code of `dpfl sweep`."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        done = api.reproduce(
            paper,
            figure=figure,
            table=table,
            quick=quick,
            seeds=seeds,
            out=out,
            data=data,
            jobs=jobs or cores,
            tell=_say,
        )
    except KeyboardInterrupt:
        _say("interrupted; what is done is saved. The same command continues.")
        return 4
    if as_json:
        print(json.dumps([{"item": one.item, "page": str(one.page), "missing": one.missing} for one in done], indent=2))
        return 0
    for one in done:
        print(f"\n{one.paper}, {one.item}\n\n{one.text}\n")
        print("\n".join(str(path) for path in (one.page, one.picture) if path is not None))
    return 1 if any(one.missing for one in done) else 0


def submit_papers(
    paper: str,
    *,
    figure: str | None,
    table: str | None,
    quick: bool,
    seeds: Sequence[int],
    out: Path,
    data: Path | None,
    jobs: int | None,
) -> int:
    """Hand the runs to Slurm; `dpfl papers` with the same --out gathers them when they are finished."""
    from dpfl_plugin.cli.sweep import Options, sweep_file

    if data is not None:
        raise ConfigError("--data with --on slurm: tasks have the job's environment. Use export DPFL_DATA=... instead.")
    options = Options(on="slurm", jobs=jobs or 1, at_once=None, pack=1, retry=False, dry_run=False)
    sweeps = api.sweeps_of(paper, figure=figure, table=table, quick=quick, seeds=seeds, out=out)
    codes = [sweep_file(path, settings, folder, options) for path, settings, folder in sweeps]
    _say("when they are finished, the same command without --on makes the tables, pages and pictures.")
    return max(codes, default=0)


def _say(text: str) -> None:
    print(f"dpfl: {text}", file=sys.stderr, flush=True)
