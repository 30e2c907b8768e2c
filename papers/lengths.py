"""How long the runs of a figure or table take: measured, or by their local steps and what a step took elsewhere."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Final

from dpfl_plugin.config.load import merged
from dpfl_plugin.config.sweep import Expansion
from papers import catalog
from papers.items import ALL, QUICK, Extent, Item, Paper, Part, files
from papers.numbers import kept, look_up, places

FILE: Final = "kept/lengths.json"


def foreseen(paper: Paper, item: Item) -> tuple[float | None, float | None]:
    """Seconds of processors of all runs and of quick ones: measured, or by local steps of what is measured.

    What a step takes is taken from all kept numbers of the paper with the same records and model, of runs on processors
    alone; where there are none, from short runs that were timed for it (`untimed`).
    """
    if item.computed is not None:
        return None, None
    numbers = kept(paper.name, item)
    each = {**_timed(), **_rates(paper)}
    found: list[float | None] = []
    for extent in (ALL, QUICK):
        parts = item.ran(extent)
        if numbers is not None and numbers.quick == extent.quick and not numbers.devices:
            found.append(numbers.seconds * (len(item.seeds) / len(numbers.seeds) if numbers.seeds else 1))
        elif all(_records(part, extent) in each for part in parts):
            found.append(math.fsum(each[_records(part, extent)] * _work(part.expansion(extent)) for part in parts))
        else:
            found.append(None)
    return found[0], found[1]


def measured() -> float:
    """Seconds of processors of all kept numbers; a run that figures share counts once."""
    runs = dict[str, float]()
    for paper in catalog.papers():
        for item in paper.items:
            if (numbers := kept(paper.name, item)) is None:
                continue
            for part in item.ran(numbers.extent):
                for row, run in places(item, part, part.expansion(numbers.extent)):
                    for point in numbers.of(part.name, run.line, run.at):
                        runs[row.id] = point.seconds / len(point.seeds)
    return math.fsum(runs.values())


def remaining() -> float:
    """Seconds of processors of all runs of which no numbers are kept; a run that figures share counts once.

    Runs of records and models of which nobody has measured the length count as nothing.
    """
    runs = dict[str, float]()
    for paper in catalog.papers():
        each = {**_timed(), **_rates(paper)}
        for item in paper.items:
            numbers = kept(paper.name, item)
            whole = numbers is not None and not numbers.quick
            there = set(numbers.seeds or item.seeds) if numbers is not None and whole else set[int]()
            for part in item.parts:
                base = part.expansion().base
                for row in part.expansion().rows:
                    values = merged(base, row.changes)
                    if values["seed"] not in there:
                        runs[row.id] = each.get(_records(part, ALL), 0.0) * steps_of(values, row.rounds)
    return math.fsum(runs.values())


def untimed() -> Iterator[tuple[str, Part]]:
    """Records and models that no kept numbers are of, each with a part whose runs have them."""
    found = set[str]()
    for paper in catalog.papers():
        each = _rates(paper)
        for part in (part for item in paper.items for part in item.parts):
            name = _records(part, ALL)
            if name not in each and name not in found:
                found.add(name)
                yield name, part


def _timed() -> dict[str, float]:
    """Seconds for a unit of `_work`, by records and model, of runs that were timed for it."""
    path = files() / FILE
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def _rates(paper: Paper) -> dict[str, float]:
    """Seconds for a unit of `_work`, by records and model, of kept numbers."""
    seconds, work = dict[str, float](), dict[str, float]()
    for item in paper.items:
        numbers = kept(paper.name, item)
        if numbers is None or numbers.devices:
            continue
        for part in item.ran(numbers.extent):
            name = _records(part, numbers.extent)
            seconds[name] = seconds.get(name, 0) + math.fsum(p.seconds for p in numbers.points if p.part == part.name)
            work[name] = work.get(name, 0) + _work(part.expansion(numbers.extent))
    return {name: seconds[name] / work[name] for name in seconds if work[name] > 0}


def _records(part: Part, extent: Extent) -> str:
    """Of what a step's time depends on; quick runs may have smaller models."""
    base = part.expansion(extent).base
    model = json.dumps(base.get("model"), sort_keys=True)
    return f"{look_up(base, 'data.dataset')} {look_up(base, 'data.num_silos')} {model}"


def _work(expansion: Expansion) -> float:
    """Local steps of all runs, of a silo; a unit in which parts of an item can be compared."""
    return math.fsum(steps_of(merged(expansion.base, row.changes), row.rounds) for row in expansion.rows)


def steps_of(values: Mapping[str, object], rounds: int | None) -> float:
    """Local steps of a silo in a run of this configuration."""
    steps = look_up(values, "algorithm.local_steps") or 1 / float(look_up(values, "privacy.record_rate") or 1)
    return float(rounds or 100) * float(look_up(values, "silo_rate") or 1) * float(steps)
