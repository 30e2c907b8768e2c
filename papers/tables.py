"""How tables, values, places, times and differences are written in pages."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from papers.items import ACCURACY, MEASURES, Item
from papers.numbers import Point, look_up, short
from papers.paired import Difference


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in columns of equal width, which reads well in a terminal, too."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    rule = ["-" * max(3, width) for width in widths]
    padded = [[cell.ljust(max(3, width)) for cell, width in zip(line, widths, strict=True)] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in (padded[0], rule, *padded[1:]))


def number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def place(at: Mapping[str, Any]) -> list[str]:
    return [f"{short(key)} = {number(value)}" for key, value in at.items()]


def in_order(at: Mapping[str, Any]) -> list[tuple[str, bool, float, str]]:
    """A key to sort by: numbers by their value, before words."""
    numbers = {key: isinstance(value, int | float) for key, value in at.items()}
    return [(key, not numbers[key], float(at[key]) if numbers[key] else 0.0, str(at[key])) for key in at]


def run_of(item: Item, point: Point) -> str:
    """What a point's line is called: "METHOD, 4" of ``item.tuned`` by the setting that 4 stands for."""
    method = next((name for name in item.tuned if point.line.startswith(f"{name}, ")), None)
    if method is None:
        return point.line
    variant = _variants(item.part(point.part).path).get(point.line)
    values = [(key, look_up(variant, key)) for key in item.tuned_by]
    said = [f"{short(key)} = {number(value)}" for key, value in values if value is not None]
    return ", ".join([method, *said]) if said else point.line


@functools.cache
def _variants(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8")).get("variants") or {}


def measure_of(item: Item) -> str:
    return MEASURES.get(item.measure, item.measure) + (", %" if item.measure == ACCURACY else "")


def unit_of(item: Item) -> str:
    return "points" if item.measure == ACCURACY else f"in {MEASURES.get(item.measure, item.measure)}"


def by(item: Item, found: Difference) -> str:
    """A mean difference ± its standard error, in points or in the item's measure."""
    return f"{'+' if found.mean >= 0 else '-'}{size(item, found)}"


def ahead(item: Item, found: Difference) -> str:
    """A difference in words: "ahead" is for what is published, "behind" is against it."""
    side = "ahead" if found.mean >= 0 else "behind"
    return f"{size(item, found)} points {side}" if item.measure == ACCURACY else f"{size(item, found)} {side}"


def size(item: Item, found: Difference) -> str:
    """A difference without its sign."""
    scale = 100 if item.measure == ACCURACY else 1
    error = "" if found.seeds == 1 else f" ± {scale * found.error:.2g}"
    return f"{abs(scale * found.mean):.3g}{error}"


def hours(seconds: float) -> str:
    """How long seconds of processors are on two cores: "40 s", "11 min" or "3.6 h"."""
    half = seconds / 2
    if half < 57.5:
        return f"{max(5, 5 * round(half / 5))} s"
    return f"{round(half / 60)} min" if half < 90 * 60 else f"{half / 3600:.1f} h"


def option(item: Item) -> str:
    """What `python -m papers PAPER` takes for an item."""
    return f"--{item.kind} {item.number}"
