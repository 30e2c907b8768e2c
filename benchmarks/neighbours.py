"""`python -m benchmarks.neighbours --write`: can two exports that differ in one patient be told apart?

The attacks go at what happens to records before batches are drawn; a table of docs/attacks.md. Each chooses a data set
D and a neighbour D' for which cuts by place, or filters before a cut, would change many records at once. Then it sees
the model after one round of real runs with fresh randomness, and answers D or D'.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml
from numpy.typing import NDArray
from safetensors.numpy import load_file
from scipy.stats import beta
from typer.testing import CliRunner

from benchmarks.pages import show
from benchmarks.table import table
from dpfl_plugin.cli.main import app
from dpfl_plugin.config.load import load
from dpfl_plugin.data import heart_disease
from dpfl_plugin.runs.records import federate

Config = dict[str, Any]
Vector = NDArray[np.float64]

PAGE: Final = "docs/attacks.md"
CONFIDENCE: Final = 0.95
QUIET: Final = {"randomness": "seeded", "noise_multiplier": 0, "epsilon": None}
FRESH: Final = {"randomness": "fresh"}
COMMON: Final[Config] = {
    "seed": 0,
    "rounds": 1,
    "model": "softmax",
    "algorithm": {"name": "mb_sgd", "lr": 1.0},
    "privacy": {"epsilon": 1.0, "delta": 1e-5, "clip_norm": 0.1, "sampler": "full"},
    "evaluation": {"every": 100},
}


@dataclass(frozen=True)
class Attack:
    """Two neighbouring data sets.

    Attributes:
        config: of a run on either. num_runs: on each. choose: puts one of them where the configuration looks for it, by
            whether it is the neighbour.
    """

    config: Config
    num_runs: int
    choose: Callable[[bool], None]


def sorted_by_age(folder: Path) -> Attack:
    """400 patients in the order of their ages, of whom the youngest is replaced by one who is the oldest.

    Labels are such that gradients of the patients who leave the training part, if it is cut by place, point one way,
    and those of the patients who come into it the other.
    """
    path = folder / "export.csv"
    dataset = {"name": "csv", "files": [str(path)], "classes": [0, 1], "silo_column": "site"}
    data: Config = {"dataset": dataset, "partition": "natural"}
    config = {**COMMON, "data": {**data, "preprocess": [{"name": "scale", "factor": 1e-3}]}}
    labels = [0] * 401  # of all patients, by age in eighths of a year

    def choose(neighbour: bool) -> None:
        rows = [("here", 20 + patient / 8, labels[patient]) for patient in range(neighbour, 400 + neighbour)]
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([("site", "age", "label"), *rows])

    there = []
    for neighbour in (False, True):
        choose(neighbour)
        there.append({round(8 * (1e3 * age - 20)) for age in training(config, folder)[:, 0].tolist()})
    for patient in range(401):
        leaves, comes = (patient in one - other for one, other in (there, there[::-1]))
        labels[patient] = 1 if leaves else 0 if comes else patient % 2
    return Attack(config, 40, choose)


def missing_value(folder: Path) -> Attack:
    """The quickstart's patients of Cleveland, one of whom is replaced by one without an age.

    Of some that were tried it is the patient who moved the first sum most when such patients left before the cut.
    """
    read = heart_disease._read
    data: Config = {"dataset": {"name": "heart_disease", "missing": "drop", "held_out": 0.34}, "partition": "natural"}
    data["dataset"]["hospitals"] = ["cleveland"]
    config: Config = {**COMMON, "data": {**data, "test": "own"}}
    config["privacy"] = {**COMMON["privacy"], "delta": 1e-4, "clip_norm": 0.5}

    def choose(neighbour: bool) -> None:
        def changed(hospital: str) -> Any:
            values = read(hospital)
            if neighbour:
                values[50, 0] = math.nan
            return values

        heart_disease._read = changed

    return Attack(config, 100, choose)


ATTACKS: Final[Mapping[str, Callable[[Path], Attack]]] = {
    "a sorted export, one patient replaced": sorted_by_age,
    "`missing: drop`, one patient with a missing value": missing_value,
}


def write(config: Config, folder: Path) -> Path:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def training(config: Config, folder: Path) -> NDArray[np.float32]:
    """(n, d) of the training records."""
    path = write(config, folder)
    (silo,) = federate(load(path).variants[0].config, folder).silos
    return silo.train_x


def released(config: Config, folder: Path, privacy: Config) -> tuple[Vector, Config]:
    """(the model after the round, the result)"""
    path = write({**config, "privacy": {**config["privacy"], **privacy}}, folder)
    with tempfile.TemporaryDirectory() as out:
        answer = CliRunner().invoke(app, ["run", str(path), "--out", out, "--json"])
        if answer.exit_code:
            raise SystemExit(f"{answer.output}{answer.exception}")
        result = json.loads(answer.stdout)
        model = load_file(Path(result["folder"]) / "model.safetensors")
    return np.concatenate([model[name].ravel().astype(float) for name in sorted(model)]), result


def attacked(attack: Attack, folder: Path) -> list[str]:
    """The cells of an attack's row."""
    records, quiet = [], []
    for neighbour in (False, True):
        attack.choose(neighbour)
        records.append(training(attack.config, folder))
        quiet.append(released(attack.config, folder, QUIET)[0])
    rows = [Counter(row.tobytes() for row in one) for one in records]
    sensitivity = 2 * attack.config["privacy"]["clip_norm"] / len(records[0])
    apart = (quiet[1] - quiet[0]) / sensitivity
    moved = float(np.linalg.norm(apart))
    said, noise = [], 0.0
    for neighbour in (False, True):
        attack.choose(neighbour)
        answers = []
        for _ in range(attack.num_runs):
            model, result = released(attack.config, folder, FRESH)
            noise = result["noise_multiplier"]
            score = (model - quiet[0]) @ apart / sensitivity / max(moved, 1e-9)
            answers.append(score > max(moved / 2, 2 * noise))
        said.append(sum(answers))
    delta = result["epsilon"]["server"]["delta"]
    return [
        f"{(rows[1] - rows[0]).total()} of {len(records[0])}",
        f"{moved:.1f}",
        f"{said[0]} of {attack.num_runs}",
        f"{said[1]} of {attack.num_runs}",
        f"{proven(said[0], said[1], attack.num_runs, delta):.2f}",
        f"{result['epsilon']['server']['epsilon']:.2f}",
    ]


def proven(wrongly: int, rightly: int, count: int, delta: float) -> float:
    """The least epsilon for which these numbers of answers D' under D, and under D', are not refuted with 95 %.

    Clopper-Pearson limits of each at half of the rest; in both directions.
    """

    def most(hits: int) -> float:
        return 1.0 if hits == count else float(beta.ppf((1 + CONFIDENCE) / 2, hits + 1, count - hits))

    pairs = ((rightly, wrongly), (count - wrongly, count - rightly))
    return max(0.0, *(math.log(max(1 - most(count - power) - delta, 1e-9) / most(level)) for power, level in pairs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"the table of {PAGE}")
    rows = []
    arguments = parser.parse_args()
    for name, make in ATTACKS.items():
        with tempfile.TemporaryDirectory() as folder:
            rows.append([name, *attacked(make(Path(folder)), Path(folder))])
    measured = ["training records that change", "sum moves by"]
    answered = ["D' answered for D", "for D'", "epsilon proven", "stated"]
    text = table(["attack", *measured, *answered], rows)
    show(PAGE, "neighbours table", text, write=arguments.write)


if __name__ == "__main__":
    main()
