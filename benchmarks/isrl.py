"""`python -m benchmarks.isrl`: MB-SGD and AC-SA, localized or not, on MNIST (Gao et al. 2024, Fig. 2, 3).

Writes the tables and the picture of docs/algorithms.md. Needs the MNIST files. Trials are added to the file --results,
so that they may be measured one after the other.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.pages import ROOT, put
from benchmarks.table import table
from dpfl_plugin import registry
from dpfl_plugin.algorithms.base import Algorithm
from dpfl_plugin.config.load import load
from dpfl_plugin.config.schema import Config
from dpfl_plugin.federation.planning import Planner
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.gradients.losses import logistic
from dpfl_plugin.models.linear import logistic as logistic_model
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.events import Term
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import FullBatch
from dpfl_plugin.privacy.views import server_view
from dpfl_plugin.runs.algorithm_setting import make_setting
from dpfl_plugin.runs.setting import federate
from dpfl_plugin.runtimes.in_process import InProcess

CONFIG: Final = ROOT / "configs" / "papers" / "gao_fig2_mnist.yaml"
PICTURE: Final = ROOT / "docs" / "pictures" / "isrl.png"
EPSILONS: Final = (0.75, 1.5, 3.0, 6.0, 12.0)
PARTICIPANTS: Final = (25, 18)
RUNS: Final = 3  # of the setting that was chosen, with fresh noise
STEPS: Final = (4.0, 16.0, 64.0)
SMOOTHNESS: Final = 0.5
ROUNDS: Final = (25, 50)  # of a phase, or in all
PHASES: Final = 3


@dataclass(frozen=True, slots=True)
class Candidate:
    """A setting to be tuned over: rounds, algorithm options, and how many releases read the same records."""

    rounds: int
    name: str
    options: tuple[tuple[str, Any], ...]
    releases: int


def candidates() -> dict[str, list[Candidate]]:
    """As many settings for each algorithm: numbers of rounds, and sizes of steps a factor of 4 apart.

    Steps of AC-SA are in proportion to 1 / v; 2 beta = 1 is the v of its theorem.
    """

    def grid(
        name: str, factor: int = 1, once: bool = False, accelerated: bool = False, /, **options: Any
    ) -> list[Candidate]:
        steps = [{"v": STEPS[1] / step, "smoothness": SMOOTHNESS} if accelerated else {"lr": step} for step in STEPS]
        return [
            Candidate(R * factor, name, tuple({**options, **step}.items()), 1 if once else R)
            for R, step in itertools.product(ROUNDS, steps)
        ]

    phases = {"phases": PHASES, "diameter": 20.0}
    return {
        "localized": grid("localized_mb_sgd", PHASES, **phases),
        "one pass": grid("mb_sgd", 1, True, passes="one"),
        "multi pass": grid("mb_sgd"),
        "localized AC-SA": grid("localized_mb_sgd", PHASES, False, True, subsolver="accelerated", **phases),
        "multi pass AC-SA": grid("accelerated_mb_sgd", 1, False, True),
    }


@functools.cache
def noise_for(epsilon: float, delta: float, releases: int) -> float:
    """The least noise multiplier of full batches, to 4 digits, by bisection."""

    def fits(sigma: float) -> bool:
        release = rules(sigma).release(1.0)
        return PLD().epsilon([Term(release=release, count=releases, rounds=1)], delta) <= epsilon

    low, high = 0.05, 1000.0
    while high / low > 1 + 1e-4:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def rules(sigma: float) -> PrivacyRules:
    """Full batches of the records that a round may read, C = 1."""
    sampler = FullBatch()
    return PrivacyRules(
        unit="record",
        neighbouring=sampler.neighbouring,
        clip_norm=1.0,
        mechanism=Gaussian(sigma),
        sampler=sampler,
    )


class Trial:
    """The records of one trial, and runs on them."""

    def __init__(self, config: Config, base: Path) -> None:
        self.config = config
        federation = federate(config, base)
        self.train = {i: _records(s.train_x, s.train_y) for i, s in enumerate(federation.silos)}
        self.test = {i: _records(s.test_x, s.test_y) for i, s in enumerate(federation.silos)}
        self.shape = federation.feature_shape

    @property
    def num_records(self) -> list[int]:
        return [len(records) for records in self.train.values()]

    def run(self, candidate: Candidate, epsilon: float, participants: int, number: int) -> tuple[float, float]:
        """(training loss, test error), means over silos, of one run; ``number`` names its noise."""
        privacy = self.config.privacy.model_copy(update={"epsilon": epsilon})
        silo_rate = participants / len(self.train)
        config = self.config.model_copy(update={"privacy": privacy, "rounds": candidate.rounds, "silo_rate": silo_rate})
        sigma = noise_for(epsilon, privacy.delta, candidate.releases)
        model = logistic_model(self.shape, 2)
        given = dict(candidate.options)
        algorithm: Algorithm = registry.build(registry.load("algorithms", candidate.name), given, where="algorithm")
        setting = make_setting(config, self.num_records)
        host = SiloGroup(
            model=model,
            loss=logistic,
            algorithm=algorithm,
            rules=rules(sigma),
            engine=ClosedForm(model, logistic, 2**28),
            train=self.train,
            test=self.test,
            states={},
        )
        ledger = Ledger()
        runtime = InProcess(host, ledger)
        weights = (1 / setting.num_silos,) * setting.num_silos
        planner = Planner(algorithm, setting, weights, seed=1000 * config.seed + number)
        w = torch.zeros(sum(p.numel() for p in model.parameters()))
        server = algorithm.init_server(w, setting)
        for round in range(candidate.rounds):
            plan = planner.plan(server, round)
            draw = Draw(config.seed, round, run=f"{number} {candidate.rounds} {candidate.name}")
            server = algorithm.aggregate(server, runtime.run_round(algorithm.download(server), plan, draw), plan)
            runtime.commit()
        spent = server_view(ledger, PLD(), privacy.delta).epsilon
        assert spent <= epsilon, f"{candidate} spent {spent}, more than {epsilon}"
        metrics = host.evaluate(server["model"], dissimilarity=False).values()
        return statistics.mean(m.train_loss for m in metrics), 1 - statistics.mean(m.test_score for m in metrics)


def _records(x: Any, y: Any) -> Records:
    return Records(torch.from_numpy(x), torch.from_numpy(y))


def step_of(candidate: Candidate) -> float:
    """Of `STEPS`."""
    options = dict(candidate.options)
    return float(options["lr"] if "lr" in options else STEPS[1] / options["v"])


Errors = dict[tuple[int, float, str], list[float]]
"""Test errors of each trial, by participants, epsilon and algorithm."""


def measure(seeds: Sequence[int], epsilons: Sequence[float]) -> Iterator[tuple[int, float, str, float, Candidate]]:
    """(participants, epsilon, algorithm, test error, the setting of the least training loss) of each trial."""
    for seed in seeds:
        config = load(CONFIG, [f"seed={seed}"]).variants[0].config
        trial = Trial(config, CONFIG.parent)
        for participants, epsilon in itertools.product(PARTICIPANTS, epsilons):
            for name, settings in candidates().items():
                best = min(settings, key=lambda c: trial.run(c, epsilon, participants, number=0)[0])
                errors = [trial.run(best, epsilon, participants, number)[1] for number in range(1, RUNS + 1)]
                yield participants, epsilon, name, statistics.mean(errors), best


def draw(errors: Errors, epsilons: Sequence[float], path: Path) -> None:
    """Test error by epsilon, mean and standard deviation over trials."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for participants, axes in zip(PARTICIPANTS, figure.subplots(1, 2, sharey=True), strict=True):
        for name, marker in zip(candidates(), "os^dv", strict=True):
            runs = [errors[participants, epsilon, name] for epsilon in epsilons]
            means, spreads = [statistics.mean(r) for r in runs], [statistics.stdev(r) for r in runs]
            axes.errorbar(
                epsilons,
                means,
                yerr=spreads,
                marker=marker,
                capsize=3,
                label=name if "AC-SA" in name else f"{name} MB-SGD",
            )
        axes.set(xscale="log", xlabel="epsilon", title=f"M = {participants} of N = 25 silos")
        axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("test error")
    figure.axes[0].legend()
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110)


def tables(errors: Errors, epsilons: Sequence[float]) -> str:
    """A table for each number of participants, and whether localized is the best at every epsilon."""
    trials = {len(found) for found in errors.values()}
    parts = [f"{' or '.join(map(str, sorted(trials)))} trials."]
    for participants in PARTICIPANTS:
        rows = []
        for epsilon in epsilons:
            cells = (errors[participants, epsilon, name] for name in candidates())
            rows.append([f"{epsilon:g}", *(f"{statistics.mean(c):.3f} ± {statistics.stdev(c):.3f}" for c in cells)])
        parts.append(f"M = {participants} of N = 25 silos:\n\n{table(['epsilon', *candidates()], rows)}")
        for other in list(candidates())[1:]:
            better = [
                f"{epsilon:g}"
                for epsilon in epsilons
                if statistics.mean(errors[participants, epsilon, "localized"])
                < statistics.mean(errors[participants, epsilon, other])
            ]
            count = f"{len(better)} of {len(epsilons)} epsilons"
            parts.append(f"Localized has a lower mean error than {other} at {count}.")
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(5)), help="trials to measure now")
    parser.add_argument("--epsilons", type=float, nargs="*", default=list(EPSILONS), help="of these trials")
    parser.add_argument("--results", type=Path, default=Path("isrl.jsonl"), help="trials are added to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for participants, epsilon, name, error, best in measure(arguments.seeds, arguments.epsilons):
        with arguments.results.open("a") as file:
            print(json.dumps([participants, epsilon, name, error, best.rounds, step_of(best)]), file=file)
        print(f"M {participants} epsilon {epsilon:g} {name}: {error:.4f}; {best}", flush=True)
    errors: Errors = {}
    largest = dict.fromkeys(candidates(), 0)
    for line in arguments.results.read_text().splitlines():
        participants, epsilon, name, error, _, lr = json.loads(line)
        errors.setdefault((participants, epsilon, name), []).append(error)
        largest[name] += lr == max(STEPS)
    each = sum(map(len, errors.values())) // len(largest)
    edge = ", ".join(f"{name} in {count} of {each} cases" for name, count in largest.items())
    epsilons = sorted({epsilon for _, epsilon, _ in errors})
    text = f"{tables(errors, epsilons)}\n\nThe largest step of the grid ({max(STEPS):g}; of AC-SA v = "
    text += f"{STEPS[1] / max(STEPS):g}) was chosen for {edge}."
    print(text)
    draw(errors, epsilons, PICTURE)
    put("docs/algorithms.md", "isrl", text)


if __name__ == "__main__":
    main()
