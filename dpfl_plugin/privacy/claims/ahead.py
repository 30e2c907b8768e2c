"""What a budget allows of rounds to come, before anybody is drawn for them."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from dpfl_plugin.errors import ConfigError
from dpfl_plugin.privacy.calibration import most
from dpfl_plugin.privacy.claims.server import Server
from dpfl_plugin.privacy.claims.third_party import ThirdParty
from dpfl_plugin.privacy.costs import MOST_ROUNDS, RoundCost
from dpfl_plugin.privacy.events import Term
from dpfl_plugin.privacy.extra_releases import terms_beside
from dpfl_plugin.privacy.participation import CERTAIN, Draw, Plan, participation


@dataclass(frozen=True, slots=True)
class _Cleared:
    """Rounds that are known to fit the budget: those before ``until``, if they are planned as ``shape`` says."""

    shape: tuple[object, ...] = ()
    until: int = 0


class Ahead:
    """Rounds to come in the eyes of that observer whose epsilon the budget bounds.

    Args:
        draw: who would take part, for `expected_rounds` alone.
    """

    def __init__(self, server: Server, third_party: ThirdParty, draw: Draw) -> None:
        self._server, self._third_party, self._draw = server, third_party, draw
        self.book, self.budget = server.book, server.budget
        self._bounded = server if self.book.spec.view == "server" else third_party
        self._cleared = _Cleared()

    def forget(self) -> None:
        """Silos were lost: what was worked out of rounds to come does not hold any more."""
        self._cleared = _Cleared()

    def affords(self, round: int, plan: Plan) -> bool:
        """Whether the next round stays within the budget, whoever is drawn, where rounds differ in their noise.

        Looks for how many rounds with this plan do, so that most rounds need no epsilon to be computed: releases that
        fit together with more fit without.
        """
        shape = (plan.num_gradients, plan.share, plan.participation)
        if self._cleared.shape == shape and round < self._cleared.until:
            return True
        limit = max(1, (self.book.spec.rounds or MOST_ROUNDS) - round)
        likely = limit if self.book.spec.rounds else 1
        self._cleared = _Cleared(shape, round + most(lambda rounds: self._fit(round, plan, rounds), limit, likely))
        return round < self._cleared.until

    def _fit(self, first: int, plan: Plan, rounds: int) -> bool:
        """Whether rounds ``first``, ``first`` + 1, ... with this plan stay within the budget, whoever is drawn."""
        try:
            costs = {round: self.book.pricing.cost(round, plan) for round in range(first, first + rounds)}
            return self._bounded.fits_ahead(costs)
        except ConfigError:
            if rounds == 1:
                raise
            return False  # noise so far ahead has no number, or no bound

    def expected_rounds(self, plan: Plan, limit: int, affords: Callable[[], bool]) -> int:
        """How many rounds like ``plan`` the budget allows in all, up to ``limit``; for schedules and the ETA only.

        Args:
            affords: whether it allows the first of them.
        """
        book, spec, cap = self.book, self.book.spec, self.book.spec.max_participations
        cost = book.pricing.cost(0, plan)
        self._check_accountant(cost)
        each = dict.fromkeys(book.kinds, limit if cap is None else min(limit, cap))
        if cost.share != (0.0, 1.0) and affords():
            pass  # what later rounds add to the cost of this one depends on which records they read
        elif self.budget is not None and book.rules.varies:
            limit = self._expected_of_draws(plan, limit)
        elif self.budget is not None and spec.view == "third_party":
            limit = self._third_party.most_alike(cost, self.budget.epsilon, limit)
        elif self.budget is not None:
            each = {
                kind: self._server.most_rounds(
                    silo, cost, self.budget.of(silo).epsilon, each[kind], terms_beside(book.beside, silo, cost.share)
                )
                for kind, silo in book.kinds.items()
            }
        if participation(plan, spec) == CERTAIN:
            return min(limit, *each.values())
        if min(each.values()) >= limit:
            return limit
        used: Counter[int] = Counter()
        eligible = list(range(spec.num_silos))
        for round in range(limit):
            if len(eligible) < spec.num_participants:
                return round
            for silo in set(self._draw(round, plan, eligible)):
                used[silo] += 1
                if used[silo] == cap:
                    del eligible[bisect.bisect_left(eligible, silo)]
                if used[silo] > each[book.kind(silo)]:
                    return round
        return limit

    def _expected_of_draws(self, plan: Plan, limit: int) -> int:
        """How many rounds like ``plan`` fit, where they differ in their noise; by the silo that is drawn most."""
        book = self.book
        sampled = participation(plan, book.spec) != CERTAIN
        always = most(lambda rounds: self._fit(0, plan, rounds), limit)
        if not sampled or book.spec.view == "third_party":
            return always
        draws: list[set[int]] = []

        def fits(rounds: int) -> bool:
            later = range(len(draws), rounds)
            draws.extend(set(self._draw(n, plan, None)) for n in later)
            often = Counter(silo for drawn in draws[:rounds] for silo in drawn)
            most_drawn = {book.kind(silo): silo for silo in often if often[silo] == max(often.values())}
            costs = {n: book.pricing.cost(n, plan) for n in range(rounds)}
            return all(
                self._server.fits_alone(silo, [cost for n, cost in costs.items() if silo in draws[n]])
                for silo in most_drawn.values()
            )

        return max(always, most(fits, limit))

    def _check_accountant(self, cost: RoundCost) -> None:
        """Raise UnsupportedError now if the accountant does not know what will be released, not after it was."""
        book, accountant = self.book, self._server.accountant
        for silo in book.silos:
            for planned, probability in itertools.product(book.pricing.planned(silo, cost), {1.0, cost.probability}):
                term = Term(release=planned.release, count=planned.count, rounds=1, participation=probability)
                for terms in terms_beside(book.beside, silo, cost.share):
                    accountant.epsilon([term, *terms], book.spec.delta)
