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
from dpfl_plugin.core.text import aligned
from dpfl_plugin.errors import ConfigError
from papers import catalog
from papers.items import Item, Paper
from papers.lengths import foreseen
from papers.tables import hours, option

OLDER: Final = (
    "are of earlier sources of this package: the page of each says which, and --json what has changed since of "
    "the code that its runs use."
)


def list_papers(*, as_json: bool) -> None:
    """What there is, how long it takes, and whether numbers are there."""
    found = api.papers()
    if as_json:
        print(json.dumps([asdict(one) for one in found], indent=2))
        return
    old = [one for one in found if one.current is False]
    some = len(old) < sum(one.current is not None for one in found)  # a mark on every row tells nothing
    labels = {(of.name, option(item)): item.label for of in catalog.papers() for item in of.items}
    rows = [("paper", "item", "what", "runs", "takes", "--quick", "numbers")]
    for one in found:
        times = ("at once", "") if one.numbers == "computed" else (_two(one.seconds), _two(one.quick_seconds))
        mark = " *" if one.current is False and some else ""
        item = f"--{one.kind} {one.number}"
        label = labels[one.paper, item]
        title = f"{one.title} ({label})" if label else one.title
        rows.append((one.paper, item, title, str(one.runs), *times, f"{one.numbers}{mark}"))
    head, *lines = aligned(rows).splitlines()
    references = {paper.name: paper.reference for paper in catalog.papers()}
    print(head)
    for name, group in itertools.groupby(zip(found, lines, strict=True), key=lambda pair: pair[0].paper):
        print("\n".join(["", references[name], *(line for _, line in group)]))
    print(
        "\ntakes: about, on two cores. dpfl papers PAPER --figure N runs one; --quick the direction of it in minutes, "
        "at fewer seeds, places or rounds (its page says of which), --seeds 0 all rounds of one seed."
    )
    if old:
        print(f"{'* These numbers' if some else 'Numbers'} {OLDER}")


def _two(seconds: float | None) -> str:
    return "not measured" if seconds is None else hours(seconds)


def _foretold(paper: Paper, wanted: Sequence[Item], *, quick: bool, seeds: Sequence[int]) -> str:
    """Which figures and tables are about to be run, and how long that takes, before any is begun."""
    said, total = list[str](), 0.0
    for item in wanted:
        if item.computed is not None:
            said.append(f"{option(item)} (computed)")
            continue
        whole, few = foreseen(paper, item)
        seconds = few if quick else whole
        if seconds is not None:
            seconds *= len(set(seeds) & set(item.seeds)) / len(item.seeds) if seeds else 1
            total += seconds
        said.append(f"{option(item)} ({_two(seconds)})")
    unknown = "no runs" if all(item.computed is not None for item in wanted) else "nobody measured how long"
    length = f"about {hours(total)} on two cores, less what is finished" if total else unknown
    return f"{paper.name}: {length}: {', '.join(said)}"


def run_papers(
    paper: str,
    *,
    figure: str | None,
    table: str | None,
    quick: bool,
    seeds: Sequence[int],
    device: str | None,
    out: Path,
    data: Path | None,
    jobs: int | None,
    as_json: bool,
) -> int:
    """Repeat figures and tables here; returns an exit code of `dpfl sweep`."""
    of = catalog.find(paper)
    wanted = catalog.items(of, figure, table)
    _say(_foretold(of, wanted, quick=quick, seeds=seeds) + ("" if device is None else f". They run on {device}."))
    if len(wanted) > 1:
        _say(f"these are all {len(wanted)} of the paper; one of these options runs only that.")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        done = api.reproduce(
            paper,
            figure=figure,
            table=table,
            quick=quick,
            seeds=seeds,
            device=device,
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
    device: str | None,
    out: Path,
    data: Path | None,
    jobs: int | None,
) -> int:
    """Hand the runs to Slurm; `dpfl papers` with the same --out gathers them when they are finished."""
    from dpfl_plugin.cli.sweep import Options, sweep_file

    if data is not None:
        raise ConfigError("--data with --on slurm: tasks have the job's environment. Use export DPFL_DATA=... instead.")
    options = Options(on="slurm", jobs=jobs or 1, at_once=None, pack=1, retry=False, dry_run=False)
    sweeps = api.sweeps_of(paper, figure=figure, table=table, quick=quick, seeds=seeds, device=device, out=out)
    codes = [sweep_file(path, settings, folder, options) for path, settings, folder in sweeps]
    _say("when they are finished, the same command without --on makes the tables, pages and pictures.")
    return max(codes, default=0)


def _say(text: str) -> None:
    print(f"dpfl: {text}", file=sys.stderr, flush=True)
