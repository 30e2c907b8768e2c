"""What a budget allows of rounds to come, before anybody is drawn for them."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from typing import TYPE_CHECKING

from dpfl_plugin.errors import ConfigError
from dpfl_plugin.privacy.calibration import most
from dpfl_plugin.privacy.costs import MOST_ROUNDS, RoundCost
from dpfl_plugin.privacy.events import Term
from dpfl_plugin.privacy.extra_releases import extra_terms
from dpfl_plugin.privacy.participation import CERTAIN, PlannedRound, participation

if TYPE_CHECKING:
    from dpfl_plugin.privacy.account import PrivacyAccount


def most_rounds(account: PrivacyAccount, first: int, plan: PlannedRound) -> int:
    """How many rounds from ``first`` on, all with this plan, stay within the budget, whoever is drawn."""
    limit = max(1, (account.spec.rounds or MOST_ROUNDS) - first)
    return most(lambda rounds: _fit(account, first, plan, rounds), limit, limit if account.spec.rounds else 1)


def _fit(account: PrivacyAccount, first: int, plan: PlannedRound, rounds: int) -> bool:
    try:
        costs = {round: account.pricing.cost(round, plan) for round in range(first, first + rounds)}
        return account.bounded.fits_ahead(costs)
    except ConfigError:
        if rounds == 1:
            raise
        return False  # noise so far ahead has no number, or no bound


def expected_rounds(account: PrivacyAccount, plan: PlannedRound, limit: int) -> int:
    """See `PrivacyAccount.expected_rounds`."""
    spec, cap, budget = account.spec, account.spec.max_participations, account.budget
    cost = account.pricing.cost(0, plan)
    _check_accountant(account, cost)
    each = dict.fromkeys(account.kinds, limit if cap is None else min(limit, cap))
    if cost.share != (0.0, 1.0) and account.affords(0, plan):
        pass  # what later rounds add to the cost of this one depends on which records they read
    elif budget is not None and account.rules.varies:
        limit = _expected_of_draws(account, plan, limit)
    elif budget is not None and spec.view == "third_party":
        limit = account.third_party.most_alike(cost, limit)
    elif budget is not None:
        planned = account.extra.releases(ahead=True)
        each = {
            kind: account.server.most_rounds(silo, cost, each[kind], extra_terms(planned, silo, cost.share))
            for kind, silo in account.kinds.items()
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
        for silo in set(account.draw(round, plan, eligible)):
            used[silo] += 1
            if used[silo] == cap:
                del eligible[bisect.bisect_left(eligible, silo)]
            if used[silo] > each[account.kind(silo)]:
                return round
    return limit


def _expected_of_draws(account: PrivacyAccount, plan: PlannedRound, limit: int) -> int:
    """How many rounds like ``plan`` fit, where they differ in their noise; by the silo that is drawn most."""
    always = most(lambda rounds: _fit(account, 0, plan, rounds), limit)
    if participation(plan, account.spec) == CERTAIN or account.spec.view == "third_party":
        return always
    draws: list[set[int]] = []

    def fits(rounds: int) -> bool:
        later = range(len(draws), rounds)
        draws.extend(set(account.draw(n, plan, None)) for n in later)
        often = Counter(silo for drawn in draws[:rounds] for silo in drawn)
        most_drawn = {account.kind(silo): silo for silo in often if often[silo] == max(often.values())}
        costs = {n: account.pricing.cost(n, plan) for n in range(rounds)}
        return all(
            account.server.fits_alone(silo, [cost for n, cost in costs.items() if silo in draws[n]])
            for silo in most_drawn.values()
        )

    return max(always, most(fits, limit))


def _check_accountant(account: PrivacyAccount, cost: RoundCost) -> None:
    """Raise UnsupportedError now if the accountant does not know what will be released, not after it was."""
    extra = account.extra.releases(ahead=True)
    for silo in account.silos:
        for planned, probability in itertools.product(account.pricing.planned(silo, cost), {1.0, cost.probability}):
            term = Term(release=planned.release, count=planned.count, rounds=1, participation=probability)
            for terms in extra_terms(extra, silo, cost.share):
                account.accountant.epsilon([term, *terms], account.spec.delta)
