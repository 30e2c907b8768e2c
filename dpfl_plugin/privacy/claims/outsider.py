"""Towards an outsider, who sees the models and does not know who took part."""

from __future__ import annotations

from collections import defaultdict

from dpfl_plugin.privacy.claims.base import Claims
from dpfl_plugin.privacy.views import ViewEpsilon, outsider_view


class Outsider(Claims):
    """What an outsider learned; see `Claims`."""

    def view(self) -> ViewEpsilon | None:
        """`outsider_view` of all rounds that were begun, or None where its conditions are not met.

        The ends of runs count among them: where the draws decide how long a run lasts, its length tells of them. So
        does a shared ledger: runs of one seed draw the same silos, and a sample that is used twice amplifies once.
        And attempts at a round by draws that nobody can repeat may be one sample or several, which no ledger tells.
        """
        book, spec, costs = self.book, self.book.spec, self.book.costs
        release = book.rules.release(1.0)
        if (release.unit, release.neighbouring) != ("silo", "replace_one"):
            return None
        certain = all(cost.probability == 1 for cost in costs.values())
        drawn_end = not certain and self.budget is not None and spec.view == "server"
        known = all(charge.round in costs for charge in book.ledger)
        if (
            book.rules.varies
            or not (spec.in_sums and spec.equal_weights and known and costs)
            or book.cap_matters()
            or drawn_end
            or book.lost
            or (book.rules.fresh and not certain and book.ledger.tally.several())
            or "shared" in book.ledger.facts
            or book.rules.silos
        ):
            return None
        S, M = spec.num_participants, spec.num_silos
        if any(cost.participation.law == "with_replacement" for cost in costs.values()):
            return None  # nothing is proven for that
        rounds = {round: (M if cost.probability == 1 else S, M) for round, cost in costs.items()}
        seen: defaultdict[int, set[int]] = defaultdict(set)
        for charge in book.ledger:
            seen[charge.round].add(charge.silo)
        if any(len(silos) != rounds[round][0] for round, silos in seen.items()):
            return None  # a round that counts as certain, or was cut short, has not the noise of all these silos
        return outsider_view(book.ledger, self.accountant, spec.delta, release=release, rounds=rounds)
