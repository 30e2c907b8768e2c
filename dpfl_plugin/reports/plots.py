"""Plots for publication: mean and standard deviation of a metric against an axis, PNG and PDF."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from dpfl_plugin.reports.groups import Group, band, drawn_at, series, tradeoff
from dpfl_plugin.reports.runs import AXES
from dpfl_plugin.runs.folder import write_atomic

MOST: Final = 10  # curves in a plot: more cannot be told apart
# Okabe and Ito's, without yellow, which is too light on white; then the same with another dash.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: Final = ("-", "--", ":")
TRADEOFF: Final = "epsilon of the whole run, server's view"


def plot(path: Path, groups: Sequence[Group], metric: str, axis: str) -> list[Path]:
    """Draw what can be drawn to ``path`` with `.png` and `.pdf`; returns the files, none if nothing can."""
    drawn = [(group, found) for group in groups if (found := band(group.complete, metric, axis)) is not None]
    partial = [(group, run) for group in groups for run in group.runs if not run.complete and _has(run, metric, axis)]
    if not drawn and not partial:
        return []
    styles = {id(group): (COLOURS[i % 7], DASHES[i // 7 % 3]) for i, group in enumerate(groups)}
    with _figure(len(drawn) + len(partial)) as (figure, axes):
        for group, found in drawn:
            colour, dash = styles[id(group)]
            label = _escaped(f"{group.label} (n = {len(group.complete)})")
            axes.plot(found.x, found.mean, dash, color=colour, linewidth=1.4, label=label)
            if found.std is not None:
                low, high = found.mean - found.std, found.mean + found.std
                # Behind every curve, whichever was drawn first.
                axes.fill_between(found.x, low, high, color=colour, alpha=0.12, linewidth=0, zorder=1)
        for group, run in partial:
            label = _escaped(f"{group.label}, seed {run.seed}: {run.status}")
            x, y = run.curve[axis], run.curve[metric]
            axes.plot(x, y, ":", color=styles[id(group)][0], linewidth=0.9, marker="x", markevery=[-1], label=label)
        axes.set_xlabel(AXES[axis])
        axes.set_ylabel(metric.replace("_", " "))
        return _finish(figure, axes, path)


def plot_tradeoff(path: Path, groups: Sequence[Group], metric: str) -> list[Path]:
    """Draw a metric against the epsilon of the whole run, a point with its standard deviation for each group.

    Groups that differ in noise alone are one line; epsilons that agree to 1 % are at one place. Returns the
    files, `.png` and `.pdf`; none without a guarantee.
    """
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for group in groups:
        point = tradeoff(group, metric)
        if point is not None and (len(lines) < MOST or series(group) in lines):
            lines.setdefault(series(group), []).append(point)
    if not lines:
        return []
    at = drawn_at(epsilon for points in lines.values() for epsilon, _, _ in points)
    with _figure(len(lines)) as (figure, axes):
        for i, (label, points) in enumerate(lines.items()):
            x, y, error = zip(*((at[epsilon], *others) for epsilon, *others in sorted(points)), strict=True)
            style = {"color": COLOURS[i % 7], "linestyle": DASHES[i // 7 % 3], "marker": "o", "markersize": 4}
            axes.errorbar(x, y, yerr=error, capsize=3, linewidth=1.2, label=_escaped(label), **style)
        axes.set_xlabel(TRADEOFF)
        axes.set_ylabel(metric.replace("_", " "))
        return _finish(figure, axes, path)


def left_out(groups: Sequence[Group], metric: str, axis: str) -> list[Group]:
    """Groups with complete runs of which `plot` draws no mean curve."""
    return [group for group in groups if group.complete and band(group.complete, metric, axis) is None]


@contextlib.contextmanager
def _figure(num_lines: int) -> Iterator[tuple[Any, Any]]:
    """A figure with room for a legend of so many lines, and its axes; closed at the end."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # Fonts as outlines that can be searched: what publishers ask for. Numbers at an axis stand for themselves.
    with pyplot.rc_context(
        {
            "pdf.fonttype": 42,
            "font.size": 9,
            "axes.formatter.useoffset": False,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    ):
        figure, axes = pyplot.subplots(figsize=(5.5, 3.2 + 0.15 * num_lines), layout="constrained")
        yield figure, axes
        pyplot.close(figure)


def _finish(figure: Any, axes: Any, path: Path) -> list[Path]:
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", fontsize=7, frameon=False)
    files = [path.with_suffix(".png"), path.with_suffix(".pdf")]
    for file in files:
        _save(figure, file)
    return files


def _has(run: Any, metric: str, axis: str) -> bool:
    import numpy as np

    return metric in run.curve and bool(np.isfinite(run.curve[axis]).any() and np.isfinite(run.curve[metric]).any())


def _escaped(text: str) -> str:
    """Text in which a dollar sign starts no formula."""
    return text.replace("$", r"\$")


def _save(figure: Any, path: Path) -> None:
    """The same runs give the same bytes: no date is written."""
    picture = io.BytesIO()
    kind = path.suffix[1:]
    dates = {"CreationDate": None} if kind == "pdf" else {"Software": None}
    figure.savefig(picture, format=kind, dpi=200, metadata=dates)
    write_atomic(path, picture.getvalue())
