"""`python -m benchmarks.better --write`: what each option of docs/better.md gains at equal epsilon, by data set.

Writes the table of docs/better.md. What every run gave is kept in a file, so that an interrupted benchmark goes on
where it was, and more seeds or data sets cost only their own runs. MNIST, Adult and mushrooms need their files in
$DPFL_DATA. Ten seeds of all data sets take about an hour of one core; `--data digits --seeds 3` takes minutes.

`--images` instead: what views of images gain (`augmentation`), for a small convolutional network; about an hour, too.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.pages import ROOT, show
from benchmarks.table import table
from benchmarks.tuning import Laboratory, best_step
from dpfl_plugin.config.load import configure
from dpfl_plugin.config.schema import Config
from papers.paired import Difference

PAGE: Final = "docs/better.md"
EPSILONS: Final = (1.0, 3.0, 8.0)
SEEDS: Final = 10
TUNING: Final = (1000, 1001, 1002)
"""Seeds by whose mean step sizes are chosen."""
FIRST_FACTORS, FACTOR, LIMITS = (0.5, 1.0, 2.0), 2.0, (1 / 100, 100.0)
"""Of the yardstick's step size, which every option is tuned over: the grid goes on while the best is at its edge."""

Values = Mapping[str, Any]
LABELS: Final = {"name": "labels_per_silo", "labels": 2}
YARDSTICK: Final[Values] = {
    "rounds": 20,
    "algorithm": {"name": "fedavg", "local_steps": 5, "local_lr": 2.0},
    "privacy": {"delta": 1e-4, "clip_norm": 0.5, "record_rate": 0.2},
    "evaluation": {"every": 1},
}
DATA: Final[Mapping[str, Values]] = {
    "digits": {
        "data": {"dataset": "digits", "partition": LABELS, "num_silos": 5, "preprocess": ["unit_norm"]},
    },
    "heart disease": {
        "data": {
            "dataset": {"name": "heart_disease", "missing": "drop", "held_out": 0.34},
            "partition": "natural",
            "test": "own",
        },
    },
    "mushrooms": {
        "data": {
            "dataset": "mushrooms",
            "partition": {"name": "similarity", "gamma": 10},
            "num_silos": 10,
            "preprocess": ["unit_norm"],
        },
    },
    "Adult": {
        "data": {
            "dataset": "adult",
            "partition": "iid",
            "num_silos": 10,
            "max_records_per_silo": 500,
            "preprocess": ["unit_norm"],
        },
    },
    "MNIST": {
        "data": {
            "dataset": "mnist",
            "partition": LABELS,
            "num_silos": 10,
            "max_records_per_silo": 1000,
            "preprocess": [{"name": "pca", "dims": 50}, "unit_norm"],
        },
    },
}
OPTIONS: Final[Mapping[str, Values]] = {
    "average: tail": {"algorithm.average": "tail"},
    "average: ema": {"algorithm.average": "ema"},
    "average: linear": {"algorithm.average": "linear"},
    "server_optimizer: momentum": {"algorithm.server_optimizer": "momentum", "algorithm.server_lr": 0.25},
    "momentum and tail": {
        "algorithm.server_optimizer": "momentum",
        "algorithm.server_lr": 0.25,
        "algorithm.average": "tail",
    },
    "server_optimizer: adam": {
        "algorithm.server_optimizer": "adam",
        "algorithm.server_lr": 0.25,
        "algorithm.tau": 0.1,
    },
    "server_optimizer: fedexp": {"algorithm.server_optimizer": "fedexp"},
    "clip: auto_s": {"privacy.clip": "auto_s"},
    "record_rate: 0.5": {"privacy.record_rate": 0.5},
    "all records (sampler: full)": {"privacy.record_rate": None, "privacy.sampler": "full"},
    "l2: 0.01": {"l2": 0.01},
}
"""What each row changes of the yardstick; one at a time."""

_IMAGES: Final[Values] = {"partition": "iid", "num_silos": 2, "max_records_per_silo": 1000}
_NETWORK: Final[Values] = {
    "rounds": 10,
    "model": {"name": "cnn", "channels": [8, 16], "hidden": 32},
    "algorithm": {"name": "fedavg", "local_steps": 4, "local_lr": 1.0},
    "privacy": {"delta": 1e-4, "clip_norm": 1.0, "record_rate": 0.1},
}
IMAGES: Final[Mapping[str, Values]] = {
    "MNIST, images": {**_NETWORK, "data": {**_IMAGES, "dataset": {"name": "mnist", "flatten": False}}},
    "CIFAR-10, images": {
        **_NETWORK,
        "data": {**_IMAGES, "dataset": {"name": "cifar10", "flatten": False, "sheets": True}},
    },
}
VIEWS_TRIED: Final = (1, 4, 8)
VIEWS: Final[Mapping[str, Mapping[str, Values]]] = {
    name: {
        f"augmentation: {{views: {views}, {', '.join(f'{key}: {str(of).lower()}' for key, of in kinds.items())}}}": {
            "augmentation": {"views": views, **kinds}
        }
        for views in VIEWS_TRIED
    }
    for name, kinds in {"MNIST, images": {"crop": 2}, "CIFAR-10, images": {"crop": 4, "flip": True}}.items()
}


def options_of(data: str) -> Mapping[str, Values]:
    """The rows of a data set."""
    return VIEWS.get(data, OPTIONS)


@dataclass(frozen=True, slots=True)
class Cell:
    """An option on a data set at an epsilon.

    Attributes:
        factor: the best of the step size, on seeds of its own.
        accuracies: of each seed.
    """

    factor: float
    accuracies: tuple[float, ...]


Cells = Mapping[tuple[str, str, float], Cell]
"""By data set, option ("" for the yardstick) and epsilon."""


def configuration(data: str, option: str, epsilon: float, factor: float, seed: int) -> Config:
    """One run. ``option``: of `options_of`, or "" for the yardstick."""
    values: dict[str, Any] = {**YARDSTICK, **(IMAGES if data in IMAGES else DATA)[data], "seed": seed}
    changes = {"privacy.epsilon": epsilon, **options_of(data).get(option, {})}
    changes["algorithm.local_lr"] = values["algorithm"]["local_lr"] * factor
    for key, value in changes.items():
        *path, last = key.split(".")
        for part in path:
            values[part] = dict(values[part])
        functools.reduce(dict.__getitem__, path, values)[last] = value
    return configure(values, source=f"{data}, {option or 'yardstick'}")


def measured(laboratory: Laboratory, data: str, option: str, epsilon: float, seeds: int) -> Cell:
    """At the step size that is best on seeds of its own."""

    def run(factor: float, seed: int) -> float:
        return laboratory.run(configuration(data, option, epsilon, factor, seed), ROOT).accuracy

    def score(factor: float) -> float:
        return statistics.fmean(run(factor, seed) for seed in TUNING)

    factor = best_step(score, FIRST_FACTORS, FACTOR, LIMITS)
    return Cell(factor, tuple(run(factor, seed) for seed in range(seeds)))


def measure(laboratory: Laboratory, data: Sequence[str], seeds: int, views: Sequence[int] = VIEWS_TRIED) -> Cells:
    """All cells of these data sets; of images those with so many ``views``."""
    cells = {}
    for name in data:
        of_images = [option for option, changes in options_of(name).items() if _views(changes) in views]
        for option in ("", *(of_images if name in IMAGES else options_of(name))):
            for epsilon in EPSILONS:
                cell = cells[name, option, epsilon] = measured(laboratory, name, option, epsilon, seeds)
                said = f"{statistics.mean(cell.accuracies):.4f}, step times {cell.factor:g}"
                print(f"{name}, epsilon {epsilon:g}, {option or 'yardstick'}: {said}", flush=True)
    return cells


def _views(changes: Values) -> int:
    return int(changes.get("augmentation", {}).get("views", 0))


def page(cells: Cells, seeds: int) -> str:
    """What the cells say together, and the table of every data set."""
    names = list(dict.fromkeys(name for name, _, _ in cells))
    chosen = " ".join(f'"{name}"' if " " in name else name for name in names)
    counts = sorted({_views(options_of(name)[option]) for name, option, _ in cells if option})
    images = f"--images --views {' '.join(map(str, counts))} " if names[0] in IMAGES else ""
    parts = [verdict(cells, seeds)]
    parts.append(
        f"{seeds} seeds. Command: `python -m benchmarks.better {images}--data {chosen} --seeds {seeds} --write`."
    )
    factors = [cell.factor for cell in cells.values()]
    ends = sum(not LIMITS[0] < factor / FACTOR < factor * FACTOR < LIMITS[1] for factor in factors)
    parts.append(
        f"Step sizes are {min(factors):g} to {max(factors):g} times the yardstick's of the configuration; {ends} of "
        f"{len(factors)} are the least or the largest that was tried."
    )
    for name in names:
        rows = [["yardstick, accuracy in points", *(_level(cells[name, "", epsilon]) for epsilon in EPSILONS)]]
        for option in dict.fromkeys(option for of, option, _ in cells if of == name and option):
            pairs = [(cells[name, option, epsilon], cells[name, "", epsilon]) for epsilon in EPSILONS]
            rows.append([f"`{option}`", *(_gain(cell, of) for cell, of in pairs)])
        parts.append(f"**{name}**\n\n" + table(["", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS)], rows))
    parts.append("With \\*: told apart from 0 (95 %) in that cell; of many cells some are so by chance.")
    return "\n\n".join(parts)


def verdict(cells: Cells, seeds: int) -> str:
    """Which options help, harm, or make no difference that shows, over all data sets and epsilons: seed by seed."""
    lines = []
    for option in dict.fromkeys(option for _, option, _ in cells if option):
        mine = {(name, epsilon): cell for (name, of, epsilon), cell in cells.items() if of == option}
        of_seeds = [
            [statistics.mean(cell.accuracies[seed] for cell in found) for seed in range(seeds)]
            for found in (list(mine.values()), [cells[name, "", epsilon] for name, epsilon in mine])
        ]
        gap = Difference.of(*of_seeds)
        how = "not told apart from 0" if not gap.significant else "helps" if gap.mean > 0 else "harms"
        lines.append(f"* `{option}`: {how}, {gap.points()} points in the mean of {len(mine)} cells.")
    return "\n".join(["All cells together:", "", *lines])


def _level(cell: Cell) -> str:
    spread = statistics.stdev(cell.accuracies) / len(cell.accuracies) ** 0.5
    return f"{100 * statistics.mean(cell.accuracies):.1f} ± {100 * spread:.1f}"


def _gain(cell: Cell, of: Cell) -> str:
    return Difference.of(cell.accuracies, of.accuracies).marked()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "benchmarks" / "better", help="what runs gave")
    parser.add_argument("--images", action="store_true", help="what views of images gain")
    parser.add_argument("--views", nargs="+", type=int, choices=VIEWS_TRIED, default=VIEWS_TRIED, help="of an image")
    names = ", ".join(DATA) + "; with --images: " + ", ".join(IMAGES)
    parser.add_argument("--data", nargs="+", choices=[*DATA, *IMAGES], metavar="NAME", help=names)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="2 or more")
    parser.add_argument("--write", action="store_true", help=f"the table of {PAGE}")
    given = parser.parse_args()
    if given.seeds < 2:
        parser.error(f"--seeds {given.seeds}: a standard error needs 2 or more")
    kinds = IMAGES if given.images else DATA
    data = given.data or list(kinds)
    if strangers := [name for name in data if name not in kinds]:
        parser.error(f"--data {strangers[0]!r} is measured {'without' if given.images else 'with'} --images")
    torch.set_num_threads(1)
    text = page(measure(Laboratory(given.runs), data, given.seeds, given.views), given.seeds)
    show(PAGE, "better-images" if given.images else "better", text, write=given.write)


if __name__ == "__main__":
    main()
