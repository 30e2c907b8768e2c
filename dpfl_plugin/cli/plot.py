"""`curves.png`: accuracy and epsilon against rounds."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpfl_plugin.training.folder import write_atomic

Lines = Sequence[Mapping[str, Any]]


def curves(path: Path, runs: Mapping[str, Lines], title: str, delta: float) -> None:
    """Draw each run's evaluations: test accuracy above, epsilon (server and third-party view) below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    private = {label: lines for label, lines in runs.items() if lines and lines[-1]["epsilon"]["server"] is not None}
    figure, axes = pyplot.subplots(
        2 if private else 1, 1, sharex=True, figsize=(7, 6 if private else 3.6), layout="constrained", squeeze=False
    )
    colours = {label: f"C{index}" for index, label in enumerate(runs)}
    for label, lines in runs.items():
        rounds = [line["round"] for line in lines]
        style = "-" if label in private else ":"
        axes[0, 0].plot(rounds, [line["test_accuracy"] for line in lines], style, color=colours[label], label=label)
    axes[0, 0].set_ylabel("test accuracy (mean over silos)")
    axes[0, 0].set_title(title, fontsize=10)
    axes[0, 0].legend(fontsize=8, frameon=False, loc="lower right")
    for label, lines in _one_of_each(private).items():
        _epsilon(axes[1, 0], label, lines, colours.get(label, "black"))
    if private:
        axes[1, 0].set_ylabel(f"epsilon at delta = {delta:g}")
        axes[1, 0].set_ylim(bottom=0)
        axes[1, 0].legend(fontsize=8, frameon=False, loc="lower right")
    axes[-1, 0].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[-1, 0].set_xlabel("communication rounds")
    for axis in axes[:, 0]:
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=150, format="png")
    pyplot.close(figure)
    write_atomic(path, picture.getvalue())


def _epsilon(axis: Any, label: str, lines: Lines, colour: str) -> None:
    rounds = [line["round"] for line in lines]
    server = [line["epsilon"]["server"] for line in lines]
    third_party = [line["epsilon"]["third_party"] for line in lines]
    axis.plot(rounds, server, color=colour, label=f"{label}, server")
    if third_party != server:
        axis.plot(rounds, third_party, "--", color=colour, label=f"{label}, third party")


def _one_of_each(runs: Mapping[str, Lines]) -> dict[str, Lines]:
    """Runs by label; if all have the same epsilons, one of them as "all private runs"."""
    spent = [[(line["round"], line["epsilon"]) for line in lines] for lines in runs.values()]
    if len(spent) > 1 and all(each == spent[0] for each in spent):
        return {"all private runs": next(iter(runs.values()))}
    return dict(runs)
