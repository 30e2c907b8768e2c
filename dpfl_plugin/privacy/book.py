"""The book of a run: what it has begun and released, as far as any claim or decision goes by it."""

from __future__ import annotations

import bisect
import copy
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from dpfl_plugin.errors import PluginError
from dpfl_plugin.privacy.composition import Planned, ReleasesBySilo, Spending, Terms
from dpfl_plugin.privacy.costs import MOST_ROUNDS, RoundCost, Rounds, made_certain
from dpfl_plugin.privacy.events import Batch, Charge, batches
from dpfl_plugin.privacy.extra_releases import NOT_RUN, Beside, BesideMade
from dpfl_plugin.privacy.extra_releases import Kind as ExtraKind
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.pricing import Pricing
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.spec import BudgetSpec
from dpfl_plugin.privacy.tally import Tally
from dpfl_plugin.privacy.views import worst_case_terms

Made = TypeVar("Made")
Kind = tuple[int, int, float | None]
"""(number of records, settings of its own, budget) of a silo."""


class Book:
    """What a run has begun and released, what that costs, and who may still take part.

    Args:
        beside: what is planned beside the rounds.
        costs, pending, lost, stating: as `dpfl_plugin.privacy.account.PrivacyAccount`.

    Attributes:
        pricing: what rounds cost.
        extra: what was released beside the rounds.
        costs: of the rounds that were begun, as far as a checkpoint or this process knows.
        found: of rounds, as the charges of the ledger show them when it is opened.
        rounds: what those cost that count, how many of each.
        spending: what silos released in rounds.
        noise_ids: names of noise of each round. repeated: rounds that have several.
        kinds: a silo for each number of records, settings of its own and past; the others cost the same.
        eligible: silos below the cap, ascending.
        failed: whether the run ended on an error, which may come of who was drawn.
    """

    def __init__(
        self,
        spec: BudgetSpec,
        rules: PrivacyRules,
        ledger: Ledger,
        *,
        beside: Beside,
        costs: Mapping[int, RoundCost],
        pending: Callable[[Charge], bool],
        lost: bool,
        stating: bool,
    ) -> None:
        self.spec, self.rules, self.ledger, self.stating = spec, rules, ledger, stating
        self.failed = False
        self._cap = spec.max_participations
        self._made_once: list[tuple[str, tuple[object, ...], Any]] = []  # of a ledger that does not grow: see `once`
        ledger.tally.settle(beside.guessed_kind)
        self.extra = BesideMade(beside, rules, spec.num_records)
        self.pricing = Pricing(spec, rules, lost=lost)
        self.costs = made_certain(costs) if lost else Rounds(costs)
        alike = (cost.num_releases for cost in self.costs.values() if cost.probability < 1 and cost.most is None)
        self._length = next(alike, None)  # releases of every drawn round, if they do not differ in that
        # For a statement alone, what only decisions go by is not worked out: it would take more than the ledger.
        final = self._to_state() if stating else [charge for charge in ledger if not pending(charge)]
        self._pending = not stating and len(final) < len(ledger)
        in_rounds = [] if stating else of_rounds(final)
        self.spending, self.found = Spending(in_rounds), self.pricing.rounds_in(in_rounds)
        self._count_rounds()
        self.eligible, self._participations = list(range(spec.num_silos)), defaultdict[int, set[tuple[int, str]]](set)
        self.noise_ids, self.repeated = defaultdict[int, set[str]](set), set[int]()
        self._note(batches(final))
        self.kinds = _first_of_each(self)

    @property
    def lost(self) -> bool:
        """Whether silos were lost while the run went on."""
        return self.pricing.lost

    def _count_rounds(self) -> None:
        self.rounds = Counter({**self.found, **self.costs}.values())

    def cost_of(self, round: int) -> RoundCost | None:
        """What a round that counts costs."""
        return self.costs.get(round, self.found.get(round))

    # What happens

    def begin(self, round: int, cost: RoundCost) -> None:
        """The round is about to run: it counts from here on, whether it finishes or not.

        Raises:
            PluginError: sampled rounds differ in their number of gradients, and do not say what the most is.
        """
        if cost.probability < 1 and cost.most is None:
            self._length = cost.num_releases if self._length is None else self._length
            self.pricing.check_length(cost.num_releases, self._length, "as many as in other rounds")
        cost = self.dearer(round, cost)
        self.rounds = self.with_round(round, cost)
        self.costs[round] = cost

    def with_round(self, round: int, cost: RoundCost) -> Counter[RoundCost]:
        """What rounds cost, how many of each, were this one of them."""
        rounds, before = Counter(self.rounds), self.cost_of(round)
        if before is not None:
            rounds[before] -= 1
        rounds[cost] += 1
        return +rounds

    def add(self, made: Sequence[Batch]) -> None:
        """Append charges to the ledger, and count them."""
        self.ledger.append_all(made)
        self.spending.add_all((first, silos) for first, silos in made if first.kind == "round")
        self._note(made)

    def lose(self) -> None:
        """The run goes on without some of its silos.

        Who takes part from here on may depend on records, since a record may make its silo fail. So nothing is made
        of the draws of participants any more, in rounds before and after: each counts as if a silo had taken part for
        certain, which bounds whatever decided that it did.
        """
        self.pricing.lose()
        made = [charge for charge in self.ledger if charge.noise_id != NOT_RUN]
        if self._pending:  # without all silos they will not be made again
            self.spending.add(of_rounds(made))  # what it knows it does not count twice
            self._note(batches(made))
            self._pending = False
        self.found = self.pricing.rounds_in(of_rounds(made))
        self.costs = made_certain(self.costs)
        for round, cost in list(self.costs.items()):
            self.costs[round] = _dearer(cost, self.found.get(round))
        self._count_rounds()

    def check_planned(self, made: Iterable[Batch]) -> None:
        """Raise PluginError if silos released other than the budget was checked for.

        As with a schedule that answers anew each time, or a plugin that is another one at a silo's rank.
        """
        for charge, silos in made:
            cost = self.costs.get(charge.round)
            if cost is None or charge.kind != "round":
                continue
            sizes = {self.pricing.kind(silo): silo for silo in reversed(silos)}  # silos of one kind have one plan
            for silo in sorted(sizes.values()):
                if charge.count <= self.pricing.counts(silo, cost).get(charge.release, 0):
                    continue
                levels = ", ".join(f"{count} of noise_multiplier {noise:g}" for noise, count in cost.levels)
                raise PluginError(
                    f"silo {silo} made {charge.count} releases of noise_multiplier "
                    f"{charge.release.noise_multiplier:g} in round {charge.round + 1}, which was planned with "
                    f"{levels or 'none'}: the mechanism and the factors of privacy.schedule must be the same whenever, "
                    "and wherever, they are asked for. Nothing of this left the silo."
                )

    def dearer(self, round: int, cost: RoundCost) -> RoundCost:
        """A round that is repeated and planned anew counts as the dearer of its attempts: silos were lost, or a cap,
        which attempts count towards, had others drawn, whose warm-up is longer or shorter. An attempt of which nothing
        was charged is none."""
        before = self.costs.get(round) if self.lost or self.noise_ids.get(round) else None
        return _dearer(_dearer(cost, before), self.found.get(round))

    def _note(self, made: Iterable[Batch]) -> None:
        """Count charges, of rounds and beside them, for all but the spending."""
        for charge, silos in made:
            kind = charge.kind
            assert kind is not None  # see `settle`
            if kind != "round":
                self.extra.note(kind, charge, silos)
                continue
            noise_ids = self.noise_ids[charge.round]
            noise_ids.add(charge.noise_id)
            if len(noise_ids) > 1:
                self.repeated.add(charge.round)
            if self._cap is None:
                continue
            for silo in silos:
                self._participations[silo].add((charge.round, charge.noise_id))
                if len(self._participations[silo]) >= self._cap:
                    self._retire(silo)

    def _retire(self, silo: int) -> None:
        """A silo has reached the cap."""
        place = bisect.bisect_left(self.eligible, silo)
        if self.eligible[place : place + 1] == [silo]:
            del self.eligible[place]

    # What is known

    @property
    def beside(self) -> ReleasesBySilo:
        """What is to be composed with the rounds: all that is planned beside them."""
        return self.extra.releases(ahead=True)

    def with_next(self, kind: ExtraKind, round: int, noise_id: str) -> ReleasesBySilo:
        """`beside`, were this released by all silos, next."""
        return self.extra.releases(ahead=True, following=(kind, round, noise_id))

    @property
    def silos(self) -> list[int]:
        """One of each kind, ascending."""
        return sorted(self.kinds.values())

    def kind(self, silo: int) -> Kind:
        """All that what rounds cost a silo depends on, and its budget."""
        return *self.pricing.kind(silo), self.spec.epsilons.get(silo, self.spec.epsilon)

    def cap_matters(self) -> bool:
        """Whether a silo may reach the cap, so that who is drawn later depends on who was drawn before."""
        if self._cap is None:
            return False
        again = sum(len(self.noise_ids[round]) - 1 for round in self.repeated)
        return self._cap < (self.spec.rounds or MOST_ROUNDS) + again

    def alike(self) -> defaultdict[Kind, list[int]]:
        """Those that released something, by what an epsilon of theirs depends on besides."""
        alike: defaultdict[Kind, list[int]] = defaultdict(list)
        for silo in self.spending:
            alike[self.kind(silo)].append(silo)
        return alike

    def everywhere(
        self,
        counted: Counter[RoundCost],
        beside: ReleasesBySilo | None = None,
        silos: Iterable[int] | None = None,
        participants: Iterable[int] = (),
    ) -> list[Terms]:
        """Compositions of silos that take part in every round, or in as many as they may; one of each kind.

        Args:
            silos: of which; None for all.
            participants: who is about to take part. No draw goes beyond the cap, but what is released counts.
        """
        cap = self._cap
        if cap is not None:
            made = {silo: len(rounds) for silo, rounds in self._participations.items()}
            cap = max([cap, *made.values(), *(made.get(silo, 0) + 1 for silo in participants)])
        beside = self.beside if beside is None else beside
        found: list[Terms] = []
        for silo in self.silos if silos is None else silos:
            plans: Counter[tuple[Planned, ...]] = Counter()  # rounds of different costs may make the same releases
            for cost, rounds in counted.items():
                plans[tuple(self.pricing.planned(silo, cost))] += rounds
            found += worst_case_terms(plans, cap, beside.get(silo, ()))
        return found

    def released_again(
        self, costs: Mapping[int, RoundCost], more: Mapping[int, set[str]] | None = None
    ) -> list[Charge]:
        """Charges of one silo, as good as any, for each round that was released more than once with fresh noise."""
        silo, charges = self.silos[0], []
        for round, noise_ids in {**self.noise_ids, **(more or {})}.items():
            if len(noise_ids) > 1:
                for noise_id in noise_ids:
                    charges += self.pricing.charges(silo, round, costs[round], noise_id)
        return charges

    def charged(self) -> tuple[Tally, Rounds[RoundCost]]:
        """The charges of rounds, and what rounds cost: of a run that was killed, only the ledger may know the last."""
        tally = self.ledger.tally
        if not tally.only_rounds:
            tally = tally.only(lambda entry: self.ledger.tally.kind(entry) == "round")
        costs = self.pricing.rounds_in(tally)
        costs.update({round: _dearer(cost, costs.get(round)) for round, cost in self.costs.items()})
        return tally, costs

    def _to_state(self) -> list[Charge]:
        """What a statement has to know of the ledger by charge: releases beside the rounds, and those of rounds with
        several names of noise."""
        tally = self.ledger.tally
        kind_of = tally.kind
        several = tally.several()
        return [tally.charge(entry) for entry in tally.entries() if entry.round in several or kind_of(entry) != "round"]

    def once(self, what: str, by: tuple[object, ...], make: Callable[[], Made]) -> Made:
        """What ``make`` gives; worked out once for these very objects and all accountants, if only to be stated."""
        for name, known, made in self._made_once:
            if name == what and len(known) == len(by) and all(map(operator.is_, known, by)):
                return made  # type: ignore[no-any-return]
        made = make()
        if self.stating:
            self._made_once.append((what, by, made))
        return made


def _first_of_each(book: Book) -> dict[Kind, int]:
    """The first silo of each kind; looked at once for all that differ in nothing that a kind is made of."""
    num_records, apart = book.spec.num_records, {*book.rules.silos, *book.spec.epsilons}
    firsts: dict[tuple[int, int | None], int] = {}
    for silo in reversed(range(len(num_records))):
        firsts[num_records[silo], silo if silo in apart else None] = silo
    kinds: dict[Kind, int] = {}
    for silo in firsts.values():
        kind = book.kind(silo)
        kinds[kind] = min(silo, kinds.get(kind, silo))
    return kinds


def _dearer(cost: RoundCost, other: RoundCost | None) -> RoundCost:
    """A round's cost, with the releases of another attempt at it where those are more."""
    return cost if other is None or other.num_releases <= cost.num_releases else replace(cost, levels=other.levels)


def of_rounds(charges: Iterable[Charge]) -> list[Charge]:
    """Those of rounds, and nothing beside them."""
    return [charge for charge in charges if charge.kind == "round"]


def as_stated(book: Book) -> Book:
    """The book as a statement has it: rounds that are to be made again were released, and count there."""
    if not book._pending:
        return book
    stated = Book(
        book.spec,
        book.rules,
        book.ledger,
        beside=book.extra.plan,
        costs=book.costs,
        pending=lambda charge: False,
        lost=book.lost,
        stating=True,
    )
    stated.failed = book.failed
    return stated


def with_ledger(book: Book, ledger: Ledger) -> Book:
    """The book with another ledger, which does not grow: to be stated, and never charged or asked to decide."""
    other = copy.copy(book)
    other.ledger, other.stating, other._made_once = ledger, True, []
    return other


def most_attempts(book: Book) -> int | None:
    """In how many rounds, attempts included, a silo may have been: the cap, or more where the ledger says so.

    No draw goes beyond the cap. But a statement is of what was released, whatever let it be.
    """
    cap, tally = book.spec.max_participations, book.ledger.tally
    if cap is None:
        return None
    made = {(entry.silo, entry.round, entry.noise) for entry in tally.entries() if tally.kind(entry) == "round"}
    return max([cap, *Counter(silo for silo, _, _ in made).values()])


def attempts(book: Book) -> Counter[RoundCost]:
    """What rounds that count by now cost, each as often as it was released."""
    counted: Counter[RoundCost] = Counter()
    for round, cost in {**book.found, **book.costs}.items():
        counted[cost] += max(1, len(book.noise_ids.get(round, ())))
    return counted
