"""Seconds of a round of W1, against the SCAFFOLD of pfl 0.6.0, which is not private and draws no batches.

    benchmarks/pfl_env                        # once: puts pfl into build/pfl
    python -m benchmarks.pfl_round [--rounds 7] [--json]

Both train on the same records, 20 of 100 silos a round, 50 steps on 800 records each: pfl by local_num_epochs=10 over
the five batches of a silo. Interleaved rounds, one torch thread; neither evaluates. (pfl's SCAFFOLD option II has the
sign of its control variate reversed, which does not change its time.)
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import contenders
from benchmarks.contenders import OURS, Ours
from benchmarks.table import table
from benchmarks.workloads import WORKLOADS, Workload
from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.oracle import Draw

HOME: Final = Path(__file__).resolve().parents[1] / "build" / "pfl"
WANTED: Final = 2.5


class Missing(Exception):
    """pfl is not where `benchmarks/pfl_env` puts it."""


class PflScaffold:
    """pfl's algorithm, backend and model, a round at a time as its own loop does it."""

    name = "pfl 0.6.0 SCAFFOLD (not private)"

    def __init__(self, load: Workload, silos: Sequence[Records]) -> None:
        if not HOME.is_dir():
            raise Missing(f"{HOME} is missing: run benchmarks/pfl_env, which needs a package index.")
        if str(HOME) not in sys.path:
            sys.path.append(str(HOME))
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
        from pfl.data.dataset import Dataset
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.data.user_state import InMemoryUserStateStorage
        from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
        from pfl.model.pytorch import PyTorchModel

        epochs, rest = divmod(load.local_steps * load.batch_size, load.num_records)
        if rest or load.num_records % load.batch_size:
            raise ValueError(
                f"{load.local_steps} steps of {load.batch_size} are no whole epochs of {load.num_records}."
            )
        self._round = 0
        self._wanted: list[str] = []
        turn = lambda: self._wanted.pop(0)  # noqa: E731
        datasets = {
            str(silo): Dataset(raw_data=[records.features, records.labels], user_id=str(silo))
            for silo, records in enumerate(silos)
        }
        data = FederatedDataset(datasets.__getitem__, turn)
        module = _with_loss(load.module())
        self._model: Any = PyTorchModel(
            model=module,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        )
        self._algorithm: Any = SCAFFOLD()
        self._params = SCAFFOLDParams(
            central_num_iterations=10**9,
            evaluation_frequency=10**9,
            train_cohort_size=load.num_participants,
            val_cohort_size=0,
            population=load.num_silos,
            use_gradient_as_control_variate=False,
            user_state_storage=InMemoryUserStateStorage(),
        )
        self._train = NNTrainHyperParams(
            local_num_epochs=epochs, local_learning_rate=load.local_lr, local_batch_size=load.batch_size
        )
        self._eval = NNEvalHyperParams(local_batch_size=load.num_records)
        self._backend: Any = SimulatedBackend(training_data=data, val_data=None)

    def round(self, plan: RoundPlan, draw: Draw) -> None:
        from pfl.algorithm import algorithm_utils

        self._wanted += [str(silo) for silo in plan.participants]
        self._round += 1  # never 0: round 0 would be evaluated
        if self._round == 1:
            self._algorithm._server_c = self._model.get_parameters().apply_elementwise(lambda w: w * 0)
        contexts, self._model, metrics = self._algorithm.get_next_central_contexts(
            self._model, self._round, self._params, self._train, self._eval
        )
        found = algorithm_utils.run_train_eval(self._algorithm, self._backend, self._model, contexts)
        pairs = tuple((context, stats) for context, (stats, _) in zip(contexts, found, strict=True))
        self._model, _ = self._algorithm.process_aggregated_statistics_from_all_contexts(pairs, metrics, self._model)

    def model(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self._model.pytorch_model.parameters()])


def _with_loss(module: nn.Module) -> nn.Module:
    """With the methods that pfl calls."""

    class Model(nn.Sequential):
        def loss(self, features: Tensor, labels: Tensor, is_eval: bool = False) -> Tensor:
            return functional.cross_entropy(self(features), labels)

        def metrics(self, features: Tensor, labels: Tensor) -> dict[str, Any]:
            return {}

    return Model(module)


def measure(load: Workload, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round, in turn, after one that is not counted."""
    silos = load.silos()
    kind = next(iter(contenders.ours(load).values()))
    entrants = [Ours(OURS, kind, load, silos), PflScaffold(load, silos)]
    times: dict[str, list[float]] = {entrant.name: [] for entrant in entrants}
    for number in range(rounds + 1):
        plan, draw = load.plan(number), load.draw(number)
        for entrant in entrants if number % 2 else entrants[::-1]:
            began = time.perf_counter()
            entrant.round(plan, draw)
            if number:
                times[entrant.name].append(time.perf_counter() - began)
    return times


def result_table(times: dict[str, list[float]]) -> str:
    ours = times[OURS]
    rows = []
    for name, seconds in times.items():
        ratios = sorted(a / b for a, b in zip(seconds, ours, strict=True))
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        rows.append([name, f"{statistics.median(seconds):.4f}", f"{statistics.median(ratios):.2f}", spread])
    return table(["a round of W1", "median s", f"times ours (wanted {WANTED})", "spread"], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pfl_round", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="median seconds of a round as JSON")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        times = measure(WORKLOADS["W1"], options.rounds)
    except Missing as error:
        sys.exit(str(error))
    if options.json:
        print(json.dumps({name: statistics.median(seconds) for name, seconds in times.items()}))
    else:
        print(result_table(times))


if __name__ == "__main__":
    main()
