"""`python -m benchmarks.drift [--write] [--part ...]`: where drift control wins, and where not; docs/drift.md.

Each method of configs/drift_control.yaml at its own best step size, over how silos differ, the share of silos in a
round, local steps and epsilon. What every run gave is a line of runs/drift/sweep.jsonl: an interrupted benchmark goes
on where it was, with five seeds of every cell first, and then to ten. Needs the MNIST and FEMNIST files ($DPFL_DATA);
forty minutes on one core. ``--write`` computes nothing: page, picture and the numbers of `python -m papers advice` are
made of what has run.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

import dpfl_plugin
from benchmarks.pages import ROOT
from benchmarks.tuning import Laboratory, best_step
from dpfl_plugin.config.load import load
from dpfl_plugin.config.schema import Config
from dpfl_plugin.data.base import Holding
from dpfl_plugin.federation.planning import Planner
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.views import server_view
from dpfl_plugin.runs.build import build
from dpfl_plugin.runs.environment import package_sha256
from dpfl_plugin.runs.records import hold_all
from dpfl_plugin.runtimes.in_process import InProcess
from papers import drift_page
from papers.drift import FILE

CONFIG: Final = ROOT / "configs" / "drift_control.yaml"
RUNS: Final = ROOT / "runs" / "drift"
AVERAGED: Final = ", averaged"
PATHS: Final = ("FedAvg", "FedAvg, momentum", "SCAFFOLD", "SCAFFOLD, momentum")
"""Variants that return the last model: averaging changes nothing of a run but what it returns, so that each run shows
two methods, this and the one with `AVERAGED` behind its name."""

MNIST: Final = [{"name": "pca", "dims": 50}, "unit_norm"]
FEMNIST: Final = [{"name": "scale", "factor": -1.0, "offset": 1.0}, *MNIST]  # its paper is white, MNIST's black
TASKS: Final[Mapping[str, dict[str, Any]]] = {
    "labels": {"partition": {"name": "labels_per_silo", "labels": 2}},
    "shares": {"partition": {"name": "dirichlet", "alpha": 0.5, "min_records": 500}},
    "alike": {"partition": {"name": "iid"}},
    "source": {
        "dataset": "femnist",
        "partition": {"name": "natural", "min_records": 100},
        "num_silos": 20,
        "test": "own",
        "preprocess": FEMNIST,
    },
}
"""How silos differ: changes of the file's data."""
DATA: Final[Mapping[str, str]] = {
    "labels": "MNIST, 10 silos, two of ten digits each",
    "shares": "MNIST, 10 silos, Dirichlet(0.5)",
    "alike": "MNIST, 10 silos, i.i.d.",
    "source": "FEMNIST, 20 silos, a writer each",
}
SETTING: Final = (
    "Softmax regression on 50 public principal components, C = 1, a fifth of the records in a batch; at most 1,600 "
    "training records a silo, of FEMNIST's writers 100 to 165; 40 rounds with silo_rate 0.2, of which a silo is in "
    "12 at most, and 20 with 1; delta 1e-5, in the server's view."
)
USUAL: Final[Mapping[str, str]] = {"server_optimizer": "sgd", "average": "last"}
SILO_RATES: Final[Mapping[float, dict[str, Any]]] = {
    0.2: {"rounds": 40, "max_participations": 12},
    1.0: {"rounds": 20, "max_participations": None},
}
LOCAL_STEPS, EPSILONS = (5, 20), (1.0, 8.0)
SEEDS: Final = (range(5), range(5, 10))  # of all cells first, and then
TUNING: Final = (1000, 1001, 1002)  # seeds by whose mean step sizes are chosen
FIRST_RATES, FACTOR, LIMITS = (1 / 3, 1.0, 3.0), 3.0, (0.01, 100.0)
FEWEST: Final = 5  # seeds of a cell that is kept
SHOWN: Final = 0.1  # of the rounds, the last: accuracy is their mean


@dataclass(frozen=True, slots=True)
class Cell:
    """What methods are compared at."""

    task: str
    silo_rate: float
    local_steps: int
    epsilon: float

    def config(self, path: str, rate: float, seed: int) -> Config:
        """The run of a method of `PATHS`; its server keeps the averaged model, too."""
        changed = start(path).model_dump()
        changed["data"] |= TASKS[self.task]
        changed["runtime"]["lockstep"] = self.task == "source"  # many small silos: half the time if answered together
        changed |= {"silo_rate": self.silo_rate, "seed": seed, **SILO_RATES[self.silo_rate]}
        changed["algorithm"] |= {"local_steps": self.local_steps, "local_lr": rate, "average": "linear"}
        changed["privacy"]["epsilon"] = self.epsilon
        return Config.model_validate(changed)


def cells() -> Iterator[Cell]:
    """All, task by task."""
    order = itertools.product(TASKS, LOCAL_STEPS, SILO_RATES, EPSILONS)
    return (Cell(task, silo_rate, local_steps, epsilon) for task, local_steps, silo_rate, epsilon in order)


@functools.cache
def start(label: str) -> Config:
    """A variant of the file."""
    return next(variant.config for variant in load(CONFIG).variants if variant.label == label)


def methods() -> list[str]:
    """The variants of the file, the cheapest first."""
    return [str(variant.label) for variant in load(CONFIG).variants]


class NotRunError(Exception):
    """A run that is asked for has not run yet."""


@dataclass(frozen=True, slots=True)
class Run:
    """Mean test accuracy over silos and over the last rounds, of the last global model and of the averaged one."""

    last: float
    averaged: float
    source: str

    def accuracy(self, method: str) -> float:
        return self.averaged if method.endswith(AVERAGED) else self.last


class Bench:
    """Runs, each once, in this process; records of a task and seed are dealt out once."""

    def __init__(self, folder: Path) -> None:
        self._laboratory, self._file = Laboratory(folder), folder / "sweep.jsonl"
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        self._known = {
            _key(line): Run(line["last"], line["averaged"], line["source"]) for line in map(json.loads, lines)
        }
        self._holding = functools.lru_cache(maxsize=16)(self._dealt)
        self._noise: dict[Cell, float] = {}

    def known(self, cell: Cell, path: str, rate: float, seed: int) -> Run | None:
        return self._known.get((cell, path, f"{rate:.4g}", seed))

    def only_known(self, cell: Cell, path: str, rate: float, seed: int) -> Run:
        """Raises NotRunError where it has not run."""
        found = self.known(cell, path, rate, seed)
        if found is None:
            raise NotRunError(f"{cell}, {path}, local_lr {rate:.4g}, seed {seed}")
        return found

    def run(self, cell: Cell, path: str, rate: float, seed: int) -> Run:
        found = self.known(cell, path, rate, seed)
        if found is None:
            found = self._run(cell, cell.config(path, rate, seed))
            line = {
                "task": cell.task,
                "silo_rate": cell.silo_rate,
                "local_steps": cell.local_steps,
                "epsilon": cell.epsilon,
                "path": path,
                "local_lr": f"{rate:.4g}",
                "seed": seed,
                "last": found.last,
                "averaged": found.averaged,
                "source": found.source,
            }
            with self._file.open("a") as file:
                print(json.dumps(line), file=file)
            self._known[_key(line)] = found
        return found

    def _run(self, cell: Cell, config: Config) -> Run:
        holding = self._holding(cell.task, config.public_seed)
        assert config.rounds is not None
        solved = self._noise.get(cell)
        parts = build(config, CONFIG.parent, solved, hold=lambda config, base: holding)
        ledger, silos = Ledger(), parts.setting.num_silos
        shown: list[list[float]] = []
        runtime = InProcess(parts.host, ledger, stack_size=parts.stack)
        planner = Planner(parts.algorithm, parts.setting, parts.setting.weights, config.public_seed)
        server, rounds = parts.algorithm.init_server(parts.model, parts.setting), config.rounds
        left = dict.fromkeys(range(silos), config.max_participations or rounds)
        for round in range(rounds):
            plan = planner.plan(server, round, [silo for silo in left if left[silo]])
            assert plan is not None, f"{cell}: too few silos below their cap in round {round}"
            for silo in plan.participants:
                left[silo] -= 1
            mean_up = runtime.run_round(parts.algorithm.download(server), plan, Draw(config.public_seed, round))
            server = parts.algorithm.aggregate(server, mean_up, plan)
            runtime.commit()
            if round >= rounds - math.ceil(SHOWN * rounds):
                shown.append([_accuracy(runtime, server[name]) for name in ("iterate", "model")])
        if solved is None:  # once for each cell
            spent = server_view(ledger.tally, PLD(), config.privacy.delta).epsilon
            assert spent <= cell.epsilon, f"{cell}: epsilon {spent}"
            self._noise[cell] = parts.noise_multiplier
        last, averaged = (statistics.fmean(found) for found in zip(*shown, strict=True))
        return Run(last, averaged, package_sha256())

    def _dealt(self, task: str, seed: int) -> Holding:
        config = next(cell for cell in cells() if cell.task == task).config(PATHS[0], 1.0, seed)
        return hold_all(config.model_copy(update={"data": self._laboratory.data(config, CONFIG.parent)}), CONFIG.parent)


def _key(line: Mapping[str, Any]) -> tuple[Cell, str, str, int]:
    cell = Cell(line["task"], line["silo_rate"], line["local_steps"], line["epsilon"])
    return cell, line["path"], line["local_lr"], line["seed"]


def _accuracy(runtime: InProcess, model: torch.Tensor) -> float:
    return statistics.fmean(silo.test_score for silo in runtime.evaluate(model, False).values())


def chosen(run: Callable[[Cell, str, float, int], Run], cell: Cell, path: str) -> dict[str, float]:
    """{method: its best step size}, by the mean accuracy on the seeds for that, of a path's two methods."""

    def score(method: str, rate: float) -> float:
        return statistics.fmean(run(cell, path, rate, seed).accuracy(method) for seed in TUNING)

    return {
        method: best_step(functools.partial(score, method), FIRST_RATES, FACTOR, LIMITS)
        for method in (path, path + AVERAGED)
    }


def measure(bench: Bench, parts: Iterable[str], seeds: range) -> None:
    """All runs of some tasks, in their order, at these seeds, and what has to run before them."""
    for cell in (cell for task in parts for cell in cells() if cell.task == task):
        for path in PATHS:
            rates = chosen(bench.run, cell, path)
            for method, rate in rates.items() if seeds else ():
                found = [bench.run(cell, path, rate, seed).accuracy(method) for seed in seeds]
                print(f"{cell}, {method}, local_lr {rate:.3g}: {statistics.fmean(found):.4f}", flush=True)


def kept(bench: Bench) -> dict[str, Any]:
    """What `drift_control.json` holds, of the cells that have run with five seeds at least.

    Raises:
        ValueError: of a task there is none.
    """
    names = methods()
    runs = {cell: found for cell in cells() if (found := _runs(bench, cell)) is not None}
    seeds = {cell: min(len(kept) for _, kept in found.values()) for cell, found in runs.items()}
    whole = [cell for cell in runs if seeds[cell] >= FEWEST]
    if missing := set(TASKS) - {cell.task for cell in whole}:
        raise ValueError(f"of {', '.join(sorted(missing))} no cell has {FEWEST} seeds: python -m benchmarks.drift")
    all_runs = [run for cell in whole for _, of in runs[cell].values() for run in of]
    return {
        "made_by": "python -m benchmarks.drift --write",
        "version": dpfl_plugin.__version__,
        "sources": sorted({run.source for run in all_runs}),
        "setting": SETTING,
        "data": dict(DATA),
        "methods": {name: _options(name) for name in names},
        "cells": [
            {
                "skew": cell.task,
                "silo_rate": cell.silo_rate,
                "local_steps": cell.local_steps,
                "epsilon": cell.epsilon,
                "methods": {name: _plain(name, *runs[cell][name], seeds[cell]) for name in names},
            }
            for cell in whole
        ],
    }


def _runs(bench: Bench, cell: Cell) -> dict[str, tuple[float, list[Run]]] | None:
    """{method: (its step size, its runs by seed, as many as there are)}; None where step sizes are not chosen yet."""
    found = {}
    for path in PATHS:
        try:
            rates = chosen(bench.only_known, cell, path)
        except NotRunError:
            return None
        for method, rate in rates.items():
            kept = (bench.known(cell, path, rate, seed) for seeds in SEEDS for seed in seeds)
            found[method] = rate, [run for run in itertools.takewhile(lambda run: run is not None, kept) if run]
    return found


def _plain(name: str, rate: float, runs: Sequence[Run], seeds: int) -> dict[str, Any]:
    return {
        "local_lr": float(f"{rate:.4g}"),
        "accuracies": [round(run.accuracy(name), 5) for run in runs[:seeds]],
    }


def _options(method: str) -> dict[str, Any]:
    """What the file's variant says of its algorithm, all of it, so that it replaces what another run says."""
    block = start(method).algorithm
    return {"name": block.name} | {key: block.options.get(key, usual) for key, usual in USUAL.items()}


def _json(plain: Mapping[str, Any]) -> str:
    """With a line for each fact, and for each cell."""
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in plain.items() if key != "cells"]
    cells = ",\n".join(f"  {json.dumps(cell)}" for cell in plain["cells"])
    return "{\n" + ",\n".join([*lines, f' "cells": [\n{cells}\n ]']) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drift", description=__doc__)
    parser.add_argument("--part", nargs="*", choices=list(TASKS), default=list(TASKS), help="tasks; all by default")
    parser.add_argument("--seeds", type=int, default=SEEDS[-1].stop, help="of each cell, five of all cells first")
    parser.add_argument("--write", action="store_true", help="write the kept numbers, page and picture; runs nothing")
    parser.add_argument("--folder", type=Path, default=RUNS, help="where runs are kept")
    given = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(given.folder)
    if given.write:
        FILE.write_text(_json(kept(bench)))
        return drift_page.write()
    for seeds in SEEDS:
        measure(bench, given.part, range(seeds.start, min(seeds.stop, given.seeds)))
    return None


if __name__ == "__main__":
    main()
