"""What claims for any observer are made of."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Self

from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.book import Book
from dpfl_plugin.privacy.budget import Budget
from dpfl_plugin.privacy.calibration import max_rounds
from dpfl_plugin.privacy.costs import RoundCost
from dpfl_plugin.privacy.events import Term


class Claims:
    """What one observer may learn from what is in a run's book, by one accountant, and what a budget allows of it.

    Attributes:
        budget: of the run, which has an accountant of its own; None for none.
    """

    def __init__(self, book: Book, accountant: Accountant, budget: Budget | None) -> None:
        self.book, self.accountant, self.budget = book, accountant, budget

    def of(self, book: Book, accountant: Accountant) -> Self:
        """The same claims of another book, or by another accountant; the budget stays."""
        other = copy.copy(self)
        other.book, other.accountant = book, accountant
        return other

    def forget(self) -> None:
        """Silos were lost: what was worked out of rounds to come does not hold any more."""

    def most_rounds(
        self,
        silo: int,
        cost: RoundCost,
        epsilon: float,
        limit: int,
        spent: Sequence[Sequence[Term]] = ((),),
        probability: float = 1.0,
    ) -> int:
        """How many rounds of this cost a silo may be in, on top of each of what was ``spent``; up to ``limit``."""
        # All that there is, where noise does not vary.
        planned = next(iter(self.book.pricing.planned(silo, cost)), None)
        if planned is None:
            return limit
        term = Term(release=planned.release, count=planned.count, rounds=1, participation=probability)
        accountant = self.accountant if self.budget is None else self.budget.accountant
        delta, rounds = self.book.spec.delta, self.book.spec.rounds or 1
        return min(  # alone, more rounds never seem cheaper than fewer
            max_rounds(accountant, term, terms, epsilon, delta, limit, rounds if terms else 1) for terms in spent
        )


def finite(epsilon: float) -> float | None:
    """None where nothing is guaranteed."""
    return epsilon if math.isfinite(epsilon) else None
