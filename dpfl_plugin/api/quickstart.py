"""`dpfl quickstart`: two configurations that ship with the package over seeds, measured on the same test records."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import statistics
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from rich import box
from rich.table import Table

from dpfl_plugin import terminal
from dpfl_plugin.api.experiment import Experiment
from dpfl_plugin.api.progress import Warnings
from dpfl_plugin.api.runs import Run
from dpfl_plugin.api.training import run_variant
from dpfl_plugin.config.load import Variant
from dpfl_plugin.core.rounding import digits, places
from dpfl_plugin.core.text import Printed
from dpfl_plugin.data.base import Federation
from dpfl_plugin.errors import ConfigError, TrainingError
from dpfl_plugin.runs.folder import write_atomic
from dpfl_plugin.runs.records import federate
from dpfl_plugin.runtimes.choice import backend_here

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HOSPITALS: Final = "hospitals"
TWO_LABELS: Final = "two_labels"
"""Names of the two files."""
SEEDS: Final = {HOSPITALS: 5, TWO_LABELS: 3}
"""Of each file: together they take less than a minute."""
PICTURE: Final = "quickstart.png"
WIDTH: Final = 100  # of the remarks
CONFIDENCE: Final = 0.95
BETTER, WORSE, SAME = "better", "worse", "not told apart"
PUBLISHED: Final = {
    "FLamby, not private": (0.712, 0.024),
    'FLamby "epsilon 1"': (0.685, 0.055),
    'FLamby "epsilon 0.1"': (0.606, 0.121),
}
"""Test accuracy, mean and standard deviation over 5 seeds, of logistic regression on the same 740 patients, 486 of them
to train on: J. Ogier du Terrail et al., "FLamby", NeurIPS 2022, Fed-Heart-Disease, delta 1e-4."""

ALONE: Final = (
    "'Alone' is a hospital's own model at the same epsilon, tested on all hospitals' patients, and on its own (AUC; in "
    "brackets that of the shared model, DP-MB-SGD). Nearly all patients of Zurich and Basel are ill: few test parts of "
    "theirs have an AUC."
)
DRIFT_IS_NOT_ALL: Final = (
    "Drift control does not win here: in few steps at epsilon 1 noise is the limit, not drift. One large step a round, "
    "DP-MB-SGD, is the simplest of the three."
)
WHY_NONE: Final = (
    "FLamby's accuracies are as published, on its own split and scaling of the same patients. Its epsilons do not hold "
    "for the runs that it made: 15 epochs are charged where 1,500 steps are taken, batches are shuffled, not sampled, "
    "and all hospitals draw their noise from one seed."
)
AVERAGES: Final = (
    "Averaging the global models is a second remedy, which costs neither privacy nor traffic nor state. DP-SCAFFOLD is "
    "worth its traffic where silos hold few of the labels and only some take part in a round, as here; otherwise begin "
    "with DP-FedAvg and averaged models, or momentum where all take part (docs/drift.md)."
)
NOT_SHOWN_HERE: Final = (
    "These few seeds of a small data set do not tell DP-SCAFFOLD from averaged models: more seeds of a larger one do "
    "(docs/drift.md)."
)
MORE_SEEDS: Final = (
    "{seeds} seeds are too few to tell small differences apart. The table with {more} seeds is in docs/start.md, What "
    "the quickstart shows; python -m benchmarks.quickstart makes it."
)
TABLE_SEEDS: Final[Mapping[str, int]] = {HOSPITALS: 20, TWO_LABELS: 8}
"""Of the tables in docs/start.md."""
TUNED: Final = "Step sizes, clipping and rounds are the best of those tried, on seeds that are not shown."


@dataclass(slots=True)
class Row:
    """A run over seeds.

    Attributes:
        accuracy, auc: of the final model, a number for each seed, on the test records of all silos; auc is empty
            where there are more than two classes.
        own: where a silo trained alone: (its model's AUC, that of the file's first run) on the silo's own test records,
            for each seed in which both classes are among them.
        epsilon: towards the server, of the worst seed; None: nothing is guaranteed.
    """

    accuracy: list[float] = field(default_factory=list)
    auc: list[float] = field(default_factory=list)
    own: list[tuple[float, float]] = field(default_factory=list)
    epsilon: float | None = None
    delta: float = 0.0

    @property
    def shown(self) -> list[float]:
        """AUC where there is one, else accuracy."""
        return self.auc or self.accuracy


@dataclass(slots=True)
class Part:
    """The runs of a file over seeds, by label.

    Attributes:
        title: the file's description. pairs: of labels, whose difference is stated.
        counts: (silos, training records, test records) of the file's first run.
    """

    name: str
    title: str
    rows: dict[str, Row]
    pairs: Sequence[tuple[str, str]]
    counts: tuple[int, int, int]

    @property
    def measure(self) -> str:
        """What `Row.shown` is."""
        return "AUC" if any(row.auc for row in self.rows.values()) else "accuracy"

    def differences(self) -> list[str]:
        """In words, for each pair whose runs are there."""
        return [
            f"{first} against {second}: {difference(self.rows[first].shown, self.rows[second].shown)}"
            for first, second in self.pairs
            if first in self.rows and second in self.rows
        ]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        silos, train, test = self.counts
        return {
            "silos": silos,
            "train_records": train,
            "test_records": test,
            "runs": {
                label: {
                    "accuracy": row.accuracy,
                    **({"auc": row.auc} if row.auc else {}),
                    **({"own_auc": row.own} if row.own else {}),
                    "epsilon": row.epsilon,
                    "delta": row.delta,
                }
                for label, row in self.rows.items()
            },
        }


@dataclass(frozen=True, slots=True)
class Quickstart(Printed):
    """What the quickstart measured.

    Attributes:
        folder: of the runs' folders, and of the picture.
    """

    parts: tuple[Part, ...]
    folder: Path

    def to_dict(self) -> dict[str, Any]:
        """All numbers."""
        return {part.name: part.plain() for part in self.parts}

    def __str__(self) -> str:
        return "\n".join(
            [
                *map(_shown, self.parts),
                f"Picture: {self.folder / PICTURE}",
                f"Each run's folder, with its privacy statement: {self.folder}/*/*/privacy.md",
                "Next: `dpfl quickstart --copy .` gives you both configurations to change; `dpfl init my-project` "
                "makes a project with made-up data.",
            ]
        )


def quickstart(
    settings: Sequence[str] = (),
    *,
    out: Path = Path("runs"),
    seeds: int | None = None,
    tell: Callable[[str], None],
    stop: Callable[[], bool] = lambda: False,
) -> Quickstart:
    """Run the two configurations, for each seed, and draw a picture. An interrupted run goes on.

    Args:
        settings: changes of both files. out: folder of run folders. seeds: of both files, see `SEEDS`.
        tell, stop: as of `measured`.

    Raises:
        As `measured`.
    """
    given = [*settings, f"out={json.dumps(str(out))}"]
    with _configurations() as paths:
        parts = [measured(path, range(seeds or SEEDS[path.stem]), given, tell=tell, stop=stop) for path in paths]
    draw(out / PICTURE, parts)
    return Quickstart(tuple(parts), out)


def copy_configurations(folder: Path) -> list[Path]:
    """Copy the two configurations, to be changed; returns the files.

    Raises:
        ConfigError: one of them is there.
    """
    with _configurations() as paths:
        targets = [folder / path.name for path in paths]
        for target in targets:
            if target.exists():
                raise ConfigError(f"copy {target}: the file exists, and was left as it is. Use another folder.")
        folder.mkdir(parents=True, exist_ok=True)
        for path, target in zip(paths, targets, strict=True):
            with target.open("xb") as file, path.open("rb") as source:
                shutil.copyfileobj(source, file)
    return targets


@contextlib.contextmanager
def _configurations() -> Iterator[list[Path]]:
    folder = resources.files("dpfl_plugin") / "templates" / "quickstart"
    with contextlib.ExitStack() as files:
        yield [files.enter_context(resources.as_file(folder / f"{name}.yaml")) for name in SEEDS]


def measured(
    path: Path,
    seeds: Sequence[int],
    settings: Sequence[str] = (),
    *,
    tell: Callable[[str], None],
    stop: Callable[[], bool] = lambda: False,
) -> Part:
    """Run every variant of a file for each seed; what is finished in its folder is not run again.

    Args:
        settings: changes of the file, as ``--set`` takes them. tell: is told how far it is. stop: asks to stop.

    Raises:
        ConfigError, DataError: as `dpfl.load` and `Experiment.run`.
        TrainingError: a run failed. KeyboardInterrupt: asked to stop; what is done is saved.
    """
    found: Part | None = None
    for place, seed in enumerate(seeds):
        experiment = Experiment(path, (*settings, f"seed={seed}"))
        plan = experiment.loaded()
        first = plan.variants[0].config
        all_silos = federate(first, experiment.base)
        if found is None:
            train, test = (sum(len(getattr(s, part)) for s in all_silos.silos) for part in ("train_y", "test_y"))
            names = {one.label or one.config.name: Row() for one in plan.variants}
            found = Part(first.name, first.description, names, plan.compare, (len(all_silos.silos), train, test))
        tell(f"{first.name}: seed {place + 1} of {len(seeds)}, {len(plan.variants)} runs")
        scores: dict[str, Scores] = {}
        for one in plan.variants:
            run = _run(one, experiment.base, stop)
            scores[one.label or one.config.name] = _scores(run, all_silos)
            _add(found.rows[one.label or one.config.name], run)
        _rate(found.rows, scores, plan.variants, all_silos)
    assert found is not None, "there is a seed"
    return found


def _run(variant: Variant, base: Path, stop: Callable[[], bool]) -> Run:
    # Without a picture of its own, which takes longer than the run.
    run = run_variant(
        variant,
        base,
        backend=backend_here(variant.config),
        reporter=Warnings(each=False),
        stop=stop,
        resume=True,
        picture=False,
    )
    if run.status == "interrupted":
        raise KeyboardInterrupt
    if run.status == "failed":
        label = variant.label or variant.config.name
        raise TrainingError(f"{label}, seed {variant.config.public_seed}: {run.result['reason']}.")
    return run


def _add(row: Row, run: Run) -> None:
    server = run.result["epsilon"]["server"]
    row.delta = float(server["delta"])
    if server["epsilon"] is not None:
        row.epsilon = max(row.epsilon or 0.0, float(server["epsilon"]))


Scores = list[NDArray[np.float64]]
"""A model's outputs [t, classes] for the test records of each silo."""


def _scores(run: Run, federation: Federation) -> Scores:
    model = run.model
    found = []
    with torch.no_grad():
        for silo in federation.silos:
            z = model(torch.from_numpy(silo.usable_test[0]).to(next(model.parameters()).dtype)).double()
            if z.ndim == 1 or z.shape[1] == 1:  # log-odds of class 1
                z = torch.stack([torch.zeros(len(z), dtype=z.dtype), z.reshape(-1)], dim=1)
            found.append(z.numpy())
    return found


def _rate(
    rows: Mapping[str, Row], scores: Mapping[str, Scores], variants: Sequence[Variant], federation: Federation
) -> None:
    """Add what a seed's models are worth on the test records of all silos, and of their own."""
    labels = [silo.usable_test[1] for silo in federation.silos]
    shared = next(iter(scores.values()))
    for one in variants:
        label = one.label or one.config.name
        z, y = np.concatenate(scores[label]), np.concatenate(labels)
        row = rows[label]
        row.accuracy.append(float((z.argmax(1) == y).mean()))
        if z.shape[1] > 2:
            continue
        row.auc.append(auc(z, y))
        for i in _own_silos(one, federation):
            if len(np.unique(labels[i])) == 2:
                row.own.append((auc(scores[label][i], labels[i]), auc(shared[i], labels[i])))


def _own_silos(one: Variant, federation: Federation) -> list[int]:
    """The silo that a run is of alone, if it is of one."""
    chosen = one.config.data.dataset.options.get("hospitals")
    return [i for i, name in federation.names.items() if chosen == [name]]


def auc(z: NDArray[np.float64], y: NDArray[np.int64]) -> float:
    """How probable it is that a model ranks a record of class 1 above one of class 0.

    Args:
        z: outputs [n, 2]; y: labels [n], of both classes.
    """
    from sklearn.metrics import roc_auc_score  # imported late: it takes half a second

    return float(roc_auc_score(y, z[:, 1] - z[:, 0]))


def difference(first: Sequence[float], second: Sequence[float]) -> str:
    """How much better the first is than the second, in points (hundredths), over seeds; both have the same seeds.

    The interval is Student's for paired differences: it covers how noise, splits and batches fall, not other data.
    """
    from scipy.stats import t

    each = [100 * (a - b) for a, b in zip(first, second, strict=True)]
    mean = statistics.mean(each)
    if len(each) == 1:
        return f"{mean:+.1f} points with one seed, which shows no difference"
    half = float(t.ppf((1 + CONFIDENCE) / 2, len(each) - 1)) * statistics.stdev(each) / len(each) ** 0.5
    verdict = BETTER if mean > half else WORSE if mean < -half else SAME
    return f"{mean:+.1f} ± {half:.1f} points, {verdict}"


def heading(part: Part) -> str:
    """What was run."""
    silos, train, test = part.counts
    seeds = max(len(row.accuracy) for row in part.rows.values())
    deltas = {row.delta for row in part.rows.values() if row.epsilon is not None}
    at = [f"epsilon at delta {' or '.join(f'{delta:.15g}' for delta in sorted(deltas))}"] * bool(deltas)
    counts = f"{silos} silos, {train} records to train on, {test} to test on"
    over = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    return f"{part.title}\n{counts}\n{', '.join([over, *at])}"


def rows(part: Part) -> list[tuple[str, ...]]:
    """The table: its header, a row for each run, and what others published beside them."""
    with_auc, with_own = (any(getattr(row, name) for row in part.rows.values()) for name in ("auc", "own"))
    header = ["run", *(["AUC"] * with_auc), *(["own (shared)"] * with_own), "accuracy", "epsilon"]
    found = [tuple(header)]
    for label, row in part.rows.items():
        own = f"{_mean(row.own, 0)} ({_mean(row.own, 1)})" if row.own else ""
        cells = [label, *([spread(row.auc)] if with_auc else []), *([own] if with_own else []), spread(row.accuracy)]
        found.append((*cells, "none" if row.epsilon is None else places(row.epsilon, 2)))
    if part.name == HOSPITALS:
        for label, (mean, deviation) in PUBLISHED.items():
            gaps = [""] * (len(header) - 3)
            found.append((label, *gaps, f"{mean:.3f} ± {deviation:.3f}", "none"))
    return found


def _mean(pairs: Sequence[tuple[float, float]], place: int) -> str:
    return f"{statistics.mean(pair[place] for pair in pairs):.2f}"


def remarks(part: Part) -> list[str]:
    """What the numbers say, and what they do not."""
    differences = part.differences()
    found = [f"{line} ({part.measure}, 95 % interval over seeds)" for line in differences]
    seeds, more = max(len(row.shown) for row in part.rows.values()), TABLE_SEEDS.get(part.name, 0)
    few = [MORE_SEEDS.format(seeds=seeds, more=more)] * (seeds < more and any(SAME in line for line in differences))
    if part.name == HOSPITALS:
        wins = any("DP-SCAFFOLD: " in line and line.endswith(WORSE) for line in differences)
        return [*found, *few, ALONE, *([] if wins else [DRIFT_IS_NOT_ALL]), TUNED, WHY_NONE]
    same = any(line.startswith("DP-SCAFFOLD against DP-FedAvg, averaged: ") and SAME in line for line in differences)
    return [*found, *few, AVERAGES, *([NOT_SHOWN_HERE] * same), TUNED]


def spread(numbers: Sequence[float]) -> str:
    """Mean and standard deviation."""
    mean = f"{statistics.mean(numbers):.3f}"
    return f"{mean} ± {statistics.stdev(numbers):.3f}" if len(numbers) > 1 else mean


def _shown(part: Part) -> str:
    header, *cells = rows(part)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(header):
        table.add_column(name, justify="left" if place == 0 else "right", no_wrap=True)
    for row in cells:
        table.add_row(*row)
    return "\n".join(
        [
            f"\n{heading(part)}\n",
            terminal.printed(lambda console: console.print(table), WIDTH),
            *(f"{_wrapped(line)}" for line in remarks(part)),
        ]
    )


def _wrapped(line: str) -> str:
    # A line that begins with "%" is hard to read: the number before it goes along.
    whole = line.replace(" %", "\N{NO-BREAK SPACE}%")
    filled = textwrap.fill(whole, WIDTH, initial_indent="* ", subsequent_indent="  ")
    return filled.replace("\N{NO-BREAK SPACE}", " ")


PRIVATE_COLOUR, OPEN_COLOUR, ALONE_COLOUR = "#0b6e4f", "#9a9a9a", "#c9772b"
MEASURES: Final = {
    "AUC": "AUC: how often an ill patient is ranked above a healthy one (guessing: 0.5)",
    "accuracy": "accuracy: share of test digits recognised (guessing: 0.1)",
}
FLOORS: Final = {"AUC": 0.5, "accuracy": 0.1}


def draw(path: Path, parts: Sequence[Part]) -> None:
    """Write the picture, in place of one that is there."""
    picture = io.BytesIO()
    figure(parts).savefig(picture, dpi=150, format="png")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, picture.getvalue())


def figure(parts: Sequence[Part]) -> Figure:
    """Bars from guessing upwards, with standard deviations over seeds, a panel for each part."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(8, 0.5 + sum(1.05 + 0.33 * len(part.rows) for part in parts)), layout="constrained")
    heights = [1.6 + 0.6 * len(part.rows) for part in parts]
    axes = picture.subplots(len(parts), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for axis, part in zip(axes, parts, strict=True):
        _panel(axis, part)
    return picture


def _panel(axis: Any, part: Part) -> None:
    floor = FLOORS[part.measure]
    for place, row in enumerate(part.rows.values()):
        mean = statistics.mean(row.shown)
        deviation = statistics.stdev(row.shown) if len(row.shown) > 1 else 0.0
        axis.barh(place, mean - floor, left=floor, color=_colour(row), height=0.7)
        axis.errorbar(mean, place, xerr=deviation, color="black", capsize=3, linewidth=1)
        epsilon = "no privacy" if row.epsilon is None else f"epsilon {digits(row.epsilon, 3)}"
        axis.text(1.01, place, f"{mean:.3f}   {epsilon}", va="center", fontsize=8, color=_colour(row))
    axis.set_yticks(range(len(part.rows)), list(part.rows), fontsize=9)
    axis.invert_yaxis()
    axis.set_xlim(floor, 1.0)
    axis.set_xlabel(f"{MEASURES[part.measure]}\n{_bars(part)}", fontsize=8)
    axis.set_title(part.title, fontsize=10, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)


def _bars(part: Part) -> str:
    seeds = max(len(row.shown) for row in part.rows.values())
    spread = f"bar and number: mean over {seeds} seeds; line: ± one standard deviation over seeds"
    return spread if seeds > 1 else "one seed"


def _colour(row: Row) -> str:
    return OPEN_COLOUR if row.epsilon is None else ALONE_COLOUR if row.own else PRIVATE_COLOUR
