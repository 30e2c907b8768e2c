"""Every registered algorithm: a charge for each noise that was made, saying what it was, before anything is handed on.

That an algorithm's questions and the ledger agree, at both privacy units, is in its contract (test_contract.py).
"""

import dataclasses
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest
import torch

from dpfl_plugin import registry
from dpfl_plugin.algorithms.base import RoundPlan, Setting
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.federation.planning import Planner
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.gradients import losses
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.oracle import Draw, PrivateOracle
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.noise import SiloNoise
from dpfl_plugin.privacy.samplers import FixedSize
from tests.conformance.cases import (
    ALGORITHMS,
    CLASSES,
    NEED_ALL_SILOS,
    NON_SMOOTH,
    ROUNDS,
    RUNTIMES,
    C,
    Case,
    engine,
    model,
)

SIZES, F = (30, 29, 40, 33), 4  # a quarter of a quarter of each silo gives a batch a record
CASES = [(name, options) for name in sorted(ALGORITHMS) for options in ALGORITHMS[name]]
EVERY = pytest.mark.parametrize(("name", "options"), CASES, ids=lambda x: x if isinstance(x, str) else "-".join(x))


class Log:
    """A sink, an observer and a mechanism that write down what happens, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def append(self, charges: Any) -> None:
        self.events.append(("charged", tuple(charges)))

    def sync(self) -> None:
        self.events.append(("synced", None))

    def observe(self, round: int, ids: Any, up: Any) -> None:
        self.events.append(("left", (round, tuple(ids))))


@dataclasses.dataclass
class Seen:
    """What a round did: its plan; how often each silo made noise; and {silo: [(b, of how many records)]} drawn."""

    plan: RoundPlan
    noised: Counter[int] = dataclasses.field(default_factory=Counter)
    drawn: defaultdict[int, list[tuple[int, int]]] = dataclasses.field(default_factory=lambda: defaultdict(list))


def rounds(monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any], runtime: str) -> tuple[Log, list[Seen]]:
    """The log of some rounds in which two of four silos take part, or all if the algorithm wants that; and what each
    did."""
    case = Case(mechanism="gaussian", engine="vmap", runtime=runtime, sampler="fixed", unit="record",
                neighbouring="replace_one")  # fmt: skip
    algorithm = registry.load("algorithms", name)(**options)
    outputs, loss = (1, losses.hinge) if name in NON_SMOOTH else (CLASSES, losses.cross_entropy)
    generator = torch.Generator().manual_seed(0)
    silos = {
        i: Records(torch.randn(n, F, generator=generator, dtype=torch.float64), torch.arange(n) % max(2, outputs))
        for i, n in enumerate(SIZES)
    }
    x = torch.zeros(F * outputs, dtype=torch.float64)
    setting, server = begun(algorithm, x)
    log, seen = Log(), list[Seen]()
    made_noise, made_batch, current = Gaussian.__call__, FixedSize.draw, [-1]

    def noise(self: Gaussian, *given: Any) -> None:
        seen[-1].noised[current[0]] += 1
        made_noise(self, *given)

    def batch(self: FixedSize, num_records: int, rng: np.random.Generator) -> Any:
        index = made_batch(self, num_records, rng)
        seen[-1].drawn[current[0]].append((len(index), num_records))
        return index

    seek = Draw.key

    def key(self: Draw, purpose: str, silo: int, step: int) -> bytes:
        current[0] = silo
        return seek(self, purpose, silo, step)

    add = SiloNoise.add_of

    def added(self: SiloNoise, row: int, *given: Any) -> None:
        current[0] = self._silos[row]
        add(self, row, *given)

    monkeypatch.setattr(SiloNoise, "add_of", added)
    monkeypatch.setattr(Gaussian, "__call__", noise)
    monkeypatch.setattr(FixedSize, "draw", batch)
    monkeypatch.setattr(Draw, "key", key)
    host = SiloGroup(
        model=model(F, outputs),
        loss=loss,
        algorithm=algorithm,
        rules=case.rules(3.0),
        engine=engine(case.engine, F, outputs, loss),
        train=silos,
        test={},
        states=algorithm.init_silos(x, 4),
    )
    made = RUNTIMES[runtime](host, log, [log.observe])
    planner = Planner(algorithm, setting, (0.25,) * 4, seed=0)
    for t in range(ROUNDS):
        plan = planner.plan(server, t)
        assert plan is not None
        seen.append(Seen(plan))
        mean_up = made.run_round(algorithm.download(server), plan, Draw(0, t))
        log.events.append(("returned", t))
        server = algorithm.aggregate(server, mean_up, plan)
        made.commit()
    return log, seen


def begun(algorithm: Any, x: torch.Tensor) -> tuple[Setting, Vectors]:
    """The setting of two of four silos, or of all; with the server's first state."""
    two = Setting(
        num_silos=4,
        num_participants=2,
        silo_rate=0.5,
        record_rate=0.25,
        num_records=min(SIZES),
        rounds=ROUNDS,
        clip_norm=C,
        weights=(0.25,) * 4,
    )
    try:
        return two, algorithm.init_server(x, two)
    except ConfigError:  # it wants all
        everybody = dataclasses.replace(two, num_participants=4, silo_rate=1.0)
        return everybody, algorithm.init_server(x, everybody)


def times(plan: RoundPlan) -> list[int]:
    """How often each participant was drawn: more than once only with replacement."""
    with_replacement = plan.participation == "sampled_with_replacement"
    return [round(2 * weight) if with_replacement else 1 for weight in plan.weights]


@EVERY
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_as_many_charges_as_releases(
    monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any], runtime: str
) -> None:
    """And they are on disk before anything is handed on."""
    log, seen = rounds(monkeypatch, name, options, runtime)
    charges = [charge for kind, what in log.events if kind == "charged" for charge in what]
    for t, made in enumerate(seen):
        assert {c.silo: c.count for c in charges if c.round == t} == dict(made.noised)
        assert sum(times(made.plan)) == (4 if name in NEED_ALL_SILOS else 2)
        assert set(made.noised) == set(made.plan.participants) and min(made.noised.values()) >= 1
    for charge in charges:
        made, release = seen[charge.round], charge.release
        first, last = (round(edge * SIZES[charge.silo]) for edge in made.plan.share)
        n = last - first
        assert made.drawn[charge.silo] == [(n // 4, n)] * charge.count
        assert (release.rate, charge.share) == ((n // 4) / n, made.plan.share)
        assert (release.noise_multiplier, release.sampler, release.neighbouring) == (3.0, "fixed", "replace_one")
        assert release.unit == "record"
    safe_before_anything_is_handed_on(log, seen)


def safe_before_anything_is_handed_on(log: Log, seen: list[Seen]) -> None:
    pending, charged = 0, Counter[tuple[int, int]]()
    for kind, what in log.events:
        if kind == "charged":
            pending += len(what)
            charged.update((charge.round, charge.silo) for charge in what)
        elif kind == "synced":
            pending = 0
        elif kind == "left":
            round, ids = what
            assert pending == 0
            assert all(charged[round, silo] == 1 for silo in ids)
        else:
            assert pending == 0
            assert {silo for round, silo in charged if round == what} == set(seen[what].noised)
    assert len(charged) == sum(len(made.plan.participants) for made in seen) >= ROUNDS


def test_the_warm_up_is_among_them() -> None:
    algorithm = registry.load("algorithms", "scaffold_warm")(local_steps=3, local_lr=0.1)
    setting = Setting(num_silos=4, num_participants=2, silo_rate=0.5, record_rate=0.25)
    server = algorithm.init_server(torch.zeros(12), setting)
    assert algorithm.round_plan(server, 0, setting, np.random.default_rng(0)).phase == "warm-up"


def test_shares_of_one_size_and_of_another_and_smoothing_are_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = next(iter(RUNTIMES))
    _, phases = rounds(monkeypatch, "localized_nesterov", ALGORITHMS["localized_nesterov"][0], runtime)
    assert [made.plan.share for made in phases] == [(0.0, 0.5)] * 2 + [(0.5, 0.75)] * 2
    assert {made.plan.smoothing for made in phases} == {("moreau", 2.0)}
    _, one_pass = rounds(monkeypatch, "mb_sgd", ALGORITHMS["mb_sgd"][1], runtime)
    assert len({made.plan.share for made in one_pass}) == ROUNDS


@pytest.mark.parametrize("wrong", [{"share": (0.0, 1.0)}, {"rate": 0.2}], ids=["whole", "rate"])
def test_a_share_that_is_charged_as_another_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any]
) -> None:
    real = PrivateOracle.charges

    def charges(self: PrivateOracle) -> list[Charge]:
        if "rate" in wrong:
            return [dataclasses.replace(c, release=dataclasses.replace(c.release, **wrong)) for c in real(self)]
        return [dataclasses.replace(c, **wrong) for c in real(self)]

    monkeypatch.setattr(PrivateOracle, "charges", charges)
    options = ALGORITHMS["localized_mb_sgd"][0]
    with pytest.raises(AssertionError):
        test_as_many_charges_as_releases(monkeypatch, "localized_mb_sgd", options, next(iter(RUNTIMES)))


def test_a_release_that_is_not_charged_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = PrivateOracle.charges
    monkeypatch.setattr(
        PrivateOracle,
        "charges",
        lambda self: [dataclasses.replace(c, count=c.count - 1) for c in real(self) if c.count > 1],
    )
    with pytest.raises(AssertionError):
        test_as_many_charges_as_releases(monkeypatch, "fedavg", ALGORITHMS["fedavg"][0], next(iter(RUNTIMES)))
