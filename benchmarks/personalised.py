"""`python -m benchmarks.personalised`: MR-MTL, FedAvg and training alone at one charge, in docs/algorithms.md.

School (ILEA): pupils of 139 London schools, an examination score to be told from 28 features; each school is a silo.
Liu, Hu, Wu, Smith (NeurIPS 2022, arXiv:2206.07902) published mean squared errors at record level, epsilon 6. Here every
release goes through the oracle and is in a ledger, and epsilon is what the accountant makes of that ledger.

Step sizes and lambda are chosen on seeds of their own, with as many trials for each algorithm.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import itertools
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.pages import ROOT, put, save
from benchmarks.table import table
from dpfl_plugin import calibrate
from dpfl_plugin.algorithms.base import Algorithm, Setting
from dpfl_plugin.algorithms.fedavg import FedAvg
from dpfl_plugin.algorithms.mr_mtl import MRMTL, Local
from dpfl_plugin.core.streams import stream
from dpfl_plugin.federation.planning import Planner
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import Poisson
from dpfl_plugin.privacy.views import server_view
from dpfl_plugin.runtimes.in_process import InProcess

PAGE, PART = "docs/algorithms.md", "personalised table"
PICTURE = ROOT / "docs" / "pictures" / "algorithms" / "mr_mtl.png"
EPSILON, DELTA = 6.0, 1e-3
ROUNDS, LOCAL_STEPS, RECORD_RATE, CLIP_NORM = 30, 2, 0.3, 0.3
MOST = 70.0  # points: scores are shares of them
PERCENT = ("f3", "f4")  # features in percent, as shares like the others
TEST = 0.2
PUBLISHED = {"MR-MTL": 0.02394, "FedAvg": 0.02564, "training alone": 0.02628}
RATES = (0.1, 0.2, 0.4, 0.8)
PULLED = tuple(itertools.product((0.2, 0.4), (0.3, 1.0)))
SHOWN = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0)  # pulls of the picture
TUNING, SEEDS = (100,), 3


def squared(outputs: Tensor, labels: Tensor) -> Tensor:
    """(y - label)^2 / 2."""
    return 0.5 * (outputs[:, 0] - labels) ** 2


class OneOutput:
    """Clipped sums for `squared` of one linear output, in closed form: a record's gradient is (w x - label) x."""

    name = "one_output"

    def prepare(self, records: Records) -> Records:
        return Records(records.features, records.labels, records.features.norm(dim=1))

    def clipped_sum(self, y: Tensor, batch: Records, clip_norm: float | tuple[float, ...], out: Tensor) -> Tensor:
        assert batch.constants is not None and isinstance(clip_norm, float)
        residuals = batch.features @ y - batch.labels
        norms = residuals.abs() * batch.constants
        scaled = residuals.double() * (clip_norm / norms.double().clamp(min=clip_norm))
        torch.mv(batch.features.double().t(), scaled, out=out)
        return norms


def schools(path: Path) -> dict[int, tuple[Tensor, Tensor]]:
    """(features (n, 28), scores (n,) as shares of all points) of each school."""
    with gzip.open(path, "rt") as file:
        header, *lines = csv.reader(file)
    found = np.array(lines, dtype=np.float64)
    for name in PERCENT:
        found[:, header.index(name)] /= 100
    silos, x, y = found[:, 0].astype(int), found[:, 2:], found[:, 1] / MOST
    return {
        k: (torch.tensor(x[silos == s], dtype=torch.float32), torch.tensor(y[silos == s], dtype=torch.float32))
        for k, s in enumerate(np.unique(silos))
    }


def split(data: Mapping[int, tuple[Tensor, Tensor]], seed: int) -> tuple[dict[int, Records], dict[int, Records]]:
    """(training, test) records of each silo."""
    train, test = {}, {}
    for silo, (x, y) in data.items():
        order = torch.from_numpy(stream(seed, "split", silo=silo).permutation(len(y)))
        held = -(-len(y) * TEST // 1)
        test[silo], train[silo] = (Records(x[rows], y[rows]) for rows in (order[: int(held)], order[int(held) :]))
    return train, test


@dataclass(frozen=True)
class Ended:
    """Mean over silos of the squared error on test records, and epsilon of what the ledger holds."""

    error: float
    epsilon: float


def run(algorithm: Algorithm, data: Mapping[int, tuple[Tensor, Tensor]], seed: int, noise: float) -> Ended:
    """Train, and measure each silo's own model, or the one that all have."""
    train, test = split(data, seed)
    model = nn.Linear(next(iter(train.values())).features.shape[1], 1, bias=False)
    nn.init.zeros_(model.weight)
    x = torch.zeros(model.weight.numel())
    sampler = Poisson(RECORD_RATE)
    rules = PrivacyRules(
        unit="record",
        neighbouring=sampler.neighbouring,
        clip_norm=CLIP_NORM,
        mechanism=Gaussian(noise),
        sampler=sampler,
    )
    group = SiloGroup(
        model=model,
        loss=squared,
        algorithm=algorithm,
        rules=rules,
        engine=OneOutput(),
        train=train,
        test=test,
        states=algorithm.init_silos(x, len(train)),
    )
    weights, num_silos = (1 / len(train),) * len(train), len(train)
    setting = Setting(num_silos=num_silos, num_participants=num_silos, silo_rate=1.0, record_rate=RECORD_RATE)
    ledger, planner = Ledger(), Planner(algorithm, setting, weights, seed)
    runtime, server = InProcess(group, ledger), algorithm.init_server(x, setting)
    for round in range(ROUNDS):
        plan = planner.plan(server, round)
        assert plan is not None
        mean_up = runtime.run_round(algorithm.download(server), plan, Draw(seed, round))
        server = algorithm.aggregate(server, mean_up, plan)
        runtime.commit()
    name = getattr(algorithm, "own_model", None)
    models = server["model"].expand(num_silos, -1) if name is None else group.states[name]
    errors = [float(((test[k].features @ models[k] - test[k].labels) ** 2).mean()) for k in test]
    return Ended(statistics.fmean(errors), server_view(ledger.tally, PLD(), DELTA).epsilon)


def candidates() -> dict[str, dict[str, Algorithm]]:
    """{what it is called: {its settings: the algorithm}}; as many for each."""
    K = LOCAL_STEPS
    return {
        "MR-MTL": {
            f"local_lr {eta:g}, mean_weight {pull:g}": MRMTL(local_steps=K, local_lr=eta, mean_weight=pull)
            for eta, pull in PULLED
        },
        "FedAvg": {f"local_lr {eta:g}": FedAvg(local_steps=K, local_lr=eta) for eta in RATES},
        "training alone": {f"local_lr {eta:g}": Local(local_steps=K, local_lr=eta) for eta in RATES},
    }


def _noise() -> float:
    steps = ROUNDS * LOCAL_STEPS
    found = calibrate(epsilon=EPSILON, steps=steps, delta=DELTA, record_rate=RECORD_RATE, sampler="poisson")
    return found.noise_multiplier


def rows(data: Mapping[int, tuple[Tensor, Tensor]], seeds: Sequence[int]) -> list[list[str]]:
    """A row for each algorithm at its best settings."""
    noise = _noise()
    found = []
    for name, tried in candidates().items():
        errors = {how: statistics.fmean(run(one, data, s, noise).error for s in TUNING) for how, one in tried.items()}
        best = min(errors, key=lambda how: errors[how])
        print(name, {how: round(error, 5) for how, error in errors.items()}, flush=True)
        ends = [run(tried[best], data, seed, noise) for seed in seeds]
        found.append(
            [
                name,
                best,
                f"{statistics.mean(end.error for end in ends):.5f} ± {statistics.stdev(end.error for end in ends):.5f}",
                f"{PUBLISHED[name]:.5f}",
                f"{max(end.epsilon for end in ends):.3f}",
            ]
        )
    return found


def draw(data: Mapping[int, tuple[Tensor, Tensor]], seeds: Sequence[int], path: Path) -> None:
    """The error by how strongly silos' models are pulled to their mean, at one step size; FedAvg's beside it."""
    from matplotlib.figure import Figure

    noise, eta = _noise(), RATES[1]
    steps = {"local_steps": LOCAL_STEPS, "local_lr": eta}
    pulls: dict[float, Algorithm] = {pull: MRMTL(**steps, mean_weight=pull) for pull in SHOWN}
    figure = Figure(figsize=(4.6, 2.9), layout="constrained")
    axes = figure.add_subplot()
    by_pull = [[run(one, data, seed, noise).error for seed in seeds] for one in pulls.values()]
    means, spreads = [statistics.fmean(found) for found in by_pull], [statistics.stdev(found) for found in by_pull]
    axes.errorbar(range(len(SHOWN)), means, spreads, marker="o", capsize=2, linewidth=1, label="mr_mtl")
    together = statistics.fmean(run(FedAvg(**steps), data, seed, noise).error for seed in seeds)
    axes.axhline(together, color="0.3", linestyle=":", label="fedavg")
    axes.set_xticks(range(len(SHOWN)), ["0 (local)", *(f"{pull:g}" for pull in SHOWN[1:])])
    axes.set(xlabel="mean_weight", ylabel="mean squared error", title=f"School, epsilon {EPSILON:g}, local_lr {eta:g}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    torch.set_num_threads(1)
    data = schools(Path(os.environ["DPFL_DATA"]) / "multicentre" / "school.csv.gz")
    columns = ["algorithm", "settings", "mean squared error", "published", "epsilon"]
    seeds = range(parser.parse_args().seeds)
    put(PAGE, PART, table(columns, rows(data, seeds)))
    draw(data, seeds, PICTURE)


if __name__ == "__main__":
    main()
