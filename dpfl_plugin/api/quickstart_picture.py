"""The quickstart's picture: a bar for each run, for people who have never heard of it."""

from __future__ import annotations

import io
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dpfl_plugin.api.quickstart import Part, Row
from dpfl_plugin.core.rounding import digits
from dpfl_plugin.runs.folder import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PRIVATE, OPEN, ALONE = "#0b6e4f", "#9a9a9a", "#c9772b"
MEASURES: Final = {
    "AUC": "AUC: how often an ill patient is ranked above a healthy one (guessing: 0.5)",
    "accuracy": "accuracy: share of test digits recognised (guessing: 0.1)",
}
FLOORS: Final = {"AUC": 0.5, "accuracy": 0.1}


def draw(path: Path, parts: Sequence[Part]) -> None:
    """Write the picture, in place of one that is there."""
    picture = io.BytesIO()
    figure(parts).savefig(picture, dpi=150, format="png")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, picture.getvalue())


def figure(parts: Sequence[Part]) -> Figure:
    """Bars from guessing upwards, with standard deviations over seeds, a panel for each part."""
    from matplotlib.figure import Figure

    found = Figure(figsize=(8, 0.5 + sum(1.05 + 0.33 * len(part.rows) for part in parts)), layout="constrained")
    heights = [1.6 + 0.6 * len(part.rows) for part in parts]
    axes = found.subplots(len(parts), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for axis, part in zip(axes, parts, strict=True):
        _panel(axis, part)
    return found


def _panel(axis: Any, part: Part) -> None:
    floor = FLOORS[part.measure]
    for place, row in enumerate(part.rows.values()):
        mean = statistics.mean(row.shown)
        deviation = statistics.stdev(row.shown) if len(row.shown) > 1 else 0.0
        axis.barh(place, mean - floor, left=floor, color=_colour(row), height=0.7)
        axis.errorbar(mean, place, xerr=deviation, color="black", capsize=3, linewidth=1)
        epsilon = "no privacy" if row.epsilon is None else f"epsilon {digits(row.epsilon, 3)}"
        axis.text(1.01, place, f"{mean:.3f}   {epsilon}", va="center", fontsize=8, color=_colour(row))
    axis.set_yticks(range(len(part.rows)), list(part.rows), fontsize=9)
    axis.invert_yaxis()
    axis.set_xlim(floor, 1.0)
    axis.set_xlabel(f"{MEASURES[part.measure]}\n{_bars(part)}", fontsize=8)
    axis.set_title(part.title, fontsize=10, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)


def _bars(part: Part) -> str:
    seeds = max(len(row.shown) for row in part.rows.values())
    spread = f"bar and number: mean over {seeds} seeds; line: ± one standard deviation over seeds"
    return spread if seeds > 1 else "one seed"


def _colour(row: Row) -> str:
    return OPEN if row.epsilon is None else ALONE if row.own else PRIVATE
