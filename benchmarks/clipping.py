"""`python -m benchmarks.clipping`: accuracy and time of the ways to clip; writes the tables in docs/privacy.md."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from benchmarks.contenders import Ours
from benchmarks.pages import ROOT, put
from benchmarks.quickstart import run
from benchmarks.table import table
from benchmarks.workloads import WORKLOADS
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.gradients.vmap import Vmap
from dpfl_plugin.privacy.clipping import Adaptive, AutoS, Clipping, Flat, Median, PerLayer

STRATEGIES: Final[dict[str, Clipping]] = {
    "flat": Flat(),
    "per_layer": PerLayer(),
    "auto_s": AutoS(),
    "adaptive": Adaptive(),
    "median": Median(),
}
ROUNDS: Final = 11


def accuracy_table(results: dict[str, list[dict]]) -> str:
    """Mean and standard deviation over seeds, by run."""
    rows = []
    for label, runs in results.items():
        accuracy = [run["test_accuracy"]["mean_last_10_percent"] for run in runs]
        epsilons = [run["epsilon"]["server"]["epsilon"] for run in runs]
        epsilon = "none" if None in epsilons else f"{max(epsilons):.2f}"
        rows.append([label, f"{statistics.mean(accuracy):.3f} ± {statistics.stdev(accuracy):.3f}", epsilon])
    return table(["run", "test accuracy, last 10 % of rounds", "epsilon, server"], rows)


def ratios(engine: type[ClosedForm] | type[Vmap], rounds: int) -> dict[str, float]:
    """Processor time of a round of W1 (5 silos) against flat clipping's: medians of ratios of rounds in turns."""
    load = replace(WORKLOADS["W1"], num_participants=5)
    silos = load.silos()
    entrants = [Ours(name, engine, load, silos, clipping=clipping) for name, clipping in STRATEGIES.items()]
    seconds: dict[str, list[float]] = {name: [] for name in STRATEGIES}
    for number in range(rounds + 1):
        for entrant in entrants:
            began = time.process_time()
            entrant.round(load.plan(number), load.draw(number))
            seconds[entrant.name].append(time.process_time() - began)
    flat = seconds["flat"][1:]  # the first round warms up
    return {
        name: statistics.median(theirs / ours for theirs, ours in zip(times[1:], flat, strict=True))
        for name, times in seconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clipping", description="The ways to clip.")
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {engine: ratios(engine, ROUNDS) for engine in (ClosedForm, Vmap)}
    rows = [[name, *(f"{times[name]:.2f}" for times in found.values())] for name in STRATEGIES]
    times = table(["processor time of a round, against flat", "closed_form", "vmap"], rows)
    with tempfile.TemporaryDirectory() as folder:
        accuracy = accuracy_table(run(ROOT / "configs" / "clipping.yaml", arguments.seeds, Path(folder)))
    put("docs/privacy.md", "clipping tables", f"{arguments.seeds} seeds:\n\n{accuracy}\n\n{times}")


if __name__ == "__main__":
    main()
