"""How silos come to take part in rounds, as far as claims rest on it: by which law, and how probably."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

WITH_REPLACEMENT: Final = "sampled_with_replacement"
PARTICIPATIONS: Final = ("all", "sampled", WITH_REPLACEMENT)
Law = Literal["certain", "without_replacement", "with_replacement"]


@dataclass(frozen=True, slots=True)
class Participation:
    """How a silo comes to take part in a round: public, and independent of all data.

    Attributes:
        law: how participants are drawn. What is proven of S distinct silos is not of draws with replacement.
        probability: that a given silo takes part; of the likeliest, where they differ.
    """

    law: Law
    probability: float


CERTAIN: Final = Participation("certain", 1.0)


class PlannedRound(Protocol):
    """What a round costs depends on this of its plan; see `dpfl_plugin.algorithms.base.RoundPlan`, which is one."""

    @property
    def num_gradients(self) -> int: ...
    @property
    def most_gradients(self) -> int | None: ...
    @property
    def participation(self) -> str: ...
    @property
    def share(self) -> tuple[float, float]: ...
    @property
    def participants(self) -> tuple[int, ...]: ...


class Population(Protocol):
    """Who is drawn from: M silos, of which S take part in a sampled round, and their weights p_k."""

    @property
    def num_silos(self) -> int: ...
    @property
    def num_participants(self) -> int: ...
    @property
    def weights(self) -> tuple[float, ...]: ...


Draw = Callable[[int, PlannedRound, Sequence[int] | None], Sequence[int]]
"""(round, plan, silos that may be drawn, ascending; None for all) -> who takes part."""


def participation(plan: PlannedRound, population: Population) -> Participation:
    """How a silo comes to take part in such a round, drawn anew for each; of the likeliest silo, where they differ.

    With replacement its probability is 1 - (1 - p_k)^S.
    """
    if plan.participation == "all":
        return CERTAIN
    S, M = population.num_participants, population.num_silos
    if plan.participation != WITH_REPLACEMENT:
        return Participation("without_replacement", S / M) if S < M else CERTAIN
    p = max(population.weights)
    probability = -math.expm1(S * math.log1p(-p)) if p < 1 else 1.0
    return Participation("with_replacement", probability) if probability < 1 else CERTAIN
