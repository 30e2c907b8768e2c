"""What has to conform: every mechanism, engine and runtime that there is, with every sampler and privacy unit.

Mechanisms and engines come from the registry, so that a new one is covered as soon as it is registered; if it cannot
be built without options, or does not support the model here, `test_coverage` says so. A new runtime is one line in
`RUNTIMES`, a new algorithm one in `ALGORITHMS`.

The model is softmax regression without a bias, asked at y = 0: there a record (x, label) has the gradient
(1/3 - e_label) x^T, so that -x has exactly the opposite one, and x = 0 none.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dpfl_plugin import registry
from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.core.vectors import Layout, Vectors
from dpfl_plugin.federation.runtime import ChargeSink, Observer, Runtime
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.gradients import losses
from dpfl_plugin.gradients.base import Engine, Loss, Records
from dpfl_plugin.gradients.replay import cuda_graph
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.events import Charge, Neighbouring, SampledGaussian, Unit
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import FixedSize, FullBatch, Poisson, Sampler, WithReplacement
from dpfl_plugin.runtimes.in_process import InProcess
from tests.mpi.network import loopback
from tests.on_device import noise_drawn_on
from tests.recording import Recorder

CLASSES = 3
C = 0.5
N = 22  # records of a silo: 0.25 of them are 5.5, so that b, s n and n all differ
SAMPLERS: dict[str, Sampler] = {
    "fixed": FixedSize(0.25),
    "poisson": Poisson(0.25),
    "full": FullBatch(),
    "with_replacement": WithReplacement(0.25),  # at silo level only
}

MakeRuntime = Callable[[SiloGroup, ChargeSink, Sequence[Observer]], Runtime]
RUNTIMES: dict[str, MakeRuntime] = {
    "in_process, stack 1": lambda host, sink, observers: InProcess(host, sink, stack_size=1, observers=observers),
    "mpi": lambda host, sink, observers: loopback([host], sink, observers=observers),
    "in_process, stack 3": lambda host, sink, observers: InProcess(host, sink, stack_size=3, observers=observers),
}
SCHEDULE_OPTIONS: dict[str, dict[str, Any]] = {"geometric": {"beta": 0.8, "by": "step"}}
CLIPPING_OPTIONS: dict[str, dict[str, Any]] = {"auto_s": {"gamma": 1e-6}}  # of which a gradient of norm C is C long
MECHANISM_OPTIONS: dict[str, dict[str, Any]] = {}  # of mechanisms that have options without a default
PHASES: dict[str, Any] = {"phase_rounds": (2, 2), "regularisation": 0.5}
ALGORITHMS: dict[str, tuple[dict[str, Any], ...]] = {
    "fedavg": ({"local_steps": 3, "local_lr": 0.1},),
    "fedsgd": ({"local_lr": 0.1}, {"local_lr": 0.1, "form": "single"}),
    "fedavg_sync": (
        {"local_steps": 3, "gradient_clip": 0.5, "local_lr": 0.1},
        {"local_steps": 3, "gradient_clip": 0.5, "local_lr": 0.1, "silo_sampling": "with_replacement"},
    ),
    "fedprox": ({"local_steps": 3, "local_lr": 0.1, "mu": 0.1},),
    "scaffnew": ({"local_lr": 0.1, "local_steps": 3}, {"local_lr": 0.1, "p": 0.4}),
    "scaffold": ({"local_steps": 3, "local_lr": 0.1}, {"local_steps": 2, "local_lr": 0.1, "option": "I"}),
    "scaffold_warm": ({"local_steps": 3, "local_lr": 0.1}, {"local_steps": 2, "local_lr": 0.1, "option": "I"}),
    "mr_mtl": ({"local_steps": 3, "local_lr": 0.1, "mean_weight": 0.5},),
    "local": ({"local_steps": 3, "local_lr": 0.1},),
    "mb_sgd": ({"lr": 0.1}, {"lr": 0.1, "passes": "one"}),
    "accelerated_mb_sgd": ({"smoothness": 1.0},),
    "multistage_mb_sgd": ({"smoothness": 1.0, "strong_convexity": 0.5, "stage_rounds": (2, 2)},),
    "localized_mb_sgd": (
        {**PHASES, "lr": 0.1},
        {**PHASES, "subsolver": "accelerated", "smoothness": 1.0},
        {**PHASES, "subsolver": "multistage", "smoothness": 1.0},
    ),
    "noisy_subgradient": ({"lr": 0.1}, {"strong_convexity": 0.5, "passes": "one"}),
    "localized_subgradient": ({"phase_rounds": (2, 2), "eta": 0.1},),
    "convolution_mb_sgd": ({"smoothing_radius": 0.3},),
    "localized_convolution": ({**PHASES, "smoothing_radius": 0.3},),
    "localized_nesterov": ({**PHASES, "envelope": 2.0},),
}
NON_SMOOTH = ("convolution_mb_sgd", "localized_convolution", "localized_nesterov")
"""Algorithms that smooth the hinge loss of a single score, not softmax regression's."""
RECORD_LEVEL_ONLY = ("scaffold", "scaffold_warm", "mr_mtl", "local")  # they send a control variate, or keep models
NEED_ALL_SILOS = ("scaffnew",)
NEED_A_CLIP_NORM = (  # in place of a Lipschitz constant
    "multistage_mb_sgd",
    "localized_mb_sgd",
    "localized_subgradient",
    "convolution_mb_sgd",
    "localized_convolution",
    "localized_nesterov",
)
ROUNDS = 4  # what ``phase_rounds`` adds up to: a phase has a first round and one that goes on


APART = ("shared_score",)
"""Engines of other models than `model`: tests/gradients/test_sums.py has the contract for them."""
ENGINES = [name for name in registry.names("engines") if name not in APART]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One combination; `released` runs it, and `claimed_sensitivity` is what its ledger says of it.

    Attributes:
        device: where models and records are; noise: where noise is computed.
        lockstep: whether silos of a stack are answered together; graphs: by sums that are recorded and replayed.
    """

    mechanism: str
    engine: str
    runtime: str
    sampler: str
    unit: Unit
    neighbouring: Neighbouring
    fresh: bool = False
    clipping: str = "flat"
    device: str = "cpu"
    noise: Literal["host", "device"] = "host"
    lockstep: bool = False
    graphs: bool = False
    dtype: torch.dtype = torch.float64

    def __str__(self) -> str:
        unit = self.sampler if self.unit == "record" else f"silo {self.neighbouring}"
        more = ("-fresh" if self.fresh else "") + (f"-{self.clipping}" if self.clipping != "flat" else "")
        more += "-float32" * (self.dtype == torch.float32)
        more += f"-{self.noise} noise" * (self.noise != "host") + "-lockstep" * self.lockstep
        more += "-graphs" * self.graphs
        more += f"-{self.device}" * (self.device != "cpu")
        return f"{self.mechanism}-{self.engine}-{self.runtime}-{unit}{more}"

    def rules(self, sigma: float, clip_norm: float = C) -> PrivacyRules:
        mechanism = registry.load("mechanisms", self.mechanism)(sigma, **MECHANISM_OPTIONS.get(self.mechanism, {}))
        return PrivacyRules(
            unit=self.unit,
            neighbouring=self.neighbouring,
            clip_norm=clip_norm,
            mechanism=mechanism,
            sampler=SAMPLERS[self.sampler],
            fresh=self.fresh,
            clipping=registry.load("clippings", self.clipping)(**CLIPPING_OPTIONS.get(self.clipping, {})),
        )


def cases() -> list[Case]:
    """Every mechanism with every two of an engine, a runtime and a kind of release (a sampler at record level, a
    neighbouring relation at silo level), seeded. Fresh with the first engine, since engines see no randomness. In
    float64; the engines that have compiled loops for float32 also in that."""
    kinds: list[tuple[str, Unit, Neighbouring]] = [
        *((name, "record", SAMPLERS[name].neighbouring) for name in ("fixed", "poisson", "full")),
        ("with_replacement", "silo", "replace_one"),
        ("fixed", "silo", "add_or_remove"),
    ]
    every = [
        Case(mechanism=mechanism, engine=engine, runtime=runtime, sampler=sampler, unit=unit, neighbouring=neighbouring)
        for mechanism, engine, runtime, (sampler, unit, neighbouring) in itertools.product(
            registry.names("mechanisms"), ENGINES, RUNTIMES, kinds
        )
    ]
    # A Latin square: from one engine to the next, and from one kind to the next, the runtime is the next one.
    places = itertools.product(range(len(ENGINES)), range(len(RUNTIMES)), range(len(kinds)))
    chosen = [(engine + kind) % len(RUNTIMES) == runtime for engine, runtime, kind in places]
    seeded = [*itertools.compress(every, itertools.cycle(chosen))]
    first, inside = every[0].engine, next(iter(RUNTIMES))
    fresh = [dataclasses.replace(case, fresh=True) for case in every if case.engine == first]
    compiled = [name for name in ENGINES if hasattr(registry.load("engines", name), "kernels")]
    single = [
        dataclasses.replace(case, dtype=torch.float32)
        for case in every
        if case.engine in compiled and case.runtime == inside and case.unit == "record"
    ]
    return [*seeded, *fresh, *single]


def of_noise() -> list[Case]:
    """Of `cases` one for each kind of release, runtime, source of randomness and type of numbers: engines see no
    randomness. The first and the last of these in turn, so that each engine is among them."""
    every: dict[tuple[object, ...], list[Case]] = {}
    for case in cases():
        key = (case.mechanism, case.runtime, case.sampler, case.unit, case.neighbouring, case.fresh, case.dtype)
        every.setdefault(key, []).append(case)
    return [alike[-(number % 2)] for number, alike in enumerate(every.values())]


@functools.cache
def model(
    num_features: int, num_outputs: int = CLASSES, device: str = "cpu", dtype: torch.dtype = torch.float64
) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(num_features, num_outputs, bias=False)).to(device, dtype)


@functools.cache
def engine(
    name: str,
    num_features: int,
    num_outputs: int = CLASSES,
    loss: Loss = losses.cross_entropy,
    device: str = "cpu",
    dtype: torch.dtype = torch.float64,
) -> Engine:
    made: Engine = registry.load("engines", name)(model(num_features, num_outputs, device, dtype), loss, 2**22)
    return made


def there(records: Records, device: str) -> Records:
    return Records(records.features.to(device), records.labels.to(device))


def zero_records(num_features: int, count: int = N) -> Records:
    """Records without a gradient: what is released is noise."""
    return Records(torch.zeros(count, num_features, dtype=torch.float64), torch.arange(count) % CLASSES)


@dataclass(frozen=True)
class Probe:
    """Sends the private gradients at y = 0 as they are; at silo level one released update."""

    steps: int
    unit: Unit

    def init_server(self, model: torch.Tensor, setting: object) -> Vectors:
        return {"model": model}

    def init_silos(self, model: torch.Tensor, num_silos: int) -> Vectors:
        return {}

    def round_plan(self, *_: object) -> RoundPlan:
        return RoundPlan(local_steps=self.steps, local_lr=1.0, num_gradients=self.steps)

    def download(self, server: Vectors) -> Vectors:
        return dict(server)

    def local_update(self, down: Vectors, silos: Vectors, oracle: Any, plan: RoundPlan) -> tuple[Vectors, Vectors]:
        y = down["model"].expand(oracle.num_silos, -1)
        if self.unit == "silo":
            return {"0": oracle.release(oracle.gradient(y))}, {}
        return {str(step): oracle.gradient(y) for step in range(self.steps)}, {}

    def aggregate(self, server: Vectors, mean_up: Vectors, plan: RoundPlan) -> Vectors:
        return server

    def notes(self, server: Vectors) -> list[str]:
        return []


class Spy(Protocol):
    def append(self, charges: Sequence[Charge], /) -> None: ...

    def sync(self) -> None: ...


class Kept:
    """A sink that keeps the charges."""

    def __init__(self) -> None:
        self.charges: list[Charge] = []

    def append(self, charges: Sequence[Charge]) -> None:
        self.charges += charges

    def sync(self) -> None:
        pass


@dataclass(frozen=True)
class Transcript:
    """What the server saw.

    Attributes:
        values: (rounds, steps, silos, d); at silo level there is one release, steps = 1.
    """

    values: NDArray[np.float64]
    charges: tuple[Charge, ...]

    @property
    def event(self) -> SampledGaussian:
        (event,) = {charge.release for charge in self.charges}
        return event


def run(
    case: Case,
    silos: Sequence[Records],
    *,
    sigma: float,
    steps: int,
    rounds: int = 1,
    clip_norm: float = C,
    seed: int = 0,
    rules: PrivacyRules | None = None,
) -> Transcript:
    """The releases of ``rounds`` rounds in which all silos take part, ``steps`` in each; at silo level as many rounds
    more with one release each.

    Args:
        seed: of the streams.
        rules: instead of the case's.
    """
    if case.unit == "silo":
        steps, rounds = 1, steps * rounds
    num_features = silos[0].features.shape[1]
    silos = [Records(silo.features.to(case.dtype), silo.labels) for silo in silos]
    algorithm, sink, seen = Probe(steps, case.unit), Kept(), []
    host = SiloGroup(
        model=model(num_features, device=case.device, dtype=case.dtype),
        loss=losses.cross_entropy,
        algorithm=algorithm,
        rules=rules or case.rules(sigma, clip_norm),
        engine=engine(case.engine, num_features, device=case.device, dtype=case.dtype),
        train={silo: there(records, case.device) for silo, records in enumerate(silos)},
        test={},
        states={},
        lockstep=case.lockstep,
        record=(Recorder() if case.device == "cpu" else cuda_graph) if case.graphs else None,
    )
    runtime = RUNTIMES[case.runtime](host, sink, [lambda round, ids, up: seen.append(up)])
    down = {"model": torch.zeros(Layout.of(model(num_features)).dimension, dtype=case.dtype, device=case.device)}
    everybody = tuple(range(len(silos)))
    plan = dataclasses.replace(
        algorithm.round_plan(), participants=everybody, weights=(1 / len(silos),) * len(silos), silo_share=1.0
    )
    with noise_drawn_on(case.noise):
        for round in range(rounds):
            runtime.run_round(down, plan, Draw(seed, round))
            runtime.commit()
    values = torch.stack([torch.stack([up[str(step)] for step in range(steps)]) for up in seen])
    return Transcript(values.double().cpu().numpy(), tuple(sink.charges))


def claimed_sensitivity(event: SampledGaussian, clip_norm: float = C, num_records: int = N) -> float:
    """L2 sensitivity of a release, by what the ledger says alone: 2C/b, C/(s n), 2C or C."""
    distance = {"replace_one": 2.0, "add_or_remove": 1.0}[event.neighbouring] * clip_norm
    return distance / (event.rate * num_records) if event.unit != "silo" else distance
