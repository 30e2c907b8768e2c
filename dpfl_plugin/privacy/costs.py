"""What rounds ask of the silos that take part in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.participation import CERTAIN, Participation
from dpfl_plugin.privacy.tally import Tally

MOST_ROUNDS = 10**6  # where only a budget ends a run


@dataclass(frozen=True, slots=True)
class RoundCost:
    """What a round asks of a silo that takes part, and how probable that was: public, and the same for all silos.

    Attributes:
        levels: (noise multiplier, number of releases that are charged with it); of silos without settings of their own,
            see `Pricing.planned`.
        share: of the silo's records that they read.
        participation: how probably a given silo takes part, and by which law.
        most: releases of the longest round that may be drawn, where rounds differ in that; else None.
    """

    levels: tuple[tuple[float, int], ...]
    share: tuple[float, float]
    participation: Participation = CERTAIN
    most: int | None = None

    @property
    def probability(self) -> float:
        """That a given silo takes part."""
        return self.participation.probability

    @property
    def num_releases(self) -> int:
        return sum(count for _, count in self.levels)

    def scaled(self, factor: float) -> RoundCost:
        """With so many times the noise."""
        return replace(self, levels=tuple((factor * noise, count) for noise, count in self.levels))


class Probabilities(Mapping[int, float]):
    """Of rounds, without another table of them."""

    def __init__(self, costs: Mapping[int, RoundCost]) -> None:
        self._costs = costs

    def __getitem__(self, round: int) -> float:
        return self._costs[round].probability

    def __iter__(self) -> Iterator[int]:
        return iter(self._costs)

    def __len__(self) -> int:
        return len(self._costs)


def made_certain(costs: Mapping[int, RoundCost]) -> dict[int, RoundCost]:
    return {round: replace(cost, participation=CERTAIN) for round, cost in costs.items()}


def rounds_in(charges: Iterable[Charge], common: Callable[[int, float], float] | None = None) -> dict[int, RoundCost]:
    """Costs as charges show them. How probable the rounds were does not show, so they count as certain.

    Of each noise multiplier a round has as many releases as one silo made of it at once, the most of all.

    Args:
        common: (silo, its noise multiplier) -> that of silos without settings of their own, if some have any.
    """
    tally = charges if isinstance(charges, Tally) else Tally(charges)
    made: dict[int, tuple[RoundCost, ...]] = {}  # of each share, the one that came last at the end
    # One object for all rounds that are alike, and what becomes of it by which charge.
    same: dict[tuple[RoundCost, ...], tuple[RoundCost, ...]] = {(): ()}
    after: dict[tuple[int, int, int, float], tuple[RoundCost, ...]] = {}
    for round, silo, kind, _, count in tally.entries():
        before = made.get(round, same[()])
        change = id(before), kind, count, 0.0
        if common is not None:
            change = *change[:3], common(silo, tally.names.kinds[kind][1].noise_multiplier)
        if change not in after:
            share, release = tally.names.kinds[kind]
            noise = release.noise_multiplier if common is None else change[3]
            costs = _with(before, share, noise, count)
            after[change] = same.setdefault(costs, costs)
        made[round] = after[change]
    found: dict[int, Any] = made  # in place: there may be a million
    for round, shares in made.items():
        found[round] = shares[-1]
    return found


def _with(costs: tuple[RoundCost, ...], share: tuple[float, float], noise: float, count: int) -> tuple[RoundCost, ...]:
    """A round's costs, by share, with so many releases of a silo at once."""
    levels = {cost.share: dict(cost.levels) for cost in costs}
    of_share = levels.setdefault(share, {})
    of_share[noise] = max(of_share.get(noise, 0), count)
    return tuple(RoundCost(tuple(of.items()), share) for share, of in levels.items())
