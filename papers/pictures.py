"""Pictures in the style of the originals: panels of curves with bands over seeds, or of points."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from papers.items import MEASURES, ROUND, Item, Paper, Part
from papers.numbers import Numbers, Point, chosen, short
from papers.tables import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLES: Final = ("-", "--", "-.", ":")
TABLE_STYLES: Final = ("-", "--", ":", "-.")
SOLID: Final = 3  # of the paper's own curves; what is added to them is dashed
MOST_BANDS: Final = 6  # of standard deviations in a panel: more of them hide the curves
LETTERS: Final = 15  # of a title, in an inch
LEGEND_LINE: Final = 0.16  # inches
LOG: Final = 10  # an axis whose values are so far apart is logarithmic
WIDTHS: Final = (9.0, 1.2)  # of the first and the last of curves that lie on each other
SAME: Final = 0.03  # of the height of a panel: curves that are nowhere further apart lie on each other
GREY: Final = "0.4"
APART: Final = 0.012  # of the width of a panel: by how much error bars at one value are put beside each other


def has_picture(item: Item, numbers: Numbers) -> bool:
    return bool(numbers.points) or item.lines is not None


def draw(path: Path, paper: Paper, item: Item, numbers: Numbers) -> None:
    """Draw a figure or table into a PNG file."""
    drawn = figure(item, numbers) if item.lines is None else _of_lines(item)
    _titled(drawn, [f"{paper.short}, {item.heading}: {item.title}", *_said(item, numbers)])
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path, dpi=90, format="png", metadata={"Software": None})


def figure(item: Item, numbers: Numbers) -> Figure:
    """A row of panels for each part and each value of its ``rows``; the same line has one colour everywhere."""
    from matplotlib.figure import Figure

    if item.kind == "table":
        return _grid(item, numbers)
    numbers = _at_best(item, numbers) if item.tuned else numbers
    rows = [(part, value) for part in item.ran(numbers.quick) for value in _values(numbers, part, part.rows)]
    widest = max(len(_values(numbers, part, part.columns)) for part in item.ran(numbers.quick))
    across, down = (len(rows), 1) if widest == 1 else (widest, len(rows))  # single panels go side by side
    panel = _dots if _is_at_one_value(item, numbers) else _panel
    lines = _lines(numbers)
    legend = math.ceil(len(lines) / across) * LEGEND_LINE if panel is _panel else 0.0
    drawn = Figure(
        figsize=(3.4 * across + (0.6 if across > 1 else 2.0), 2.6 * down + 0.6 + legend), layout="constrained"
    )
    axes = drawn.subplots(down, across, squeeze=False)
    axes = axes.T if widest == 1 else axes
    for i, (part, row) in enumerate(rows):
        columns = _values(numbers, part, part.columns)
        for j, axis in enumerate(axes[i]):
            if j >= len(columns):
                axis.set_visible(False)
                continue
            at = {key: value for key, value in ((part.rows, row), (part.columns, columns[j])) if key is not None}
            panel(axis, item, [p for p in numbers.points if p.part == part.name and _is_at(p, at)], lines)
            axis.set_title(", ".join([part.title, *(f"{short(k)} = {v:g}" for k, v in at.items())]), fontsize=8)
    handles = {h.get_label(): h for axis in axes.flat for h in axis.get_legend_handles_labels()[0]}
    if handles:  # rows of `_dots` have their names beside them
        drawn.legend(
            handles.values(), handles.keys(), loc="outside lower center", ncols=across, fontsize=8, frameon=False
        )
    return drawn


def _titled(drawn: Figure, lines: Sequence[str]) -> None:
    """A title as wide as the figure."""
    letters = int(drawn.get_figwidth() * LETTERS)
    drawn.suptitle("\n".join(part for line in lines for part in textwrap.wrap(line, letters)), fontsize=8)


def _said(item: Item, numbers: Numbers) -> list[str]:
    """What of the runs there is, and what is drawn around their means."""
    if item.lines is not None:
        return []
    said = ["quick runs"] if numbers.quick else []
    said += ["each method at the best of its settings"] if item.tuned else []
    if item.against == ROUND and item.kind == "figure" and _lie_on_each_other(numbers.points):
        said.append("curves lie on each other: each is drawn thinner than the one before")
    seeds = max(len(point.seeds) for point in numbers.points)
    if seeds > 1:
        what = "bars" if item.against != ROUND else "bands" if _has_bands(_lines(numbers)) else ""
        said.append(f"means over {seeds} seeds" + (f", {what}: ± standard deviation" if what else ""))
    return ["; ".join(said)] if said else []


def _has_bands(lines: Sequence[str]) -> bool:
    return len(lines) <= MOST_BANDS


def _lines(numbers: Numbers) -> list[str]:
    return list(dict.fromkeys(point.line for point in numbers.points))


def _at_best(item: Item, numbers: Numbers) -> Numbers:
    """A line for each method, of its best setting at each place."""
    found = [
        replace(point, line=name)
        for part in item.ran(numbers.quick)
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
    alike = item.against == ROUND and _lie_on_each_other(points)
    for place, line in enumerate(lines):
        own = [point for point in points if point.line == line]
        style: dict[str, Any] = {"color": f"C{place % 10}", "linestyle": STYLES[place // 10 % 4], "label": line}
        if item.against == ROUND:
            width = WIDTHS[0] + (WIDTHS[1] - WIDTHS[0]) * place / max(1, len(lines) - 1) if alike else WIDTHS[1]
            for point in own:
                x = point.curve["round"]
                mean = [float("nan") if y is None else y for y in point.curve["mean"]]
                axis.plot(x, mean, linewidth=width, **style)
                if not _has_bands(lines):
                    continue
                below = [y - s for y, s in zip(mean, point.curve["std"], strict=True)]
                above = [y + s for y, s in zip(mean, point.curve["std"], strict=True)]
                axis.fill_between(x, below, above, color=style["color"], alpha=0.2, linewidth=0)
        elif own:
            known = sorted((p.at[item.against], p.mean, p.std) for p in own if p.mean is not None)
            x, mean, std = ([one[k] for one in known] for k in range(3))
            beside = _beside(x, APART * (place - (len(lines) - 1) / 2)) if any(std) else x
            axis.errorbar(beside, mean, yerr=std, marker="o", markersize=3, capsize=2, linewidth=1.2, **style)
    logarithmic = item.against != ROUND and _scaled(axis, item, points)
    if item.predicted:
        _foretold(axis, item.predicted, lines)
    if item.shown is not None:
        axis.set_ylim(*item.shown)
    across = "communication rounds" if item.against == ROUND else short(item.against)
    measure = MEASURES.get(item.measure, item.measure)
    _dressed(axis, across, f"{measure}, logarithmic axis" if logarithmic else measure)


def _foretold(axis: Any, predicted: Mapping[str, float], lines: Sequence[str]) -> None:
    """Dotted, in the colour of a line, where theory has it best; grey for all lines."""
    for line, place in predicted.items():
        colour = f"C{lines.index(line) % 10}" if line else GREY
        axis.axvline(place, color=colour, linestyle=":", linewidth=1.2)
    axis.plot([], [], color=GREY, linestyle=":", linewidth=1.2, label="predicted")


def _lie_on_each_other(points: Sequence[Point]) -> bool:
    """Whether most pairs of curves are nowhere further apart than a bit of the panel."""
    curves = [{x: y for x, y in zip(p.curve["round"], p.curve["mean"], strict=True) if y is not None} for p in points]
    values = [y for curve in curves for y in curve.values()]
    pairs = [(one, other) for i, one in enumerate(curves) for other in curves[:i] if one.keys() & other.keys()]
    if not pairs:
        return False
    gaps = [max(abs(one[x] - other[x]) for x in one.keys() & other.keys()) for one, other in pairs]
    return bool(statistics.median(gaps) < SAME * (max(values) - min(values)))


def _is_wide(values: Sequence[float]) -> bool:
    return bool(values) and min(values) > 0 and max(values) > LOG * min(values)


def _beside(x: Sequence[float], shift: float) -> list[float]:
    """Places moved by a part of their range, of its logarithm where that is the axis."""
    if _is_wide(x):
        return [one * (max(x) / min(x)) ** shift for one in x]
    return [one + shift * (max(x) - min(x)) for one in x]


def _scaled(axis: Any, item: Item, points: Sequence[Point]) -> bool:
    """Make axes logarithmic where values are far apart; returns whether the vertical one is, of a loss."""
    x = sorted({float(point.at[item.against]) for point in points})
    if _is_wide(x):
        _ticked(axis, x)
    y = [point.mean for point in points if point.mean is not None]
    far = not item.higher_is_better and bool(y) and min(y) > 0 and max(y) > LOG * statistics.median(y)
    if far:
        axis.set_yscale("log")
    return far


def _is_at_one_value(item: Item, numbers: Numbers) -> bool:
    return item.against != ROUND and len({point.at.get(item.against) for point in numbers.points}) == 1


def _dots(axis: Any, item: Item, points: list[Point], lines: list[str]) -> None:
    """A row for each line, the first at the top: on an axis of one value all points would hide one another."""
    for place, line in enumerate(lines):
        for point in points:
            if point.line == line and point.mean is not None:
                style: dict[str, Any] = {"color": f"C{place % 10}", "marker": "o", "markersize": 4, "capsize": 3}
                axis.errorbar(point.mean, place, xerr=point.std if len(point.scores) > 1 else None, **style)
                axis.annotate(
                    f"{point.mean:.3g}",
                    (point.mean, place),
                    (0, 5),
                    textcoords="offset points",
                    ha="center",
                    fontsize=7,
                )
    axis.set_yticks(range(len(lines)), lines)
    axis.set_ylim(len(lines) - 0.5, -0.7)
    axis.margins(x=0.1)
    at = points[0].at[item.against] if points else None
    _dressed(axis, f"{MEASURES.get(item.measure, item.measure)}, at {short(item.against)} = {at}", "")


def _values(numbers: Numbers, part: Part, key: str | None) -> list[Any]:
    if key is None:
        return [None]
    return list(dict.fromkeys(point.at[key] for point in numbers.points if point.part == part.name)) or [None]


def _is_at(point: Point, at: dict[str, Any]) -> bool:
    return all(point.at.get(key) == value for key, value in at.items())


# Tables: a panel for each row, its columns on the horizontal axis, published numbers black


def _grid(item: Item, numbers: Numbers) -> Figure:
    """Panels by rows of the table, and by the last of the settings that lines differ in, where these are several.

    Of the others the first is the style of a line and the rest its colour.
    """
    from matplotlib.figure import Figure

    part = item.ran(numbers.quick)[0]
    assert part.rows is not None and part.columns is not None, "a table has rows and columns"
    words = _varying(list(dict.fromkeys(point.line for point in numbers.points)))
    down = list(dict.fromkeys(one[-1] for one in words.values())) if len(next(iter(words.values()))) > 2 else [""]
    across = list(dict.fromkeys(point.at[part.rows] for point in numbers.points))
    drawn = Figure(figsize=(2.6 * max(len(across), 3) + 0.6, 2.5 * len(down) + 1.2), layout="constrained")
    axes = drawn.subplots(len(down), len(across), squeeze=False, sharex=True, sharey=True)
    for i, setting in enumerate(down):
        for j, row in enumerate(across):
            lines = {line: one for line, one in words.items() if not setting or one[-1] == setting}
            own = [p for p in numbers.points if p.line in lines and p.at[part.rows] == row]
            _panel_of_table(axes[i][j], part, own, {line: one[:-1] if setting else one for line, one in lines.items()})
            _published(axes[i][j], item, part, row, sorted({float(p.at[part.columns]) for p in own}))
            title = [f"{short(part.rows)} = {number(row)}", *([setting] if setting else [])]
            axes[i][j].set_title(", ".join(title), fontsize=8)
            if i == len(down) - 1:
                axes[i][j].set_xlabel(short(part.columns), fontsize=8)
        axes[i][0].set_ylabel(MEASURES.get(item.measure, item.measure), fontsize=8)
    handles = {h.get_label(): h for axis in axes.flat for h in axis.get_legend_handles_labels()[0]}
    columns = 4 if len(across) > 3 else 2
    drawn.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
    return drawn


def _varying(lines: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The words of each line's label that are not the same in all."""
    split = {line: line.split(", ") for line in lines}
    if len({len(words) for words in split.values()}) > 1:
        return {line: (line,) for line in lines}
    places = [place for place, found in enumerate(zip(*split.values(), strict=True)) if len(set(found)) > 1]
    return {line: tuple(words[place] for place in places or [0]) for line, words in split.items()}


def _panel_of_table(axis: Any, part: Part, points: Sequence[Point], lines: dict[str, tuple[str, ...]]) -> None:
    assert part.columns is not None
    styles = list(dict.fromkeys(words[0] for words in lines.values()))
    colours = list(dict.fromkeys(words[1:] for words in lines.values()))
    for line, words in lines.items():
        own = [p for p in points if p.line == line and p.mean is not None]
        known = sorted((float(point.at[part.columns]), point.mean) for point in own)
        axis.plot(
            [x for x, _ in known],
            [y for _, y in known],
            color=f"C{colours.index(words[1:])}",
            linestyle=TABLE_STYLES[styles.index(words[0]) % len(TABLE_STYLES)],
            linewidth=1.2,
            marker=".",
            markersize=4,
            label=", ".join(words),
        )
    axis.tick_params(labelsize=7)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def _published(axis: Any, item: Item, part: Part, row: Any, x: Sequence[float]) -> None:
    """The numbers of the paper, which are the same for all lines."""
    assert part.rows is not None and part.columns is not None
    cells = [cell for cell in item.cells if cell.part == part.name and cell.at.get(part.rows) == row]
    found = {float(cell.at[part.columns]): cell for cell in cells}
    known = [found[one] for one in x if one in found]
    places, std = [float(cell.at[part.columns]) for cell in known], [cell.std or 0.0 for cell in known]
    style: dict[str, Any] = {"color": "black", "linestyle": "none", "marker": "D", "markersize": 4, "capsize": 2}
    if known:
        mean = [cell.mean for cell in known]
        axis.errorbar(places, mean, yerr=std, label="published, ± standard deviation", zorder=5, **style)
    if x:
        _ticked(axis, x)


def _ticked(axis: Any, x: Sequence[float]) -> None:
    """A logarithmic axis with a tick at each value."""
    axis.set_xscale("log")
    axis.minorticks_off()
    axis.set_xticks(x, [number(one) for one in x])
