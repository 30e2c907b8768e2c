"""Pictures of tables: a panel for each row of the table, its columns on the horizontal axis, published ones black."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from papers.items import MEASURES, Item, Part
from papers.numbers import Numbers, Point, short
from papers.tables import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLES: Final = ("-", "--", ":", "-.")
Words = tuple[str, ...]


def grid(item: Item, numbers: Numbers) -> Figure:
    """Panels by rows of the table, and by the last of the settings that lines differ in, where these are several.

    Of the others the first is the style of a line and the rest its colour.
    """
    from matplotlib.figure import Figure

    part = item.ran(numbers.extent)[0]
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
            _panel(axes[i][j], part, own, {line: one[:-1] if setting else one for line, one in lines.items()})
            _published(axes[i][j], item, part, row, sorted({float(p.at[part.columns]) for p in own}))
            title = [f"{short(part.rows)} = {number(row)}", *([setting] if setting else [])]
            axes[i][j].set_title(", ".join(title), fontsize=8)
            if i == len(down) - 1:
                axes[i][j].set_xlabel(short(part.columns), fontsize=8)
        axes[i][0].set_ylabel(MEASURES.get(item.measure, item.measure), fontsize=8)
    handles = {h.get_label(): h for axis in axes.flat for h in _handles(axis)}
    columns = 4 if len(across) > 3 else 2
    drawn.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
    return drawn


def _varying(lines: Sequence[str]) -> dict[str, Words]:
    """The words of each line's label that are not the same in all."""
    split = {line: line.split(", ") for line in lines}
    if len({len(words) for words in split.values()}) > 1:
        return {line: (line,) for line in lines}
    places = [place for place, found in enumerate(zip(*split.values(), strict=True)) if len(set(found)) > 1]
    return {line: tuple(words[place] for place in places or [0]) for line, words in split.items()}


def _panel(axis: Any, part: Part, points: Sequence[Point], lines: dict[str, Words]) -> None:
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
            linestyle=STYLES[styles.index(words[0]) % len(STYLES)],
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
        ticked(axis, x)


def ticked(axis: Any, x: Sequence[float]) -> None:
    """A logarithmic axis with a tick at each value."""
    axis.set_xscale("log")
    axis.minorticks_off()
    axis.set_xticks(x, [number(one) for one in x])


def _handles(axis: Any) -> Sequence[Any]:
    return axis.get_legend_handles_labels()[0]  # type: ignore[no-any-return]
