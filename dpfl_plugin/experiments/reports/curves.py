"""What pictures draw of a group: its curve with a band, and its place against epsilon."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from dpfl_plugin.core.outcomes import measure_range
from dpfl_plugin.experiments.reports.groups import Group, half_width
from dpfl_plugin.experiments.reports.runs import POINTS, Run

SAME_EPSILON: Final = 0.01  # epsilons that differ by this part at most are drawn at one place


def tradeoff(group: Group, metric: str) -> tuple[float, float, float] | None:
    """The group as a point: epsilon towards the server, mean, half width (0 for one run) over its complete runs.

    None without a guarantee, or where a run has no finite value.
    """
    epsilon, summary = group.epsilon("server"), group.summary(metric)
    if epsilon is None or math.isinf(epsilon) or summary.mean is None:
        return None
    return epsilon, summary.mean, summary.half_width or 0.0


def within(metric: str, mean: np.ndarray, half: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ends of intervals, cut off where the measure ends."""
    least, most = measure_range(metric)
    return np.maximum(mean - half, -np.inf if least is None else least), np.minimum(
        mean + half, np.inf if most is None else most
    )


def drawn_at(epsilons: Iterable[float]) -> dict[float, float]:
    """Where each is drawn: those that agree to 1 % at the largest of them, which bounds them all.

    Noise is solved for an epsilon to a few digits, and an axis of these digits would tell runs of one budget apart.
    """
    places: dict[float, float] = {}
    for epsilon in sorted(set(epsilons), reverse=True):
        last = next(reversed(places.values()), math.inf)
        places[epsilon] = last if epsilon >= (1 - SAME_EPSILON) * last and math.isfinite(last) else epsilon
    return places


@dataclass(frozen=True, slots=True)
class Band:
    """A metric against an axis: mean and half the width of its 95 % confidence interval (None for one run), [k]."""

    x: np.ndarray
    mean: np.ndarray
    half_width: np.ndarray | None


def band(runs: Sequence[Run], metric: str, axis: str) -> Band | None:
    """The mean curve of complete runs, as far as all of them reach; between evaluations by straight lines.

    None if a run has no value, or one that is not finite, on either axis.
    """
    curves = [(run.curve.get(axis), run.curve.get(metric)) for run in runs]
    lines = [(x, y) for x, y in curves if x is not None and y is not None and len(x)]
    if not lines or len(lines) < len(runs) or not all(np.isfinite(x).all() and np.isfinite(y).all() for x, y in lines):
        return None
    first = lines[0][0]
    same = all(np.array_equal(x, first) for x, _ in lines)
    grid = first if same else _grid([x for x, _ in lines], whole=axis == "rounds")
    if not len(grid):
        return None
    values = np.stack([np.interp(grid, x, y) for x, y in lines])
    if len(lines) == 1:
        return Band(grid, values[0], None)
    return Band(grid, values.mean(axis=0), values.std(axis=0, ddof=1) * half_width(1.0, len(lines)))


def _grid(axes: Sequence[np.ndarray], *, whole: bool) -> np.ndarray:
    """Points that all curves reach, at most `POINTS`."""
    low, high = max(x[0] for x in axes), min(x[-1] for x in axes)
    if low > high:
        return np.empty(0)
    grid = np.linspace(low, high, POINTS)
    return np.unique(np.round(grid)) if whole else grid
