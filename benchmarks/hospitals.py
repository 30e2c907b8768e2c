"""`python -m benchmarks.hospitals [TABLE ...] [--quick] [--write]`: real tables, each method at each epsilon.

The tables are those of configs/tables, each with a schema; the files are in $DPFL_DATA. Who trains together is compared
with who trains alone, with one silo that has all records, and with a baseline that knows no feature, over seeds. All
methods release equally often, so that their noise is the same, and have as many step sizes to choose from, on a seed
that is not shown. What has run is kept in runs/hospitals: a cut loses no more than the run that it cut.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import dpfl_plugin as dpfl
from benchmarks import machine
from benchmarks.pages import ROOT, put, show
from benchmarks.table import table
from dpfl_plugin.api.training import run_variant
from dpfl_plugin.config.load import Variant
from dpfl_plugin.runtimes.choice import backend_here

PAGE: Final = "docs/hospitals.md"
RUNS: Final = ROOT / "runs" / "hospitals"
EPSILONS: Final = (1.0, 3.0, 8.0, None)  # None: the same steps and clipping without noise
RATES: Final = (0.1, 0.3, 1.0, 3.0)
SEEDS: Final = tuple(range(5))
TUNING: Final = 100  # the seed on which step sizes are chosen
STEPS, LOCAL_STEPS, PULL = 30, 3, 0.3
POOLED: Final = "one silo with all records"


@dataclass(frozen=True, slots=True)
class Study:
    """One table.

    Attributes:
        title: what it is. measure: of `result.json`, by which it is judged, and by which step sizes are chosen.
        called: the measure, in words. higher: whether more is better.
        within: it ranks records, so that it is taken within silos: who knows how ill the patients of each hospital are
            on average ranks patients of different hospitals, and may rank none within a hospital.
    """

    title: str
    measure: str
    called: str
    higher: bool
    within: bool = False


STUDIES: Final[Mapping[str, Study]] = {
    "heart_disease": Study("Heart disease, yes or no", "auc", "AUC", True, within=True),
    "heart_stages": Study("Heart disease, stages 0 to 4", "mae", "mean absolute error in levels", False),
    "azpro": Study("Days in hospital", "deviance", "Poisson deviance", False),
    "dialysis": Study("Survival on dialysis", "c_index", "concordance index", True, within=True),
    "school": Study("Examination scores", "rmse", "root mean squared error in points", False),
}


def method(name: str, rate: float) -> dict[str, Any]:
    """Changes of a table's configuration: a method with a step size; each makes `STEPS` releases a silo."""
    local = {"local_steps": LOCAL_STEPS, "local_lr": rate}
    rounds = STEPS // LOCAL_STEPS
    return {
        "DP-MB-SGD": {"rounds": STEPS, "algorithm": {"name": "mb_sgd", "lr": rate}},
        "DP-FedAvg": {"rounds": rounds, "algorithm": {"name": "fedavg", **local}},
        "DP-SCAFFOLD": {"rounds": rounds, "algorithm": {"name": "scaffold", **local}},
        "MR-MTL, own models": {"rounds": rounds, "algorithm": {"name": "mr_mtl", "mean_weight": PULL, **local}},
        "each silo alone": {"rounds": rounds, "algorithm": {"name": "local", **local}},
        POOLED: {
            "rounds": STEPS,
            "algorithm": {"name": "mb_sgd", "lr": rate},
            "data": {"partition": {"name": "iid"}, "num_silos": 1},
        },
    }[name]


METHODS: Final = ("each silo alone", "MR-MTL, own models", "DP-FedAvg", "DP-SCAFFOLD", "DP-MB-SGD", POOLED)


class _Quiet:
    """A reporter that says nothing: the benchmark tells what has run."""

    def note(self, text: str) -> None:
        pass

    detail = evaluated = ticked = note

    def start(self, rounds: int, done: int) -> None:
        pass

    def end(self) -> None:
        pass


def finished(experiment: dpfl.Experiment) -> dict[str, Any]:
    """What `result.json` of a run holds; one that was cut goes on, and a finished one is not run again."""
    return run_variant(
        Variant(None, experiment.config),
        experiment.base,
        backend=backend_here(experiment.config),
        reporter=_Quiet(),
        stop=lambda: False,
        resume=True,
        picture=False,
    ).result


@dataclass(frozen=True, slots=True)
class Bench:
    """Where runs are kept."""

    out: Path

    def result(self, name: str, how: str, epsilon: float | None, rate: float, seed: int) -> dict[str, Any]:
        """What `result.json` of a run holds; a run that was cut goes on, and one that is finished is not run again."""
        privacy = {"epsilon": epsilon} if epsilon is not None else {"epsilon": None, "noise_multiplier": 0}
        table = dpfl.load(ROOT / "configs" / "tables" / f"{name}.yaml")
        changed = table.with_(**method(how, rate), privacy=privacy, seed=seed, out=str(self.out))
        found = finished(changed)
        spent = found["epsilon"]["server"]["epsilon"]
        assert epsilon is None or spent <= epsilon, (name, how, epsilon, spent)
        return dict(found)


def measured(result: Mapping[str, Any], measure: str, who: str = "model") -> float:
    """A measure on the test records of all silos, of ``who``: of silos' own models where they have some. NaN where it
    is not defined, as of a model that is not finite."""
    pooled = result["measures"]["pooled"]
    found = pooled["own_models" if who == "model" and "own_models" in pooled else who].get(measure)
    return math.nan if found is None else float(found)


def within_silos(result: Mapping[str, Any], measure: str, who: str = "model") -> float:
    """As `measured`, of each silo: the mean over those where it is defined, weighed by their test records."""
    lines = (Path(result["folder"]) / "silos.csv").read_text().splitlines()
    sizes = {row["silo"]: int(row["num_test"]) for row in csv.DictReader(lines)}
    found = {
        silo: measured({"measures": {"pooled": by}}, measure, who) for silo, by in result["measures"]["silos"].items()
    }
    known = {silo: value for silo, value in found.items() if not math.isnan(value)}
    return sum(value * sizes[silo] for silo, value in known.items()) / sum(sizes[silo] for silo in known)


def judged(result: Mapping[str, Any], study: Study) -> float:
    """By what a step size is chosen."""
    return (within_silos if study.within and result["num_silos"] > 1 else measured)(result, study.measure)


def chosen(bench: Bench, name: str, how: str, epsilon: float | None) -> float:
    """The step size that is best on the seed for that."""
    study, sign = STUDIES[name], 1 if STUDIES[name].higher else -1
    tried = {rate: sign * judged(bench.result(name, how, epsilon, rate, TUNING), study) for rate in RATES}
    return max(tried, key=lambda rate: -math.inf if math.isnan(tried[rate]) else tried[rate])


def spread(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"


def rows(
    bench: Bench, name: str, of: Callable[[Mapping[str, Any], str, str], float], methods: Sequence[str] = METHODS
) -> Iterator[list[str]]:
    """A row for each method, after that of the baseline; ``of`` takes a measure from a result."""
    measure, baseline = STUDIES[name].measure, ""
    for how in methods:
        row, sizes = [how], []
        for epsilon in EPSILONS:
            rate = chosen(bench, name, how, epsilon)
            sizes.append(f"{rate:g}")
            began = time.perf_counter()
            results = [bench.result(name, how, epsilon, rate, seed) for seed in SEEDS]
            row.append(spread([of(result, measure, "model") for result in results]))
            print(f"{name}, {how}, epsilon {epsilon}: {row[-1]}  ({time.perf_counter() - began:.0f} s)", flush=True)
            baseline = baseline or spread([of(result, measure, "baseline") for result in results])
        if how == methods[0]:
            yield ["no feature: the baseline", "", *[""] * (len(EPSILONS) - 1), baseline]
        yield [row[0], ", ".join(sizes), *row[1:]]


def page(bench: Bench, name: str) -> str:
    """The tables of a study, and what they are of."""
    study = STUDIES[name]
    one = bench.result(name, METHODS[-2], None, chosen(bench, name, METHODS[-2], None), SEEDS[0])
    said = (
        f"**{study.title}**: {study.called} on test records, {'more' if study.higher else 'less'} is better. "
        f"{one['num_silos']} silos, {one['num_train_records']:,} records for training and "
        f"{one['num_test_records']:,} for tests."
    )
    columns = ["method", "step sizes", *(f"epsilon {e:g}" if e is not None else "no noise" for e in EPSILONS)]
    parts = [said, table(columns, list(rows(bench, name, measured)))]
    if study.within:
        parts[1:1] = [
            "Within silos:",
            table(columns, list(rows(bench, name, within_silos, METHODS[:-1]))),
            "Of all test records together, those of different silos compared with each other, too:",
        ]
    return "\n\n".join(parts)


def quick() -> None:
    """One small run of each method, without choosing: to see that all goes, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        for name, study in STUDIES.items():
            found = bench.result(name, METHODS[0], EPSILONS[1], RATES[0], TUNING)
            print(f"{name}: {study.called} {measured(found, study.measure):.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hospitals", description=__doc__)
    parser.add_argument("tables", nargs="*", default=list(STUDIES), help=f"of {', '.join(STUDIES)}; all by default")
    parser.add_argument("--quick", action="store_true", help="one run of each table, without the tables")
    parser.add_argument("--write", action="store_true", help=f"write the tables to {PAGE}")
    given = parser.parse_args()
    unknown = [name for name in given.tables if name not in STUDIES]
    if unknown:
        parser.error(f"no table is called {', '.join(unknown)}: {', '.join(STUDIES)}")
    if "DPFL_DATA" not in os.environ:
        sys.exit("The tables are read from $DPFL_DATA, which is not set: the folder of heart_disease and multicentre.")
    if given.quick:
        return quick()
    bench = Bench(RUNS)
    for name in given.tables:
        text = page(bench, name)
        show(PAGE, name, text, write=given.write)
    if given.write:
        facts = [[what, found] for what, found in machine.facts().items()]
        put(PAGE, "machine", table(["", ""], facts))
    return None


if __name__ == "__main__":
    main()
