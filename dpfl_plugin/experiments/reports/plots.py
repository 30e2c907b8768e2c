"""Plots for publication: a metric with its 95 % confidence interval against an axis, PNG and PDF."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dpfl_plugin.core.outcomes import measure_range
from dpfl_plugin.experiments.reports.curves import band, drawn_at, tradeoff, within
from dpfl_plugin.experiments.reports.groups import Group
from dpfl_plugin.experiments.reports.runs import AXES
from dpfl_plugin.experiments.reports.tables import title
from dpfl_plugin.runs.folder import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's, without yellow, which is too light on white; then the same with another dash.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: Final = ("-", "--", ":", "-.")
TRADEOFF: Final = "epsilon of the whole run, server's view"
WIDTH: Final = 5.5  # inches
MOST_BANDS: Final = 5  # in one plot: more would overlap
BESIDE: Final = 0.01  # of the axis, between intervals at the same epsilon


def plot(path: Path, groups: Sequence[Group], metric: str, axis: str) -> list[Path]:
    """Draw `curves` to ``path`` with `.png` and `.pdf`; returns the files, none if nothing can be drawn."""
    figure = curves(groups, metric, axis)
    return [] if figure is None else _save(figure, path)


def curves(groups: Sequence[Group], metric: str, axis: str) -> Figure | None:
    """Mean of each group's complete runs, with its 95 % confidence interval for up to `MOST_BANDS` groups; other runs
    are dotted. None if nothing is there."""
    drawn = [(group, curve) for group in groups if (curve := band(group.complete, metric, axis)) is not None]
    partial = [(group, run) for group in groups for run in group.runs if not run.complete and _has(run, metric, axis)]
    if not drawn and not partial:
        return None
    styles = {id(group): style for group, style in zip(groups, _styles(groups), strict=True)}
    with _figure() as (figure, axes):
        for group, curve in drawn:
            colour, dash = styles[id(group)]
            label = _escaped(f"{group.label} (n = {len(group.complete)})")
            axes.plot(curve.x, curve.mean, dash, color=colour, linewidth=1.4, label=label)
            if curve.half_width is not None and len(drawn) <= MOST_BANDS:
                low, high = within(metric, curve.mean, curve.half_width)
                # Behind every curve, whichever was drawn first.
                axes.fill_between(curve.x, low, high, color=colour, alpha=0.12, linewidth=0, zorder=1)
        for group, run in partial:
            label = _escaped(f"{group.label}, seed {run.seed}: {run.status}")
            x, y = run.curve[axis], run.curve[metric]
            axes.plot(x, y, ":", color=styles[id(group)][0], linewidth=0.9, marker="x", markevery=[-1], label=label)
        _baseline(axes, groups, metric)
        axes.set_xlabel(AXES[axis])
        axes.xaxis.get_major_locator().set_params(integer=axis == "rounds")
        _finish(figure, axes, metric)
    return figure


def plot_tradeoff(path: Path, groups: Sequence[Group], metric: str) -> list[Path]:
    """Draw a metric against the epsilon of the whole run, a point with its confidence interval for each group.

    Groups that differ in noise alone are one line; epsilons that agree to 1 % are side by side. Returns the
    files, `.png` and `.pdf`; none where there are not two epsilons to compare.
    """
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for group in groups:
        point = tradeoff(group, metric)
        if point is not None:
            lines.setdefault(group.series, []).append(point)
    at = drawn_at(epsilon for points in lines.values() for epsilon, _, _ in points)
    if len({*at.values()}) < 2:
        return []
    step = BESIDE * (max(at.values()) - min(at.values()))
    with _figure() as (figure, axes):
        for index, (label, points) in enumerate(lines.items()):
            colour, dash = _style(index)
            beside = step * (index - (len(lines) - 1) / 2)
            x, y, half = (np.array(column) for column in zip(*sorted(points), strict=True))
            low, high = within(metric, y, half)
            style = {"color": colour, "linestyle": dash, "marker": "o", "markersize": 4}
            errors = [y - low, high - y]
            axes.errorbar(
                [at[e] + beside for e in x], y, yerr=errors, capsize=3, linewidth=1.2, label=_escaped(label), **style
            )
        _baseline(axes, groups, metric)
        axes.set_xlabel(TRADEOFF)
        _finish(figure, axes, metric)
    return _save(figure, path)


def left_out(groups: Sequence[Group], metric: str, axis: str) -> list[Group]:
    """Groups with complete runs of which `plot` draws no mean curve."""
    return [group for group in groups if group.complete and band(group.complete, metric, axis) is None]


def _styles(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """A colour for each line against epsilon and a dash for each of its points, as long as these are enough."""
    lines: dict[str, tuple[int, int]] = {}
    places = []
    for group in groups:
        line, place = lines.get(group.series, (len(lines), -1))
        lines[group.series] = (line, place + 1)
        places.append((line, place + 1))
    if all(line < len(COLOURS) and place < len(DASHES) for line, place in places):
        return [(COLOURS[line], DASHES[place]) for line, place in places]
    return [_style(index) for index in range(len(groups))]


def _style(index: int) -> tuple[str, str]:
    return COLOURS[index % len(COLOURS)], DASHES[index // len(COLOURS) % len(DASHES)]


def _baseline(axes: Any, groups: Sequence[Group], metric: str) -> None:
    """A line where a model without features would be, if that is the same for all."""
    values = {round(value, 3): value for group in groups if (value := group.baseline(metric)) is not None}
    if len(values) == 1:
        axes.axhline(next(iter(values.values())), color="0.5", linestyle=(0, (1, 3)), linewidth=1, label="no features")


@contextlib.contextmanager
def _figure() -> Iterator[tuple[Figure, Any]]:
    """A figure and its axes. No pyplot: whatever backend and style the program has stay as they are."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(
        {
            "font.size": 9,
            "axes.formatter.useoffset": False,  # numbers at an axis stand for themselves
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    ):
        figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, figure.subplots()


def _finish(figure: Any, axes: Any, metric: str) -> None:
    axes.set_ylabel(title(metric))
    axes.grid(alpha=0.3)
    least, most = measure_range(metric)
    low, high = axes.get_ylim()
    axes.set_ylim(low if least is None else max(low, least), high if most is None else min(high, most))
    legend = figure.legend(loc="outside lower center", fontsize=7, frameon=False)
    figure.canvas.draw()
    extent = legend.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
    figure.set_size_inches(max(WIDTH, extent.width + 0.2), 3.2 + extent.height)  # no label is cut


def _has(run: Any, metric: str, axis: str) -> bool:
    return metric in run.curve and bool(np.isfinite(run.curve[axis]).any() and np.isfinite(run.curve[metric]).any())


def _escaped(text: str) -> str:
    """Text in which a dollar sign starts no formula."""
    return text.replace("$", r"\$")


def _save(figure: Figure, path: Path) -> list[Path]:
    """As PNG and PDF. The same runs give the same bytes: no date is written."""
    from matplotlib import rc_context

    files = []
    for kind, dates in {"png": {"Software": None}, "pdf": {"CreationDate": None}}.items():
        picture = io.BytesIO()
        with rc_context({"pdf.fonttype": 42}):  # fonts as outlines that can be searched: what publishers ask for
            figure.savefig(picture, format=kind, dpi=200, metadata=dates)
        files.append(path.with_suffix(f".{kind}"))
        write_atomic(files[-1], picture.getvalue())
    return files
