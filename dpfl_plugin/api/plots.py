"""Pictures of runs: learning curves (`curves.png`), calibration, ROC, survival; and how figures are shown and saved."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dpfl_plugin.api.progress import say
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.outcomes import score_key
from dpfl_plugin.core.rounding import digits
from dpfl_plugin.core.validation_scores import NORMAL_95
from dpfl_plugin.errors import ConfigError, require
from dpfl_plugin.runs.folder import RunFolder, write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Lines = Sequence[Mapping[str, Any]]
Table = Mapping[str, Any]
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
        baseline = baseline_of(folder.finished_result() or {})
        curves(folder.curves, {label or config.name: lines}, title, config.privacy.delta, baseline)


def of_variants(config: Config, runs: Mapping[str, Lines], baseline: float | None) -> Path | None:
    """Have one picture of a file's variants, by label, beside their folders: where it is, if anything was measured.

    Args:
        config: of any of them: they share a folder, a name and a delta. baseline: as of `detailed`.
    """
    drawn = {label: lines for label, lines in runs.items() if lines and lines[-1][score_key(lines[-1])] is not None}
    path = Path(config.out) / config.name / "curves.png"
    if drawn:
        curves(path, drawn, config.name, config.privacy.delta, baseline)
    return path if path.exists() else None


def names_of(runs: Mapping[str, Lines]) -> str:
    """What runs are ranked by, in words."""
    names = dict.fromkeys(score_key(line).replace("_", " ") for lines in runs.values() for line in lines[-1:])
    return " or ".join(names)


def baseline_of(*results: Mapping[str, Any]) -> float | None:
    """What runs with these results would score without features; None where that is not the same for all."""
    scores = {(result.get("measures") or {}).get("baseline_score") for result in results}
    return scores.pop() if len(scores) == 1 else None


def curves(path: Path, runs: Mapping[str, Lines], title: str, delta: float, baseline: float | None = None) -> None:
    """Draw each run's evaluations into a file; see `detailed`. The runs are whole without it, and have not failed."""
    picture = io.BytesIO()
    detailed(runs, title, delta, baseline).savefig(picture, dpi=150, format="png")
    try:
        write_atomic(path, picture.getvalue())
    except OSError as error:
        say(
            f"{path} could not be written ({error.strerror or error}). Nothing else is missing. Once there is room, "
            "resume the run to draw it."
        )


def detailed(runs: Mapping[str, Lines], title: str, delta: float | None, baseline: float | None = None) -> Figure:
    """Each run's evaluations: test accuracy (or what else the outcome is ranked by) above, epsilon (server and
    third-party view) below.

    Args:
        delta: at which epsilon is stated, None where that differs. baseline: the score without features, if known.
    """
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
    if baseline is not None:
        axes[0, 0].axhline(baseline, color="0.5", linestyle=(0, (1, 2)), linewidth=1, label="no features")
    axes[0, 0].set_ylabel(f"{names_of(runs)} (mean over silos)")
    axes[0, 0].set_title(title, fontsize=10)
    axes[0, 0].legend(fontsize=8, frameon=False, loc="best")
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


def of_measures(kind: str, measures: Table, title: str) -> Figure:
    """A picture of measures of records with labels, as `measures.tables.table` has them.

    Args:
        kind: calibration, roc or survival.

    Raises:
        ConfigError: there is no such picture, or these measures have none.
    """
    require(kind in KINDS, "kind", kind, f"be one of curves, {', '.join(KINDS)}")
    key, what, draw = KINDS[kind]
    if not measures.get(key):
        raise ConfigError(f"plot({kind!r}) is of {what}; the measures have no {key}.")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 5), layout="constrained")
    axis = figure.subplots()
    draw(axis, measures)
    axis.set_title(title, fontsize=10)
    axis.legend(fontsize=8, frameon=False)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("Computed from records without noise: no epsilon covers it.", fontsize=7, color="0.4")
    return figure


def _calibration(axis: Any, measures: Table) -> None:
    """Groups of equal size by predicted probability, with Wilson's 95 % interval, and how many records are in each."""
    curve = measures["calibration_curve"]
    predicted, observed, number = (np.array(curve[key]) for key in ("predicted", "observed", "records"))
    half = NORMAL_95 * np.sqrt(observed * (1 - observed) / number + (NORMAL_95 / (2 * number)) ** 2)
    centre, scale = observed + NORMAL_95**2 / (2 * number), 1 + NORMAL_95**2 / number
    errors = np.clip([observed - (centre - half) / scale, (centre + half) / scale - observed], 0, None)
    most = min(1.0, 1.05 * max(predicted.max(), (observed + errors[1]).max()))
    axis.plot([0, most], [0, most], color="0.6", linewidth=1, label="perfect calibration")
    axis.errorbar(predicted, observed, errors, fmt="o", capsize=2, linewidth=1, label="observed, 95 % interval")
    for x, y, n in zip(predicted, observed, number, strict=True):
        axis.annotate(f"{n}", (x, y), (4, 4), textcoords="offset points", fontsize=7, color="0.3")
    mean, share = (float(each @ number / number.sum()) for each in (predicted, observed))
    axis.plot([], [], " ", label=f"all: predicted {mean:.1%}, observed {share:.1%}")
    ends = (-0.02 * most, 1.02 * most)
    axis.set(xlim=ends, ylim=ends, xlabel="predicted risk (mean of group)", ylabel="observed share")
    axis.set_aspect("equal")


def _roc(axis: Any, measures: Table) -> None:
    curve = measures["roc_curve"]
    axis.plot([0, 1], [0, 1], color="0.6", linewidth=1, label="no features")
    axis.plot(curve["false_positive_rate"], curve["sensitivity"], label=f"AUC {measures['auc']:.3f}")
    axis.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), xlabel="1 - specificity", ylabel="sensitivity")
    axis.set_aspect("equal")


def _survival(axis: Any, measures: Table) -> None:
    """What is predicted as lines, Kaplan-Meier at the ends of bins as points, with log-log 95 % intervals."""
    for index, curve in enumerate(measures["survival_curves"]):
        colour, times = f"C{index}", np.array(curve["times"])
        axis.plot(
            [0, *times], [1, *curve["predicted"]], color=colour, label=f"{curve['group']}, n = {curve['records']}"
        )
        survival, error = (np.array(curve[key], dtype=float) for key in ("observed", "standard_error"))
        with np.errstate(all="ignore"):
            width = np.exp(NORMAL_95 * error / (survival * np.log(survival)))
            ends = np.nan_to_num([survival - survival ** (1 / width), survival**width - survival])
        axis.errorbar(times, survival, ends, fmt="o", markersize=4, capsize=2, linewidth=1, color=colour)
    axis.plot([], [], color="0.3", label="predicted")
    axis.errorbar([], [], [], fmt="o", markersize=4, capsize=2, color="0.3", label="Kaplan-Meier, 95 % interval")
    axis.set(xlim=(0, None), ylim=(0, 1.02), xlabel="time", ylabel="probability of no event")


KINDS: Final[Mapping[str, tuple[str, str, Callable[[Any, Table], None]]]] = {
    "calibration": ("calibration_curve", "probabilities of two classes", _calibration),
    "roc": ("roc_curve", "two classes that both occur", _roc),
    "survival": ("survival_curves", "survival", _survival),
}
"""Pictures of measures: the measure, of what it is, and how it is drawn."""


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
