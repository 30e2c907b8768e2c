"""Pictures in the style of the originals: panels of curves with bands over seeds, or of points."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dpfl_plugin.published.items import MEASURES, ROUND, Item, Part
from dpfl_plugin.published.numbers import Numbers, Point, chosen, of_seeds, short
from dpfl_plugin.runs.folder import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLES: Final = ("-", "--", "-.", ":")
SOLID: Final = 3  # of the paper's own curves; what is added to them is dashed
MOST_BANDS: Final = 6  # of standard deviations in a panel: more of them hide the curves
LOG: Final = 30  # an axis whose values are so far apart is logarithmic


def has_picture(item: Item, numbers: Numbers) -> bool:
    return bool(numbers.points) or item.lines is not None


def draw(path: Path, item: Item, numbers: Numbers) -> None:
    """Draw a figure or table into a PNG file."""
    picture = io.BytesIO()
    drawn = figure(item, numbers) if item.lines is None else _of_lines(item)
    drawn.savefig(picture, dpi=90, format="png", metadata={"Software": None})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, picture.getvalue())


def figure(item: Item, numbers: Numbers) -> Figure:
    """A row of panels for each part and each value of its ``rows``; the same line has one colour everywhere."""
    from matplotlib.figure import Figure

    numbers = _at_best(item, numbers) if item.tuned else numbers
    rows = [(part, value) for part in item.ran(numbers.extent) for value in _values(numbers, part, part.rows)]
    widest = max(len(_values(numbers, part, part.columns)) for part in item.ran(numbers.extent))
    across, down = (len(rows), 1) if widest == 1 else (widest, len(rows))  # single panels go side by side
    drawn = Figure(figsize=(3.4 * across + 0.6, 2.6 * down + 0.6), layout="constrained")
    axes = drawn.subplots(down, across, squeeze=False)
    axes = axes.T if widest == 1 else axes
    lines = list(dict.fromkeys(point.line for point in numbers.points))
    for i, (part, row) in enumerate(rows):
        columns = _values(numbers, part, part.columns)
        for j, axis in enumerate(axes[i]):
            if j >= len(columns):
                axis.set_visible(False)
                continue
            at = {key: value for key, value in ((part.rows, row), (part.columns, columns[j])) if key is not None}
            _panel(axis, item, [p for p in numbers.points if p.part == part.name and _is_at(p, at)], lines)
            axis.set_title("  ".join([part.title, *(f"{short(k)} = {v:g}" for k, v in at.items())]), fontsize=8)
    handles = {h.get_label(): h for axis in axes.flat for h in axis.get_legend_handles_labels()[0]}
    drawn.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=across, fontsize=8, frameon=False)
    if numbers.quick or numbers.seeds:
        said = "quick numbers: fewer rounds and seeds" if numbers.quick else of_seeds(item, numbers)
        drawn.suptitle(said, fontsize=8, color="0.4")
    return drawn


def _at_best(item: Item, numbers: Numbers) -> Numbers:
    """A line for each method, of its best setting at each place."""
    found = [
        replace(point, line=name)
        for part in item.ran(numbers.extent)
        for name in item.tuned
        for point in chosen(numbers, item, part.name, name, {})
    ]
    return replace(numbers, points=found)


def _of_lines(item: Item) -> Figure:
    """A panel of curves that no run is needed for; each ends in a dot."""
    from matplotlib.figure import Figure

    assert item.lines is not None
    drawn = Figure(figsize=(5.4, 3.6), layout="constrained")
    axis = drawn.subplots()
    for place, (name, (x, y)) in enumerate(item.lines().items()):
        style = STYLES[0] if place < SOLID else STYLES[1]
        axis.plot(x, y, color=f"C{place}", linestyle=style, linewidth=1.2, label=name, marker="o", markevery=[-1])
    axis.legend(fontsize=8, frameon=False)
    _dressed(axis, "communication rounds", item.lines_of)
    return drawn


def _dressed(axis: Any, x: str, y: str) -> None:
    axis.set_xlabel(x, fontsize=8)
    axis.set_ylabel(y, fontsize=8)
    axis.tick_params(labelsize=7)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def _panel(axis: Any, item: Item, points: list[Point], lines: list[str]) -> None:
    for place, line in enumerate(lines):
        own = [point for point in points if point.line == line]
        style: dict[str, Any] = {"color": f"C{place % 10}", "linestyle": STYLES[place // 10 % 4], "label": line}
        if item.against == ROUND:
            for point in own:
                x = point.curve["round"]
                mean = [float("nan") if y is None else y for y in point.curve["mean"]]
                axis.plot(x, mean, linewidth=1.2, **style)
                if len(lines) > MOST_BANDS:
                    continue
                below = [y - s for y, s in zip(mean, point.curve["std"], strict=True)]
                above = [y + s for y, s in zip(mean, point.curve["std"], strict=True)]
                axis.fill_between(x, below, above, color=style["color"], alpha=0.2, linewidth=0)
        elif own:
            known = sorted((p.at[item.against], p.mean, p.std) for p in own if p.mean is not None)
            x, mean, std = ([one[k] for one in known] for k in range(3))
            axis.errorbar(x, mean, yerr=std, marker="o", markersize=3, capsize=2, linewidth=1.2, **style)
            if x and min(x) > 0 and max(x) > LOG * min(x):
                axis.set_xscale("log")
    if item.shown is not None:
        axis.set_ylim(*item.shown)
    across = "communication rounds" if item.against == ROUND else short(item.against)
    _dressed(axis, across, MEASURES.get(item.measure, item.measure))


def _values(numbers: Numbers, part: Part, key: str | None) -> list[Any]:
    if key is None:
        return [None]
    return list(dict.fromkeys(point.at[key] for point in numbers.points if point.part == part.name)) or [None]


def _is_at(point: Point, at: dict[str, Any]) -> bool:
    return all(point.at.get(key) == value for key, value in at.items())
