"""What a run has spent and may still spend, in each view."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpfl_plugin.algorithms.base import RoundPlan, Setting
from dpfl_plugin.config.schema import Config
from dpfl_plugin.oracle import PrivacyRules
from dpfl_plugin.privacy.accountants import Accountant, max_rounds
from dpfl_plugin.privacy.budget import Budget
from dpfl_plugin.privacy.events import Charge, Term
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.views import (
    Planned,
    Spending,
    ViewEpsilon,
    server_view,
    third_party_view,
    undominated,
    worst_case_view,
)
from dpfl_plugin.training.planning import draw_participants

STATEMENT_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class RoundCost:
    """What a round asks of a silo that takes part, and how probable that was: public, and the same for all silos."""

    num_gradients: int
    share: tuple[float, float]
    probability: float


class PrivacyAccount:
    """The ledger of a run with its accountant, its budget and its views.

    Runtimes `append` charges and `sync` before anything leaves; both go to the ledger.

    Args:
        num_records: of each silo.
        costs: of the rounds that were begun before a resume, from the checkpoint.
        repeats: whether a charge of the ledger will be made again bit for bit, in a round after the checkpoint. Until
            then neither the budget nor an evaluation counts it, so that a resumed run takes the undisturbed one's way.
    """

    def __init__(
        self,
        config: Config,
        *,
        rules: PrivacyRules,
        accountant: Accountant,
        setting: Setting,
        num_records: Sequence[int],
        ledger: Ledger,
        costs: Mapping[int, RoundCost] | None = None,
        repeats: Callable[[Charge], bool] = lambda charge: False,
    ) -> None:
        self._seed, self._privacy = config.seed, config.privacy
        self._rules, self._setting, self._accountant = rules, setting, accountant
        self._num_records = tuple(num_records)
        self._budget = (
            None if config.privacy.epsilon is None else Budget(config.privacy.epsilon, config.privacy.delta, accountant)
        )
        self.ledger = ledger
        self.costs = dict(costs or {})
        final = [charge for charge in ledger if not repeats(charge)]
        self._spending = Spending(final)
        # Rounds that the checkpoint does not know, and how often each round was released.
        self._found = _rounds_in(final)
        self._noise_ids: defaultdict[int, set[str]] = defaultdict(set)
        for charge in final:
            self._noise_ids[charge.round].add(charge.noise_id)
        # One silo of each number of records: the others cost the same.
        self._kinds = {count: silo for silo, count in reversed(list(enumerate(num_records)))}

    # What a runtime does

    def append(self, charges: Sequence[Charge]) -> None:
        self.ledger.append(charges)
        self._spending.add(charges)
        for charge in charges:
            self._noise_ids[charge.round].add(charge.noise_id)

    def sync(self) -> None:
        self.ledger.sync()

    # What the loop asks

    def begin_round(self, round: int, plan: RoundPlan) -> None:
        """The round is about to run: it counts from here on, whether it finishes or not."""
        self.costs[round] = self._cost(plan)

    def affords(self, round: int, plan: RoundPlan) -> bool:
        """Whether a round, the next to come, stays within the budget."""
        if self._budget is None:
            return True
        cost = self._cost(plan)
        if self._privacy.budget_view == "third_party":
            costs = {**self._found, **self.costs, round: cost}
            again = self._released_again(costs, {round: {*self._noise_ids[round], "the next"}})
            return self._third_party(costs, again).epsilon <= self._budget.epsilon
        planned = {silo: [self._planned(silo, cost)] for silo in plan.participants}
        return bool(self._budget.allows(self._spending, planned))

    def why_not(self) -> str:
        view = self._privacy.budget_view.replace("_", " ")
        return f"one more would pass epsilon {self._privacy.epsilon:g} at delta {self._privacy.delta:g} ({view} view)"

    def so_far(self) -> dict[str, float | None]:
        """Epsilon spent in each view; None where nothing is guaranteed."""
        compositions = (terms for silo in self._spending for terms in self._spending.compositions(silo))
        spent = (self._accountant.epsilon(terms, self._privacy.delta) for terms in undominated(compositions))
        costs = {**self._found, **self.costs}
        return {
            "server": _finite(max(spent, default=0.0)),
            "third_party": _finite(self._third_party(costs, self._released_again(costs)).epsilon),
        }

    def expected_rounds(self, plan: RoundPlan, limit: int) -> int:
        """How many rounds like ``plan`` the budget allows in all, up to ``limit``; for schedules and the ETA only."""
        if self._budget is None:
            return limit
        cost = self._cost(plan)
        allowed = self._budget.epsilon
        if self._privacy.budget_view == "third_party":
            return min(self._most_rounds(silo, cost, cost.probability, allowed, limit) for silo in self._kinds.values())
        most = {count: self._most_rounds(silo, cost, 1.0, allowed, limit) for count, silo in self._kinds.items()}
        if cost.probability == 1:
            return min(most.values())
        used: Counter[int] = Counter()
        for round in range(limit):
            for silo in draw_participants(self._seed, round, self._setting):
                used[silo] += 1
                if used[silo] > most[self._num_records[silo]]:
                    return round
        return limit

    def charges(self, round: int, plan: RoundPlan) -> list[Charge]:
        """What a round will charge, for rehearsals."""
        return [self._charge(silo, round, self._cost(plan), "rehearsal") for silo in plan.participants]

    def num_releases(self, silo: int, round: int) -> int:
        """How often a silo that takes part in a round which was begun releases something."""
        return self._planned(silo, self.costs[round]).count

    # What a result says

    def views(self) -> dict[str, Any]:
        """The guarantees as plain values: the server's (realised, and the worst case) and a third party's."""
        # Of a run that was killed, only the ledger may know the last rounds.
        costs = {**_rounds_in(self.ledger), **self.costs}
        realised = server_view(self.ledger, self._accountant, self._privacy.delta)
        worst = worst_case_view(
            self.ledger,
            self._accountant,
            self._privacy.delta,
            silos=self._silos(),
            rounds=sorted(costs),
            pattern=lambda silo, round: [self._planned(silo, costs[round])],
        )
        return {
            "server": {**_plain(realised), "worst_case_epsilon": _finite(worst.epsilon)},
            "third_party": _plain(self._third_party(costs, self.ledger)),
        }

    def ahead(self) -> tuple[float, float]:
        """Epsilon of all rounds that were begun: of a silo in every one of them, and a third party's."""
        costs = self.costs
        everywhere = worst_case_view(
            (),
            self._accountant,
            self._privacy.delta,
            silos=self._silos(),
            rounds=sorted(costs),
            pattern=lambda silo, round: [self._planned(silo, costs[round])],
        )
        return everywhere.epsilon, self._third_party(costs, ()).epsilon

    def per_silo(self) -> list[dict[str, Any]]:
        """Each silo's records, participation and epsilon towards the server."""
        realised = server_view(self.ledger, self._accountant, self._privacy.delta)
        rounds = Counter(silo for silo, _ in {(charge.silo, charge.round) for charge in self.ledger})
        return [
            {
                "silo": silo,
                "num_records": count,
                "rounds": rounds[silo],
                "epsilon": _finite(realised.per_silo.get(silo, 0.0 if realised.per_silo else math.nan)),
            }
            for silo, count in enumerate(self._num_records)
        ]

    # Inside

    def _cost(self, plan: RoundPlan) -> RoundCost:
        probability = 1.0 if plan.participation == "all" else self._setting.num_participants / self._setting.num_silos
        return RoundCost(plan.num_gradients, plan.share, probability)

    def _planned(self, silo: int, cost: RoundCost) -> Planned:
        release, count = self._rules.pattern(self._num_records[silo], cost.share, cost.num_gradients)
        return Planned(release, count, cost.share)

    def _released_again(
        self, costs: Mapping[int, RoundCost], more: Mapping[int, set[str]] | None = None
    ) -> list[Charge]:
        """Charges of one silo, as good as any, for each round that was released more than once with fresh noise."""
        silo, charges = self._silos()[0], []
        for round, noise_ids in {**self._noise_ids, **(more or {})}.items():
            if len(noise_ids) > 1:
                charges += [self._charge(silo, round, costs[round], noise_id) for noise_id in noise_ids]
        return charges

    def _charge(self, silo: int, round: int, cost: RoundCost, noise_id: str) -> Charge:
        planned = self._planned(silo, cost)
        return Charge(
            round=round,
            silo=silo,
            release=planned.release,
            count=planned.count,
            share=planned.share,
            noise_id=noise_id,
        )

    def _third_party(self, costs: Mapping[int, RoundCost], charges: Iterable[Charge]) -> ViewEpsilon:
        return third_party_view(
            charges,
            self._accountant,
            self._privacy.delta,
            silos=self._silos(),
            participation={round: cost.probability for round, cost in costs.items()},
            pattern=lambda silo, round: [self._planned(silo, costs[round])],
        )

    def _silos(self) -> list[int]:
        return sorted(self._kinds.values())

    def _most_rounds(self, silo: int, cost: RoundCost, probability: float, epsilon: float, limit: int) -> int:
        planned = self._planned(silo, cost)
        term = Term(release=planned.release, count=planned.count, rounds=1, participation=probability)
        return max_rounds(self._accountant, term, (), epsilon, self._privacy.delta, limit)


def _rounds_in(charges: Iterable[Charge]) -> dict[int, RoundCost]:
    """Costs as charges show them. How probable the rounds were does not show, so they count as certain."""
    costs: dict[int, RoundCost] = {}
    for charge in charges:
        known = costs.get(charge.round)
        if known is None or charge.count > known.num_gradients:
            costs[charge.round] = RoundCost(charge.count, charge.share, 1.0)
    return costs


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None


def _plain(view: ViewEpsilon) -> dict[str, Any]:
    return {
        "epsilon": _finite(view.epsilon),
        "delta": view.delta,
        "neighbouring": view.neighbouring,
        "unit": view.unit,
        "accountant": view.accountant,
        "worst_silo": view.worst_silo,
        "basis": view.basis,
    }


def statement(config: Config, account: PrivacyAccount, caveats: Sequence[str], notes: Sequence[str]) -> dict[str, Any]:
    """What `ledger.json` holds: the guarantee, for whom, and on what assumptions."""
    private = config.privacy.noise_multiplier > 0
    return {
        "schema": STATEMENT_SCHEMA,
        "guarantee": "differential privacy, as stated in views" if private else "none: no noise was added",
        "mechanism": {
            "name": config.privacy.mechanism.name or config.privacy.mechanism.module,
            "clip_norm": _finite(config.privacy.clip_norm),
            "noise_multiplier": config.privacy.noise_multiplier,
            "sampler": config.privacy.sampler,
            "record_rate": config.privacy.record_rate,
            "batch_size": config.privacy.batch_size,
        },
        "views": account.views(),
        "silos": account.per_silo(),
        "num_charges": len(account.ledger),
        "assumptions": [*ASSUMPTIONS],
        "caveats": [*caveats, *MEASUREMENTS],
        "notes": list(notes),
    }


ASSUMPTIONS = (
    "The server is honest but curious: it sees every message of every silo, and who took part.",
    "Who takes part is drawn independently of the data. The server's epsilon needs no more; a third party's needs "
    "that it was drawn with the stated probability.",
    "The seed of the run is not known to those against whom it protects: with the seed the noise can be computed. "
    "A simulation's seed is in its configuration: its epsilon is the algorithm's, not that of publishing this folder.",
    "The numbers of records of the silos are public.",
)
MEASUREMENTS = (
    "Losses and accuracies in metrics.jsonl, result.json and curves.png are computed from records without noise, for "
    "the experimenter; publishing them is not covered by any epsilon here.",
    "Noise is added in floating-point arithmetic, not the real-valued Gaussian of the theorems (Mironov 2012).",
)
