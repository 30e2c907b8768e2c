"""`python -m benchmarks.features [--write]`: what features that cost no epsilon are worth; the table of docs/models.md.

Needs the MNIST and FEMNIST files ($DPFL_DATA), and scikit-image; minutes on two cores.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np

import dpfl_plugin as dpfl
from benchmarks.pages import put
from benchmarks.table import table
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.data.idx import mnist

SEEDS: Final = (1, 2)
EPSILONS: Final = (1.0, 8.0)
DELTA: Final = 1e-5
PUBLIC: Final = 10_000  # images of MNIST on which the directions for FEMNIST are found
DIMS: Final = 50
CLIP_NORM: Final = 0.3


@dataclass(frozen=True, slots=True)
class Case:
    """A federation, and how it is trained: MB-SGD on all records of all silos, so that nothing drifts.

    Attributes:
        features: {what a row is called: steps of preprocessing}.
        steps: {epsilon: (step size, rounds)}, found by a few trials at seed 0; the same for all rows.
    """

    called: str
    data: Mapping[str, Any]
    features: Mapping[str, list[Any]]
    steps: Mapping[float, tuple[float, int]]


def cases(public: Path) -> list[Case]:
    """What is compared; ``public`` is the file of public records."""
    two_labels = {"partition": {"name": "labels_per_silo", "labels": 2}, "num_silos": 10, "test": "own"}
    black = {"name": "scale", "factor": -1.0, "offset": 1.0}  # FEMNIST's paper is white, MNIST's black
    pca = {"name": "pca", "dims": DIMS, "fit": str(public)}
    return [
        Case(
            "MNIST, 10 silos of 2 digits",
            {"dataset": "mnist", **two_labels},
            {"pixels": ["unit_norm"], "`hog`": ["hog", "unit_norm"]},
            {1.0: (32.0, 50), 8.0: (32.0, 100)},
        ),
        Case(
            "FEMNIST, a silo for each writer",
            {"dataset": "femnist", "partition": {"name": "natural", "min_records": 100}, "test": "own"},
            {
                "pixels": [black, "unit_norm"],
                "public `pca`": [black, pca, "unit_norm"],
                "`hog`": [black, "hog", "unit_norm"],
            },
            {1.0: (16.0, 20), 8.0: (16.0, 100)},
        ),
    ]


def accuracy(case: Case, name: str, epsilon: float, seed: int) -> float:
    """Of the final model, on the test records of all silos."""
    lr, rounds = case.steps[epsilon]
    with tempfile.TemporaryDirectory() as folder:
        run = dpfl.train(
            dpfl.Federation.load(preprocess=case.features[name], **case.data),
            model="softmax",
            algorithm=dpfl.MBSGD(lr=lr),
            privacy=dpfl.Privacy(epsilon=epsilon, delta=DELTA, clip_norm=CLIP_NORM, sampler="full"),
            rounds=rounds,
            seed=seed,
            evaluation={"every": rounds},
            out=Path(folder),
            progress=False,
        )
        assert run.accuracy is not None
        return float(run.accuracy)


def public_file(folder: Path) -> Path:
    """Images of MNIST as an NPZ file, of public records."""
    path = folder / "public.npz"
    np.savez(path, x=mnist(DataSource()).features[:PUBLIC])
    return path


def row(case: Case, name: str) -> list[str]:
    """Of the table: means over seeds."""
    found = [[accuracy(case, name, epsilon, seed) for seed in SEEDS] for epsilon in EPSILONS]
    return [case.called, name, *(f"{statistics.mean(each):.3f}" for each in found)]


def measured() -> str:
    """The table."""
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(2, get_context("spawn")) as pool:
        wanted = [(case, name) for case in cases(public_file(Path(folder))) for name in case.features]
        rows = list(pool.map(row, *zip(*wanted, strict=True)))
    return table(["records", "features", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS)], rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.features", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table to docs/models.md")
    made = measured()
    print(made)
    if parser.parse_args().write:
        put("docs/models.md", "features", made)


if __name__ == "__main__":
    main()
