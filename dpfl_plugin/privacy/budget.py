"""A budget: asked before every round, so that a run stops before the round that would pass it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from dpfl_plugin.errors import ConfigError
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.calibration import max_rounds
from dpfl_plugin.privacy.composition import Planned, Spending, Terms, undominated
from dpfl_plugin.privacy.events import Term
from dpfl_plugin.privacy.pld import check_delta, normalise

_LIMIT = 10**7  # releases that are searched for; more are composed as they come


class Budget:
    """(epsilon, delta) that no silo's releases may pass, in the server's view.

    Args:
        epsilon: at least 0; math.inf for no limit.
        delta: in (0, 1).
        own: epsilon of silos that have one of their own, by id.

    Raises:
        ConfigError: a number is out of range.
    """

    def __init__(
        self, epsilon: float, delta: float, accountant: Accountant, own: Mapping[int, float] | None = None
    ) -> None:
        if not epsilon >= 0:
            raise ConfigError(f"epsilon={epsilon!r} must be at least 0.")
        check_delta(delta)
        self.epsilon, self.delta, self.accountant = float(epsilon), float(delta), accountant
        self._most: dict[tuple[Term, Terms, int, int], int] = {}
        self._asked: set[tuple[Term, Terms]] = set()
        self._fitting: list[Terms] = []  # none a part of another
        by_epsilon = {value: Budget(value, delta, accountant) for value in set((own or {}).values())}
        self._own = {silo: by_epsilon[value] for silo, value in (own or {}).items()}

    def of(self, silo: int) -> Budget:
        """The budget of one silo."""
        return self._own.get(silo, self)

    @property
    def largest(self) -> float:
        """The largest epsilon that any silo is allowed."""
        return max([self.epsilon, *(own.epsilon for own in self._own.values())])

    def shared_by(self, silos: Iterable[int]) -> list[tuple[Budget, list[int]]]:
        """(budget, those of ``silos`` that have it)."""
        groups: dict[int, tuple[Budget, list[int]]] = {}
        for silo in silos:
            own = self.of(silo)
            groups.setdefault(id(own), (own, []))[1].append(silo)
        return list(groups.values())

    def allows(self, spent: Spending, planned: Mapping[int, Iterable[Planned]]) -> bool:
        """Whether every silo stays within the budget if it makes the planned releases on top of what it spent.

        Asking changes nothing: charge what was really released to ``spent``. Cheap before every round: silos that cost
        no more than another are not looked at, and as long as the release stays the same one search serves all rounds.

        Args:
            planned: for each silo that will take part (or may: ask for all of them if the choice must not depend on
                the answer), what it will release.

        Raises:
            ConfigError, UnsupportedError: as `Accountant.epsilon` and `Spending.compositions`.
        """
        return all(
            budget.fits(terms)
            for budget, silos in self.shared_by(planned)
            for terms in undominated(terms for silo in silos for terms in spent.compositions(silo, planned[silo]))
        )

    def most(self, one: Term, others: Terms = (), limit: int = _LIMIT, likely: int = 1) -> int:
        """The most rounds of ``one`` beside ``others``, see `max_rounds`; one search serves all rounds to come."""
        key = one, others, limit, likely
        if key not in self._most:
            self._most[key] = max_rounds(self.accountant, one, others, self.epsilon, self.delta, limit, likely)
        return self._most[key]

    def fits(self, terms: Terms) -> bool:
        """Whether a composition stays within the budget.

        One that is part of another which `holds` does: releasing less is post-processing. The accountant need not say
        so, whose error may be larger for fewer releases than for more. Where one kind of release is asked for alone,
        or a second time beside the same others, one search for the most of it serves all rounds to come.
        """
        if self.epsilon == math.inf or any(_is_part(terms, fitting) for fitting in self._fitting):
            return True
        for n, term in enumerate(terms):
            if term.rounds > _LIMIT:  # beyond what is searched for
                continue
            one, others = replace(term, rounds=1), terms[:n] + terms[n + 1 :]
            if not others or (one, others) in self._asked:
                return term.rounds <= self.most(one, others)
            self._asked.add((one, others))
        return self.holds(terms)

    def holds(self, terms: Terms) -> bool:
        """Whether a composition's own epsilon is within the budget; if so, so are all its parts from here on."""
        holds = self.accountant.epsilon(terms, self.delta) <= self.epsilon
        if holds:
            self._fitting = [terms, *(other for other in self._fitting if not _is_part(other, terms))]
        return holds


def _is_part(less: Terms, more: Terms) -> bool:
    """Whether each release of ``less`` is made in ``more``, at least as often."""
    times = {replace(term, rounds=1): term.rounds for term in normalise(more)}
    return all(term.rounds <= times.get(replace(term, rounds=1), 0) for term in normalise(less))
