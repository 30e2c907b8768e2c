"""What rounds ask of the silos that take part in them: by their plans, and as charges show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dpfl_plugin.errors import ConfigError, LedgerError, PluginError
from dpfl_plugin.privacy.composition import Planned
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.participation import CERTAIN, WITH_REPLACEMENT, Participation, PlannedRound, participation
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import Sampler
from dpfl_plugin.privacy.spec import BudgetSpec
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


def attempted(costs: Mapping[int, RoundCost], attempts: Mapping[int, int]) -> Counter[RoundCost]:
    """What rounds cost, each as often as it was released. One that was released again counts as certain: whether its
    attempts drew their silos anew is not known.

    Args:
        attempts: how often rounds were released, of those that were released more than once.
    """
    counted = Counter(costs.values())
    for round, number in attempts.items():
        counted[costs[round]] -= 1
        counted[made_certain(costs[round])] += number
    return +counted


def made_certain(cost: RoundCost) -> RoundCost:
    return replace(cost, participation=CERTAIN)


def costlier(cost: RoundCost, other: RoundCost | None) -> RoundCost:
    """A round's cost, with the releases of another attempt at it where those are more."""
    if other is None or other.num_releases <= cost.num_releases:
        return cost
    by = CERTAIN if len(other.levels) > 1 else cost.participation  # of different releases no mixture is proven
    return replace(cost, levels=other.levels, participation=by)


class Pricing:
    """From plans to costs, and from costs to charges.

    Attributes:
        lost: whether silos were lost while the run went on: then all rounds count as certain, however they were drawn.
    """

    def __init__(self, spec: BudgetSpec, rules: PrivacyRules, *, lost: bool) -> None:
        self._spec, self._rules, self.lost = spec, rules, lost
        alike: dict[tuple[float, Sampler], int] = {}
        self._own = {
            silo: alike.setdefault((own.noise_multiplier, own.sampler), len(alike) + 1)
            for silo, own in rules.silos.items()
        }
        # A million rounds share a few costs, and a hundred silos the releases of each.
        self._costs: dict[tuple[object, ...], RoundCost] = {}
        self._planned: dict[tuple[tuple[int, int], RoundCost], list[Planned]] = {}

    def cost(self, round: int, plan: PlannedRound) -> RoundCost:
        """What a round costs; one object for all rounds with alike plans, where their noise does not vary."""
        if self._rules.varies:
            return self._cost_of(round, plan)
        shape = plan.num_gradients, plan.most_gradients, plan.share, plan.participation, self.lost
        if shape not in self._costs:
            self._costs[shape] = self._cost_of(round, plan)
        return self._costs[shape]

    def _cost_of(self, round: int, plan: PlannedRound) -> RoundCost:
        if self._spec.max_participations is not None and plan.participation == WITH_REPLACEMENT:
            raise ConfigError(
                f"max_participations={self._spec.max_participations} with silos that are drawn with replacement: their "
                "probabilities are their weights, which those who are left do not have. Leave max_participations out, "
                "or draw without replacement."
            )
        levels = self._rules.noise_levels(round, plan.num_gradients)
        most = plan.most_gradients if self._rules.unit != "silo" else None
        if most is not None and plan.num_gradients > most:
            self.check_length(plan.num_gradients, most, "at most the most_gradients of its round plan")
        # Of a round that makes different releases, or none, no mixture is proven: it counts as certain. So does one
        # whose number of releases and noise may both be other ones by earlier draws.
        by = participation(plan, self._spec)
        certain = self.lost or len(levels) > 1 or (self._rules.varies and most is not None)
        return RoundCost(levels, plan.share, CERTAIN if certain else by, most)

    def check_length(self, num_gradients: int, wanted: int, what: str) -> None:
        """Raise PluginError if a plan asks for another number of gradients than ``what`` says it should."""
        if num_gradients != wanted:
            raise PluginError(
                f"the algorithm's round_plan asks for {num_gradients} gradients in a round of drawn silos; it should "
                f"have been {what}, {wanted}. Where the number changes, give most_gradients in every plan, the most "
                "that any round may ask for, whoever is drawn."
            )

    def kind(self, silo: int) -> tuple[int, int]:
        """All that what a round makes of a silo depends on: its number of records, and its own settings (0: none)."""
        return self._spec.num_records[silo], self._own.get(silo, 0)

    def common(self, silo: int, noise_multiplier: float) -> float:
        """The noise multiplier, in the `RoundCost` of a round, of what a silo released with its own.

        Raises:
            LedgerError: it is not that of the silo.
        """
        if noise_multiplier != self._rules.of(silo).noise_multiplier:
            raise LedgerError(
                f"silo {silo} was charged a release with noise_multiplier {noise_multiplier:g}, and its own is "
                f"{self._rules.of(silo).noise_multiplier:g}: the configuration is not the one that made the ledger."
            )
        return self._rules.noise_multiplier

    def rounds_in(self, charges: Iterable[Charge]) -> dict[int, RoundCost]:
        """Costs of rounds as charges show them. How probable they were does not show, so they count as certain.

        Of each noise multiplier a round has as many releases as one silo made of it at once, the most of all.
        """
        tally = charges if isinstance(charges, Tally) else Tally(charges)
        made: dict[int, Any] = {}  # of each share, the one that came last at the end
        # One object for all rounds that are alike, and what becomes of it by which charge: of a million charges.
        same: dict[tuple[RoundCost, ...], tuple[RoundCost, ...]] = {(): ()}
        after: dict[tuple[int, int, int, float], tuple[RoundCost, ...]] = {}
        nothing = same[()]
        for round, silo, kind, _, count in tally.entries():
            before = made.get(round, nothing)
            share, release = tally.names.kinds[kind]
            noise = self.common(silo, release.noise_multiplier) if self._rules.silos else release.noise_multiplier
            change = id(before), kind, count, noise
            if change not in after:
                costs = _with(before, share, noise, count)
                after[change] = same.setdefault(costs, costs)
            made[round] = after[change]
        for round, shares in made.items():  # in place: there may be a million
            made[round] = shares[-1]
        return made

    def planned(self, silo: int, cost: RoundCost) -> list[Planned]:
        """What such a round makes of a silo; with noise of its own as many releases, of that noise."""
        kind = self.kind(silo), cost
        if kind in self._planned:
            return self._planned[kind]
        own, levels = self._rules.silos.get(silo), cost.levels
        if own is not None:  # noise does not vary: see `PrivacyRules`
            levels = ((own.noise_multiplier, cost.num_releases),) if cost.num_releases else ()
        pattern = (own or self._rules).pattern(self._spec.num_records[silo], cost.share, levels)
        planned = [Planned(release, count, cost.share) for release, count in pattern]
        if not self._rules.varies:  # else every round has its own
            self._planned[kind] = planned
        return planned

    def charges(self, silo: int, round: int, cost: RoundCost, noise_id: str) -> list[Charge]:
        """What such a round charges a silo."""
        return [
            Charge(
                round=round,
                silo=silo,
                release=planned.release,
                count=planned.count,
                share=planned.share,
                noise_id=noise_id,
            )
            for planned in self.planned(silo, cost)
        ]

    def dearest(self, costs: Mapping[int, RoundCost]) -> Mapping[int, RoundCost]:
        """Rounds as `longest` has them."""
        return {n: self.longest(cost) for n, cost in costs.items()} if any(c.most for c in costs.values()) else costs

    def longest(self, cost: RoundCost) -> RoundCost:
        """Rounds that are drawn count as the longest that any draws allow: which rounds cost more may depend on earlier
        draws, as the end of a warm-up does, and the mixture is proven for costs that do not. With lost silos all such
        rounds do: which silos were lost may decide it as well.
        """
        if not cost.most or not (cost.probability < 1 or (self.lost and not self._rules.varies)):
            return cost
        return replace(cost, levels=((self._rules.noise_multiplier, cost.most),))


def _with(costs: tuple[RoundCost, ...], share: tuple[float, float], noise: float, count: int) -> tuple[RoundCost, ...]:
    """A round's costs, by share, with so many releases of a silo at once."""
    levels = {cost.share: dict(cost.levels) for cost in costs}
    of_share = levels.setdefault(share, {})
    of_share[noise] = max(of_share.get(noise, 0), count)
    return tuple(RoundCost(tuple(of.items()), share) for share, of in levels.items())
