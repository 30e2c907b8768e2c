"""`python -m benchmarks.correlated`: correlated noise against amplified sampling, at equal epsilon.

Two tables of docs/privacy.md: the error of sums of gradients, computed, and accuracies, measured on MNIST. What was
measured is kept, one line a run, in the file that --kept names, and not measured again: the command may be stopped at
any time. --write puts both tables into the page; without it they are printed.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

import dpfl_plugin as dpfl
from benchmarks.pages import show
from benchmarks.table import table
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.data.idx import mnist
from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.correlation import correlation, relative_error
from dpfl_plugin.privacy.events import SampledGaussian, Sampler, Term

PAGE: Final = "docs/privacy.md"
DELTA: Final = 1e-5
PASSES: Final = 20
EPSILONS: Final = (1.0, 3.0, 8.0)
MEASURED: Final = (3.0, 8.0)
BATCHES: Final = (5, 10, 25, 50)
SEEDS: Final = (1, 2, 3)
RATES: Final = (1.0, 2.0, 4.0)
ARMS: Final[dict[str, dict[str, Any]]] = {
    "`fixed`, a tenth": {"sampler": "fixed", "record_rate": 0.1},
    "`fixed`, a half": {"sampler": "fixed", "record_rate": 0.5},
    "`cyclic`, a tenth": {"sampler": "cyclic", "record_rate": 0.1},
}
DIMS, OF_A_DIGIT, PUBLIC = 50, 1000, 10_000


@functools.cache
def silos() -> dict[str, tuple[Tensor, Tensor]]:
    """10 silos of 1,000 records of each of two digits: unit vectors, principal components of the last 10,000,
    MNIST's test part, which no silo has."""
    found = mnist(DataSource())
    features, labels = torch.as_tensor(found.features).double(), torch.as_tensor(found.labels)
    public, private, labels = features[-PUBLIC:], features[:-PUBLIC], labels[:-PUBLIC]
    directions = torch.linalg.eigh((public - public.mean(0)).T @ (public - public.mean(0)))[1][:, -DIMS:]
    of_digit = [private[labels == digit][: 2 * OF_A_DIGIT] - public.mean(0) for digit in range(10)]
    made = {}
    for silo in range(10):
        both = torch.cat([of_digit[silo][:OF_A_DIGIT], of_digit[(silo + 1) % 10][OF_A_DIGIT:]]) @ directions
        digits = torch.tensor([silo, (silo + 1) % 10]).repeat_interleave(OF_A_DIGIT)
        made[str(silo)] = (both / both.norm(dim=1, keepdim=True)).float(), digits
    return made


@functools.cache
def least_noise(sampler: Sampler, rate: float, steps: int, epsilon: float) -> float:
    """The noise multiplier with which so many steps cost epsilon."""

    def cost(noise: float) -> float:
        release = SampledGaussian(noise_multiplier=noise, sampler=sampler, rate=rate, neighbouring="replace_one")
        return PLD().epsilon([Term(release=release, count=1, rounds=steps)], DELTA)

    low, high = 0.1, 1e4
    while high / low > 1.0005:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if cost(middle) > epsilon else (low, middle)
    return high


def computed() -> str:
    rows = []
    for batches in BATCHES:
        steps = PASSES * batches
        gain = relative_error(correlation(batches, batches), steps)
        row = [str(batches)]
        for epsilon in EPSILONS:
            fixed = least_noise("fixed", 1 / batches, steps, epsilon)
            cyclic = least_noise("cyclic", 1 / batches, steps, epsilon)
            row += [f"{cyclic / fixed:.2f}", f"{gain * cyclic / fixed:.2f}"]
        rows.append(row)
    titles = [f"epsilon {epsilon:g}: {what}" for epsilon in EPSILONS for what in ("independent", "correlated")]
    return table(["batches in a pass", *titles], rows)


def measure(arm: str, epsilon: float, rate: float, seed: int) -> float:
    """Test accuracy, the mean over the last tenth of the rounds."""
    with tempfile.TemporaryDirectory() as out:
        run = dpfl.train(
            dpfl.Federation.from_arrays(silos()),
            algorithm=dpfl.algorithms.FedAvg(local_steps=10, local_lr=rate),
            privacy={"clip_norm": 1.0, "delta": DELTA, "epsilon": epsilon, **ARMS[arm]},
            rounds=20,
            seed=seed,
            out=out,
            progress=False,
        )
        return float(run.result["test_accuracy"]["mean_last_10_percent"])


class Kept:
    """Measurements in a file, a line each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self._known = {tuple(key): value for key, value in map(json.loads, lines)}

    def __call__(self, *key: Any) -> float:
        if key not in self._known:
            self._known[key] = measure(*key)
            with self._path.open("a") as file:
                file.write(json.dumps([key, self._known[key]]) + "\n")
        return self._known[key]


def measured(of: Callable[..., float]) -> str:
    """Each at the step size that is best with seed 0, which is not among the others."""
    rows = []
    for arm in ARMS:
        row = [arm]
        for epsilon in MEASURED:
            rate = max(RATES, key=lambda rate: of(arm, epsilon, rate, 0))
            values = [100 * of(arm, epsilon, rate, seed) for seed in SEEDS]
            error = statistics.stdev(values) / math.sqrt(len(values))
            row.append(f"{statistics.fmean(values):.1f} ± {error:.1f} ({rate:g})")
        rows.append(row)
    return table(["batches", *(f"epsilon {epsilon:g}" for epsilon in MEASURED)], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kept", type=Path, default=Path("runs/correlated.jsonl"))
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    given.kept.parent.mkdir(parents=True, exist_ok=True)
    for part, text in (("correlated errors", computed()), ("correlated accuracy", measured(Kept(given.kept)))):
        show(PAGE, part, text, write=given.write)


if __name__ == "__main__":
    main()
