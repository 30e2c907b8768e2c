"""Numbers of some seeds, and those of others of the same runs, e.g. from another machine, as numbers of both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dpfl_plugin.errors import DataError
from papers.items import Item
from papers.numbers import Code, Numbers, Point


def joined(item: Item, first: Numbers, second: Numbers) -> Numbers:
    """The numbers of all seeds of both, in the order of the item's.

    Raises:
        DataError: they are not of the same runs, or of the same seeds, or not of some seeds at all.
    """
    what = f"numbers of {item.heading}, seeds {first.seeds} and {second.seeds},"
    if not first.seeds or not second.seeds or set(first.seeds) & set(second.seeds):
        raise DataError(f"{what} cannot be put together: both must be of some of the seeds, and share none.")
    if first.runs != second.runs or [_place(one) for one in first.points] != [_place(one) for one in second.points]:
        raise DataError(
            f"{what} cannot be put together: they are of other runs. Make both with the same configuration."
        )
    if item.seeds.index(first.seeds[0]) > item.seeds.index(second.seeds[0]):
        first, second = second, first
    seeds = [seed for seed in item.seeds if seed in {*first.seeds, *second.seeds}]
    code = Code(frozenset(first.code), _modules(first)) | Code(frozenset(second.code), _modules(second))
    return replace(
        second,
        code=sorted(code.packages),
        modules=code.listed(),
        points=[_both(item, *pair) for pair in zip(first.points, second.points, strict=True)],
        seeds=[] if tuple(seeds) == item.seeds else seeds,
        devices=sorted({*first.devices, *second.devices}),
    )


def _place(point: Point) -> tuple[str, str, tuple[tuple[str, Any], ...]]:
    return point.part, point.line, tuple(point.at.items())


def _modules(numbers: Numbers) -> Mapping[str, frozenset[str]] | None:
    return {name: frozenset(found) for name, found in numbers.modules.items()} or None


def _both(item: Item, first: Point, second: Point) -> Point:
    seeds = [*first.seeds, *second.seeds]
    order = sorted(range(len(seeds)), key=lambda place: item.seeds.index(seeds[place]))
    return replace(
        first,
        seeds=[seeds[place] for place in order],
        rounds=[[*first.rounds, *second.rounds][place] for place in order],
        scores=[[*first.scores, *second.scores][place] for place in order],
        server=_larger(first.server, second.server),
        third_party=_larger(first.third_party, second.third_party),
        worst_case=_larger(first.worst_case, second.worst_case),
        delta=max(first.delta, second.delta),
        curve=_curves(first.curve, len(first.seeds), second.curve, len(second.seeds)),
        seconds=first.seconds + second.seconds,
    )


def _larger(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else max(first, second)


def _curves(
    first: Mapping[str, Sequence[Any]], m: int, second: Mapping[str, Sequence[Any]], n: int
) -> dict[str, list[Any]]:
    """Mean and standard deviation of m and n seeds together, at the rounds that both have."""
    found: dict[str, list[Any]] = {"round": [], "mean": [], "std": []}
    places = {at: place for place, at in enumerate(second.get("round", ()))}
    for i, at in enumerate(first.get("round", ())):
        if at not in places:
            continue
        j = places[at]
        mean, std = _together(first["mean"][i], first["std"][i], m, second["mean"][j], second["std"][j], n)
        for key, value in (("round", at), ("mean", mean), ("std", std)):
            found[key].append(value)
    return found


def _together(
    first: float | None, s: float, m: int, second: float | None, t: float, n: int
) -> tuple[float | None, float]:
    """Mean and standard deviation of m values with mean ``first`` and standard deviation s, and n others with t."""
    if first is None or second is None:  # a run of it diverged
        return None, 0.0
    mean = (m * first + n * second) / (m + n)
    squares = (m - 1) * s**2 + (n - 1) * t**2 + m * n / (m + n) * (first - second) ** 2
    return mean, math.sqrt(squares / (m + n - 1))
