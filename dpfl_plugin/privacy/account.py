"""What a run has spent and may still spend, in each view."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from dpfl_plugin.core.rounding import digits
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.book import Book, as_stated, attempts, with_ledger
from dpfl_plugin.privacy.budget import Budget
from dpfl_plugin.privacy.claims.ahead import Ahead
from dpfl_plugin.privacy.claims.base import finite
from dpfl_plugin.privacy.claims.outsider import Outsider
from dpfl_plugin.privacy.claims.server import Server
from dpfl_plugin.privacy.claims.third_party import ThirdParty
from dpfl_plugin.privacy.claims.values import plain, views_of
from dpfl_plugin.privacy.composition import Planned, Terms
from dpfl_plugin.privacy.costs import RoundCost
from dpfl_plugin.privacy.events import Charge, batches
from dpfl_plugin.privacy.extra_releases import NOT_RUN, Beside, Kind
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.participation import Draw, Plan
from dpfl_plugin.privacy.registered import Joint, Registration
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.spec import BudgetSpec
from dpfl_plugin.privacy.views import View, ViewEpsilon

TOO_FEW_LEFT = "too few silos may take part in another round"  # how a reason begins that is the cap, not the budget


class PrivacyAccount:
    """The ledger of a run with its accountant, its budget and its views.

    Runtimes `append` charges and `sync` before anything leaves; both go to the ledger, and to the shared one before.

    Args:
        spec: what the run may spend, and who spends it.
        beside: what is planned beside the rounds.
        draw: who would take part in rounds to come, for `expected_rounds` alone.
        shared: a ledger that other runs on the same data write to as well. The budget is this run's alone.
        costs: of the rounds that were begun before a resume, from the checkpoint.
        pending: whether a charge of the ledger will be made again, in a seeded round after the checkpoint. Until then
            neither the budget nor an evaluation counts it, so that a resumed run takes the undisturbed one's way.
        budget_accountant: what the budget of the run goes by, where ``accountant`` is a second opinion.
        lost: whether silos were lost while the run went on; see `lose`.
        stating: whether it only states what the ledger holds: it is asked for views, and decides and charges nothing.
    """

    def __init__(
        self,
        spec: BudgetSpec,
        *,
        rules: PrivacyRules,
        accountant: Accountant,
        beside: Beside,
        draw: Draw,
        ledger: Ledger,
        shared: Ledger | None = None,
        costs: Mapping[int, RoundCost] | None = None,
        pending: Callable[[Charge], bool] = lambda charge: False,
        budget_accountant: Accountant | None = None,
        lost: bool = False,
        stating: bool = False,
    ) -> None:
        budget = None
        if spec.epsilon is not None:
            budget = Budget(spec.epsilon, spec.delta, budget_accountant or accountant, spec.epsilons)
        book = Book(
            spec,
            rules,
            ledger,
            beside=beside,
            costs=costs or {},
            pending=pending,
            lost=lost,
            stating=stating,
        )
        self._budget, self._draw, self.shared = budget, draw, shared
        self.registration: Registration | Joint | None = None  # in a shared ledger
        self._observe(
            Server(book, accountant, budget),
            ThirdParty(book, accountant, budget),
            Outsider(book, accountant, budget),
        )

    def _observe(self, server: Server, third_party: ThirdParty, outsider: Outsider) -> None:
        self._book, self._server, self._third_party, self._outsider = server.book, server, third_party, outsider
        self._ahead = Ahead(server, third_party, self._draw)
        self._bounded = server if self._book.spec.view == "server" else third_party

    def _of(self, book: Book, accountant: Accountant) -> PrivacyAccount:
        other = copy.copy(self)
        other._observe(
            self._server.of(book, accountant),
            self._third_party.of(book, accountant),
            self._outsider.of(book, accountant),
        )
        return other

    # What a runtime does

    def append(self, charges: Sequence[Charge]) -> None:
        """Charge what silos are about to send.

        Raises:
            PluginError: the noise is not what the round was checked for; nothing was charged, and nothing may leave.
        """
        assert not self._book.stating
        made = list(batches(charges))
        self._book.check_planned(made)
        if self.registration is not None:
            self.registration.take(made)
        if self.shared is not None:
            self.shared.append_all(made)
        self._book.add(made)

    def sync(self) -> None:
        # The shared ledger first: what a run's own ledger holds, other runs have to know of too. After a crash between
        # the two nothing has left, and a resume adds to each what only the other holds.
        if self.shared is not None:
            self.shared.sync()
        self.ledger.sync()

    def by(self, accountant: Accountant) -> PrivacyAccount:
        """This account, stated by another accountant; the budget stays that of its own."""
        return self._of(self._book, accountant)

    def holding(self, ledger: Ledger) -> PrivacyAccount:
        """This account with another ledger, which does not grow, to state what is about to be charged: no more."""
        return self._of(with_ledger(self._book, ledger), self._server.accountant)

    # What the loop asks

    def eligible(self) -> Sequence[int] | None:
        """The silos that may take part once more; None where nothing caps it.

        What was released counts, not what was planned.
        """
        return None if self._book.spec.max_participations is None else self._book.eligible

    def cap_reason(self, lost: Collection[int] = ()) -> str:
        """Why no round can be made where a cap leaves too few silos, ``lost`` ones apart."""
        spec, left = self._book.spec, len(set(self.eligible() or ()) - set(lost))
        without = f" and {len(lost)} were lost" if lost else ""
        took = f"{left} of {spec.num_silos} took part in fewer than max_participations={spec.max_participations}"
        return f"{TOO_FEW_LEFT}: {took}{without}"

    def begin_round(self, round: int, plan: Plan) -> None:
        """The round is about to run: it counts from here on, whether it finishes or not.

        Raises:
            PluginError: sampled rounds differ in their number of gradients, and do not say what the most is.
        """
        book = self._book
        book.begin(round, book.pricing.cost(round, plan))
        if self.registration is not None:
            planned = {silo: book.pricing.planned(silo, book.costs[round]) for silo in plan.participants}
            self.registration.reserve(planned)

    def lose(self) -> None:
        """The run goes on without some of its silos: see `Book.lose`."""
        self._book.lose()
        self._third_party.forget()
        self._ahead.forget()

    def was_released(self, kind: Kind, silo: int, round: int, noise_id: str) -> bool:
        """Whether a release beside the rounds was charged."""
        return self._book.extra.was_released(kind, silo, round, noise_id)

    def affords(self, round: int, plan: Plan) -> bool:
        """Whether a round, the next to come, stays within the budget."""
        book = self._book
        assert not book.stating
        if self._budget is None and not self._limited:
            return True
        cost = book.dearer(round, book.pricing.cost(round, plan))
        if self._beyond_limit({silo: book.pricing.planned(silo, cost) for silo in plan.participants}):
            return False
        if self._budget is None:
            return True
        if not book.rules.varies:
            return self._bounded.affords(round, cost, plan)
        drawn_may_fit = book.spec.view == "server"
        return self._ahead.affords(round, plan) or (drawn_may_fit and self._server.affords(round, cost, plan))

    @property
    def _limited(self) -> bool:
        """Whether the shared ledger has a limit."""
        return self.registration is not None and self.registration.limited

    def _beyond_limit(self, wanted: Mapping[int, Sequence[Planned]]) -> bool:
        """Whether releases pass the limit of the shared ledger."""
        return self.registration is not None and not self.registration.affords(wanted)

    def affords_beside(self, kind: Kind, round: int, noise_id: str) -> bool:
        """Whether a release beside the rounds, the next of all silos, stays within the budget.

        Together with what was spent and with all that is planned. That has room for each such release once: one that a
        crash makes silos make again with fresh noise is another.
        """
        book = self._book
        if self._limited:
            one, _ = book.extra.plan.planned(kind, book.rules, min(book.spec.num_records))
            if self._beyond_limit({silo: [one] for silo in range(book.spec.num_silos)}):
                return False
        if self._budget is None:
            return True
        return self._bounded.affords_beside(self._book.with_next(kind, round, noise_id))

    def affords_all(self, rounds: Counter[RoundCost]) -> bool:
        """Whether the budget lets rounds with these costs happen, so many of each, whoever is drawn."""
        return self._budget is None or self._bounded.affords_all(rounds)

    def look_ahead(self, rounds: Counter[RoundCost]) -> None:
        """Have the budget know whether rounds with these costs, so many of each, all fit: then so do fewer.

        Noise is solved for them together, and an accountant's error may make a part look dearer than the whole.
        """
        if self._budget is not None:
            self._server.look_ahead(rounds)

    def expected_rounds(self, plan: Plan, limit: int) -> int:
        """How many rounds like ``plan`` the budget allows in all, up to ``limit``; for schedules and the ETA only."""
        return self._ahead.expected_rounds(plan, limit, lambda: self.affords(0, plan))

    @property
    def restricts(self) -> bool:
        """Whether a budget, a limit or a cap may end a run."""
        return self._budget is not None or self._limited or self._book.spec.max_participations is not None

    def why_not(self) -> str:
        """Why the budget allows no further round."""
        if (spec := self._book.spec).epsilon is None:
            if self._limited:
                return "the limit of the shared ledger affords no more than this run registered"
            return "there is no budget"
        view = spec.view.replace("_", " ")
        worst = ", as the server's worst case since silos were lost" * (self._book.lost and view == "third party")
        return f"one more would pass epsilon {spec.epsilon:g} at delta {digits(spec.delta, 6)} ({view} view){worst}"

    def charges(self, round: int, plan: Plan, noise_id: str = "rehearsal") -> list[Charge]:
        """What a round will charge, for rehearsals."""
        pricing = self._book.pricing
        cost = pricing.cost(round, plan)
        return [one for silo in plan.participants for one in pricing.charges(silo, round, cost, noise_id)]

    def charge_scores_not_made(self, rounds: Iterable[int], noise_id: str = NOT_RUN) -> None:
        """Charge scores that were planned after so many ``rounds`` each, as if they had been made."""
        self.append(self._book.extra.scores_not_made(rounds, noise_id))

    # What it is an account of

    @property
    def ledger(self) -> Ledger:
        """What every charge is in before its release leaves."""
        return self._book.ledger

    @property
    def costs(self) -> Mapping[int, RoundCost]:
        """What the rounds that were begun cost, by round."""
        return self._book.costs

    @property
    def rules(self) -> PrivacyRules:
        """How the run's releases are made."""
        return self._book.rules

    @property
    def noise_multiplier(self) -> float:
        """sigma_g of the run, given or solved for; of all releases, if no schedule changes it."""
        return self.rules.noise_multiplier

    @property
    def neighbouring(self) -> str:
        """The relation that all releases of the run are accounted under."""
        return self.rules.release(1.0).neighbouring

    @property
    def beside(self) -> Beside:
        """What is planned beside the rounds."""
        return self._book.extra.plan

    # What a result says

    def so_far(self) -> dict[str, float | None]:
        """Epsilon spent in each view; None where nothing is guaranteed."""
        book, of_server = self._book, self._book.spec.view == "server"
        third_party = self._third_party.so_far(book.extra.releases(ahead=False))
        if self._budget is not None and of_server and not book.lost:
            third_party = min(third_party, self._budget.most)  # which holds towards the server, whoever is drawn
        return {"server": self.server_so_far(), "third_party": finite(third_party)}

    def server_so_far(self) -> float | None:
        """Epsilon spent in the server's view; None where nothing is guaranteed."""
        book = self._book
        server = self._server.spent(book.extra.releases(ahead=False))
        if self._budget is not None and book.spec.view == "server" and book.rules.varies:
            server = min(server, self._budget.most)
        return finite(server)

    def ahead(self) -> tuple[float, float]:
        """Epsilon of all rounds that were begun: of a silo in as many of them as may be, and a third party's."""
        return self.epsilon_ahead("server"), self._third_party.of_begun()

    def epsilon_ahead(self, view: View) -> float:
        """Epsilon of all rounds begun (for the server: all attempts), whoever is drawn; no budget."""
        return self.epsilon_of(attempts(self._book) if view == "server" else Counter(self.costs.values()), view)

    def epsilon_of(self, rounds: Counter[RoundCost], view: View) -> float:
        """`epsilon_ahead` of rounds with these costs, so many of each."""
        return (self._server if view == "server" else self._third_party).epsilon_of(rounds)

    def outsider(self) -> ViewEpsilon | None:
        """What an outsider is promised, who does not know who took part; None where nothing is proven of that."""
        return self._outsider.view()

    def per_silo(self) -> list[dict[str, Any]]:
        """Each silo's records, participation and epsilon towards the server."""
        return self._server.per_silo()

    def views(self) -> dict[str, Any]:
        """The guarantees as plain values: the server's (realised, and the worst case) and a third party's."""
        if (book := as_stated(self._book)) is not self._book:
            return self._of(book, self._server.accountant).views()
        views = views_of(self._server, self._third_party)
        if (outsider := self.outsider()) is not None:
            views["outsider"] = plain(outsider)
        return views


def know_to_fit(account: PrivacyAccount, compositions: Iterable[Terms]) -> None:
    """As `PrivacyAccount.look_ahead`, of compositions: all parts of those that fit do, too."""
    for terms in compositions:
        if account._budget is not None:
            account._budget.holds(terms)


def fail(account: PrivacyAccount) -> None:
    """The run has ended on an error: a silo that is broken, say, ends it as soon as it is drawn."""
    account._book.failed = True
