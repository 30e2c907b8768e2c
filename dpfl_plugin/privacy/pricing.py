"""What the rounds of a run cost, by their plans, and what they charge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from dpfl_plugin.errors import ConfigError, LedgerError, PluginError
from dpfl_plugin.privacy.composition import Planned
from dpfl_plugin.privacy.costs import RoundCost, Rounds, rounds_in
from dpfl_plugin.privacy.events import Charge, SampledGaussian
from dpfl_plugin.privacy.participation import CERTAIN, WITH_REPLACEMENT, Plan, participation
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import Sampler
from dpfl_plugin.privacy.spec import BudgetSpec


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
        self._patterns: dict[tuple[tuple[int, int], RoundCost], list[Planned]] = {}  # of silos of a kind
        self._alike_plans: dict[tuple[int, int | None, tuple[float, float], str], RoundCost] = {}
        self._plans: dict[tuple[tuple[int, int], RoundCost], dict[SampledGaussian, int]] = {}

    def cost(self, round: int, plan: Plan) -> RoundCost:
        """What a round costs; worked out once for all rounds with alike plans, where their noise does not vary."""
        if self._rules.varies:
            return self._cost_of(round, plan)
        shape = plan.num_gradients, plan.most_gradients, plan.share, plan.participation
        if shape not in self._alike_plans:
            self._alike_plans[shape] = self._cost_of(round, plan)
        return self._alike_plans[shape]

    def lose(self) -> None:
        """Silos were lost: from here on nothing is made of draws."""
        self.lost = True
        self._alike_plans = {}

    def _cost_of(self, round: int, plan: Plan) -> RoundCost:
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

    def rounds_in(self, charges: Iterable[Charge]) -> Rounds[RoundCost]:
        """Costs of rounds as charges show them, see `costs.rounds_in`."""
        return rounds_in(charges, self.common if self._rules.silos else None)

    def planned(self, silo: int, cost: RoundCost) -> list[Planned]:
        """What such a round makes of a silo; with noise of its own as many releases, of that noise."""
        kind = self.kind(silo), cost
        if kind in self._patterns:
            return self._patterns[kind]
        own, levels = self._rules.silos.get(silo), cost.levels
        if own is not None:  # noise does not vary: see `PrivacyRules`
            levels = ((own.noise_multiplier, cost.num_releases),) if cost.num_releases else ()
        pattern = (own or self._rules).pattern(self._spec.num_records[silo], cost.share, levels)
        planned = [Planned(release, count, cost.share) for release, count in pattern]
        if not self._rules.varies:  # else every round has its own
            self._patterns[kind] = planned
        return planned

    def counts(self, silo: int, cost: RoundCost) -> dict[SampledGaussian, int]:
        """{release: how many} that such a round makes of a silo."""
        kind = self.kind(silo), cost
        if kind not in self._plans:
            self._plans[kind] = {one.release: one.count for one in self.planned(silo, cost)}
        return self._plans[kind]

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
        """Rounds that are drawn count as the longest that any draws allow: which rounds cost more may depend on earlier
        draws, as the end of a warm-up does, and the mixture is proven for costs that do not. With lost silos all such
        rounds do: which silos were lost may decide it as well.
        """
        noise = self._rules.noise_multiplier
        if not any(cost.most for cost in costs.values()):
            return costs
        return {
            n: replace(cost, levels=((noise, cost.most),))
            if cost.most and (cost.probability < 1 or (self.lost and not self._rules.varies))
            else cost
            for n, cost in costs.items()
        }
