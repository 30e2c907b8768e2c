"""What attacks found, as matplotlib figures that show themselves in a notebook."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from dpfl_plugin.api.plots import shown
from dpfl_plugin.attacks import roc
from dpfl_plugin.attacks.demonstration import FPR, Inversion, Membership
from dpfl_plugin.core.rounding import digits, places

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette, told apart by colour-blind readers too; styles differ as well, for print.
STYLES = {"without noise": ("#D55E00", "-"), "with noise": ("#0072B2", "-")}
BOUND, CHANCE = "#000000", "#888888"
_LEAST = 1e-3
MOST_COLUMNS = 30
NUMBERS = (
    "Numbers: correlation with the record (1: recovered{}); in brackets what a guess, other records of the silo, gets."
)
SCALE = "Each {} has its own scale, from its least number ({}) to its largest ({})."


def membership(measured: Mapping[str, Membership], title: str, delta: float) -> Figure:
    """ROC curves of the measured attacks below the bound on all attacks, on linear and on logarithmic axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 4.9), layout="constrained")  # no pyplot: a program's backend and style stay
    linear, logarithmic = figure.subplots(1, 2)
    least = _LEAST  # left of some three non-members, all is chance
    for name, one in measured.items():
        colour, style = STYLES[name]
        members, others = roc.pooled(one.runs)
        false, true = roc.curve(members, others)
        least = max(least, 3 / len(others))
        label = f"attack {name}: AUC {one.auc.value:.2f} ({one.auc.low:.2f} to {one.auc.high:.2f})"
        for axis in (linear, logarithmic):
            axis.plot(false, true, style, color=colour, linewidth=1.8, label=label, drawstyle="steps-post")
    grid = np.concatenate([np.geomspace(least, 1, 400), np.linspace(0, 1, 400)])
    grid.sort()
    private = measured.get("with noise")
    for axis in (linear, logarithmic):
        if private is not None:
            limit = private.bound.tpr(grid)
            spent = places(private.epsilon, 2) if math.isfinite(private.epsilon) else "∞"
            guarantee = f"ε = {spent}, δ = {digits(delta, 6)}"
            label = f"on average no attack exceeds this at {guarantee}: AUC {places(private.bound.auc(), 2)}"
            axis.plot(grid, limit, "--", color=BOUND, linewidth=1.4, label=label)
            axis.fill_between(grid, limit, 1, color=BOUND, alpha=0.06, linewidth=0)
        axis.plot(grid, grid, ":", color=CHANCE, linewidth=1.4, label="guessing: AUC 0.50")
        axis.set_xlabel("false positive rate: non-members called members")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    linear.set(xlim=(0, 1), ylim=(0, 1.005), ylabel="true positive rate: members found", aspect="equal")
    logarithmic.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1.1))
    if least < FPR:
        logarithmic.axvline(FPR, color=CHANCE, linewidth=0.8)
        logarithmic.annotate(
            f"{FPR:.0%}", (FPR, least), xytext=(3, 3), textcoords="offset points", fontsize=8, color="#555555"
        )
    linear.set_title("linear axes", fontsize=10)
    logarithmic.set_title("logarithmic axes: few false positives", fontsize=10)
    figure.suptitle(f"Was this record trained on? The server's guess from the uploads\n{title}", fontsize=11)
    handles, labels = linear.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    return shown(figure)


def inversion(
    inverted: Mapping[str, Inversion], shape: tuple[int, ...], title: str, columns: Sequence[str] = ()
) -> Figure:
    """Rows: records, and what was read off the messages without noise and with it; columns: records.

    Features that make no image are drawn as strips of colour, one column of it for each feature, ``columns`` by name.
    """
    some = next(iter(inverted.values()))
    size = image_shape(shape)
    groups = [f"{len(some.single)} messages, each the gradient of one record"]
    counts = [len(some.single)]
    if some.batch is not None:
        counts.append(len(some.batch.originals))
        groups.append(f"one message, the mean gradient of {counts[1]} records")
    figure, axes = _grid(1 + len(inverted), counts, title, _legend(columns, picture=size is not None))
    for which, group in enumerate(groups):
        first = sum(counts[:which])
        cells = axes[:, first : first + counts[which]]
        for column, original in enumerate(_columns(some, which)[0]):
            _draw(cells[0, column], original, size)
        for row, one in enumerate(inverted.values(), start=1):
            _, found, reached = _columns(one, which)
            for column, (features, (correlation, guess)) in enumerate(zip(found, reached, strict=True)):
                _draw(cells[row, column], features, size)
                by_guess = "" if math.isnan(guess) else f" ({guess:.2f})"
                cells[row, column].set_xlabel(f"{correlation:.2f}{by_guess}", fontsize=8, labelpad=2)
        left, right = cells[0, 0].get_position(), cells[0, -1].get_position()
        middle = (left.x0 + right.x1) / 2
        figure.text(middle, right.y1 + 0.02, group, ha="center", va="bottom", fontsize=9)
    for row, name in enumerate(["record", *(f"recovered\n{name}" for name in inverted)]):
        axes[row, 0].set_ylabel(name, fontsize=9, rotation=0, ha="right", va="center", labelpad=6)
    return shown(figure)


def _legend(columns: Sequence[str], *, picture: bool) -> list[str]:
    """What numbers and colours are, in lines."""
    if picture:
        return [NUMBERS.format(" up to brightness and contrast"), SCALE.format("picture", "white", "black")]
    named = ", ".join(columns[:MOST_COLUMNS]) + ", ..." * (len(columns) > MOST_COLUMNS)
    strips = "Strips, from left to right: " + (named or "the features in their order")
    return [*textwrap.wrap(strips, 110), NUMBERS.format(""), SCALE.format("strip", "dark blue", "yellow")]


def _grid(rows: int, counts: list[int], title: str, lines: Sequence[str]) -> tuple[Any, Any]:
    """(figure, axes (rows, sum of counts)) of small squares, with a gap between groups of columns."""
    from matplotlib.figure import Figure

    cell, label, above, below = 0.86, 1.15, 0.85, 0.36 + 0.14 * len(lines)  # inches
    ratios = [1.0] * counts[0] + ([0.4] + [1.0] * counts[1] if len(counts) > 1 else [])
    width, height = max(6.4, label + cell * sum(ratios) + 0.1), above + below + 0.82 * rows
    figure = Figure(figsize=(width, height))
    right = (label + cell * sum(ratios)) / width
    grid = figure.add_gridspec(
        rows,
        len(ratios),
        width_ratios=ratios,
        left=label / width,
        right=right,
        bottom=below / height,
        top=1 - above / height,
        wspace=0.08,
        hspace=0.3,
    )
    columns = [column for column, ratio in enumerate(ratios) if ratio == 1]
    axes = np.array([[figure.add_subplot(grid[row, column]) for column in columns] for row in range(rows)])
    figure.suptitle(f"What did the record look like? A silo's first message, read by the server\n{title}", fontsize=11)
    figure.text(
        0.5,
        0.1 / height,
        "\n".join(lines),
        ha="center",
        va="bottom",
        fontsize=8,
        color="#555555",
    )
    return figure, axes


def _columns(one: Inversion, which: int) -> tuple[list[Tensor], list[Tensor], list[tuple[float, float]]]:
    """(originals, reconstructions, their correlations and a guess's) of the single messages (0) or of the batch (1)."""
    parts = one.single if which == 0 else (one.batch,)
    known = [part for part in parts if part is not None]
    return (
        [row for part in known for row in part.originals],
        [row for part in known for row in part.found],
        [pair for part in known for pair in zip(part.correlations.tolist(), part.guesses.tolist(), strict=True)],
    )


def image_shape(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """(height, width) of features that are a grey image, also a flattened square of 8 x 8 or more; else None."""
    if len(shape) in (2, 3) and (len(shape) == 2 or shape[0] == 1):
        return int(shape[-2]), int(shape[-1])
    side = math.isqrt(shape[0]) if len(shape) == 1 else 0
    return (side, side) if side >= 8 and side * side == shape[0] else None


def _draw(axis: Any, features: Tensor, size: tuple[int, int] | None) -> None:
    picture = features.reshape(size or (1, -1)).numpy()
    axis.imshow(
        picture, cmap="gray_r" if size else "viridis", aspect="equal" if size else "auto", interpolation="nearest"
    )
    axis.set(xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set(color="#bbbbbb", linewidth=0.6)
