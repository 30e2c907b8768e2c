"""Towards a third party, who sees the models that the server made, and nothing else."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.book import Book, most_attempts
from dpfl_plugin.privacy.budget import Budget
from dpfl_plugin.privacy.calibration import worst_epsilon
from dpfl_plugin.privacy.claims.base import Claims
from dpfl_plugin.privacy.composition import ReleasesBySilo, Terms, undominated
from dpfl_plugin.privacy.costs import MOST_ROUNDS, Probabilities, RoundCost, made_certain
from dpfl_plugin.privacy.events import Charge, Term
from dpfl_plugin.privacy.extra_releases import WHOLE, terms_beside
from dpfl_plugin.privacy.participation import CERTAIN, Plan
from dpfl_plugin.privacy.pld import normalise
from dpfl_plugin.privacy.views import AlikeRounds, Composed, ViewEpsilon, third_party_composed, worst_case_composed

FROM_THE_SEED = (
    "as if participants had been drawn unpredictably: here they follow from the seed, and whoever knows it is promised "
    "no more than the server is"
)

GIVEN_WHO = (
    "every round counts as the server's worst case: who was drawn decides how long the run goes on, and of the rounds "
    "that other draws would have allowed no mixture is proven"
)

FAILED = (
    "every round counts as the server's worst case: the run failed, which who was drawn may have decided, and of the "
    "rounds that other draws would have allowed no mixture is proven"
)
UNKNOWN_LENGTHS = (
    "every round counts as the server's worst case: who was drawn decides how long rounds are, and of some of them the "
    "ledger alone is left, which does not say how long they might have been"
)


class ThirdParty(Claims):
    """What a third party learned and may learn; see `Claims`."""

    def __init__(self, book: Book, accountant: Accountant, budget: Budget | None) -> None:
        super().__init__(book, accountant, budget)
        self._most: dict[RoundCost, int] = {}

    def forget(self) -> None:
        self._most = {}

    # What a budget allows

    def affords(self, round: int, cost: RoundCost, plan: Plan) -> bool:
        """Whether a round, the next to come, stays within a budget in a third party's view, whoever was drawn."""
        assert self.budget is not None
        book = self.book
        rounds = book.with_round(round, cost)
        attempts = {again: len(book.noise_ids[again]) for again in book.repeated}
        if book.noise_ids.get(round):
            attempts[round] = len(book.noise_ids[round]) + 1
        certain: Counter[RoundCost] = Counter()
        for again, number in attempts.items():
            repeated = cost if again == round else book.cost_of(again)
            assert repeated is not None  # it was released
            rounds[repeated] -= 1
            certain[repeated] += number
        counted = self._as_counted(+rounds)
        if len(counted) == 1 and not certain and not book.cap_matters():  # one search serves all rounds
            return counted.total() <= self._most_cached(*counted)
        for alike, number in self._as_counted(certain).items():  # as in `third_party_view`
            counted[replace(alike, participation=CERTAIN)] += number
        return all(map(self.budget.fits, undominated(self._compositions(counted, book.beside, plan.participants))))

    def affords_beside(self, beside: ReleasesBySilo) -> bool:
        """Whether the rounds that were begun stay within it with these releases ``beside`` them."""
        assert self.budget is not None
        book = self.book
        costs = book.pricing.dearest({**book.found, **book.costs})
        return self.mixture(costs, book.released_again(costs), beside).epsilon <= self.budget.epsilon

    def affords_all(self, rounds: Counter[RoundCost]) -> bool:
        """Whether rounds with these costs fit, so many of each, whoever is drawn."""
        assert self.budget is not None
        if len(rounds) == 1 and not self.book.rules.varies:
            return rounds.total() <= self.most_alike(next(iter(rounds)), self.budget.epsilon, MOST_ROUNDS)
        return self.epsilon_of(rounds) <= self.budget.epsilon

    def fits_ahead(self, later: Mapping[int, RoundCost]) -> bool:
        """Whether a third party's epsilon is within it at the end of rounds to come."""
        assert self.budget is not None
        book = self.book
        later = {round: book.dearer(round, cost) for round, cost in later.items()}
        costs = book.pricing.dearest({**book.found, **book.costs, **later})
        again = book.released_again(costs, {round: {*book.noise_ids.get(round, ()), "the next"} for round in later})
        return self._epsilon(costs, again, book.beside) <= self.budget.epsilon

    def most_alike(self, cost: RoundCost, epsilon: float, limit: int) -> int:
        """How many rounds of this cost a third party's budget allows, up to ``limit``."""
        book, cap = self.book, self.book.spec.max_participations
        if book.cap_matters():
            assert cap is not None
            last = min(cap, limit)
            most = min(
                self.most_rounds(silo, cost, epsilon, last, terms_beside(book.beside, silo, cost.share))
                for silo in book.kinds.values()
            )
            return limit if most == cap else most
        return min(
            self.most_rounds(silo, cost, epsilon, limit, terms_beside(book.beside, silo, cost.share), cost.probability)
            for silo in book.kinds.values()
        )

    def _most_cached(self, cost: RoundCost) -> int:
        assert self.budget is not None
        if cost not in self._most:
            self._most[cost] = self.most_alike(cost, self.budget.epsilon, MOST_ROUNDS)
        return self._most[cost]

    # What is claimed

    def epsilon_of(self, rounds: Counter[RoundCost]) -> float:
        """Epsilon of rounds with these costs, so many of each, whoever is drawn."""
        return self._counted(self._as_counted(rounds), self.book.beside)

    def of_begun(self) -> float:
        """Epsilon of all rounds that were begun, with all that they are composed with."""
        if self.book.repeated and not self._draws_decide(self.book.costs.values()):
            return self.so_far(self.book.beside)
        rounds = self._as_counted(Counter(self.book.costs.values()))
        if self._draws_decide(rounds):
            return self.stated(self.book.costs, (), self.book.beside).epsilon
        return self._counted(rounds, self.book.beside)

    def so_far(self, beside: ReleasesBySilo) -> float:
        """Epsilon of the rounds that count by now."""
        book = self.book
        costs = book.pricing.dearest({**book.found, **book.costs})
        return self._epsilon(costs, book.released_again(costs), beside)

    def mixture(self, costs: Mapping[int, RoundCost], charges: Iterable[Charge], beside: ReleasesBySilo) -> ViewEpsilon:
        """The mixture of taking part and not; where a cap makes draws depend on each other, the server's worst case."""
        book = self.book
        stated = self._composed(costs, charges, beside).stated(self.accountant, book.spec.delta)
        if not book.cap_matters():
            return self._as_drawn(stated, costs)
        why = "with a cap draws depend on earlier ones, so that the server's worst case is claimed and no mixture"
        return replace(stated, view="third_party", basis=f"{stated.basis}; {why}")

    def _composed(self, costs: Mapping[int, RoundCost], charges: Iterable[Charge], beside: ReleasesBySilo) -> Composed:
        """What `mixture` states."""
        book, pattern, silos = self.book, AlikeRounds(costs, self.book.pricing.planned), self.book.silos
        if not book.cap_matters():
            return book.once(
                "mixture",
                (costs, charges, beside),
                lambda: third_party_composed(
                    charges, silos=silos, participation=Probabilities(costs), pattern=pattern, beside=beside
                ),
            )
        return worst_case_composed(
            charges, silos=silos, rounds=costs, pattern=pattern, cap=most_attempts(book), beside=beside
        )

    def _epsilon(self, costs: Mapping[int, RoundCost], again: Sequence[Charge], beside: ReleasesBySilo) -> float:
        """`mixture`'s epsilon, where ``again`` is all that was released more than once."""
        return self.mixture(costs, again, beside).epsilon if again else self._counted(Counter(costs.values()), beside)

    def _counted(self, counted: Counter[RoundCost], beside: ReleasesBySilo) -> float:
        """`mixture`'s epsilon of so many rounds of each cost, counted and not looked at."""
        return worst_epsilon(self.accountant, self._compositions(counted, beside), self.book.spec.delta)

    def _compositions(
        self, counted: Counter[RoundCost], beside: ReleasesBySilo, participants: Iterable[int] = ()
    ) -> list[Terms]:
        book = self.book
        if book.cap_matters():
            return book.everywhere(counted, beside, participants=participants)
        if any(cost.share != WHOLE for cost in counted):
            composed = self._composed(dict(enumerate(counted.elements())), (), beside)
            return list(itertools.chain(*composed.compositions.values()))
        mixtures = []
        for silo in book.silos:
            made = [
                Term(release=one.release, count=one.count, rounds=rounds, participation=cost.probability)
                for cost, rounds in counted.items()
                for one in book.pricing.planned(silo, cost)
            ]
            mixtures += [normalise([*made, *terms]) for terms in terms_beside(beside, silo)]
        return mixtures

    def _as_counted(self, rounds: Counter[RoundCost]) -> Counter[RoundCost]:
        """As a third party's epsilon counts them; see `Pricing.dearest`."""
        found: Counter[RoundCost] = Counter()
        costs = dict(enumerate(rounds))
        for n, cost in self.book.pricing.dearest(costs).items():
            found[cost] += rounds[costs[n]]
        return found

    def stated(self, costs: Mapping[int, RoundCost], charges: Iterable[Charge], beside: ReleasesBySilo) -> ViewEpsilon:
        """The third party's guarantee where the draws of participants may decide how a run goes.

        With a budget in the server's view a run ends when some silo has been drawn too often. Its length then depends
        on the draws, and the mixture over the rounds that happened to run proves nothing. What holds is the mixture
        over the most rounds that any draws allow, and the budget itself, which no silo passes whatever is drawn.
        Where rounds differ in their noise, their length or their records, those that other draws would have allowed
        are not followed up: given who was drawn, a third party sees no more than the server, and that is claimed. So it
        is of a run that failed, as it does again and again where a silo that is broken is drawn.
        """
        book = self.book
        alike = book.pricing.dearest(costs)
        ended = self._draws_decide(alike.values())
        if (why := self._why_given(alike, ended)) is not None:
            given = self.mixture(made_certain(costs), charges, beside)
            given = replace(given, basis=f"{given.basis}; {why}")
            return self._within_budget(given) if ended else given
        if not ended:
            return self._named(self.mixture(alike, charges, beside), alike)
        if book.cap_matters():
            return self._within_budget(self.mixture(costs, charges, beside))
        drawn = [round for round, cost in alike.items() if cost.probability < 1]
        padded = dict(alike)
        if len(alike) != book.spec.rounds:
            first, last, limit = max(alike) + 1, alike[max(drawn)], book.spec.rounds or MOST_ROUNDS
            if last.share == WHOLE:  # rounds on other records may go on where more on the same would not
                limit = self._most_rounds_of_any_draws(last)
            padded |= dict.fromkeys(range(first, first + limit - len(drawn)), last)
        mixture = self.mixture(padded, charges, beside)
        named = replace(mixture, basis=f"{mixture.basis}; over the {len(padded)} rounds that the budget may allow")
        return self._within_budget(named)

    def _why_given(self, costs: Mapping[int, RoundCost], ended: bool) -> str | None:
        """Why no more is claimed than given who was drawn; None where more is.

        Args:
            ended: whether the draws may decide how long the run is.
        """
        if all(cost.probability == 1 for cost in costs.values()):
            return None
        lengths = any(cost.most for cost in costs.values())
        if self.book.failed:
            return FAILED
        if lengths and any(round not in self.book.costs for round in costs):
            return UNKNOWN_LENGTHS
        return GIVEN_WHO if ended and (self.book.rules.varies or lengths or not self._known_to_come(costs)) else None

    def _known_to_come(self, costs: Mapping[int, RoundCost]) -> bool:
        """Whether rounds that other draws would have allowed cost no more than if they were the last one again.

        So it is where no more are planned, or where all since the first that was drawn are alike. Rounds that read a
        part of the records are followed by those that read another, and of fewer records a batch is a larger part,
        unless the sampler has one rate for all parts; on one part, more rounds then cost more than on several.
        """
        sampler = self.book.rules.sampler
        if len(costs) == self.book.spec.rounds:
            return True
        first = min(round for round, cost in costs.items() if cost.probability < 1)
        since = [cost for round, cost in costs.items() if round >= first]
        one_rate = sampler.name in ("full", "poisson")
        read_alike = one_rate or all(cost.share == WHOLE for cost in since)
        return read_alike and len({replace(cost, share=WHOLE) for cost in since}) == 1

    def _draws_decide(self, costs: Iterable[RoundCost]) -> bool:
        """Whether the draws of participants may decide how long a run of such rounds is."""
        drawn = any(cost.probability < 1 for cost in costs)
        return drawn and self.budget is not None and self.book.spec.view == "server"

    def _as_drawn(self, view: ViewEpsilon, costs: Mapping[int, RoundCost]) -> ViewEpsilon:
        """With a word in its basis on how participants were drawn, where the number is an average over the draw."""
        if self.book.rules.fresh or all(cost.probability == 1 for cost in costs.values()):
            return view
        return replace(view, basis=f"{view.basis}; {FROM_THE_SEED}")

    def _named(self, view: ViewEpsilon, costs: Mapping[int, RoundCost]) -> ViewEpsilon:
        """With a word in its basis on rounds that were drawn and count as certain, for the sake of their schedule."""
        drawn = self.book.spec.num_participants < self.book.spec.num_silos
        if not (self.book.rules.varies and drawn and any(cost.probability == 1 for cost in costs.values())):
            return view
        why = "rounds for which no mixture is proven, by their noise schedule, count as the server's worst case"
        return replace(view, basis=f"{view.basis}; {why}")

    def _within_budget(self, view: ViewEpsilon) -> ViewEpsilon:
        assert self.budget is not None
        if view.epsilon <= self.budget.most or self.budget.accountant != self.accountant:
            return view  # a second opinion does not lean on what another accountant allowed
        basis = "the budget, which no silo's releases pass, whoever is drawn"
        return replace(view, epsilon=self.budget.most, basis=basis)

    def _most_rounds_of_any_draws(self, cost: RoundCost) -> int:
        """The most rounds before every silo has used up its budget, or those of the configuration if that is fewer."""
        assert self.budget is not None
        spec = self.book.spec
        limit = spec.rounds or MOST_ROUNDS
        kinds = {self.book.kind(silo): silo for silo in self.book.silos}
        most = {kind: self.most_rounds(silo, cost, self.budget.of(silo).epsilon, limit) for kind, silo in kinds.items()}
        # In a round; with replacement one silo may be all who are drawn.
        fewest = 1 if cost.participation.law == "with_replacement" else spec.num_participants
        return min(limit, sum(most[self.book.kind(silo)] for silo in range(len(spec.num_records))) // fewest)
