"""`python -m benchmarks.class_weights --write`: what class weights bring where a class is rare; the table in
docs/outcomes.md.

Adult's training records, of those above 50K one in eight so that 4 % are left, dealt to five silos.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

import dpfl_plugin as dpfl
from benchmarks.pages import show
from benchmarks.table import table
from dpfl_plugin.data.adult import adult
from dpfl_plugin.data.fetch import DataSource

PAGE, PART = "docs/outcomes.md", "class weights table"
ONE_IN: Final = 8
WEIGHTS: Final[dict[str, Mapping[str, Any]]] = {
    "none": {},
    "`{rich: 24}`": {"class_weights": {"rich": 24.0}},
    "`{poor: 0.04}`": {"class_weights": {"poor": 0.04}},
    "`balanced`": {"class_weights": "balanced", "private_statistics": {"epsilon_share": 0.05}},
}
MEASURES: Final = ("auc", "balanced_accuracy", "sensitivity", "specificity", "log_loss")
PRIVACY: Final[Mapping[str, Any]] = {"delta": 1e-5, "clip_norm": 1.0, "sampler": "full"}


def records() -> dpfl.Federation:
    """Every fifth record is of the same silo."""
    known = adult(DataSource())
    x, y = known.features, known.labels
    rare = np.flatnonzero(y == 1)
    rows = np.sort(np.concatenate([np.flatnonzero(y == 0), rare[::ONE_IN]]))
    names = np.array(["poor", "rich"])[y]
    silos = {f"silo {silo}": (x[rows[silo::5]], names[rows[silo::5]]) for silo in range(5)}
    return dpfl.Federation.from_arrays(silos, classes=["poor", "rich"])


def rows(seeds: int, out: str) -> Iterator[list[str]]:
    federation = records()
    for epsilon in (1, 8):
        for name, weights in WEIGHTS.items():
            runs = [
                dpfl.train(
                    federation,
                    model="logistic",
                    algorithm=dpfl.algorithms.FedAvg(local_steps=1, local_lr=1.0),
                    privacy={**PRIVACY, "epsilon": float(epsilon)},
                    rounds=60,
                    seed=seed,
                    evaluation={"every": 60},
                    out=out,
                    progress=False,
                    **weights,
                )
                for seed in range(seeds)
            ]
            found = [run.measures["pooled"]["model"] for run in runs if run.measures is not None]
            yield [str(epsilon), name, *(f"{statistics.mean(one[key] for one in found):.3f}" for key in MEASURES)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help=f"into {PAGE}")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        head = ["epsilon", "class_weights", *(key.replace("_", " ") for key in MEASURES)]
        found = table(head, list(rows(given.seeds, folder)), words=["class_weights"])
    show(PAGE, PART, found, write=given.write)


if __name__ == "__main__":
    main()
