"""The account of a run: what it has begun and released, what each observer may learn of that, and what is affordable.

Charges are made before what they charge leaves a silo (`append`, `sync`), and rounds count from `begin_round` on,
whether they finish or not. What observers learn is in `dpfl_plugin.privacy.observers`.
"""

from __future__ import annotations

import bisect
import copy
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpfl_plugin.core.rounding import digits
from dpfl_plugin.errors import PluginError
from dpfl_plugin.privacy import budget_forecast
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.budget import Budget
from dpfl_plugin.privacy.composition import Planned, ReleasesBySilo, Spending, Terms
from dpfl_plugin.privacy.costs import MOST_ROUNDS, Pricing, RoundCost, costlier, made_certain
from dpfl_plugin.privacy.events import Batch, Charge, batches
from dpfl_plugin.privacy.extra_releases import NOT_RUN, ExtraKind, ExtraPlan, ExtraReleases
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.observers import Server, Statement, ThirdParty, finite, outsider
from dpfl_plugin.privacy.participation import Draw, PlannedRound
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.shared_ledger import Joint, Registration
from dpfl_plugin.privacy.spec import BudgetSpec
from dpfl_plugin.privacy.tally import Tally
from dpfl_plugin.privacy.views import View, ViewEpsilon, in_every_round

TOO_FEW_LEFT = "too few silos may take part in another round"  # how a reason begins that is the cap, not the budget

SiloKind = tuple[int, int, float | None]
"""(number of records, settings of its own, budget) of a silo."""


@dataclass(frozen=True, slots=True)
class _Cleared:
    """Rounds that are known to fit the budget: those before ``until``, if they are planned as ``shape`` says."""

    shape: tuple[object, ...] = ()
    until: int = 0


class PrivacyAccount:
    """The ledger of a run with its accountant, its budget and its views.

    Runtimes `append` charges and `sync` before anything leaves; both go to the ledger, and to the shared one before.

    Args:
        spec: what the run may spend, and who spends it.
        extra_plan: what is planned beside the rounds.
        draw: who would take part in rounds to come, for `expected_rounds` alone.
        shared: a ledger that other runs on the same data write to as well. The budget is this run's alone.
        costs: of the rounds that were begun before a resume, from the checkpoint.
        pending: whether a charge of the ledger will be made again, in a seeded round after the checkpoint. Until then
            neither the budget nor an evaluation counts it, so that a resumed run takes the undisturbed one's way.
        budget_accountant: what the budget of the run goes by, where ``accountant`` is a second opinion.
        lost: whether silos were lost while the run went on; see `lose`.
        stating: whether it only states what the ledger holds: it is asked for views, and decides and charges nothing.

    Attributes:
        ledger: what every charge is in before its release leaves.
        rules: how the run's releases are made.
        registration: the run's slots in the shared ledger.
        pricing: what rounds cost.
        costs: of the rounds that were begun, as far as a checkpoint or this process knows, by round.
        found: of rounds, as the charges of the ledger show them when it is opened.
        rounds: what those cost that count, how many of each.
        extra: what was released beside the rounds.
        spending: what silos released in rounds.
        noise_ids: names of noise of each round. repeated: rounds that have several.
        kinds: the first silo of each number of records, settings of its own and budget; the others cost the same.
        failed: whether the run ended on an error, which may come of who was drawn: a silo that is broken, say, ends it
            as soon as it is drawn.
    """

    def __init__(
        self,
        spec: BudgetSpec,
        *,
        rules: PrivacyRules,
        accountant: Accountant,
        extra_plan: ExtraPlan,
        draw: Draw,
        ledger: Ledger,
        shared: Ledger | None = None,
        costs: Mapping[int, RoundCost] | None = None,
        pending: Callable[[Charge], bool] = lambda charge: False,
        budget_accountant: Accountant | None = None,
        lost: bool = False,
        stating: bool = False,
    ) -> None:
        self.spec, self.rules, self.accountant, self.draw = spec, rules, accountant, draw
        self.ledger, self.shared, self.failed, self._stating = ledger, shared, False, stating
        self.registration: Registration | Joint | None = None
        self.budget: Budget | None = None
        if spec.epsilon is not None:
            self.budget = Budget(spec.epsilon, spec.delta, budget_accountant or accountant, spec.epsilons)
        ledger.tally.settle(extra_plan.guessed_kind)
        self.extra = ExtraReleases(extra_plan, rules, spec.num_records)
        self.pricing = Pricing(spec, rules, lost=lost)
        self.costs = {round: made_certain(cost) if lost else cost for round, cost in (costs or {}).items()}
        alike = (cost.num_releases for cost in self.costs.values() if cost.probability < 1 and cost.most is None)
        self._length = next(alike, None)  # releases of every drawn round, if they do not differ in that
        # For a statement alone, what only decisions go by is not worked out: it would take more than the ledger.
        final = self._to_state() if stating else [charge for charge in ledger if not pending(charge)]
        self._pending = not stating and len(final) < len(ledger)
        in_rounds = [] if stating else _of_rounds(final)
        self.spending, self.found = Spending(in_rounds), self.pricing.rounds_in(in_rounds)
        self._count_rounds()
        self._eligible, self._participations = list(range(spec.num_silos)), defaultdict[int, set[tuple[int, str]]](set)
        self.noise_ids, self.repeated = defaultdict[int, set[str]](set), set[int]()
        self._cleared = _Cleared()
        self._note(batches(final))
        self.kinds: dict[SiloKind, int] = {}
        for silo in range(len(spec.num_records)):
            self.kinds.setdefault(self.kind(silo), silo)

    # What a runtime does

    def append(self, charges: Sequence[Charge]) -> None:
        """Charge what silos are about to send.

        Raises:
            PluginError: the noise is not what the round was checked for; nothing was charged, and nothing may leave.
        """
        assert not self._stating
        made = list(batches(charges))
        self._check_planned(made)
        if self.registration is not None:
            self.registration.take(made)
        if self.shared is not None:
            self.shared.append_all(made)
        self.ledger.append_all(made)
        self.spending.add_all((first, silos) for first, silos in made if first.kind == "round")
        self._note(made)

    def sync(self) -> None:
        # The shared ledger first: what a run's own ledger holds, other runs have to know of too. After a crash between
        # the two nothing has left, and a resume adds to each what only the other holds.
        if self.shared is not None:
            self.shared.sync()
        self.ledger.sync()

    def begin_round(self, round: int, plan: PlannedRound) -> None:
        """The round is about to run: it counts from here on, whether it finishes or not.

        Raises:
            PluginError: sampled rounds differ in their number of gradients, and do not say what the most is.
        """
        cost = self.pricing.cost(round, plan)
        if cost.probability < 1 and cost.most is None:
            self._length = cost.num_releases if self._length is None else self._length
            self.pricing.check_length(cost.num_releases, self._length, "as many as in other rounds")
        cost = self.costliest_attempt(round, cost)
        if self._cleared.shape != _shape(plan):
            self._cleared = _Cleared()
        self.rounds = self.with_round(round, cost)
        self.costs[round] = cost
        if self.registration is not None:
            self.registration.reserve({silo: self.pricing.planned(silo, cost) for silo in plan.participants})

    def lose(self) -> None:
        """The run goes on without some of its silos.

        Who takes part from here on may depend on records, since a record may make its silo fail. So nothing is made
        of the draws of participants any more, in rounds before and after: each counts as if a silo had taken part for
        certain, which bounds whatever decided that it did.
        """
        self.pricing.lost = True
        made = [charge for charge in self.ledger if not charge.noise_id.startswith(NOT_RUN)]
        if self._pending:  # without all silos they will not be made again
            self.spending.add(_of_rounds(made))  # what it knows it does not count twice
            self._note(batches(made))
            self._pending = False
        self.found = self.pricing.rounds_in(_of_rounds(made))
        for round, cost in self.costs.items():
            self.costs[round] = costlier(made_certain(cost), self.found.get(round))
        self._count_rounds()
        self._cleared = _Cleared()

    def was_released(self, kind: ExtraKind, silo: int, round: int, noise_id: str) -> bool:
        """Whether a release beside the rounds was charged."""
        return self.extra.was_released(kind, silo, round, noise_id)

    def charges(self, round: int, plan: PlannedRound, noise_id: str = "rehearsal") -> list[Charge]:
        """What a round will charge, for rehearsals."""
        cost = self.pricing.cost(round, plan)
        return [one for silo in plan.participants for one in self.pricing.charges(silo, round, cost, noise_id)]

    def charge_scores_not_made(self, rounds: Iterable[int], noise_id: str = NOT_RUN) -> None:
        """Charge scores that were planned after so many ``rounds`` each, as if they had been made."""
        self.append(self.extra.scores_not_made(rounds, noise_id))

    # What is affordable

    def eligible(self) -> Sequence[int] | None:
        """The silos that may take part once more; None where nothing caps it.

        What was released counts, not what was planned.
        """
        return None if self.spec.max_participations is None else self._eligible

    def cap_reason(self, lost: Collection[int] = ()) -> str:
        """Why no round can be made where a cap leaves too few silos, ``lost`` ones apart."""
        spec, left = self.spec, len(set(self.eligible() or ()) - set(lost))
        without = f" and {len(lost)} were lost" if lost else ""
        took = f"{left} of {spec.num_silos} took part in fewer than max_participations={spec.max_participations}"
        return f"{TOO_FEW_LEFT}: {took}{without}"

    def affords(self, round: int, plan: PlannedRound) -> bool:
        """Whether a round, the next to come, stays within the budget."""
        assert not self._stating
        if self.budget is None and not self._limited:
            return True
        cost = self.costliest_attempt(round, self.pricing.cost(round, plan))
        if self._beyond_limit({silo: self.pricing.planned(silo, cost) for silo in plan.participants}):
            return False
        if self.budget is None:
            return True
        if not self.rules.varies:
            return self.bounded.affords(round, cost, plan)
        drawn_may_fit = self.spec.view == "server"
        return self._whoever_is_drawn(round, plan) or (drawn_may_fit and self.server.affords(round, cost, plan))

    def _whoever_is_drawn(self, round: int, plan: PlannedRound) -> bool:
        """Whether the next round stays within the budget, whoever is drawn, where rounds differ in their noise.

        Looks for how many rounds with this plan do, so that most rounds need no epsilon to be computed: releases that
        fit together with more fit without, until something else is released, or a round once more.
        """
        again = bool(self.noise_ids.get(round))
        if again or self._cleared.shape != _shape(plan) or round >= self._cleared.until:
            self._cleared = _Cleared(_shape(plan), round + budget_forecast.most_rounds(self, round, plan))
        return round < self._cleared.until

    def affords_extra(self, kind: ExtraKind, round: int, noise_id: str) -> bool:
        """Whether a release beside the rounds, the next of all silos, stays within the budget.

        Together with what was spent and with all that is planned. That has room for each such release once: one that a
        crash makes silos make again with fresh noise is another.
        """
        if self._limited:
            one, _ = self.extra_plan.planned(kind, self.rules, min(self.spec.num_records))
            if self._beyond_limit({silo: [one] for silo in range(self.spec.num_silos)}):
                return False
        if self.budget is None:
            return True
        return self.bounded.affords_extra(self.extra.releases(ahead=True, following=(kind, round, noise_id)))

    def affords_all(self, rounds: Counter[RoundCost]) -> bool:
        """Whether the budget lets rounds with these costs happen, so many of each, whoever is drawn."""
        return self.budget is None or self.bounded.affords_all(rounds)

    def look_ahead(self, rounds: Counter[RoundCost]) -> None:
        """Have the budget know whether rounds with these costs, so many of each, all fit: then so do fewer.

        Noise is solved for them together, and an accountant's error may make a part look dearer than the whole.
        """
        for budget, terms in self.server.certain_compositions(rounds) if self.budget is not None else ():
            budget.holds(terms)

    def expected_rounds(self, plan: PlannedRound, limit: int) -> int:
        """How many rounds like ``plan`` the budget allows in all, up to ``limit``; for schedules and the ETA only."""
        return budget_forecast.expected_rounds(self, plan, limit)

    @property
    def restricts(self) -> bool:
        """Whether a budget, a limit or a cap may end a run."""
        return self.budget is not None or self._limited or self.spec.max_participations is not None

    def why_not(self) -> str:
        """Why the budget allows no further round."""
        if (spec := self.spec).epsilon is None:
            if self._limited:
                return "the limit of the shared ledger affords no more than this run registered"
            return "there is no budget"
        view = spec.view.replace("_", " ")
        worst = ", as the server's worst case since silos were lost" * (self.lost and view == "third party")
        return f"one more would pass epsilon {spec.epsilon:g} at delta {digits(spec.delta, 6)} ({view} view){worst}"

    @property
    def _limited(self) -> bool:
        """Whether the shared ledger has a limit."""
        return self.registration is not None and self.registration.limited

    def _beyond_limit(self, wanted: Mapping[int, Sequence[Planned]]) -> bool:
        """Whether releases pass the limit of the shared ledger."""
        return self.registration is not None and not self.registration.affords(wanted)

    # What observers learn

    @property
    def server(self) -> Server:
        return Server(self)

    @property
    def third_party(self) -> ThirdParty:
        return ThirdParty(self)

    @property
    def bounded(self) -> Server | ThirdParty:
        """Whose epsilon the budget bounds."""
        return self.server if self.spec.view == "server" else self.third_party

    def epsilons_so_far(self) -> dict[str, float | None]:
        """Epsilon spent in each view; None where nothing is guaranteed."""
        third_party = self.third_party.epsilon_so_far(self.extra.releases(ahead=False))
        if self.budget is not None and self.spec.view == "server" and not self.lost:
            third_party = min(third_party, self.budget.largest)  # which holds towards the server, whoever is drawn
        return {"server": self.server_so_far(), "third_party": finite(third_party)}

    def server_so_far(self) -> float | None:
        """Epsilon spent in the server's view; None where nothing is guaranteed."""
        server = self.server.spent(self.extra.releases(ahead=False))
        if self.budget is not None and self.spec.view == "server" and self.rules.varies:
            server = min(server, self.budget.largest)
        return finite(server)

    def ahead(self) -> tuple[float, float]:
        """Epsilon of all rounds that were begun: of a silo in as many of them as may be, and a third party's."""
        return self.epsilon_ahead("server"), self.third_party.of_begun()

    def epsilon_ahead(self, view: View) -> float:
        """Epsilon of all rounds begun (for the server: all attempts), whoever is drawn; no budget."""
        return self.epsilon_of(self._attempts() if view == "server" else Counter(self.costs.values()), view)

    def _attempts(self) -> Counter[RoundCost]:
        """What rounds that count by now cost, each as often as it was released."""
        counted: Counter[RoundCost] = Counter()
        for round, cost in {**self.found, **self.costs}.items():
            counted[cost] += max(1, len(self.noise_ids.get(round, ())))
        return counted

    def epsilon_of(self, rounds: Counter[RoundCost], view: View) -> float:
        """`epsilon_ahead` of rounds with these costs, so many of each."""
        return (self.server if view == "server" else self.third_party).epsilon_of(rounds)

    def outsider(self) -> ViewEpsilon | None:
        """What an outsider is promised, who does not know who took part; None where nothing is proven of that."""
        return outsider(self, self.accountant)

    def statement(self) -> Statement:
        """What can be stated of the ledger as it is now, by any accountant.

        Rounds that are to be made again were released, and count there.
        """
        if not self._pending:
            return Statement(self)
        other = PrivacyAccount(
            self.spec,
            rules=self.rules,
            accountant=self.accountant,
            extra_plan=self.extra_plan,
            draw=self.draw,
            ledger=self.ledger,
            costs=self.costs,
            lost=self.lost,
            stating=True,
        )
        other.failed, other.budget = self.failed, self.budget
        return Statement(other)

    def views(self) -> dict[str, Any]:
        """The guarantees as plain values: the server's (realised, and the worst case) and a third party's."""
        return self.statement().views(self.accountant)

    def per_silo(self) -> list[dict[str, Any]]:
        """Each silo's records, participation and epsilon towards the server."""
        return Statement(self).per_silo(self.accountant)

    def holding(self, ledger: Ledger) -> PrivacyAccount:
        """This account with another ledger, which does not grow, to state what is about to be charged: no more."""
        other = copy.copy(self)
        other.ledger, other._stating = ledger, True
        return other

    # What it is an account of

    @property
    def lost(self) -> bool:
        """Whether silos were lost while the run went on."""
        return self.pricing.lost

    @property
    def extra_plan(self) -> ExtraPlan:
        """What is planned beside the rounds."""
        return self.extra.plan

    @property
    def silos(self) -> list[int]:
        """One of each kind, ascending."""
        return sorted(self.kinds.values())

    def kind(self, silo: int) -> SiloKind:
        """All that what rounds cost a silo depends on, and its budget."""
        return *self.pricing.kind(silo), self.spec.epsilons.get(silo, self.spec.epsilon)

    def silos_by_kind(self) -> defaultdict[SiloKind, list[int]]:
        """Those that released something, by what an epsilon of theirs depends on besides."""
        members: defaultdict[SiloKind, list[int]] = defaultdict(list)
        for silo in self.spending:
            members[self.kind(silo)].append(silo)
        return members

    def cap_matters(self) -> bool:
        """Whether a silo may reach the cap, so that who is drawn later depends on who was drawn before."""
        if (cap := self.spec.max_participations) is None:
            return False
        return cap < (self.spec.rounds or MOST_ROUNDS) + sum(number - 1 for number in self.attempts().values())

    def attempts(self) -> dict[int, int]:
        """How often rounds were released, of those that were released more than once."""
        return {round: len(self.noise_ids[round]) for round in self.repeated}

    def costliest_attempt(self, round: int, cost: RoundCost) -> RoundCost:
        """A round that is repeated and planned anew counts as the dearer of its attempts: silos were lost, or a cap,
        which attempts count towards, had others drawn, whose warm-up is longer or shorter. An attempt of which nothing
        was charged is none."""
        before = self.costs.get(round) if self.lost or self.noise_ids.get(round) else None
        return costlier(costlier(cost, before), self.found.get(round))

    def cost_of(self, round: int) -> RoundCost | None:
        """What a round that counts costs."""
        return self.costs.get(round, self.found.get(round))

    def with_round(self, round: int, cost: RoundCost) -> Counter[RoundCost]:
        """What rounds cost, how many of each, were this one of them."""
        rounds, before = Counter(self.rounds), self.cost_of(round)
        if before is not None:
            rounds[before] -= 1
        rounds[cost] += 1
        return +rounds

    def certain_compositions(
        self,
        counted: Counter[RoundCost],
        extra: ReleasesBySilo | None = None,
        silos: Iterable[int] | None = None,
        participants: Iterable[int] = (),
    ) -> list[Terms]:
        """Compositions of silos that take part in every round, or in as many as they may; one of each kind.

        Args:
            silos: of which; None for all.
            participants: who is about to take part.
        """
        cap = self.most_attempts(participants)
        extra = self.extra.releases(ahead=True) if extra is None else extra
        silos = self.silos if silos is None else silos
        return [
            terms
            for of_silo in in_every_round(counted, self.pricing.planned, silos, cap, extra).values()
            for terms in of_silo
        ]

    def most_attempts(self, participants: Iterable[int] = ()) -> int | None:
        """In how many rounds, attempts included, a silo may have been: the cap, or more where the ledger says so.

        No draw goes beyond the cap. But what was released counts, whatever let it be.

        Args:
            participants: who is about to take part once more.
        """
        cap, tally = self.spec.max_participations, self.ledger.tally
        if cap is None:
            return None
        made = {silo: len(rounds) for silo, rounds in self._participations.items()}
        if self._stating:
            of_rounds = (entry for entry in tally.entries() if tally.kind(entry) == "round")
            made = Counter(silo for silo, _, _ in {(entry.silo, entry.round, entry.noise) for entry in of_rounds})
        return max([cap, *made.values(), *(made.get(silo, 0) + 1 for silo in participants)])

    def charged(self) -> tuple[Tally, dict[int, RoundCost]]:
        """The charges of rounds, and what rounds cost: of a run that was killed, only the ledger may know the last."""
        tally = self.ledger.tally
        if not tally.only_rounds:
            tally = tally.only(lambda entry: self.ledger.tally.kind(entry) == "round")
        costs = self.pricing.rounds_in(tally)
        costs.update({round: costlier(cost, costs.get(round)) for round, cost in self.costs.items()})
        return tally, costs

    # How it keeps count

    def _count_rounds(self) -> None:
        self.rounds = Counter({**self.found, **self.costs}.values())

    def _to_state(self) -> list[Charge]:
        """What a statement has to know of the ledger by charge: releases beside the rounds, and those of rounds with
        several names of noise."""
        tally = self.ledger.tally
        several = tally.several()
        return [
            tally.charge(entry) for entry in tally.entries() if entry.round in several or tally.kind(entry) != "round"
        ]

    def _check_planned(self, made: Iterable[Batch]) -> None:
        """Raise PluginError if silos released other than the budget was checked for.

        As with a schedule that answers anew each time, or a plugin that is another one at a silo's rank.
        """
        for charge, silos in made:
            cost = self.costs.get(charge.round)
            if cost is None or charge.kind != "round":
                continue
            sizes = {self.pricing.kind(silo): silo for silo in reversed(silos)}  # silos of one kind have one plan
            for silo in sorted(sizes.values()):
                planned = (one.count for one in self.pricing.planned(silo, cost) if one.release == charge.release)
                if charge.count <= sum(planned):
                    continue
                levels = ", ".join(f"{count} of noise_multiplier {noise:g}" for noise, count in cost.levels)
                raise PluginError(
                    f"silo {silo} made {charge.count} releases of noise_multiplier "
                    f"{charge.release.noise_multiplier:g} in round {charge.round + 1}, which was planned with "
                    f"{levels or 'none'}: the mechanism and the factors of privacy.schedule must be the same whenever, "
                    "and wherever, they are asked for. Nothing of this left the silo."
                )

    def _note(self, made: Iterable[Batch]) -> None:
        """Count charges, of rounds and beside them, for all but the spending."""
        cap = self.spec.max_participations
        for charge, silos in made:
            kind = charge.kind
            assert kind is not None  # see `settle`
            if kind != "round":
                self.extra.note(kind, charge, silos)
                self._cleared = _Cleared()
                continue
            noise_ids = self.noise_ids[charge.round]
            noise_ids.add(charge.noise_id)
            if len(noise_ids) > 1:
                self.repeated.add(charge.round)
                self._cleared = _Cleared()
            if cap is None:
                continue
            for silo in silos:
                self._participations[silo].add((charge.round, charge.noise_id))
                if len(self._participations[silo]) >= cap:
                    self._retire(silo)

    def _retire(self, silo: int) -> None:
        """A silo has reached the cap."""
        place = bisect.bisect_left(self._eligible, silo)
        if self._eligible[place : place + 1] == [silo]:
            del self._eligible[place]


def _shape(plan: PlannedRound) -> tuple[object, ...]:
    """What rounds with the same budget, rules and number have in common that cost the same."""
    return plan.num_gradients, plan.share, plan.participation


def _of_rounds(charges: Iterable[Charge]) -> list[Charge]:
    """Those of rounds, and nothing beside them."""
    return [charge for charge in charges if charge.kind == "round"]
