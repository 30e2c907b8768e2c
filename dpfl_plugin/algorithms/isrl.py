"""What the algorithms of Gao, Lowy, Zhou and Wright, ICML 2024 ([G]) share.

A round's upload is one private gradient, at a point that the server chose; all else happens at the server. A run is a
list of stages, each of which is one call of a solver on one part of the records; localized algorithms solve

    min_w  mean loss on phase i's records + lambda_i / 2 ||w - w_{i-1}||^2,   ||w - w_{i-1}|| <= D_i

phase by phase. Phases read disjoint records, so that their costs compose in parallel.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from dpfl_plugin.algorithms.base import Oracle, RoundPlan, Setting
from dpfl_plugin.core.balls import Ball, project, project_both
from dpfl_plugin.core.exact import floor_share
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import ConfigError, require

ENDLESS = sys.maxsize
"""Rounds of a run that only its budget ends."""


class Facts(NamedTuple):
    """Public numbers of a run, kept in the server's state; 0 where one is not known. See `Setting`."""

    num_records: int
    num_silos: int
    num_participants: int
    dimension: int
    rounds: int
    batch_size: int
    record_rate: float
    clip_norm: float
    epsilon: float
    delta: float

    @classmethod
    def of(cls, setting: Setting, dimension: int) -> Facts:
        known = (setting.num_records, setting.num_silos, setting.num_participants, dimension)
        more = (setting.rounds, setting.batch_size)
        shares = (setting.record_rate, setting.clip_norm, setting.epsilon, setting.delta)
        return cls(*(int(x or 0) for x in (*known, *more)), *(float(x or 0) for x in shares))

    @classmethod
    def load(cls, values: Tensor) -> Facts:
        numbers = values.tolist()
        return cls(*map(int, numbers[:6]), *numbers[6:])

    def batch(self, num_records: int) -> int:
        """K, of a batch drawn from so many records."""
        if self.batch_size:
            return self.batch_size
        return floor_share(self.record_rate, num_records) if self.record_rate else num_records

    def need(self, *names: str, instead: str) -> None:
        """Raise ConfigError unless these are known."""
        for name in names:
            if not getattr(self, name):
                raise ConfigError(f"{name} is not known or not finite, and the schedule needs it. {instead}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One call of a solver.

    Attributes:
        phase: i, from 1; the stages of a phase read the same records and have the same center w_{i-1}.
        share: the part [first, last) of each silo's records that the phase reads.
        pull: lambda_i of the term lambda_i / 2 ||w - w_{i-1}||^2, which is the algorithm's own.
        modulus: mu, the strong convexity that the solver may count on, the pull included.
        radius: D_i; inf if the phase is not confined.
        rate: the solver's number: eta of SGD, v of AC-SA.
    """

    phase: int
    rounds: int
    share: tuple[float, float] = (0.0, 1.0)
    pull: float = 0.0
    modulus: float = 0.0
    radius: float = math.inf
    rate: float = 0.0


class Solver(Protocol):
    """Steps of one stage. States are the server's vectors; "model" is what the solver returns if it ends here."""

    def start(self, w: Tensor) -> Vectors:
        """The state at the initial point w_0 of a stage."""
        ...

    def query(self, state: Vectors, stage: Stage, r: int) -> Tensor:
        """Where silos take their gradients in round ``r`` of the stage, from 1."""
        ...

    def step(self, state: Vectors, g: Tensor, stage: Stage, r: int, sets: ConstraintSet) -> Vectors:
        """The state after round ``r``; ``g`` is the mean gradient at `query`, the pull's included."""
        ...


@dataclass(frozen=True, slots=True)
class ConstraintSet:
    """W_i = {w in W: ||w - w_{i-1}|| <= D_i}, W a ball or everything."""

    whole: Ball
    local: Ball

    def project(self, w: Tensor) -> Tensor:
        """The nearest point of it."""
        if math.isinf(self.whole.radius):
            return project(w, self.local)
        return project(w, self.whole) if math.isinf(self.local.radius) else project_both(w, self.whole, self.local)


class Place(NamedTuple):
    """A round's place: its stage, its number r in it (from 1), and which round of how many of the phase it is."""

    stage: Stage
    r: int
    number: int
    of: int


@dataclass(frozen=True, kw_only=True)
class OneGradient:
    """One private gradient a round.

    Attributes:
        diameter: D; the model stays in the ball of this diameter around the initial one. Left out: anywhere.
        passes: "multi": every round of a phase draws its batch from all records of the phase; "one": the rounds of a
            phase divide its records, so that no record is read in two rounds.
    """

    refuses: ClassVar[Mapping[str, str]] = {
        "server_optimizer": (
            "the server's step is the one that its theorem is of (Gao et al. 2024), and another has no rate. Leave it "
            "out, or use mb_sgd."
        ),
        "average": (
            "it returns what its theorem is of (Gao et al. 2024), an average already. Leave it out, or use mb_sgd."
        ),
    }

    sends_releases_alone: ClassVar[bool] = True

    diameter: float | None = None
    passes: Literal["multi", "one"] = "multi"

    def __post_init__(self) -> None:
        positive(self, "diameter")

    # What an algorithm adds

    @property
    def solver(self) -> Solver:
        raise NotImplementedError

    @property
    def smoothing(self) -> str:
        """What replaces every record's loss: a name of `RoundPlan.smoothing`, or "" for nothing."""
        return ""

    def strength(self, facts: Facts) -> float:
        """The smoothing's number."""
        return 0.0

    def stages(self, facts: Facts) -> Sequence[Stage]:
        """All stages of the run."""
        raise NotImplementedError

    def remarks(self, facts: Facts) -> Iterator[str]:
        """In what the run departs from the conditions of its theorem."""
        return iter(())

    # The interface

    def init_server(self, model: Tensor, setting: Setting) -> Vectors:
        facts = Facts.of(setting, model.numel())
        stages = _stages(self, facts)
        self._check_records(stages, facts)
        return {
            **self.solver.start(model),
            "origin": model.clone(),
            "center": model.clone(),
            "facts": torch.tensor(facts, dtype=torch.float64, device=model.device),
            "round": torch.zeros((), dtype=torch.int64, device=model.device),
        }

    def init_silos(self, model: Tensor, num_silos: int) -> Vectors:
        return {}

    def round_plan(self, server: Vectors, round: int, setting: Setting, rng: np.random.Generator) -> RoundPlan:
        facts = Facts.load(server["facts"])
        stages = _stages(self, facts)
        place = _place(stages, round)
        smoothing = (self.smoothing, self.strength(facts)) if self.smoothing else None
        phase = f"phase {place.stage.phase}" if stages[-1].phase > 1 else "train"
        return RoundPlan(
            local_steps=1,
            local_lr=place.stage.rate,
            num_gradients=1,
            share=self._share(place),
            phase=phase,
            smoothing=smoothing,
        )

    def download(self, server: Vectors) -> Vectors:
        return {"model": self._query(server)}

    def local_update(self, down: Vectors, silos: Vectors, oracle: Oracle, plan: RoundPlan) -> tuple[Vectors, Vectors]:
        return {"gradient": oracle.release(oracle.gradient(down["model"].expand(oracle.num_silos, -1)))}, {}

    def aggregate(self, server: Vectors, mean_up: Vectors, plan: RoundPlan) -> Vectors:
        place, w = self._here(server), self._query(server)
        stage = place.stage
        g = mean_up["gradient"]
        if stage.pull:
            g = g + stage.pull * (w - server["center"])  # gradient of lambda_i / 2 ||w - w_{i-1}||^2
        whole = math.inf if self.diameter is None else self.diameter / 2
        sets = ConstraintSet(Ball(server["origin"], whole), Ball(server["center"], stage.radius))
        after = {**server, **self.solver.step(server, g, stage, place.r, sets), "round": server["round"] + 1}
        if place.r == stage.rounds:
            after |= self.solver.start(after["model"])
        if place.number == place.of:
            after["center"] = after["model"].clone()  # w_i
        return after

    def notes(self, server: Vectors) -> list[str]:
        facts = Facts.load(server["facts"])
        notes = list(self.remarks(facts))
        stages, done = _stages(self, facts), int(server["round"])
        total = sum(stage.rounds for stage in stages)
        if stages[-1].phase > 1 and done < total:
            phase = _place(stages, done).stage.phase
            notes.append(f"ended after {done} of {total} rounds, in phase {phase} of {stages[-1].phase}.")
        return notes

    # Inside

    def _here(self, server: Vectors) -> Place:
        return _place(_stages(self, Facts.load(server["facts"])), int(server["round"]))

    def _query(self, server: Vectors) -> Tensor:
        place = self._here(server)
        return self.solver.query(server, place.stage, place.r)

    def _share(self, place: Place) -> tuple[float, float]:
        first, last = place.stage.share
        if self.passes == "multi":
            return first, last
        edges = [first + (last - first) * (k / place.of) for k in (place.number - 1, place.number)]
        return edges[0], edges[1]

    def _check_records(self, stages: Sequence[Stage], facts: Facts) -> None:
        """Raise ConfigError if the smallest silo, and so any, has too few records for some round's batch."""
        if not facts.num_records:
            return
        for _, members in itertools.groupby(stages, key=lambda stage: stage.phase):
            of = list(members)
            rounds = sum(stage.rounds for stage in of)
            for number in range(1, rounds + 1 if self.passes == "one" else 2):
                first, last = self._share(Place(of[0], 1, number, rounds))
                self._check_batch(math.floor((last - first) * facts.num_records + 1e-9), facts)

    def _check_batch(self, count: int, facts: Facts) -> None:
        """Raise ConfigError if a round cannot draw its batch from ``count`` records."""
        where = f"the smallest silo has {facts.num_records} records, of which some round may read {count}"
        fewer = "Use fewer rounds or phases" if self.passes == "one" else "Use fewer phases"
        key, value = ("rounds", facts.rounds) if self.passes == "one" else ("phases", "too many")
        require(count >= 1, key, value, f"leave a record to every round: {where}", f"{fewer}.")
        if facts.record_rate:
            rate = facts.record_rate
            must = f"give at least one record: {where}, and floor({rate} * {count}) is 0"
            require(floor_share(rate, count) >= 1, "privacy.record_rate", rate, must, f"{fewer}, or a larger rate.")
        size, must = facts.batch_size, f"be at most the records that a round may read: {where}"
        require(size <= count, "privacy.batch_size", size, must, f"{fewer}, or a smaller batch.")


@functools.lru_cache(maxsize=256)
def _stages(algorithm: OneGradient, facts: Facts) -> tuple[Stage, ...]:
    stages = tuple(algorithm.stages(facts))
    total = sum(stage.rounds for stage in stages)
    if stages[-1].rounds != ENDLESS and facts.rounds != total:
        raise ConfigError(f"rounds={facts.rounds} must be {total}, the sum of the rounds of all phases.")
    return stages


def _place(stages: Sequence[Stage], round: int) -> Place:
    """Where round ``round`` (from 0) of a run is. Raises ConfigError after the last one."""
    before = 0
    for stage in stages:
        if round < before + stage.rounds:
            phase = [other for other in stages if other.phase == stage.phase]
            begin = sum(other.rounds for other in stages if other.phase < stage.phase)
            return Place(stage, round - before + 1, round - begin + 1, sum(other.rounds for other in phase))
        before += stage.rounds
    raise ConfigError(f"rounds must be {before}, the sum of the rounds of all phases; round {round + 1} was asked for.")


def known_rounds(facts: Facts, why: str) -> int:
    """T. Raises ConfigError if only the budget ends the run."""
    if not facts.rounds:
        raise ConfigError(f"rounds is missing: {why}. Give rounds; privacy.epsilon stays a bound on them.")
    return facts.rounds


def positive(options: object, *names: str) -> None:
    """Raise ConfigError unless these options are None, or positive and finite."""
    for name in names:
        value = getattr(options, name)
        require(value is None or 0 < value < math.inf, name, value, "be positive and finite")
