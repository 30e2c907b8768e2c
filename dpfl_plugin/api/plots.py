"""Pictures of runs: accuracy and epsilon against rounds (`curves.png`), and how figures are shown and saved."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dpfl_plugin.api.progress import say
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.outcomes import score_key
from dpfl_plugin.core.rounding import digits
from dpfl_plugin.runs.folder import RunFolder, write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Lines = Sequence[Mapping[str, Any]]
FEW: Final = 30  # points of a line that are marked: one alone would not be seen


def of_run(folder: RunFolder, config: Config, label: str | None, *, anew: bool) -> None:
    """Have `curves.png` in a run's folder, where something was measured in two rounds or more.

    Where it cannot be written, that is said.

    Args:
        label: what a file calls the run. anew: also where there is one.
    """
    lines = folder.read_metrics()
    if len(lines) > 1 and lines[-1][score_key(lines[-1])] is not None and (anew or not folder.curves.exists()):
        title = f"{config.name}: {config.algorithm.name or config.algorithm.module} on {config.data.dataset.name}"
        curves(folder.curves, {label or config.name: lines}, title, config.privacy.delta)


def of_variants(config: Config, runs: Mapping[str, Lines]) -> Path | None:
    """Have one picture of a file's variants, by label, beside their folders: where it is, if anything was measured.

    Args:
        config: of any of them: they share a folder, a name and a delta.
    """
    drawn = {label: lines for label, lines in runs.items() if lines and lines[-1][score_key(lines[-1])] is not None}
    path = Path(config.out) / config.name / "curves.png"
    if drawn:
        curves(path, drawn, config.name, config.privacy.delta)
    return path if path.exists() else None


def names_of(runs: Mapping[str, Lines]) -> str:
    """What runs are ranked by, in words."""
    names = dict.fromkeys(score_key(line).replace("_", " ") for lines in runs.values() for line in lines[-1:])
    return " or ".join(names)


def curves(path: Path, runs: Mapping[str, Lines], title: str, delta: float) -> None:
    """Draw each run's evaluations into a file; see `detailed`. The runs are whole without it, and have not failed."""
    picture = io.BytesIO()
    detailed(runs, title, delta).savefig(picture, dpi=150, format="png")
    try:
        write_atomic(path, picture.getvalue())
    except OSError as error:
        say(
            f"{path} could not be written ({error.strerror or error}). Nothing else is missing. Once there is room, "
            "resume the run to draw it."
        )


def detailed(runs: Mapping[str, Lines], title: str, delta: float | None) -> Figure:
    """Each run's evaluations: test accuracy (or what else the outcome is ranked by) above, epsilon (server and
    third-party view) below; ``delta``: at which it is stated, None where that differs."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    private = {label: lines for label, lines in runs.items() if lines and lines[-1]["epsilon"]["server"] is not None}
    # No pyplot: whatever backend and style the program has stay as they are.
    figure = Figure(figsize=(7, 6 if private else 3.6), layout="constrained")
    axes = figure.subplots(2 if private else 1, 1, sharex=True, squeeze=False)
    colours = {label: f"C{index}" for index, label in enumerate(runs)}
    for label, lines in runs.items():
        rounds = [line["round"] for line in lines]
        style = "-" if label in private else ":"
        scores = [line[score_key(line)] for line in lines]
        axes[0, 0].plot(rounds, scores, style, color=colours[label], label=label, marker=_marker(lines))
    axes[0, 0].set_ylabel(f"{names_of(runs)} (mean over silos)")
    axes[0, 0].set_title(title, fontsize=10)
    axes[0, 0].legend(fontsize=8, frameon=False, loc="lower right")
    for label, lines in _one_of_each(private).items():
        _epsilon(axes[1, 0], label, lines, colours.get(label, "black"))
    if private:
        axes[1, 0].set_ylabel("epsilon" if delta is None else f"epsilon at delta = {digits(delta, 6)}")
        axes[1, 0].set_ylim(bottom=0)
        axes[1, 0].legend(fontsize=8, frameon=False, loc="lower right")
    axes[-1, 0].xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes[-1, 0].set_xlim(0, 1.03 * max((line["round"] for lines in runs.values() for line in lines), default=1))
    axes[-1, 0].set_xlabel("communication rounds")
    for axis in axes[:, 0]:
        axis.ticklabel_format(useOffset=False)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def _epsilon(axis: Any, label: str, lines: Lines, colour: str) -> None:
    rounds = [line["round"] for line in lines]
    server = [line["epsilon"]["server"] for line in lines]
    third_party = [line["epsilon"]["third_party"] for line in lines]
    axis.plot(rounds, server, color=colour, label=f"{label}, server", marker=_marker(lines))
    if third_party != server:
        axis.plot(rounds, third_party, "--", color=colour, label=f"{label}, third party", marker=_marker(lines))


def _marker(lines: Lines) -> str | None:
    return "o" if len(lines) <= FEW else None


def _one_of_each(runs: Mapping[str, Lines]) -> dict[str, Lines]:
    """Runs by label; if all have the same epsilons, one of them as "each private run"."""
    spent = [[(line["round"], line["epsilon"]) for line in lines] for lines in runs.values()]
    if len(spent) > 1 and all(each == spent[0] for each in spent):
        return {"each private run": next(iter(runs.values()))}
    return dict(runs)


def shown(figure: Figure) -> Figure:
    """A figure that shows itself in a notebook."""
    figure._repr_png_ = lambda: png(figure)  # type: ignore[attr-defined]
    return figure


def png(figure: Figure, dpi: int = 110) -> bytes:
    """A figure's picture."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=dpi, metadata={"Software": None})
    return picture.getvalue()


def embedded(figure: Figure) -> str:
    """A figure as HTML that needs no file."""
    return f'<img alt="curves" src="data:image/png;base64,{base64.b64encode(png(figure)).decode()}">'
