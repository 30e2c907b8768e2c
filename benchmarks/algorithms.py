"""`python -m benchmarks.algorithms`: all algorithms, tuned alike, at equal budgets on silos of two MNIST digits each.

Writes the tables and pictures of docs/algorithms.md. What every run gave is kept in a file, so that an interrupted
benchmark goes on where it was, and a new variant in a YAML file costs only its own runs. Needs the MNIST files; the
better part of an hour on one core.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from benchmarks.pages import ROOT, put, save
from benchmarks.table import table
from benchmarks.tuning import Contender, Found, Laboratory, Run, contenders, tuned
from papers.paired import Difference

PAGE: Final = "docs/algorithms.md"
PICTURES: Final = ROOT / "docs" / "pictures" / "algorithms"
TUNING_SEED: Final = 1000
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito
MARKERS: Final = "osD^vPX"


@dataclass(frozen=True, slots=True)
class Task:
    """A YAML file whose variants are compared, with as many tables and pictures as it is given names for.

    Attributes:
        compare: pairs (first, second): whether the first is better than the second.
        fixed: what is not tuned, although it could be.
        drawn: algorithms whose picture is of this task.
    """

    name: str
    epsilons: tuple[float, ...]
    compare: tuple[tuple[str, str], ...] = ()
    fixed: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return ROOT / "configs" / f"algorithms_{self.name}.yaml"

    def contenders(self) -> list[Contender]:
        return contenders(self.path, self.fixed)


TASKS: Final = (
    Task(
        "mnist",
        (1.0, 3.0, 8.0),
        (
            ("SCAFFOLD", "FedAvg"),
            ("SCAFFOLD", "FedProx"),
            ("SCAFFOLD, option I", "SCAFFOLD"),
            ("SCAFFOLD, warm", "SCAFFOLD"),
            ("SCAFFOLD, server momentum", "SCAFFOLD"),
            ("SCAFFOLD, server momentum", "FedAvg, server momentum"),
            ("SCAFFOLD, noise falls by round", "SCAFFOLD"),
            ("SCAFFOLD, noise falls by step", "SCAFFOLD"),
            ("ScaffNew", "SCAFFOLD"),
            ("FedProx", "FedAvg"),
            ("FedAvg, server momentum", "FedAvg"),
            ("FedAvg, server Adam", "FedAvg"),
            ("FedAvg", "FedSGD, epoch"),
            ("MB-SGD", "SCAFFOLD"),
            ("AC-SA", "MB-SGD"),
            ("multi-stage AC-SA", "AC-SA"),
            ("localized MB-SGD", "MB-SGD, one pass"),
            ("localized MB-SGD", "MB-SGD"),
            ("localized AC-SA", "MB-SGD, one pass"),
            ("localized subgradient", "subgradient"),
            ("convolution", "AC-SA"),
        ),
        drawn=(
            *("fedavg", "fedsgd", "fedprox", "scaffold", "scaffold_warm", "scaffnew"),
            *("mb_sgd", "accelerated_mb_sgd", "multistage_mb_sgd", "localized_mb_sgd"),
        ),
    ),
    Task(
        "hinge",
        (1.0, 3.0, 8.0),
        (
            ("subgradient", "MB-SGD"),
            ("convolution", "MB-SGD"),
            ("localized subgradient", "subgradient"),
            ("localized convolution", "convolution"),
            ("localized Nesterov", "localized subgradient"),
        ),
        drawn=(
            *("noisy_subgradient", "localized_subgradient"),
            *("convolution_mb_sgd", "localized_convolution", "localized_nesterov"),
        ),
    ),
    Task(
        "steps",
        (1.0, 3.0, 8.0),
        tuple((f"SCAFFOLD, K = {K}", f"FedAvg, K = {K}") for K in (1, 5, 20, 80)),
        fixed=("rounds", "algorithm.local_steps"),
    ),
    Task("silo", (8.0, 100.0, 1000.0), drawn=("fedavg_sync",)),
)
SHOWN: Final = {
    "local steps": ("FedAvg", "FedAvg, server momentum", "FedAvg, server Adam", "FedSGD, epoch", "FedProx"),
    "drift control": (
        *("FedAvg", "SCAFFOLD", "SCAFFOLD, option I", "SCAFFOLD, warm", "ScaffNew"),
        *("SCAFFOLD, server momentum", "SCAFFOLD, noise falls by round"),
    ),
    "one gradient a round": ("FedSGD, single", "MB-SGD", "MB-SGD, one pass", "AC-SA", "multi-stage AC-SA"),
    "localized": ("MB-SGD", "MB-SGD, one pass", "localized MB-SGD", "localized AC-SA", "localized subgradient"),
}
"""Families of the picture of accuracy against epsilon; every second family begins with its yardstick."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A contender at one epsilon: what was found, and a result for each seed."""

    contender: Contender
    found: Found
    runs: list[Run]

    def accuracies(self) -> list[float]:
        return [run.accuracy for run in self.runs]

    def mean(self) -> float:
        """Of the accuracies."""
        return statistics.mean(self.accuracies())

    def kilobytes(self) -> float:
        """Up and down, of a silo."""
        return statistics.mean(run.sent for run in self.runs) / 1000


Results = dict[tuple[str, float], Measured]
"""By label and epsilon."""


def measure(task: Task, laboratory: Laboratory, seeds: int, trials: int) -> Results:
    results: Results = {}
    for contender in task.contenders():
        for epsilon in task.epsilons:
            found = tuned(contender, laboratory, epsilon=epsilon, seed=TUNING_SEED, trials=trials)
            configs = [contender.config(found.point, epsilon, seed) for seed in range(seeds)]
            runs = [laboratory.run(config, task.path.parent) for config in configs]
            measured = results[contender.label, epsilon] = Measured(contender, found, runs)
            said = ", ".join(f"{key}={value}" for key, value in contender.values(found.point).items())
            print(f"{task.name}, {epsilon:g}, {contender.label}: {measured.mean():.4f}; {said}; {found}", flush=True)
    return results


def main_table(task: Task, results: Results) -> str:
    """Accuracy at each epsilon; rounds, bytes and seconds as "at the first / second / third epsilon"."""
    labels = list(dict.fromkeys(label for label, _ in results))
    rows = []
    for label in labels:
        found = [results[label, epsilon] for epsilon in task.epsilons]
        spreads = [f"{m.mean():.3f} ± {statistics.stdev(m.accuracies()):.3f}" for m in found]
        rounds = " / ".join(f"{statistics.mean(run.rounds for run in m.runs):.0f}" for m in found)
        sent = " / ".join(f"{m.kilobytes():.0f}" for m in found)
        seconds = " / ".join(f"{statistics.median(run.seconds for run in m.runs):.1f}" for m in found)
        rows.append([label, *spreads, rounds, sent, seconds])
    header = [f"epsilon {epsilon:g}" for epsilon in task.epsilons]
    return table(["", *header, "rounds", "kB of a silo", "seconds"], rows)


def winners(task: Task, results: Results) -> str:
    """For each epsilon the best mean, and what is not told apart from it."""
    lines = []
    for epsilon in task.epsilons:
        here = {label: m.accuracies() for (label, at), m in results.items() if at == epsilon}
        best = max(here, key=lambda label: statistics.mean(here[label]))
        gaps = {label: Difference.of(here[best], found) for label, found in here.items() if label != best}
        level = [label for label, gap in gaps.items() if not gap.significant]
        beside = f"; not told apart from it: {', '.join(level)}" if level else ""
        lines.append(f"* epsilon {epsilon:g}: {best}, {statistics.mean(here[best]):.3f}{beside}.")
    return "\n".join(lines)


def comparisons(task: Task, results: Results) -> str:
    """Differences of pairs in points of accuracy, with standard errors; * where 0 is outside the 95 % interval."""
    rows = []
    for first, second in task.compare:
        cells = []
        for epsilon in task.epsilons:
            a, b = (results[label, epsilon].accuracies() for label in (first, second))
            cells.append(Difference.of(a, b).marked())
        rows.append([f"{first} against {second}", *cells])
    return table(["points of accuracy", *(f"epsilon {epsilon:g}" for epsilon in task.epsilons)], rows)


def settings(task: Task, results: Results) -> str:
    """What the search found."""
    rows = []
    for label in dict.fromkeys(label for label, _ in results):
        found = [results[label, epsilon] for epsilon in task.epsilons]
        values = [m.contender.values(m.found.point) for m in found]
        own = [keys[0] for keys in found[0].contender.dials()]
        names = ", ".join(key.removeprefix("algorithm.") for key in own)
        rows.append([f"{label}: {names}", *(", ".join(f"{value[key]:.4g}" for key in own) for value in values)])
    return table(["", *(f"epsilon {epsilon:g}" for epsilon in task.epsilons)], rows)


def best_possible(task: Task, laboratory: Laboratory, seeds: int) -> str:
    """Test accuracy at the minimum of the task's loss, found without clipping and without noise; "" without one."""
    first = task.contenders()[0]
    if task.fixed or first.start.loss != "auto" or first.start.privacy.unit == "silo":
        return ""
    found = [laboratory.accuracy_at_optimum(first.config(first.origin, 1.0, s), task.path.parent) for s in range(seeds)]
    return (
        f"At the minimum of the mean loss, found without clipping and without noise, test accuracy is "
        f"{statistics.mean(found):.3f} ± {statistics.stdev(found):.3f}."
    )


def endings(results: Iterable[Measured]) -> str:
    """How the searches ended."""
    found = [m.found for m in results]
    settled, bounded = sum(f.settled for f in found), sum(f.settled and f.bounded for f in found)
    trials = statistics.mean(f.trials for f in found)
    rest = "; the others had no trials left to know" if settled < len(found) else ""
    return (
        f"Of {len(found)} searches, of {trials:.0f} trials in the mean, {settled} ended where no turn of one dial is "
        f"better ({bounded} of them beside a limit){rest}."
    )


def draw_families(task: Task, results: Results, path: Path) -> None:
    """Accuracy against epsilon, mean and standard deviation, a panel for each family."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    for axes, (family, labels) in zip(figure.subplots(2, 2).flat, SHOWN.items(), strict=True):
        for place, (label, colour, marker) in enumerate(zip(labels, COLOURS, MARKERS, strict=False)):
            found = [results[label, epsilon] for epsilon in task.epsilons]
            spreads = [statistics.stdev(m.accuracies()) for m in found]
            beside = [epsilon * 1.04 ** (place - len(labels) / 2) for epsilon in task.epsilons]
            style = {"marker": marker, "color": colour, "capsize": 2, "linewidth": 1, "markersize": 5}
            axes.errorbar(beside, [m.mean() for m in found], spreads, label=label, **style)
        axes.set(xscale="log", title=family, ylabel="test accuracy", xlabel="epsilon")
        axes.set_xticks(task.epsilons, [f"{epsilon:g}" for epsilon in task.epsilons])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    save(figure, path)


def draw_traffic(task: Task, results: Results, path: Path) -> None:
    """Accuracy against bytes at the middle epsilon, the labels in the order of accuracy."""
    from matplotlib.figure import Figure

    middle = task.epsilons[len(task.epsilons) // 2]
    here = {label: measured for (label, epsilon), measured in results.items() if epsilon == middle}
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for place, label in enumerate(sorted(here, key=lambda label: -here[label].mean())):
        style = {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place // len(COLOURS) % len(MARKERS)]}
        axes.plot(here[label].kilobytes(), here[label].mean(), linestyle="", markersize=7, label=label, **style)
    axes.set(xscale="log", xlabel="kB up and down of a silo", ylabel="test accuracy", title=f"epsilon {middle:g}")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    save(figure, path)


def draw_curves(task: Task, results: Results, folder: Path) -> None:
    """A picture for each algorithm that the task draws: the accuracy of its first variant, by rounds."""
    from matplotlib.figure import Figure

    middle = task.epsilons[len(task.epsilons) // 2]
    for name in task.drawn:
        label = next(c.label for c in task.contenders() if c.start.algorithm.name == name)
        figure = Figure(figsize=(4.6, 2.9), layout="constrained")
        axes = figure.add_subplot()
        for epsilon, colour, style in zip(task.epsilons, COLOURS, ("-.", "-", "--"), strict=False):
            curve = results[label, epsilon].runs[0].curve
            axes.plot(*zip(*curve, strict=True), style, color=colour, label=f"epsilon {epsilon:g}")
        for other, style in zip(yardsticks(task, label), (":", (0, (1, 3))), strict=False):
            curve = results[other, middle].runs[0].curve
            axes.plot(*zip(*curve, strict=True), linestyle=style, color="0.3", label=f"{other}, epsilon {middle:g}")
        axes.set(xscale="log", xlabel="round", ylabel="test accuracy", title=f"{label} ({task.name})")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
        save(figure, folder / f"{name}.png")


def yardsticks(task: Task, label: str) -> list[str]:
    """FedAvg, and MB-SGD where the task has it, but not what is drawn."""
    known = [contender.label for contender in task.contenders()]
    return [other for other in ("FedAvg", "MB-SGD") if other in known and other != label]


def publish(task: Task, results: Results, laboratory: Laboratory, seeds: int) -> None:
    said = f"{seeds} seeds. {best_possible(task, laboratory, seeds)}".rstrip()
    parts = [said, main_table(task, results), f"The best:\n\n{winners(task, results)}"]
    if task.compare:
        parts.append(comparisons(task, results))
    put(PAGE, f"algorithms {task.name}", "\n\n".join(parts))
    put(PAGE, f"algorithms {task.name} settings", f"{endings(results.values())}\n\n{settings(task, results)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="*", choices=[task.name for task in TASKS], default=[t.name for t in TASKS])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=16, help="settings tried of each algorithm at each epsilon")
    parser.add_argument("--folder", type=Path, default=Path("runs/algorithms"), help="where runs are kept")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    laboratory = Laboratory(arguments.folder)
    for task in TASKS:
        if task.name not in arguments.tasks:
            continue
        results = measure(task, laboratory, arguments.seeds, arguments.trials)
        publish(task, results, laboratory, arguments.seeds)
        draw_curves(task, results, PICTURES)
        if task.name == "mnist":
            draw_families(task, results, PICTURES / "families.png")
            draw_traffic(task, results, PICTURES / "traffic.png")


if __name__ == "__main__":
    main()
