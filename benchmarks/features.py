"""`python -m benchmarks.features [--write]`: what features that cost no epsilon are worth; the table of docs/models.md.

Needs the MNIST and FEMNIST files ($DPFL_DATA), and scikit-image; about ten minutes on two cores.
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
from skimage.feature import hog

import dpfl_plugin as dpfl
from benchmarks.pages import show
from benchmarks.table import table
from dpfl_plugin.data.base import Features
from dpfl_plugin.data.femnist import femnist
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.data.idx import mnist

SEEDS: Final = (1, 2)
EPSILONS: Final = (1.0, 8.0)
DELTA: Final = 1e-5
PUBLIC: Final = 3_000  # images of the other data set, on which directions are found
DIMS: Final = (20, 60)
CLIP_NORM: Final = 0.3


@dataclass(frozen=True, slots=True)
class Public:
    """Files of public records: images of MNIST, and what `hog` makes of images of MNIST and of FEMNIST."""

    digits: Path
    digits_hog: Path
    writers_hog: Path


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


def cases(public: Public) -> list[Case]:
    """What is compared."""
    two_labels = {"partition": {"name": "labels_per_silo", "labels": 2}, "num_silos": 10, "test": "own"}
    black = {"name": "scale", "factor": -1.0, "offset": 1.0}  # FEMNIST's paper is white, MNIST's black

    def small(features: list[Any], fit: Path) -> dict[str, list[Any]]:
        what = "`hog`, public `pca`" if "hog" in features else "public `pca`"
        projected = ({"name": "pca", "dims": dims, "fit": str(fit)} for dims in DIMS)
        return {f"{what} to {step['dims']}": [*features, step, "unit_norm"] for step in projected}

    return [
        Case(
            "MNIST, 10 silos of 2 digits",
            {"dataset": "mnist", **two_labels},
            {"pixels": ["unit_norm"], "`hog`": ["hog", "unit_norm"], **small(["hog"], public.writers_hog)},
            {1.0: (32.0, 50), 8.0: (32.0, 100)},
        ),
        Case(
            "FEMNIST, a silo for each writer",
            {"dataset": "femnist", "partition": {"name": "natural", "min_records": 100}, "test": "own"},
            {
                "pixels": [black, "unit_norm"],
                **small([black], public.digits),
                "`hog`": [black, "hog", "unit_norm"],
                **small([black, "hog"], public.digits_hog),
            },
            {1.0: (8.0, 160), 8.0: (16.0, 400)},
        ),
    ]


def accuracy(case: Case, name: str, epsilon: float, seed: int) -> float:
    """Of the final model, on the test records of all silos."""
    lr, rounds = case.steps[epsilon]
    with tempfile.TemporaryDirectory() as folder:
        run = dpfl.train(
            dpfl.Federation.load(preprocess=case.features[name], **case.data),
            model="softmax",
            algorithm=dpfl.algorithms.MBSGD(lr=lr),
            privacy=dpfl.Privacy(epsilon=epsilon, delta=DELTA, clip_norm=CLIP_NORM, sampler="full"),
            rounds=rounds,
            seed=seed,
            evaluation={"every": rounds},
            out=Path(folder),
            progress=False,
        )
        assert run.accuracy is not None
        return float(run.accuracy)


def public_files(folder: Path) -> Public:
    """The files of public records: each data set is public to the other, drawn white on black."""
    digits, writers = mnist(DataSource()).features[:PUBLIC], 1 - femnist(DataSource()).features[:PUBLIC]
    found = Public(folder / "digits.npz", folder / "digits_hog.npz", folder / "writers_hog.npz")
    np.savez(found.digits, x=digits)
    np.savez(found.digits_hog, x=histograms(digits))
    np.savez(found.writers_hog, x=histograms(writers))
    return found


def histograms(images: Features) -> Features:
    """What `preprocess: hog` makes of flat images."""
    made = [hog(image, 9, (7, 7), (2, 2), block_norm="L2-Hys") for image in images.reshape(-1, 28, 28)]
    return np.array(made, np.float32)


def row(case: Case, name: str) -> list[str]:
    """Of the table: means over seeds."""
    found = [[accuracy(case, name, epsilon, seed) for seed in SEEDS] for epsilon in EPSILONS]
    return [case.called, name, *(f"{statistics.mean(each):.3f}" for each in found)]


def measured() -> str:
    """The table."""
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(2, get_context("spawn")) as pool:
        wanted = [(case, name) for case in cases(public_files(Path(folder))) for name in case.features]
        rows = list(pool.map(row, *zip(*wanted, strict=True)))
    return table(["records", "features", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS)], rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.features", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table to docs/models.md")
    show("docs/models.md", "features", measured(), write=parser.parse_args().write)


if __name__ == "__main__":
    main()
