"""Tables of docs/algorithms.md on single claims of papers: `python -m papers.measured [NAME ...]`.

`fedavg_sync`: what Li, Wang, Wu 2025 claim of their noise, beside what is proven. `schedules`: noise that falls against
noise that stays, at equal budgets (Chang, Seif, Tandon 2022; needs MNIST). `scaffnew`: predicted and measured best
numbers of local steps and of iterations (appendix D and Fig. 12 of "Balancing Privacy and Performance for Private
Federated Learning Algorithms"; needs the mushrooms).
"""

from __future__ import annotations

import functools
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import dpfl_plugin as dpfl
from benchmarks.pages import ROOT, put
from benchmarks.table import table
from dpfl_plugin.core.streams import stream
from papers.chang_theory import Scheme, noise_variances
from papers.items import FOLDER
from papers.optimum import Optimum, optimum_of
from papers.paired import Difference
from papers.plans.li import claimed_epsilon, noise_scale
from papers.plans.scaffnew import ScaffNewProblem

PAGE: Final = "docs/algorithms.md"

# Li, Wang, Wu 2025

Q, B, N, EPSILON, DELTA = 5, 10, 600, 0.5, 1e-5
AFTER: Final = (1, 10, 100)


def fedavg_sync() -> str:
    """Return the table of claimed and proven epsilons."""
    scale = noise_scale(local_steps=Q, batch_size=B, num_records=N, epsilon=EPSILON, delta=DELTA)
    sigma = scale / (2 * Q)  # relative to the proven sensitivity, 2 Q G eta
    claim = claimed_epsilon(sigma, local_steps=Q, batch_size=B, num_records=N, delta=DELTA)

    def proven(sampler: str, rate: float | None) -> list[str]:
        spent = functools.partial(dpfl.epsilon, noise_multiplier=sigma, delta=DELTA, sampler=sampler, record_rate=rate)
        return [f"{float(spent(steps=rounds)):.3g}" for rounds in AFTER]

    rows = [
        ["claimed, eq. 20", f"{claim:.3g}", *("not stated" for _ in AFTER[1:])],
        ["in the ledger, proven", *proven("full", None)],
        ["were a round one sample", *proven("fixed", Q * B / N)],
    ]
    return table(["", *(f"epsilon after {n} round{'s' * (n > 1)}" for n in AFTER)], rows)


# Chang, Seif, Tandon 2022

SCHEMES: Final = {"scheme 0": "constant", "scheme 1": "falls by round", "scheme 2": "falls by step"}
SEEDS: Final = 3


def schedules() -> str:
    """Run papers/configs/chang2022.yaml with several seeds; returns the table, and draws the picture."""
    runs: dict[str, list[dpfl.Run]] = {label: [] for label in SCHEMES}
    experiment = dpfl.load(FOLDER / "configs" / "chang2022.yaml")
    with tempfile.TemporaryDirectory() as out:
        for seed in range(SEEDS):
            done: Any = experiment.with_(seed=seed).run(out=out)
            for label in SCHEMES:
                runs[label].append(done[label])
        _draw_schedules(runs)
        same = min(int(run.result["rounds"]) for made in runs.values() for run in made)
        rows = [
            [
                label,
                SCHEMES[label],
                " / ".join(str(run.result["rounds"]) for run in made),
                _spread([_score(run) for run in made]),
                _spread([_accuracy_after(same, run) for run in made]),
                f"{max(run.epsilon for run in made):.2f}",
            ]
            for label, made in runs.items()
        ]
    gains = []
    for label in ("scheme 1", "scheme 2"):
        gain = Difference.of(*([_score(run) for run in runs[one]] for one in (label, "scheme 0")))
        gains.append(f"{label} less scheme 0, same seeds: {gain.mean:+.4f} (standard error {gain.error:.4f})")
    header = ["run", "noise", "rounds, by seed", "accuracy, last 10 % of rounds"]
    header += [f"accuracy after {same} rounds", "epsilon, server"]
    return f"{table(header, rows)}\n\n{'; '.join(gains)}."


def _score(run: dpfl.Run) -> float:
    return float(run.result["test_accuracy"]["mean_last_10_percent"])


def _accuracy_after(rounds: int, run: dpfl.Run) -> float:
    return float([line["test_accuracy"] for line in run.lines if line["round"] <= rounds][-1])


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.4f} ± {statistics.stdev(values):.4f}"


def _draw_schedules(runs: Mapping[str, Sequence[dpfl.Run]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    noise, accuracy = figure.subplots(1, 2)
    schemes: Sequence[Scheme] = (0, 1, 2)
    for scheme, (label, made), colour in zip(schemes, runs.items(), ("#555555", "#0072b2", "#d55e00"), strict=True):
        config: Any = made[0].config
        last, tau = max(run.result["rounds"] for run in made), config.algorithm.options["local_steps"]
        decay = {key: config.privacy.schedule.options[key] for key in ("beta", "threshold") if scheme}
        variances = noise_variances(scheme, last, tau, variance=config.privacy.noise_multiplier**2, **decay)
        noise.plot(range(1, last + 1), variances[:, 0] ** 0.5, color=colour, label=label)
        for run in made:
            rounds, values = zip(*((line["round"], line["test_accuracy"]) for line in run.lines), strict=True)
            accuracy.plot(rounds, values, color=colour, linewidth=0.8, alpha=0.7)
            accuracy.plot(rounds[-1], values[-1], "o", color=colour, markersize=4)
    noise.set(xlabel="round", ylabel="noise multiplier at its first step", ylim=(0, None), title="noise")
    accuracy.set(xlabel="round", ylabel="test accuracy", title=f"accuracy until the budget is used up ({SEEDS} seeds)")
    noise.legend(frameon=False)
    for axes in (noise, accuracy):
        axes.grid(alpha=0.3)
    figure.savefig(ROOT / "docs/pictures/noise_schedules.png", dpi=130)


# DP-ScaffNew

EPSILONS: Final = (math.inf, 3000.0, 1000.0, 300.0)
LOCAL_STEPS: Final = (1, 2, 4, 7, 10, 14, 20, 40, 80)  # 1/p
ITERATIONS: Final = (10, 30, 60, 100, 200, 300, 500)
FIXED_ITERATIONS: Final = 300  # while the number of local steps is swept


def experiment(seed: int, **changes: Any) -> dpfl.Experiment:
    whole = dpfl.load(FOLDER / "configs" / "scaffnew_mushrooms.yaml", variant="DP-ScaffNew")
    return whole.with_(seed=seed, runtime={"dtype": "float64"}, **changes)


@functools.cache
def least(seed: int) -> Optimum:
    """Return the minimum of the mean loss of one seed's silos, with its regulariser."""
    free = experiment(seed, privacy={"noise_multiplier": 0.0, "clip_norm": math.inf})
    return optimum_of(free.config, free.base, free.config.l2)


def planned(seed: int, epsilon: float) -> ScaffNewProblem:
    """Return Corollary 1 for this problem. Its psi_0 is computed from the records: no plan could know it."""
    config: Any = experiment(seed).config
    mu, L = config.l2, 0.5 + config.l2  # records of norm 1 with an intercept
    silos = config.data.num_silos
    return ScaffNewProblem(
        mu=mu,
        L=L,
        psi_0=least(seed).psi_0(silos, mu, L),
        clip_norm=config.privacy.clip_norm,
        num_silos=silos,
        dimension=len(least(seed).point),
        epsilon=min(epsilon, 1e12),
        delta=config.privacy.delta,
    )


def gap(seed: int, p: float, epsilon: float, iterations: int) -> float:
    """Return F(x) - F* at the first communication after ``iterations`` iterations; all releases are epsilon-private."""
    rounds = done = 0
    while done < iterations:
        done += int(stream(seed, "plan", rounds).geometric(p))
        rounds += 1
    privacy: dict[str, Any] = {"noise_multiplier": 0.0, "clip_norm": math.inf}
    if epsilon < math.inf:
        delta = experiment(seed).config.privacy.delta
        spent = {"epsilon": epsilon, "delta": delta, "sampler": "full", "accountant": "gaussian"}
        privacy = {"noise_multiplier": dpfl.calibrate(steps=rounds, **spent).noise_multiplier}  # type: ignore[arg-type]
    changed = experiment(seed, rounds=rounds, algorithm={"p": p}, privacy=privacy, evaluation={"every": rounds})
    with tempfile.TemporaryDirectory() as out:
        run: Any = changed.run(out=out, progress=False)
        squares = sum(float(weights.detach().double().square().sum()) for weights in run.model.parameters())
        loss = float(run.lines[-1]["train_loss"])
    return loss + changed.config.l2 / 2 * squares - least(seed).loss


@dataclass(frozen=True, slots=True)
class Sweep:
    """Median gaps over seeds, a row for each epsilon, a column for each value."""

    values: Sequence[int]
    gaps: list[list[float]]

    def best(self, row: int) -> str:
        return str(min(zip(self.gaps[row], self.values, strict=True))[1])

    def near(self, row: int) -> str:
        """The values whose gap is at most 1.1 times the smallest."""
        most = 1.1 * min(self.gaps[row])
        return ", ".join(str(one) for one, gap in zip(self.values, self.gaps[row], strict=True) if gap <= most)


def swept(values: Sequence[int], p_of: Callable[[int], float], iterations_of: Callable[[int], int]) -> Sweep:
    gaps = [
        [statistics.median(gap(seed, p_of(v), epsilon, iterations_of(v)) for seed in range(SEEDS)) for v in values]
        for epsilon in EPSILONS
    ]
    return Sweep(values, gaps)


def scaffnew() -> str:
    """Run the sweeps; returns the table, and draws the picture."""
    p = planned(0, 1.0).p
    steps = swept(LOCAL_STEPS, lambda value: 1 / value, lambda value: FIXED_ITERATIONS)
    iterations = swept(ITERATIONS, lambda value: p, lambda value: value)
    _draw_scaffnew(steps, iterations)
    rows = [
        [
            "none" if epsilon == math.inf else f"{epsilon:g}",
            f"{1 / p:.1f}",
            steps.best(row),
            steps.near(row),
            "all" if epsilon == math.inf else f"{planned(0, epsilon).iterations:.0f}",
            iterations.best(row),
            f"{min(*steps.gaps[row], *iterations.gaps[row]):.2g}",
        ]
        for row, epsilon in enumerate(EPSILONS)
    ]
    header = ["epsilon", "1/p* predicted", "measured", "within 10 %", "T* predicted", "measured", "smallest F(x) - F*"]
    return table(header, rows)


def _draw_scaffnew(steps: Sweep, iterations: Sweep) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for row, epsilon in enumerate(EPSILONS):
        label = "no noise" if epsilon == math.inf else f"epsilon {epsilon:g}"
        left.plot(steps.values, steps.gaps[row], "o-", color=f"C{row}", label=label)
        right.plot(iterations.values, iterations.gaps[row], "o-", color=f"C{row}", label=label)
        if epsilon < math.inf:
            right.axvline(planned(0, epsilon).iterations, color=f"C{row}", linestyle=":")
    left.axvline(1 / planned(0, 1.0).p, color="black", linestyle=":", label="predicted, 1/p*")
    left.set(xlabel="local steps in the mean, 1/p", title=f"{FIXED_ITERATIONS} iterations")
    right.set(xlabel="iterations T", title="p = p*; dotted: predicted T*")
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", ylabel="F(x) - F*")
        axes.grid(alpha=0.3)
    left.legend(fontsize=8)
    figure.savefig(ROOT / "docs/pictures/scaffnew_local_steps.png", dpi=110)


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "fedavg_sync": fedavg_sync,
    "schedules": schedules,
    "scaffnew": scaffnew,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or TABLES:
        put(PAGE, name, TABLES[name]())
