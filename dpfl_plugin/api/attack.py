"""`attack`: what a curious server could learn from a silo's messages, with the configured noise and without."""

from __future__ import annotations

import math
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table
from torch import Tensor

from dpfl_plugin.api.experiment import Experiment, experiment_of
from dpfl_plugin.api.plots import png, shown
from dpfl_plugin.api.progress import python_reporter
from dpfl_plugin.api.runs import Run
from dpfl_plugin.attacks import demonstration, roc
from dpfl_plugin.attacks.demonstration import BOUND_OF_ONE_NOISE, FPR, Inversion, Membership, Note
from dpfl_plugin.attacks.roc import Measured
from dpfl_plugin.config.load import Variant, in_file
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.rounding import digits, places
from dpfl_plugin.core.text import Printed, counted, duration, items
from dpfl_plugin.core.threads import threads
from dpfl_plugin.data.names import called, listed, number_of
from dpfl_plugin.errors import ConfigError, DataError, UnsupportedError, require
from dpfl_plugin.file_permissions import private_folder
from dpfl_plugin.runs.extra_releases import refuse_extra_releases
from dpfl_plugin.runs.folder import to_json, write_atomic
from dpfl_plugin.runs.records import federate
from dpfl_plugin.runs.silo_settings import refuse_cycles, refuse_silos
from dpfl_plugin.terminal import printed, show_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOISE: Final = "with noise"
QUIET: Final = "without noise"
WITHOUT_NOISE: Final = (
    "privacy.noise_multiplier=0",
    "privacy.clip_norm=inf",
    "privacy.clip=flat",
    "privacy.epsilon=null",
)
# Okabe and Ito's palette, told apart by colour-blind readers too; styles differ as well, for print.
STYLES = {"without noise": ("#D55E00", "-"), "with noise": ("#0072B2", "-")}
BOUND, CHANCE = "#000000", "#888888"
_LEAST = 1e-3
MOST_COLUMNS = 30
NUMBERS = (
    "Numbers: correlation with the record (1: recovered{}); in brackets what a guess, other records of the silo, gets."
)
SCALE = "Each {} has its own scale, from its least number ({}) to its largest ({})."


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Whom to attack, and how often.

    Attributes:
        silo: whose messages: its number, from 0, or its name. rounds: to listen to; None: the configuration's.
        repeats: seeds of the membership attack.
    """

    silo: int | str = 0
    rounds: int | None = None
    repeats: int = 10

    def __post_init__(self) -> None:
        for name, least in (("silo", 0), ("repeats", 1)):
            value = getattr(self, name)
            named = name == "silo" and isinstance(value, str)
            whole = isinstance(value, int) and not isinstance(value, bool)
            require(named or (whole and value >= least), name, value, f"be a whole number, at least {least}")


@dataclass(frozen=True)
class AttackReport(Printed):
    """What both attacks on one run came to.

    Attributes:
        config: what was attacked. variant: its label; None of a file without variants.
        silo: whose messages. silo_name: None where silos have no names.
        repeats: seeds, from ``config.public_seed`` on.
        membership: "without noise" and, of a run with noise, "with noise": each with ``auc``, ``tpr`` at 1 % false
            alarms (``value``, ``low``, ``high``), ``epsilon`` of what the silo released, and ``bound`` on any attack.
        inversion: by the same names; empty where the attack does not know the model: ``inversion_refused`` says why.
        folder: of the files that were written; None: none were.
    """

    config: Config = field(repr=False)
    _: KW_ONLY
    variant: str | None
    silo: int
    silo_name: str | None
    repeats: int
    membership: Mapping[str, Membership] = field(repr=False)
    inversion: Mapping[str, Inversion] = field(repr=False)
    inversion_refused: str | None
    folder: Path | None = None
    _features: tuple[tuple[int, ...], tuple[str, ...]] = field(repr=False)  # (their shape, columns by name)

    @property
    def title(self) -> str:
        """Run and silo in words."""
        of = self.variant or self.config.algorithm.name or self.config.algorithm.module
        return f"{self.config.name}: {of}, {called(self.silo, {self.silo: self.silo_name} if self.silo_name else {})}"

    @property
    def notes(self) -> list[str]:
        """What the numbers mean, and what they do not."""
        return _notes(self)

    @property
    def rows(self) -> list[list[str]]:
        """What the server achieves: a row for each number, of `membership`'s columns, then the bound on any attack."""
        return _rows(self)

    def __str__(self) -> str:
        names = ["membership.png", *(["inversion.png"] if self.inversion else []), "attack.json"]
        files = [] if self.folder is None else [f"written: {', '.join(str(self.folder / name) for name in names)}"]
        return "\n".join([printed(self._show, width=200), *self.notes, *files])

    def _show(self, console: Console) -> None:
        table = Table(title=self.title, title_justify="left")
        table.add_column("what the server achieves")
        for name in self.membership:
            table.add_column(name, justify="right")
        if NOISE in self.membership:
            table.add_column("no attack can\nexceed, on average", justify="right")
        for row in self.rows:
            table.add_row(*row)
        show_table(console, table)

    def plot_membership(self) -> Figure:
        """ROC curves of the membership attacks, below the bound on all attacks."""
        return _plot_membership(self.membership, self.title, self.config.privacy.delta)

    def plot_inversion(self) -> Figure:
        """Records, and what was read off the messages. It shows records as they are.

        Raises:
            UnsupportedError: inversion was not tried.
        """
        if not self.inversion:
            raise UnsupportedError(f"inversion was not tried: {self.inversion_refused}")
        return _plot_inversion(self.inversion, self._features[0], self.title, self._features[1])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `attack.json` and `dpfl attack --json` have them."""
        delta = self.config.privacy.delta
        return {
            "schema": 1,
            "name": self.config.name,
            "variant": self.variant,
            "silo": self.silo,
            "silo_name": self.silo_name,
            "seeds": [self.config.public_seed + repeat for repeat in range(self.repeats)],
            "membership": {name: _plain(one, delta) for name, one in self.membership.items()},
            "inversion": {name: _plain_inversion(one) for name, one in self.inversion.items()},
            "inversion_refused": self.inversion_refused,
        }


def attack(
    experiment: Experiment | Run | str | Path,
    *,
    silo: int | str = 0,
    rounds: int | None = None,
    repeats: int = 10,
    out: str | Path | None = None,
    progress: bool | None = None,
) -> AttackReport:
    """Infer membership and invert gradients from a silo's messages, with the configured noise and without any.

    It is a simulation by somebody who holds all records: no run folder is written, no budget charged.

    Args:
        experiment: of several variants the first; ``load(path).variants[label]`` names another.
        silo: whose messages the server attacks: its number, from 0, or its name.
        rounds: to listen to; None: the configuration's. repeats: seeds to repeat the membership attack over.
        out: folder for `membership.png`, `inversion.png`, which shows records as they are, and `attack.json`; None:
            nothing is written.
        progress: whether to tell how far it is; None: where a person looks on, in a terminal or in Jupyter.

    Raises:
        ConfigError, DataError: an argument, the configuration or its records are wrong; UnsupportedError: the attacks
            do not know what it releases.
    """
    require(progress is None or isinstance(progress, bool), "progress", progress, "be True, False or None")
    require(out is None or (isinstance(out, str | Path) and str(out).strip() != ""), "out", out, "be a path")
    options = Options(silo=silo, rounds=rounds, repeats=repeats)
    source, folder = experiment_of(experiment), None if out is None else Path(out)
    settings = ["privacy.randomness=seeded"]  # a demonstration that can be repeated
    settings += ["seed=0"] if source.loaded().variants[0].config.seed is None else []
    settings += [] if rounds is None else [f"rounds={rounds}"]
    chosen = replace(source, settings=(*source.settings, *settings))
    variant = chosen.loaded().variants[0]
    with threads(variant.config.runtime.threads):  # as in a run; more are slower on vectors this small
        try:
            report = _attacked(
                replace(chosen, variant=variant.label), variant, options, python_reporter(progress).note, folder
            )
        except (ConfigError, DataError) as error:
            raise in_file(error, source.path, variant) from error
    if folder is not None:
        write_pictures(folder, report)
        write_atomic(folder / "attack.json", to_json(report.to_dict()))
    return report


def _attacked(chosen: Experiment, one: Variant, options: Options, note: Note, out: Path | None) -> AttackReport:
    config = one.config
    if config.privacy.unit != "record":
        raise UnsupportedError(f"privacy.unit={config.privacy.unit!r}: these attacks are on records. Use unit: record.")
    refuse_extra_releases(config, "these attacks are on what rounds release")
    refuse_silos(config, BOUND_OF_ONE_NOISE)
    refuse_cycles(config, "attacks know releases that stand each for itself")
    known = federate(config, chosen.base)
    silo = number_of(options.silo, known.names, known.num_silos)
    if isinstance(silo, str):
        they = f"They are {listed(range(known.num_silos), known.names)}."
        raise ConfigError(f"silo={silo!r} must be the number or the name of a silo. {they}")
    if out is not None:  # before the work: it may not be allowed. Records may be recognised in its files
        private_folder(out)
    inverted, refusal = _inversion(config, chosen.base, silo)
    return AttackReport(
        config,
        variant=one.label,
        silo=silo,
        silo_name=known.names.get(silo),
        repeats=options.repeats,
        membership=_membership(chosen, config, silo, options.repeats, note),
        inversion=inverted,
        inversion_refused=refusal,
        folder=out,
        _features=(known.feature_shape, tuple(known.columns)),
    )


def write_pictures(folder: Path, report: AttackReport) -> None:
    """`membership.png` and, where it was tried, `inversion.png`."""
    write_atomic(folder / "membership.png", png(report.plot_membership(), dpi=120))
    if report.inversion:
        write_atomic(folder / "inversion.png", png(report.plot_inversion(), dpi=120))


def _membership(chosen: Experiment, config: Config, silo: int, repeats: int, say: Note) -> dict[str, Membership]:
    private_too = demonstration.is_private(config, chosen.base)
    runs, began, done = repeats * (1 + private_too), time.monotonic(), 0
    kinds = f", {NOISE} and {QUIET}" if private_too else ""
    say(f"membership: {runs} runs ({counted(repeats, 'seed')}{kinds}); the first shows how long the others take.")

    def measured(name: str, config: Config) -> Membership:
        def note(text: str) -> None:
            nonlocal done
            done += 1
            say(f"membership, {name}, {text}")
            if done == 1 and runs > 1:
                took = time.monotonic() - began
                say(f"it took {duration(took)}; {runs - 1} more: about {duration(took * (runs - 1))}.")

        return demonstration.membership(config, chosen.base, silo, repeats, note)

    if not private_too:
        return {QUIET: measured(QUIET, config)}
    private = measured(NOISE, config)
    # As many rounds as the private run's budget allowed.
    settings = (*chosen.settings, *WITHOUT_NOISE, f"rounds={config.rounds or private.rounds}")
    quiet = replace(chosen, settings=settings).loaded().variants[0].config
    return {QUIET: measured(QUIET, quiet), NOISE: private}


def _inversion(config: Config, base: Path, silo: int) -> tuple[dict[str, Inversion], str | None]:
    """Both settings' inversions; or none, and why."""
    try:
        quiet, noisy = demonstration.inversion(config, base, silo)
    except UnsupportedError as error:
        return {}, str(error)
    return {QUIET: quiet, **({NOISE: noisy} if noisy else {})}, None


def _plain(one: Membership, delta: float) -> dict[str, Any]:
    members, others = one.runs[0]
    return {
        "rounds": one.rounds,
        "epsilon": one.epsilon if math.isfinite(one.epsilon) else None,
        "delta": delta,
        "members": len(members),
        "non_members": len(others),
        "auc": _interval(one.auc),
        "auc_bound": one.bound.auc(),
        "fpr": FPR,
        "tpr": _interval(one.tpr),
        "tpr_bound": float(one.bound.tpr(FPR)),
    }


def _interval(value: Measured) -> dict[str, float]:
    return {"value": value.value, "low": value.low, "high": value.high}


def _plain_inversion(one: Inversion) -> dict[str, Any]:
    return {
        "batch_of_1": {
            "correlations": [float(message.correlations[0]) for message in one.single],
            "relative_errors": [float(message.errors[0]) for message in one.single],
            "correlations_of_guesses": [_or_none(message.guesses[0]) for message in one.single],
        },
        "batch": None
        if one.batch is None
        else {
            "records": len(one.batch.originals),
            "correlations": one.batch.correlations.tolist(),
            "relative_errors": one.batch.errors.tolist(),
            "correlations_of_guesses": list(map(_or_none, one.batch.guesses)),
            "correlation_of_other_records": one.batch.control,
        },
    }


def _or_none(value: Any) -> float | None:
    return None if math.isnan(value) else float(value)


def _notes(report: AttackReport) -> list[str]:
    measured, inverted = report.membership, report.inversion
    some = next(iter(measured.values()))
    members, others = map(len, some.runs[0])
    return items(
        "pages/attack_notes.md.jinja",
        members=members,
        others=others,
        rounds=some.rounds,
        seeds=len(some.runs),
        noisy=measured[NOISE].epsilon if NOISE in measured else None,
        infinity=math.inf,
        delta=report.config.privacy.delta,
        own_test_part=report.config.data.test == "own",
        inversion=bool(inverted),
        no_more_than_a_guess=[
            (setting, name)
            for setting, one in inverted.items()
            for name, (value, more) in one.against_guesses.items()
            if not more and not math.isnan(value)
        ],
        num_features=next(iter(inverted.values())).num_features if inverted else 0,
        refused=report.inversion_refused,
        above_bound=any(
            float(one.bound.tpr(FPR)) < one.tpr.value or one.bound.auc() < one.auc.value for one in measured.values()
        ),
    )


def _rows(report: AttackReport) -> list[list[str]]:
    """A line of the table for each number."""
    measured, inverted = report.membership, report.inversion
    noisy = measured.get(NOISE)
    bounds = [] if noisy is None else [places(noisy.bound.auc(), 3), places(float(noisy.bound.tpr(FPR)), 3)]
    rows = [
        ["membership: area under the ROC curve (chance: 0.5)", *(_range(one.auc) for one in measured.values())],
        [f"membership: members found at {FPR:.0%} false alarms", *(_range(one.tpr) for one in measured.values())],
    ]
    rows = [[*row, *limit] for row, limit in zip(rows, [bounds[:1], bounds[1:]], strict=True)]
    if inverted:
        single = [f"{one.correlation_single:.3f}" for one in inverted.values()]
        guesses = [[f"{value:.3f}" for value, _ in one.against_guesses.values()] for one in inverted.values()]
        first, *more = [
            ["  what a guess gets", *(v.replace("nan", "-") for v in of)] for of in zip(*guesses, strict=True)
        ]
        rows += [["inversion: correlation with the record, batch of 1", *single], first]
        whole = [one.batch for one in inverted.values() if one.batch is not None]
        if whole:
            count = len(whole[0].originals)
            rows.append([f"inversion: the same, batch of {count}", *(f"{b.correlations.mean():.3f}" for b in whole)])
            rows += more
            rows.append(["inversion: with records that were not in that batch", *(f"{b.control:.3f}" for b in whole)])
    return rows


def _range(value: Measured) -> str:
    return f"{value.value:.3f} ({value.low:.3f} to {value.high:.3f})"


def _plot_membership(measured: Mapping[str, Membership], title: str, delta: float) -> Figure:
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


def _plot_inversion(
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
