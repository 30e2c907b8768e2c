"""Curves of runs, as matplotlib figures that show themselves in a notebook."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpfl_plugin.core.outcomes import score_key

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Lines = Sequence[Mapping[str, Any]]


def curves(runs: Mapping[str, Lines]) -> Figure:
    """Test accuracy, or what else the outcome is ranked by (mean over silos), and the server's epsilon against rounds,
    a line for each run."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    private = {label: lines for label, lines in runs.items() if _has(lines, "epsilon")}
    # No pyplot: whatever backend and style the program has stay as they are.
    figure = Figure(figsize=(6.5, 5 if private else 3), layout="constrained")
    axes = figure.subplots(2 if private else 1, 1, sharex=True, squeeze=False)[:, 0]
    for place, (label, lines) in enumerate(runs.items()):
        rounds = [line["round"] for line in lines]
        style: dict[str, Any] = {"color": f"C{place}", "label": label, "marker": "o", "markersize": 3}
        axes[0].plot(rounds, [line[score_key(line)] for line in lines], **style)
        if label in private:
            axes[1].plot(rounds, [line["epsilon"]["server"] for line in lines], **style)
    names = dict.fromkeys(score_key(line).replace("_", " ") for lines in runs.values() for line in lines[-1:])
    axes[0].set_ylabel(" or ".join(names))
    if private:
        axes[1].set_ylabel("epsilon (server)")
        axes[1].set_ylim(bottom=0)
    if len(runs) > 1:
        axes[0].legend(fontsize=8, frameon=False)
    axes[-1].set_xlabel("rounds")
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    for axis in axes:
        axis.ticklabel_format(useOffset=False)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    return shown(figure)


def shown(figure: Figure) -> Figure:
    """A figure that shows itself in a notebook."""
    figure._repr_png_ = lambda: png(figure)  # type: ignore[attr-defined]
    return figure


def png(figure: Figure, dpi: int = 110) -> bytes:
    """A figure's picture."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=dpi, metadata={"Software": None})
    return picture.getvalue()


def _has(lines: Lines, what: str) -> bool:
    return bool(lines) and lines[-1][what]["server"] is not None
