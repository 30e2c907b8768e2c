"""Towards the server, which sees every message of every silo."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from dpfl_plugin.privacy.accountants import MOST_LEVELS, rounded_down
from dpfl_plugin.privacy.book import most_attempts
from dpfl_plugin.privacy.budget import Budget
from dpfl_plugin.privacy.calibration import worst_epsilon
from dpfl_plugin.privacy.claims.base import Claims, finite
from dpfl_plugin.privacy.composition import ReleasesBySilo, Terms, compositions, undominated
from dpfl_plugin.privacy.costs import RoundCost
from dpfl_plugin.privacy.extra_releases import NOT_RUN
from dpfl_plugin.privacy.participation import Plan
from dpfl_plugin.privacy.tally import Tally
from dpfl_plugin.privacy.views import AlikeRounds, Composed, ViewEpsilon, server_composed, worst_case_composed


class Server(Claims):
    """What the server learned and may learn; see `Claims`."""

    # What a budget allows

    def affords(self, round: int, cost: RoundCost, plan: Plan) -> bool:
        """Whether those who were drawn for the next round stay within a budget in the server's view."""
        assert self.budget is not None
        beside, priced = self.book.beside, self.book.pricing
        planned = {silo: [*priced.planned(silo, cost), *beside.get(silo, ())] for silo in plan.participants}
        return bool(self.budget.allows(self.book.spending, planned))

    def affords_beside(self, beside: ReleasesBySilo) -> bool:
        """Whether all silos stay within it with these releases ``beside`` the rounds."""
        assert self.budget is not None
        return bool(self.budget.allows(self.book.spending, beside))

    def affords_all(self, rounds: Counter[RoundCost]) -> bool:
        """Whether rounds with these costs fit, so many of each, whoever is drawn."""
        return all(budget.holds(terms) for budget, terms in self._everywhere(rounds))

    def look_ahead(self, rounds: Counter[RoundCost]) -> None:
        """Have the budget know whether rounds with these costs fit; see `PrivacyAccount.look_ahead`."""
        for budget, terms in self._everywhere(rounds):
            budget.holds(terms)

    def _everywhere(self, rounds: Counter[RoundCost]) -> Iterator[tuple[Budget, Terms]]:
        """(budget, composition) of silos in as many of these rounds as may be, whoever is drawn."""
        assert self.budget is not None
        for budget, silos in self.budget.shared_by(self.book.silos):
            for terms in undominated(self.book.everywhere(rounds, silos=silos)):
                yield budget, terms

    def fits_ahead(self, later: Mapping[int, RoundCost]) -> bool:
        """Whether every silo stays within it to the end of rounds to come, whoever is drawn."""
        assert self.budget is not None
        return all(self.budget.fits(terms) for terms in undominated(self._ahead(later.values())))

    def fits_alone(self, silo: int, costs: Iterable[RoundCost]) -> bool:
        """Whether a silo that has spent nothing in this run stays within it by taking part in these rounds."""
        assert self.budget is not None
        planned = [one for cost in costs for one in self.book.pricing.planned(silo, cost)]
        return all(self.budget.fits(terms) for terms in compositions([*planned, *self.book.beside.get(silo, ())]))

    def _ahead(self, costs: Iterable[RoundCost]) -> list[Terms]:
        """Compositions that dominate what any silo has released by the end of rounds to come."""
        book, beside = self.book, self.book.beside
        counted, alike = Counter(costs), book.alike()
        noises = {noise for cost in counted for noise, _ in cost.levels} | book.spending.noise_multipliers()
        found: list[Terms] = []
        for kind, silo in book.kinds.items():
            planned = [*book.spending.envelope(alike[kind]), *beside.get(silo, ())]
            for cost, rounds in counted.items():
                planned += [replace(one, count=one.count * rounds) for one in book.pricing.planned(silo, cost)]
            if len(noises) + len(beside.get(silo, ())) > MOST_LEVELS:
                # A silo may have more of them than what dominates it, and be accounted for by levels.
                planned = [replace(one, release=rounded_down(one.release)) for one in planned]
            found += compositions(planned)
        return found

    # What is claimed

    def epsilon_of(self, rounds: Counter[RoundCost]) -> float:
        """Epsilon of rounds with these costs, so many of each, of a silo in as many of them as may be."""
        return worst_epsilon(self.accountant, self.book.everywhere(rounds), self.book.spec.delta)

    def spent(self, beside: ReleasesBySilo) -> float:
        """Epsilon of what silos released, in rounds and beside them."""
        delta = self.book.spec.delta
        return max((self.accountant.epsilon(terms, delta) for terms in undominated(self._spent(beside))), default=0.0)

    def _spent(self, beside: ReleasesBySilo) -> Iterator[Terms]:
        """Compositions of what silos released; with a schedule, of what dominates a kind."""
        spending = self.book.spending
        if not self.book.rules.varies:
            for silo in {*spending, *beside}:
                yield from spending.compositions(silo, beside.get(silo, ()))
            return
        for silos in self.book.alike().values():
            yield from compositions(spending.envelope(silos))

    def realised(self) -> ViewEpsilon:
        """The view of what is in the ledger."""
        book, accountant = self.book, self.accountant

        def composed() -> Composed:
            return book.once("server", (), lambda: server_composed(book.ledger.tally))

        return book.once("realised", (accountant,), lambda: composed().stated(accountant, book.spec.delta))

    def worst_case(self, costs: Mapping[int, RoundCost], charges: Tally, beside: ReleasesBySilo) -> ViewEpsilon:
        """The view of a silo that was in all rounds, and in all attempts at one, or in as many as the cap allows.

        Args:
            charges: of rounds.
        """
        book = self.book
        composed = book.once(
            "worst case",
            (beside,),
            lambda: worst_case_composed(
                charges,
                silos=book.silos,
                rounds=costs,
                pattern=AlikeRounds(costs, book.pricing.planned),
                cap=most_attempts(book),
                beside=beside,
            ),
        )
        return composed.stated(self.accountant, book.spec.delta)

    def per_silo(self) -> list[dict[str, Any]]:
        """Each silo's records, rounds and epsilon."""
        book, alone = self.book, self.realised().per_silo
        charged, rounds = taken_part(book.ledger.tally)
        return [
            {
                "silo": silo,
                "num_records": count,
                "rounds": rounds[silo],
                "epsilon": _of_silo(silo, alone) if silo in charged else 0.0,
                **(self._settings(silo) if book.rules.silos else {}),
            }
            for silo, count in enumerate(book.spec.num_records)
        ]

    def _settings(self, silo: int) -> dict[str, Any]:
        """A silo's budget and how its releases are made, where silos differ in that."""
        spec, rules = self.book.spec, self.book.rules.of(silo)
        return {
            "budget": spec.epsilons.get(silo, spec.epsilon),
            "noise_multiplier": rules.noise_multiplier,
            "record_rate": rules.sampler.rate(spec.num_records[silo]),
            "clip_norm": finite(rules.clip_norm),
        }


def taken_part(tally: Tally) -> tuple[set[int], Counter[int]]:
    """(silos that are charged, for scores or statistics only, too; in how many rounds each of them took part)."""
    not_run = tally.names.noise(NOT_RUN)
    charged, made = set(), set()
    for entry in tally.entries():
        charged.add(entry.silo)
        if entry.noise != not_run and tally.kind(entry) == "round":
            made.add((entry.silo, entry.round))
    return charged, Counter(silo for silo, _ in made)


def _of_silo(silo: int, per_silo: Mapping[int, float]) -> float | None:
    """None where each silo's own epsilon was not worked out."""
    return finite(per_silo.get(silo, 0.0)) if per_silo else None
