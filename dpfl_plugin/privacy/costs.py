"""What rounds ask of the silos that take part in them."""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, ValuesView
from dataclasses import dataclass, replace
from typing import TypeVar

from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.participation import CERTAIN, Participation
from dpfl_plugin.privacy.tally import Tally

MOST_ROUNDS = 10**6  # where only a budget ends a run
_LONGEST = 1 << 63  # of a round in a column

V = TypeVar("V")
W = TypeVar("W")


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


class Rounds(MutableMapping[int, V]):
    """Round -> value, in the order in which rounds came, as a dictionary of them.

    As long as they come in ascending order, a round takes a dozen bytes, since many have one value: there may be a
    million. Values that are the same object are kept once.
    """

    def __init__(self, values: Mapping[int, V] | None = None) -> None:
        self._rounds, self._numbers = array("q"), array("I")
        self._values: list[V] = []
        self._known: dict[int, int] = {}  # id of a value -> its number
        self._plain: dict[int, V] | None = None  # instead of these, once rounds came in another order
        if isinstance(values, Rounds):
            self._rounds, self._numbers = values._rounds[:], values._numbers[:]
            self._values, self._known = values._values[:], dict(values._known)
            self._plain = None if values._plain is None else dict(values._plain)
        else:
            self.update({} if values is None else values)

    def _place(self, round: int) -> int:
        """Where a round is; -1 if it is not here."""
        rounds = self._rounds
        if type(round) is not int:  # a float may equal one, and is its key in a dictionary
            if not isinstance(round, int | float) or not -_LONGEST <= round < _LONGEST or round != int(round):
                return -1
            round = int(round)
        if not rounds or not rounds[0] <= round <= rounds[-1]:
            return -1
        near = round - rounds[0]  # exactly there, if none is missing
        place = near if near < len(rounds) and rounds[near] == round else bisect.bisect_left(rounds, round)
        return place if rounds[place] == round else -1

    def _number(self, value: V) -> int:
        number = self._known.setdefault(id(value), len(self._values))
        if number == len(self._values):
            self._values.append(value)  # so that no other object gets its id
        return number

    def __getitem__(self, round: int) -> V:
        if self._plain is not None:
            return self._plain[round]
        place = self._place(round)
        if place < 0:
            raise KeyError(round)
        return self._values[self._numbers[place]]

    def __setitem__(self, round: int, value: V) -> None:
        if self._plain is None:
            rounds = self._rounds
            if rounds and type(round) is int and rounds[-1] < round < _LONGEST:  # as most come
                rounds.append(round)
                self._numbers.append(self._number(value))
                return
            place = self._place(round)
            if place >= 0:
                self._numbers[place] = self._number(value)
                return
            fits = type(round) is int and -_LONGEST <= round < _LONGEST
            if fits and not rounds:
                rounds.append(round)
                self._numbers.append(self._number(value))
                return
            self._plain = dict(self.items())
        self._plain[round] = value

    def __delitem__(self, round: int) -> None:
        if self._plain is None:
            self._plain = dict(self.items())
        del self._plain[round]

    def __iter__(self) -> Iterator[int]:
        return iter(self._rounds if self._plain is None else self._plain)

    def __len__(self) -> int:
        return len(self._rounds if self._plain is None else self._plain)

    def values(self) -> ValuesView[V]:
        return _Values(self)

    def mapped(self, change: Callable[[V], W]) -> Rounds[W]:
        """With each value changed; the same objects to the same ones."""
        other: Rounds[W] = Rounds()
        if self._plain is None:
            other._rounds, other._numbers = self._rounds[:], self._numbers[:]
            other._values = [change(value) for value in self._values]
            # By the last of equal objects, as all of them serve as well.
            other._known = {id(value): number for number, value in enumerate(other._values)}
        else:
            changed = {id(value): change(value) for value in self._plain.values()}
            other._plain = {round: changed[id(value)] for round, value in self._plain.items()}
        return other


class _Values(ValuesView[V]):
    _mapping: Rounds[V]

    def __iter__(self) -> Iterator[V]:
        of = self._mapping
        return map(of._values.__getitem__, of._numbers) if of._plain is None else iter(of._plain.values())


def made_certain(costs: Mapping[int, RoundCost]) -> Rounds[RoundCost]:
    return _rounds(costs).mapped(lambda cost: replace(cost, participation=CERTAIN))


def _rounds(costs: Mapping[int, RoundCost]) -> Rounds[RoundCost]:
    return costs if isinstance(costs, Rounds) else Rounds(costs)


def rounds_in(charges: Iterable[Charge], common: Callable[[int, float], float] | None = None) -> Rounds[RoundCost]:
    """Costs as charges show them. How probable the rounds were does not show, so they count as certain.

    Of each noise multiplier a round has as many releases as one silo made of it at once, the most of all.

    Args:
        common: (silo, its noise multiplier) -> that of silos without settings of their own, if some have any.
    """
    tally = charges if isinstance(charges, Tally) else Tally(charges)
    made: Rounds[tuple[RoundCost, ...]] = Rounds()  # of each share, the one that came last at the end
    # One object for all rounds that are alike, and what becomes of it by which charge.
    same: dict[tuple[RoundCost, ...], tuple[RoundCost, ...]] = {(): ()}
    after: dict[tuple[int, int, int, float], tuple[RoundCost, ...]] = {}
    nothing = same[()]
    for round, silo, kind, _, count in tally.entries():
        before = made.get(round, nothing)
        change = id(before), kind, count, 0.0
        if common is not None:
            change = *change[:3], common(silo, tally.names.kinds[kind][1].noise_multiplier)
        if change not in after:
            share, release = tally.names.kinds[kind]
            noise = release.noise_multiplier if common is None else change[3]
            costs = _with(before, share, noise, count)
            after[change] = same.setdefault(costs, costs)
        if after[change] is not before:
            made[round] = after[change]
    return made.mapped(lambda shares: shares[-1])


def _with(costs: tuple[RoundCost, ...], share: tuple[float, float], noise: float, count: int) -> tuple[RoundCost, ...]:
    """A round's costs, by share, with so many releases of a silo at once."""
    levels = {cost.share: dict(cost.levels) for cost in costs}
    of_share = levels.setdefault(share, {})
    of_share[noise] = max(of_share.get(noise, 0), count)
    return tuple(RoundCost(tuple(of.items()), share) for share, of in levels.items())
