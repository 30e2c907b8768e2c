"""Predicted and measured best numbers of local steps and of iterations: `python -m benchmarks.scaffnew`.

Appendix D and Fig. 12 of "Balancing Privacy and Performance for Private Federated Learning Algorithms": DP-ScaffNew on
regularised logistic regression of the mushrooms, whole-silo privacy, from `papers/configs/scaffnew_mushrooms.yaml`.
Writes a picture and a table in docs/algorithms.md.
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from papers.plans.bounds import ScaffNewProblem, public_curvature
from scipy.optimize import brentq

from benchmarks.pages import ROOT, put
from benchmarks.table import table
from dpfl_plugin.config.load import load
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.streams import stream
from dpfl_plugin.federation.planning import Planner
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.accountants import Gaussian
from dpfl_plugin.privacy.events import SampledGaussian, Term
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.runs.build import build
from dpfl_plugin.runtimes.in_process import InProcess
from papers.optimum import loss, optimum

PAPER: Final = ROOT / "papers" / "configs" / "scaffnew_mushrooms.yaml"
PICTURE: Final = "docs/pictures/scaffnew_local_steps.png"
EPSILONS: Final = (math.inf, 3000.0, 1000.0, 300.0)
LOCAL_STEPS: Final = (1, 2, 4, 7, 10, 14, 20, 40, 80)  # 1/p
ITERATIONS: Final = (10, 30, 60, 100, 200, 300, 500)
FIXED_ITERATIONS: Final = 300  # while the number of local steps is swept


@dataclass(frozen=True, slots=True)
class Problem:
    """The mean loss F of one seed's silos, with its regulariser.

    Attributes:
        best: F*; psi_0: of the planner's formula, with h_i = 0 and x_0 = 0.
    """

    config: Config
    best: float
    psi_0: float


def config_of(seed: int, p: float, multiplier: float) -> Config:
    """The paper's configuration with another p and noise; without noise also without clipping."""
    settings = [f"seed={seed}", f"algorithm.p={p}", f"privacy.noise_multiplier={multiplier}", "runtime.dtype=float64"]
    variants = load(PAPER, settings + (["privacy.clip_norm=inf"] if multiplier == 0 else [])).variants
    return next(variant.config for variant in variants if variant.label == "DP-ScaffNew")


@functools.cache
def problem(seed: int) -> Problem:
    config = config_of(seed, 1.0, 0.0)
    parts = build(config, PAPER.parent)
    found = optimum(parts, config.l2)
    mu, L = public_curvature(1.0, config.l2, model="logistic")
    return Problem(config, found.loss, found.psi_0(parts.model.numpy(), parts.setting.num_silos, mu, L))


def planner(seed: int, epsilon: float) -> ScaffNewProblem:
    """The paper's Corollary 1 for this problem. Its psi_0 is computed from the records: no plan could know it."""
    config = config_of(seed, 1.0, 1.0)
    mu, L = public_curvature(1.0, config.l2, model="logistic")
    return ScaffNewProblem(
        mu=mu,
        L=L,
        psi_0=problem(seed).psi_0,
        clip_norm=config.privacy.clip_norm,
        num_silos=config.data.num_silos or 1,
        dimension=127,
        epsilon=min(epsilon, 1e12),
        delta=config.privacy.delta,
    )


@functools.cache
def noise_multiplier(epsilon: float, delta: float, rounds: int) -> float:
    """With which ``rounds`` releases of a whole silo are (epsilon, delta)-private."""
    if math.isinf(epsilon):
        return 0.0

    def excess(multiplier: float) -> float:
        release = SampledGaussian(
            noise_multiplier=multiplier, sampler="full", rate=1.0, neighbouring="replace_one", unit="silo"
        )
        return Gaussian().epsilon([Term(release=release, count=1, rounds=rounds)], delta) - epsilon

    return float(brentq(excess, 1e-3, 1e5, rtol=1e-9))


def gap(seed: int, p: float, epsilon: float, iterations: int) -> float:
    """F(x) - F* at the first communication after ``iterations`` iterations, all releases being epsilon-private."""
    of = problem(seed)
    rounds = done = 0
    while done < iterations:
        done += int(stream(seed, "plan", rounds).geometric(p))
        rounds += 1
    config = config_of(seed, p, noise_multiplier(epsilon, of.config.privacy.delta, rounds))
    parts = build(config, PAPER.parent)
    planning = Planner(parts.algorithm, parts.setting, parts.setting.weights, seed)
    runtime = InProcess(parts.host, Ledger())
    server = parts.algorithm.init_server(parts.model, parts.setting)
    for round in range(rounds):
        plan = planning.plan(server, round)
        mean_up = runtime.run_round(parts.algorithm.download(server), plan, Draw(seed, round))
        server = parts.algorithm.aggregate(server, mean_up, plan)
        runtime.commit()
    return loss(parts, config.l2, server["model"].numpy())[0] - of.best


@dataclass(frozen=True, slots=True)
class Sweep:
    """Median gaps over seeds, a row for each epsilon, a column for each value."""

    values: Sequence[int]
    gaps: list[list[float]]

    def best(self, row: int) -> int:
        return self.values[int(np.argmin(self.gaps[row]))]

    def near(self, row: int) -> list[int]:
        """The values whose gap is at most 1.1 times the smallest."""
        smallest = min(self.gaps[row])
        return [value for value, gap in zip(self.values, self.gaps[row], strict=True) if gap <= 1.1 * smallest]


def measure(seeds: int, values: Sequence[int], p_of: Any, iterations_of: Any) -> Sweep:
    rows = []
    for epsilon in EPSILONS:
        rows.append(
            [
                statistics.median(gap(seed, p_of(value), epsilon, iterations_of(value)) for seed in range(seeds))
                for value in values
            ]
        )
        print(f"epsilon {epsilon:g}: " + ", ".join(f"{v}: {g:.3g}" for v, g in zip(values, rows[-1], strict=True)))
    return Sweep(values, rows)


def draw(steps: Sweep, iterations: Sweep) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for row, epsilon in enumerate(EPSILONS):
        plan, colour = planner(0, epsilon), f"C{row}"
        label = "no noise" if math.isinf(epsilon) else f"epsilon {epsilon:g}"
        left.plot(steps.values, steps.gaps[row], "o-", color=colour, label=label)
        right.plot(iterations.values, iterations.gaps[row], "o-", color=colour, label=label)
        if not math.isinf(epsilon):
            right.axvline(plan.iterations, color=colour, linestyle=":")
    left.axvline(1 / planner(0, 1.0).p, color="black", linestyle=":", label="predicted, 1/p*")
    left.set(xlabel="local steps in the mean, 1/p", title=f"{FIXED_ITERATIONS} iterations")
    right.set(xlabel="iterations T", title="p = p*; dotted: predicted T*")
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", ylabel="F(x) - F*")
        axes.grid(alpha=0.3)
    left.legend(fontsize=8)
    path = ROOT / PICTURE
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def report(steps: Sweep, iterations: Sweep) -> str:
    rows = []
    for row, epsilon in enumerate(EPSILONS):
        plan = planner(0, epsilon)
        predicted = "all" if math.isinf(epsilon) else f"{plan.iterations:.0f}"
        near = ", ".join(map(str, steps.near(row)))
        rows.append(
            [
                "none" if math.isinf(epsilon) else f"{epsilon:g}",
                f"{1 / plan.p:.1f}",
                str(steps.best(row)),
                near,
                predicted,
                str(iterations.best(row)),
                f"{min(min(steps.gaps[row]), min(iterations.gaps[row])):.2g}",
            ]
        )
    titles = ["epsilon", "1/p* predicted", "measured", "within 10 %", "T* predicted", "measured", "smallest F(x) - F*"]
    return table(titles, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    p = planner(0, 1.0).p
    steps = measure(seeds, LOCAL_STEPS, lambda value: 1 / value, lambda value: FIXED_ITERATIONS)
    iterations = measure(seeds, ITERATIONS, lambda value: p, lambda value: value)
    draw(steps, iterations)
    text = report(steps, iterations)
    print(text)
    put("docs/algorithms.md", "scaffnew", text)


if __name__ == "__main__":
    main()
