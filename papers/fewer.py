"""What quick runs have fewer of than all runs: seeds, parts, places, lines, rounds; read from the configurations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from papers.items import ALL, QUICK, ROUND, Extent, Item
from papers.numbers import Numbers, of_seeds, places, short
from papers.tables import number

ELSEWHERE: Final = ("name", "description", "seed", "rounds", "sweep", "variants", "evaluation", "output")
"""Blocks that are no setting of a run's result, or are told of in other words."""


@dataclass(frozen=True, slots=True)
class _Run:
    part: str
    line: str
    at: Mapping[str, Any]
    seed: int
    rounds: int | None

    @property
    def place(self) -> tuple[str, str, str]:
        return self.part, self.line, json.dumps(self.at, sort_keys=True)


def _runs(item: Item, extent: Extent) -> Iterator[_Run]:
    for part in item.ran(extent):
        for row, place in places(item, part, part.expansion(extent)):
            yield _Run(part.name, place.line, place.at, place.seed, row.rounds)


def extent_of(item: Item, numbers: Numbers) -> str:
    """What part of all runs the numbers are of; "" where they are of all."""
    if numbers.quick:
        return f"quick: {fewer(item)}"
    return of_seeds(item, numbers) if numbers.seeds else ""


def fewer(item: Item) -> str:
    """E.g. "2 of 5 seeds, 1 of 5 values of epsilon"."""
    whole, quick = list(_runs(item, ALL)), list(_runs(item, QUICK))
    said = [_of([run.seed for run in quick], [run.seed for run in whole], "seeds")]
    titles = [part.title for part in item.ran(QUICK)]
    said.append(_of(titles, [part.title for part in item.parts], f"parts ({'; '.join(titles)})"))
    parts = {run.part for run in quick}
    same = [run for run in whole if run.part in parts]
    for key in dict.fromkeys(key for run in whole for key in run.at):
        few, many = ([number(run.at[key]) for run in runs if key in run.at] for runs in (quick, same))
        said.append(_of(few, many, f"values of {short(key)}"))
    said.append(_of([run.line for run in quick], [run.line for run in same], "lines"))
    said.append(_rounds(quick, same))
    said.append(_settings(item))
    return ", ".join(filter(None, said)) or "the same runs"


def _of(few: Sequence[Any], many: Sequence[Any], what: str) -> str:
    some, every = set(few), set(many)
    if some == every:
        return ""
    return f"{len(some)} of {len(every)} {what}" if some < every else f"{len(some)} {what} in place of {len(every)}"


def _rounds(quick: Sequence[_Run], whole: Sequence[_Run]) -> str:
    """At the same places, where all are the same; else the most of any run."""
    all_of = {run.place: run.rounds for run in whole}
    pairs = {(run.rounds, all_of.get(run.place)) for run in quick}
    same = None not in {many for _, many in pairs}
    if not same:
        pairs = {(max(run.rounds or 0 for run in quick), max(run.rounds or 0 for run in whole))}
    fewer_of = sorted((few, many) for few, many in pairs if few is not None and many is not None and few < many)
    if not fewer_of:
        return ""
    if same and len(fewer_of) == len(pairs) == 1:
        return f"{fewer_of[0][0]} of {fewer_of[0][1]} rounds"
    return f"up to {max(few for few, _ in fewer_of)} rounds, not {max(many for _, many in fewer_of)}"


def _settings(item: Item) -> str:
    changed = dict[str, None]()
    for part in item.ran(QUICK):
        few, many = (_flat(part.expansion(extent).base) for extent in (QUICK, ALL))
        keys = sorted({key for key in few.keys() | many.keys() if few.get(key) != many.get(key)})
        varied = {part.rows, part.columns, item.against, *part.hidden, ROUND}
        changed |= dict.fromkeys(key for key in keys if key not in varied)
    return f"changed settings: {', '.join(changed)}" if changed else ""


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run by key; a block with a name, such as a model, is one of them."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name in ELSEWHERE:
            continue
        inside = value if isinstance(value, Mapping) and name in ("data", "algorithm", "privacy", "runtime") else None
        found |= {name: value} if inside is None else {f"{name}.{key}": one for key, one in inside.items()}
    return found
