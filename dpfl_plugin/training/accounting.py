"""What a run has spent and may still spend, in each view."""

from __future__ import annotations

import bisect
import copy
import itertools
import math
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from dpfl_plugin.algorithms.base import RoundPlan, Setting
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import ConfigError, PluginError
from dpfl_plugin.privacy.accountants import MOST_LEVELS, Accountant, rounded_down, wavers
from dpfl_plugin.privacy.budget import Budget
from dpfl_plugin.privacy.calibration import max_rounds, most, worst_epsilon
from dpfl_plugin.privacy.events import Batch, Charge, ChargeKind, SampledGaussian, Term, batches
from dpfl_plugin.privacy.headroom import Headroom, Stretch
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.pld import normalise
from dpfl_plugin.privacy.prior import Prior
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.tally import Tally
from dpfl_plugin.privacy.views import (
    AlikeRounds,
    Planned,
    Spending,
    Terms,
    View,
    ViewEpsilon,
    compositions,
    outsider_view,
    server_composed,
    server_view,
    third_party_composed,
    undominated,
    worst_case_composed,
    worst_case_terms,
    worst_case_view,
)
from dpfl_plugin.training.beside import NOT_RUN, Beside, Kind, beside
from dpfl_plugin.training.planning import CERTAIN, WITH_REPLACEMENT, Participation, drawn_silos, participation

Made = TypeVar("Made")

MOST_ROUNDS = 10**6  # where only a budget ends a run
NO_PRIOR = Prior()
LOST = (
    "silos were lost, which may depend on their records, so that the server's worst case is claimed and nothing of the "
    "draw of participants"
)
FROM_THE_SEED = (
    "as if participants had been drawn unpredictably: here they follow from the seed, and whoever knows it is promised "
    "no more than the server is"
)
RELEASED_BESIDES = (
    "round {}, which was to be released again bit for bit, was asked at other values: a file of the run was changed or "
    "damaged, or the computation does not repeat. It has fresh noise, and both releases are charged."
)
TOO_FEW_LEFT = "too few silos may take part in another round"  # how a reason begins that is the cap, not the budget


@dataclass(frozen=True, slots=True)
class RoundCost:
    """What a round asks of a silo that takes part, and how probable that was: public, and the same for all silos.

    Attributes:
        levels: (noise multiplier, number of releases that are charged with it).
        share: of the silo's records that they read.
        participation: how probably a given silo takes part, and by which law.
        most: releases of the longest round that may be drawn, where rounds differ in that; else None.
    """

    levels: tuple[tuple[float, int], ...]
    share: tuple[float, float]
    participation: Participation = CERTAIN
    most: int | None = None

    @property
    def probability(self) -> float:
        """That a given silo takes part."""
        return self.participation.probability

    @property
    def num_releases(self) -> int:
        return sum(count for _, count in self.levels)

    def scaled(self, factor: float) -> RoundCost:
        """With so many times the noise."""
        return replace(self, levels=tuple((factor * noise, count) for noise, count in self.levels))


class _Probabilities(Mapping[int, float]):
    """Of rounds, without another table of them."""

    def __init__(self, costs: Mapping[int, RoundCost]) -> None:
        self._costs = costs

    def __getitem__(self, round: int) -> float:
        return self._costs[round].probability

    def __iter__(self) -> Iterator[int]:
        return iter(self._costs)

    def __len__(self) -> int:
        return len(self._costs)


@dataclass(frozen=True, slots=True)
class _Cleared:
    """Rounds that are known to fit the budget: those before ``until``, if they are planned as ``shape`` says."""

    shape: tuple[object, ...] = ()
    until: int = 0


class PrivacyAccount:
    """The ledger of a run with its accountant, its budget and its views.

    Runtimes `append` charges and `sync` before anything leaves; both go to the ledger, and to the shared one before.

    Args:
        num_records: of each silo.
        shared: a ledger that other runs on the same data write to as well, and what it holds of them (``prior``): the
            budget is for all of it together.
        costs: of the rounds that were begun before a resume, from the checkpoint.
        repeats: whether a charge of the ledger will be made again bit for bit, in a round after the checkpoint. Until
            then neither the budget nor an evaluation counts it, so that a resumed run takes the undisturbed one's way.
        budget_accountant: what the budget of the run goes by, where ``accountant`` is a second opinion.
        stateless: whether silos keep nothing between rounds, so that an update depends on the download and on the
            silo's own data alone.
        lost: whether silos were lost while the run went on; see `lose`.
        coins: as `Planner`.
        stating: whether it only states what the ledger holds: it is asked for views, and decides and charges nothing.
    """

    def __init__(
        self,
        config: Config,
        *,
        rules: PrivacyRules,
        accountant: Accountant,
        setting: Setting,
        num_records: Sequence[int],
        ledger: Ledger,
        shared: Ledger | None = None,
        prior: Prior = NO_PRIOR,
        costs: Mapping[int, RoundCost] | None = None,
        repeats: Callable[[Charge], bool] = lambda charge: False,
        budget_accountant: Accountant | None = None,
        stateless: bool = False,
        lost: bool = False,
        coins: str = "",
        stating: bool = False,
    ) -> None:
        self._coins, self._stating = coins, stating
        self._made_once: list[tuple[str, tuple[object, ...], Any]] = []  # of a ledger that does not grow: see `_once`
        self._patterns: dict[tuple[int, RoundCost], list[Planned]] = {}  # of silos with so many records
        self._beside = beside(config, budget_accountant or accountant)
        self._seed, self._privacy, self._config_rounds = config.seed, config.privacy, config.rounds
        self._rules, self._setting, self._accountant = rules, setting, accountant
        self._cap, self._stateless = config.max_participations, stateless
        self._equal_weights = config.silo_weights == "equal"
        self._num_records = tuple(num_records)
        self._budget = None
        if config.privacy.epsilon is not None:
            self._budget = Budget(config.privacy.epsilon, config.privacy.delta, budget_accountant or accountant)
        self.ledger, self.shared, self._earlier = ledger, shared, prior
        # Beside the rounds: (silo, round) -> names of noise, of each kind of release.
        ledger.tally.settle(self._beside.guessed_kind)
        self._made: dict[Kind, defaultdict[tuple[int, int], set[str]]]
        self._made = {kind: defaultdict(set) for kind in self._beside.kinds}
        self._priors: dict[tuple[bool, tuple[Kind, int, str] | None], Prior] = {}  # until the next of them
        self._least: dict[Kind, float] = {}  # noise multiplier that a charge beside the rounds had
        # Where the draws of earlier runs decide the length or the noise of this one, which may draw the same silos, no
        # mixture is proven.
        solved, of_server = config.privacy.noise_multiplier is None, config.privacy.budget_view == "server"
        told = prior.drawn and solved if of_server else prior.draws_decided
        self._certain = lost or (config.privacy.epsilon is not None and told)
        self._lost = lost
        self.costs = _made_certain(costs or {}) if self._certain else dict(costs or {})
        alike = (cost.num_releases for cost in self.costs.values() if cost.probability < 1 and cost.most is None)
        self._length = next(alike, None)  # releases of every drawn round, if they do not differ in that
        # For a statement alone, what only decisions go by is not worked out: it would take more than the ledger.
        self._awaited: defaultdict[tuple[int, ChargeKind | None], list[Charge]] = defaultdict(list)
        final = self._to_state() if stating else self._settled(ledger, repeats)
        in_rounds = [] if stating else self._in_rounds(final)
        self._spending = Spending(in_rounds)
        # With a schedule every round is of a kind of its own, of which nothing is worth remembering.
        known = self._budget is not None and not rules.varies
        self._headroom = Headroom(self._budget, self._spending) if self._budget is not None and known else None
        # Rounds that the checkpoint does not know, and how often each round was released.
        self._found = _rounds_in(in_rounds)
        self._rounds, self._distinct = {*self._found, *self.costs}, {*self._found.values(), *self.costs.values()}
        self._eligible = list(range(setting.num_silos))  # below the cap
        self._repeated = False  # whether some round was released more than once, with fresh noise
        self._stretch = Stretch()
        self._noise_ids: defaultdict[int, set[str]] = defaultdict(set)
        self._participations: defaultdict[int, set[tuple[int, str]]] = defaultdict(set)
        self._note(batches(final))
        # One silo of each number of records and each past: the others cost the same.
        self._most: dict[RoundCost, int] = {}
        self._alike_plans: dict[tuple[int, int | None, tuple[float, float], str], RoundCost] = {}
        self._cleared = _Cleared()
        self._plans: dict[tuple[int, RoundCost], dict[SampledGaussian, int]] = {}  # of a silo with so many records
        self._kinds = {self._kind(silo): silo for silo in reversed(range(len(self._num_records)))}

    # What a runtime does

    def append(self, charges: Sequence[Charge]) -> None:
        """Charge what silos are about to send.

        Raises:
            PluginError: the noise is not what the round was checked for; nothing was charged, and nothing may leave.
        """
        assert not self._stating
        made = list(batches(charges))
        self._check_planned(made)
        if self.shared is not None:
            self.shared.append_all(made)
        self.ledger.append_all(made)
        if self._awaited:
            made = [*batches(self._not_repeated(charges)), *made]
        self._spending.add_all((first, silos) for first, silos in made if first.kind == "round")
        self._note(made)

    def _settled(self, ledger: Ledger, repeats: Callable[[Charge], bool]) -> list[Charge]:
        """What counts from the beginning; what is to be repeated is awaited."""
        final = []
        for charge in ledger:
            if not repeats(charge):
                final.append(charge)
            elif charge.noise_id != NOT_RUN:
                self._awaited[charge.round, charge.kind].append(charge)
        return final

    def _not_repeated(self, charges: Sequence[Charge]) -> list[Charge]:
        """What the ledger holds of these rounds, and was to be made again bit for bit, but is asked otherwise now."""
        made, found = {charge.noise_id for charge in charges}, list[Charge]()
        for place in sorted({(charge.round, charge.kind) for charge in charges}, key=repr):
            found += [old for old in self._awaited.pop(place, ()) if old.noise_id not in made]
        for round in sorted({charge.round for charge in found}):
            self.ledger.note(RELEASED_BESIDES.format(round + 1))
        return found

    def sync(self) -> None:
        # The shared ledger first: what a run's own ledger holds, other runs have to know of too. After a crash between
        # the two nothing has left, and a resume adds to each what only the other holds.
        if self.shared is not None:
            self.shared.sync()
        self.ledger.sync()

    def by(self, accountant: Accountant) -> PrivacyAccount:
        """This account, stated by another accountant; the budget stays that of its own."""
        other = copy.copy(self)
        other._accountant = accountant
        return other

    def holding(self, ledger: Ledger) -> PrivacyAccount:
        """This account with another ledger, for a statement of what is about to be charged: to be read, not charged."""
        other = copy.copy(self)
        other.ledger = ledger
        return other

    # What the loop asks

    def eligible(self) -> Sequence[int] | None:
        """The silos that may take part once more; None where nothing caps it.

        What was released counts, not what was planned: the same on a resume, where charges that will be made again
        bit for bit are not counted before they are.
        """
        if self._cap is None:
            return None
        return self._eligible

    def why_nobody_is_left(self, lost: Collection[int] = ()) -> str:
        left = len(set(self.eligible() or ()) - set(lost))
        without = f" and {len(lost)} were lost" if lost else ""
        return (
            f"{TOO_FEW_LEFT}: {left} of {self._setting.num_silos} took part in fewer "
            f"than max_participations={self._cap}{without}"
        )

    def begin_round(self, round: int, plan: RoundPlan) -> None:
        """The round is about to run: it counts from here on, whether it finishes or not.

        Raises:
            PluginError: sampled rounds differ in their number of gradients, and do not say what the most is.
        """
        cost = self._cost(round, plan)
        if cost.probability < 1 and cost.most is None:
            self._length = cost.num_releases if self._length is None else self._length
            self._check_length(cost.num_releases, self._length, "as many as in other rounds")
        cost = self._dearer(round, cost)
        if self.costs.get(round, self._found.get(round, cost)) != cost:
            self._stretch.forget()
        self._stretch.begun(cost)
        self.costs[round] = cost
        self._rounds.add(round)
        self._distinct.add(self.costs[round])

    def lose(self) -> None:
        """The run goes on without some of its silos, and with noise that was never drawn.

        Who takes part from here on may depend on records, since a record may make its silo fail. So nothing is made
        of the draws of participants any more, in rounds before and after: each counts as if a silo had taken part for
        certain, which bounds whatever decided that it did. And a round that was to be repeated bit for bit will not
        be: everything in the ledger counts from here on.
        """
        self._lost = self._certain = True
        self.costs = _made_certain(self.costs)
        made = [charge for charge in self.ledger if charge.noise_id != NOT_RUN]
        in_rounds = self._in_rounds(made)
        self._spending.add(in_rounds)  # what it knows it does not count twice
        self._note(batches(made))
        self._found = _rounds_in(in_rounds)
        self._rounds, self._distinct = {*self._found, *self.costs}, {*self._found.values(), *self.costs.values()}
        self._most, self._cleared, self._alike_plans = {}, _Cleared(), {}
        self._stretch.forget()
        self._awaited.clear()

    def was_released(self, kind: Kind, silo: int, round: int, noise_id: str) -> bool:
        """Whether a release beside the rounds was charged."""
        return noise_id in self._made[kind].get((silo, round), ())

    def affords(self, round: int, plan: RoundPlan) -> bool:
        """Whether a round, the next to come, stays within the budget."""
        assert not self._stating
        if self._budget is None:
            return True
        cost = self._dearer(round, self._cost(round, plan))
        third_party = self._privacy.budget_view == "third_party"
        if self._rules.varies:
            return self._affords_ahead(round, plan) or (not third_party and self._affords_drawn(cost, plan))
        if third_party:
            counted = set(_drawn(self._dearest(dict(enumerate({*self._distinct, cost}))), self.prior).values())
            if len(counted) == 1 and not self._repeated and not self._noise_ids.get(round):
                # As below, without looking at every round again: all count alike, and each was released once.
                return len(self._rounds) + (round not in self._rounds) <= self._most_cached(counted.pop())
            kind, prior, number = cost, self.prior, len(self._rounds) + 1
            new = round not in self._rounds and not self._noise_ids.get(round)
            if new and self._stretch.covers(kind, prior, number):
                return True
            costs = _drawn(self._dearest({**self._found, **self.costs, round: cost}), self.prior)
            cost = costs[round]
            again = self._released_again(costs, {round: {*self._noise_ids.get(round, ()), "the next"}})
            if not again and set(costs.values()) == {cost}:  # all alike: one search serves all rounds
                return len(costs) <= self._most_cached(cost)
            fits = self._third_party(costs, again, self.prior).epsilon <= self._budget.epsilon
            if fits and new:
                self._stretch.learn(kind, prior, number, lambda more: self._clears(costs, again, {cost: more}))
            return fits
        return self._affords_drawn(cost, plan)

    def _clears(self, costs: Mapping[int, RoundCost], again: Sequence[Charge], more: Mapping[RoundCost, int]) -> bool:
        """Whether so many more rounds fit a third party's budget, by more than the accountant wavers."""
        assert self._budget is not None
        last, later, by = max(costs) + 1, dict(costs), 0.0
        for cost, number in more.items():
            later.update(dict.fromkeys(range(last, last + number), cost))
        for silo in self._silos():
            terms = self.prior.terms(silo, third_party=True)
            for cost in set(later.values()):
                for one, likely in itertools.product(self._planned(silo, cost), (cost.probability, 1.0)):
                    terms.append(Term(release=one.release, count=one.count, rounds=1, participation=likely))
            by = max(by, wavers(self._accountant, terms))
        most = self._budget.epsilon / (1 + by)
        return most > 0 and self._third_party(later, again, self.prior).epsilon <= most

    def look_ahead(self, rounds: Counter[RoundCost]) -> None:
        """Have the budget know whether rounds with these costs, so many of each, all fit: then so do fewer.

        Noise is solved for them together, and an accountant's error may make a part look dearer than the whole.
        """
        if self._budget is not None:
            for terms in undominated(self._everywhere(rounds)):
                self._budget.holds(terms)

    def _most_cached(self, cost: RoundCost) -> int:
        assert self._budget is not None
        if cost not in self._most:
            self._most[cost] = self._most_alike(cost, self._budget.epsilon, MOST_ROUNDS)
        return self._most[cost]

    def _affords_drawn(self, cost: RoundCost, plan: RoundPlan) -> bool:
        """Whether those who were drawn for the next round stay within a budget in the server's view."""
        assert self._budget is not None
        earlier = self.prior.realised
        if self._headroom is not None and self._headroom.covers(cost, plan.participants, earlier):
            return True
        planned = {silo: [*self._planned(silo, cost), *earlier.get(silo, ())] for silo in plan.participants}
        allowed = bool(self._budget.allows(self._spending, planned))
        if allowed and self._headroom is not None:
            of_round = {silo: self._planned(silo, cost) for silo in planned}
            self._headroom.learn(cost, of_round, earlier)
        return allowed

    def _affords_ahead(self, round: int, plan: RoundPlan) -> bool:
        """Whether the next round stays within the budget, whoever is drawn, where rounds differ in their noise.

        Looks for how many rounds with this plan do, so that most rounds need no epsilon to be computed: releases that
        fit together with more fit without.
        """
        shape = (plan.num_gradients, plan.share, plan.participation)
        if self._cleared.shape == shape and round < self._cleared.until:
            return True
        limit = max(1, (self._config_rounds or MOST_ROUNDS) - round)
        likely = limit if self._config_rounds else 1
        self._cleared = _Cleared(shape, round + most(lambda rounds: self._fit(round, plan, rounds), limit, likely))
        return round < self._cleared.until

    def _fit(self, first: int, plan: RoundPlan, rounds: int) -> bool:
        """Whether rounds ``first``, ``first`` + 1, ... with this plan stay within the budget, whoever is drawn."""
        assert self._budget is not None
        try:
            costs = {round: self._cost(round, plan) for round in range(first, first + rounds)}
            if self._privacy.budget_view == "third_party":
                return self._third_party_ahead(costs) <= self._budget.epsilon
            return all(self._budget.fits(terms) for terms in undominated(self._server_ahead(costs.values())))
        except ConfigError:
            if rounds == 1:
                raise
            return False  # noise so far ahead has no number, or no bound

    def _server_ahead(self, costs: Iterable[RoundCost]) -> list[Terms]:
        """Compositions that dominate what any silo has released by the end of rounds to come."""
        counted, alike = Counter(costs), self._alike()
        noises = {noise for cost in counted for noise, _ in cost.levels} | self._spending.noise_multipliers()
        found: list[Terms] = []
        for kind, silo in self._kinds.items():
            planned = [*self._spending.envelope(alike[kind]), *self.prior.realised.get(silo, ())]
            for cost, rounds in counted.items():
                planned += [replace(one, count=one.count * rounds) for one in self._planned(silo, cost)]
            if len(noises) + len(self.prior.realised.get(silo, ())) > MOST_LEVELS:
                # A silo may have more of them than what dominates it, and be accounted for by levels.
                planned = [replace(one, release=rounded_down(one.release)) for one in planned]
            found += compositions(planned)
        return found

    def _third_party_ahead(self, later: Mapping[int, RoundCost]) -> float:
        """A third party's epsilon at the end of rounds to come."""
        costs = _drawn(self._dearest({**self._found, **self.costs, **later}), self.prior)
        again = self._released_again(costs, {round: {*self._noise_ids.get(round, ()), "the next"} for round in later})
        return self._third_party(costs, again, self.prior).epsilon if again else self._mixed(costs, self.prior)

    def why_not(self) -> str:
        view = self._privacy.budget_view.replace("_", " ")
        what = f"one more would pass epsilon {self._privacy.epsilon:g} at delta {self._privacy.delta:g} ({view} view)"
        if self._lost and view == "third party":
            what += ", as the server's worst case since silos were lost"
        return f"{what}, with what the shared ledger holds of other runs" if self.prior.runs else what

    def held(self) -> float:
        """Epsilon of what earlier runs released, this run apart, in the view that the budget bounds."""
        third_party = self._privacy.budget_view == "third_party"
        earlier = self.prior.certain if third_party else self.prior.realised
        return server_view((), self._accountant, self._privacy.delta, earlier=earlier).epsilon

    def so_far(self) -> dict[str, float | None]:
        """Epsilon spent in each view; None where nothing is guaranteed."""
        beside = self._prior(ahead=False)
        costs = self._dearest({**self._found, **self.costs})
        again = self._released_again(costs)
        third_party = self._third_party(costs, again, beside).epsilon if again else self._mixed(costs, beside)
        if self._budget is not None and self._privacy.budget_view == "server" and not self._lost:
            third_party = min(third_party, self._budget.epsilon)  # which holds towards the server, whoever is drawn
        return {"server": self.server_so_far(), "third_party": _finite(third_party)}

    def server_so_far(self) -> float | None:
        """Epsilon spent in the server's view; None where nothing is guaranteed."""
        beside = self._prior(ahead=False)
        spent = (self._accountant.epsilon(terms, self._privacy.delta) for terms in undominated(self._spent(beside)))
        server = max(spent, default=0.0)
        if self._budget is not None and self._privacy.budget_view == "server" and self._rules.varies:
            server = min(server, self._budget.epsilon)
        return _finite(server)

    def _spent(self, beside: Prior) -> Iterator[Terms]:
        """Compositions of what silos released, in rounds and beside; with a schedule, of what dominates a kind."""
        if not self._rules.varies:
            for silo in {*self._spending, *beside.realised}:
                yield from self._spending.compositions(silo, beside.realised.get(silo, ()))
            return
        for silos in self._alike().values():
            yield from compositions(self._spending.envelope(silos))

    def _alike(self) -> defaultdict[tuple[int, tuple[Planned, ...]], list[int]]:
        """Those that released something, by what an epsilon of theirs depends on besides."""
        alike: defaultdict[tuple[int, tuple[Planned, ...]], list[int]] = defaultdict(list)
        for silo in self._spending:
            alike[self._kind(silo)].append(silo)
        return alike

    def expected_rounds(self, plan: RoundPlan, limit: int) -> int:
        """How many rounds like ``plan`` the budget allows in all, up to ``limit``; for schedules and the ETA only."""
        cost = self._cost(0, plan)
        self._check_accountant(cost)
        each = dict.fromkeys(self._kinds, limit if self._cap is None else min(limit, self._cap))
        if cost.share != (0.0, 1.0) and self.affords(0, plan):
            pass  # what later rounds add to the cost of this one depends on which records they read
        elif self._budget is not None and self._rules.varies:
            limit = self._expected_of_draws(plan, limit)
        elif self._budget is not None and self._privacy.budget_view == "third_party":
            limit = self._most_alike(_drawn({0: cost}, self.prior)[0], self._budget.epsilon, limit)
        elif self._budget is not None:
            each = {
                kind: self._most_rounds(
                    silo, cost, self._budget.epsilon, each[kind], self.prior.terms(silo, cost.share)
                )
                for kind, silo in self._kinds.items()
            }
        if participation(plan, self._setting) == CERTAIN:
            return min(limit, *each.values())
        if min(each.values()) >= limit:
            return limit
        used: Counter[int] = Counter()
        eligible = list(range(self._setting.num_silos))
        for round in range(limit):
            if len(eligible) < self._setting.num_participants:
                return round
            for silo in set(drawn_silos(self._seed, round, plan, self._setting, eligible, self._coins)):
                used[silo] += 1
                if used[silo] == self._cap:
                    del eligible[bisect.bisect_left(eligible, silo)]
                if used[silo] > each[self._kind(silo)]:
                    return round
        return limit

    def _expected_of_draws(self, plan: RoundPlan, limit: int) -> int:
        """How many rounds like ``plan`` fit, where they differ in their noise; by the silo that is drawn most."""
        assert self._budget is not None
        sampled = participation(plan, self._setting) != CERTAIN
        always = most(lambda rounds: self._fit(0, plan, rounds), limit)
        if not sampled or self._privacy.budget_view == "third_party":
            return always
        draws: list[set[int]] = []

        def fits(rounds: int) -> bool:
            later = range(len(draws), rounds)
            draws.extend(set(drawn_silos(self._seed, n, plan, self._setting, None, self._coins)) for n in later)
            often = Counter(silo for drawn in draws[:rounds] for silo in drawn)
            most_drawn = {self._kind(silo): silo for silo in often if often[silo] == max(often.values())}
            costs = {n: self._cost(n, plan) for n in range(rounds)}
            return all(
                self._fit_of(silo, [cost for n, cost in costs.items() if silo in draws[n]])
                for silo in most_drawn.values()
            )

        return max(always, most(fits, limit))

    def _fit_of(self, silo: int, costs: Iterable[RoundCost]) -> bool:
        assert self._budget is not None
        planned = [one for cost in costs for one in self._planned(silo, cost)]
        return all(self._budget.fits(terms) for terms in compositions([*planned, *self.prior.realised.get(silo, ())]))

    def _check_accountant(self, cost: RoundCost) -> None:
        """Raise UnsupportedError now if the accountant does not know what will be released, not after it was."""
        for silo in self._silos():
            for planned, probability in itertools.product(self._planned(silo, cost), {1.0, cost.probability}):
                term = Term(release=planned.release, count=planned.count, rounds=1, participation=probability)
                self._accountant.epsilon([term, *self.prior.terms(silo, cost.share)], self._privacy.delta)

    def charges(self, round: int, plan: RoundPlan, noise_id: str = "rehearsal") -> list[Charge]:
        """What a round will charge, for rehearsals."""
        cost = self._cost(round, plan)
        return [one for silo in plan.participants for one in self._charges(silo, round, cost, noise_id)]

    @property
    def rules(self) -> PrivacyRules:
        """How the run's releases are made."""
        return self._rules

    @property
    def noise_multiplier(self) -> float:
        """sigma_g of the run, given or solved for; of all releases, if no schedule changes it."""
        return self._rules.noise_multiplier

    @property
    def neighbouring(self) -> str:
        """The relation that all releases of the run are accounted under."""
        return self._rules.release(1.0).neighbouring

    def num_releases(self, silo: int, round: int) -> int:
        """How often a silo that takes part in a round which was begun releases something."""
        return self.costs[round].num_releases

    # Beside the rounds

    @property
    def beside(self) -> Beside:
        """What is planned beside the rounds."""
        return self._beside

    @property
    def prior(self) -> Prior:
        """What is to be composed with the rounds: what earlier runs released, and all that is planned beside them."""
        return self._prior(ahead=True) if self._beside else self._earlier

    def affords_beside(self, kind: Kind, round: int, noise_id: str) -> bool:
        """Whether a release beside the rounds, the next of all silos, stays within the budget.

        Together with what was spent and with all that is planned. That has room for each such release once: one that a
        crash makes silos make again with fresh noise is another.
        """
        if self._budget is None:
            return True
        prior = self._prior(ahead=True, following=(kind, round, noise_id))
        if self._privacy.budget_view == "third_party":
            costs = _drawn(self._dearest({**self._found, **self.costs}), prior)
            return self._third_party(costs, self._released_again(costs), prior).epsilon <= self._budget.epsilon
        return bool(self._budget.allows(self._spending, prior.realised))

    def charge_scores_not_made(self, rounds: Iterable[int]) -> None:
        """Charge scores that were planned after so many ``rounds`` each, as if they had been made."""
        one, _ = self._beside.planned("score", self._rules, 1)
        self.append(
            [
                Charge(
                    round=t,
                    silo=silo,
                    release=one.release,
                    count=1,
                    share=one.share,
                    noise_id=NOT_RUN,
                    kind="score",
                )
                for t in rounds
                for silo in range(len(self._num_records))
            ]
        )

    def _in_rounds(self, charges: Iterable[Charge]) -> list[Charge]:
        return [charge for charge in charges if charge.kind == "round"]

    def _prior(self, *, ahead: bool, following: tuple[Kind, int, str] | None = None) -> Prior:
        """What silos released beside the rounds; with ``ahead``, and will have by the end.

        A release that was made again with fresh noise counts again. Every silo counts as the one that made most.

        Args:
            following: what all silos are about to release, after which round, and the name of its noise.
        """
        key = ahead, following
        if key not in self._priors:  # a pass over all silos
            self._priors[key] = self._worked_out(ahead, following)
        return self._priors[key]

    def _worked_out(self, ahead: bool, following: tuple[Kind, int, str] | None) -> Prior:
        more = {} if following is None else {following[:2]: {following[2]}}
        counts: dict[Kind, int] = {}
        for kind, made in self._made.items():
            rounds, releases = Counter[int](), Counter[int]()
            for (silo, round), noise_ids in made.items():
                rounds[silo] += 1
                releases[silo] += len(noise_ids | more.get((kind, round), set()))
            again = max((releases[silo] - rounds[silo] for silo in rounds), default=0)
            planned = self._beside.planned(kind, self._rules, min(self._num_records))[1]
            counts[kind] = planned + again if ahead else max(releases.values(), default=0)
        of_size = {n: self._releases_beside(counts, n) for n in set(self._num_records)}
        everywhere = {silo: of_size[n] for silo, n in enumerate(self._num_records) if of_size[n]}
        return Prior(realised=everywhere, certain=everywhere)

    def _releases_beside(self, counts: Mapping[Kind, int], num_records: int) -> tuple[Planned, ...]:
        found = []
        for kind, count in counts.items():
            one, _ = self._beside.planned(kind, self._rules, num_records)
            # Noise that was solved for may be found a hair different on another machine: what was charged counts.
            noise = min(one.release.noise_multiplier, self._least.get(kind, math.inf))
            release = replace(one.release, noise_multiplier=noise)
            found += [replace(one, release=release, count=one.count * count)] if count else []
        return tuple(found)

    # What a result says

    def views(self) -> dict[str, Any]:
        """The guarantees as plain values: the server's (realised, and the worst case) and a third party's.

        With a shared ledger, ``total`` holds the same of this run together with the earlier ones.
        """
        views = self._views(NO_PRIOR)
        outsider = self.outsider()
        if outsider is not None:
            views["outsider"] = _plain(outsider, NO_PRIOR)
        return views if self.shared is None else {**views, "total": self._views(self.prior)}

    def _views(self, prior: Prior) -> dict[str, Any]:
        charges, rounds = self._once("rounds", (), self._charged)
        realised = self._once(
            "server", (prior,), lambda: server_composed(self.ledger.tally, earlier=prior.realised)
        ).stated(self._accountant, self._privacy.delta)
        if self._beside:
            assert not prior.runs
            prior = self._prior(ahead=False)
        costs = self._dearest(rounds) if self._lost else rounds
        # Of the attempts at a round, no one silo may have been in all of them, but it might have been.
        attempts = self._released_again(costs) if self._lost else []
        worst = self._once(
            "worst case",
            (prior,),
            lambda: worst_case_composed(
                Tally([*charges, *attempts]) if attempts else charges,
                silos=self._silos(),
                rounds=costs,
                pattern=AlikeRounds(costs, self._planned),
                cap=self._cap,
                earlier=prior.realised,
            ),
        ).stated(self._accountant, self._privacy.delta)
        if self._lost:
            third_party = replace(worst, view="third_party", basis=f"{worst.basis}; {LOST}")
            return _both(realised, worst, third_party, prior)
        third_party = self._stated_third_party(costs, charges, prior)
        if (
            prior.runs and worst.epsilon < third_party.epsilon
        ):  # earlier runs count as realised there, and that holds too
            third_party = replace(third_party, epsilon=worst.epsilon, basis="the server's worst case")
        return _both(realised, worst, third_party, prior)

    def outsider(self) -> ViewEpsilon | None:
        """`outsider_view` of all rounds that were begun, or None where its conditions are not met.

        The ends of runs count among them: where the draws decide how long a run lasts, its length tells of them. So
        does a shared ledger: runs of one seed draw the same silos, and a sample that is used twice amplifies once.
        """
        release = self._rules.release(1.0)
        if (release.unit, release.neighbouring) != ("silo", "replace_one"):
            return None
        certain = all(cost.probability == 1 for cost in self.costs.values())
        drawn_end = not certain and self._budget is not None and self._privacy.budget_view == "server"
        known = all(charge.round in self.costs for charge in self.ledger)
        if (
            self._rules.varies
            or not (self._stateless and self._equal_weights and known and self.costs)
            or self._cap_matters()
            or drawn_end
            or self.prior.runs
            or self._lost
            or "shared" in self.ledger.facts
        ):
            return None
        S, M = self._setting.num_participants, self._setting.num_silos
        if any(cost.participation.law == "with_replacement" for cost in self.costs.values()):
            return None  # nothing is proven for that
        rounds = {round: (M if cost.probability == 1 else S, M) for round, cost in self.costs.items()}
        seen: defaultdict[int, set[int]] = defaultdict(set)
        for charge in self.ledger:
            seen[charge.round].add(charge.silo)
        if any(len(silos) != rounds[round][0] for round, silos in seen.items()):
            return None  # a round that counts as certain, or was cut short, has not the noise of all these silos
        return outsider_view(self.ledger, self._accountant, self._privacy.delta, release=release, rounds=rounds)

    @property
    def restricts(self) -> bool:
        """Whether a budget or a cap may end a run."""
        return self._budget is not None or self._cap is not None

    def ahead(self) -> tuple[float, float]:
        """Epsilon of all rounds that were begun: of a silo in as many of them as may be, and a third party's."""
        rounds = self._certain_or_drawn(Counter(self.costs.values()))
        if self._draws_decide(rounds):
            third_party = self._stated_third_party(self.costs, (), self.prior).epsilon
        else:
            third_party = self._mixture(rounds, self.prior)
        return self.epsilon_ahead("server"), third_party

    def _draws_decide(self, costs: Iterable[RoundCost]) -> bool:
        """Whether the draws of participants may decide how long a run of such rounds is."""
        drawn = any(cost.probability < 1 for cost in costs)
        return drawn and self._budget is not None and self._privacy.budget_view == "server"

    def epsilon_ahead(self, view: View) -> float:
        """Epsilon of all rounds that were begun, whoever is drawn; of no budget, which may end a run before.

        What earlier runs released is in it: noise is solved for what they left.
        """
        return self.epsilon_of(Counter(self.costs.values()), view)

    def epsilon_of(self, rounds: Counter[RoundCost], view: View) -> float:
        """`epsilon_ahead` of rounds with these costs, so many of each."""
        if view == "server":
            return worst_epsilon(self._accountant, self._everywhere(rounds), self._privacy.delta)
        return self._mixture(self._certain_or_drawn(rounds), self.prior)

    def affords_all(self, rounds: Counter[RoundCost]) -> bool:
        """Whether the budget lets rounds with these costs happen, so many of each, whoever is drawn."""
        if self._budget is None:
            return True
        if self._privacy.budget_view == "server":
            return all(self._budget.holds(terms) for terms in undominated(self._everywhere(rounds)))
        alike = set(_drawn(dict(enumerate(rounds)), self.prior).values())
        if len(alike) == 1 and not self._rules.varies:
            return rounds.total() <= self._most_alike(alike.pop(), self._budget.epsilon, MOST_ROUNDS)
        return self.epsilon_of(rounds, "third_party") <= self._budget.epsilon

    def _certain_or_drawn(self, rounds: Counter[RoundCost]) -> Counter[RoundCost]:
        """As a third party's epsilon counts them; see `_dearest` and `_drawn`."""
        found: Counter[RoundCost] = Counter()
        costs = dict(enumerate(rounds))
        for n, cost in _drawn(self._dearest(costs), self.prior).items():
            found[cost] += rounds[costs[n]]
        return found

    def per_silo(self) -> list[dict[str, Any]]:
        """Each silo's records, participation and epsilon towards the server; in all, with a shared ledger."""
        delta = self._privacy.delta
        alone = server_view(self.ledger.tally, self._accountant, delta).per_silo
        total: Mapping[int, float] = {}
        if self.shared is not None:
            total = server_view(self.ledger.tally, self._accountant, delta, earlier=self.prior.realised).per_silo
        tally = self.ledger.tally
        not_run = tally.names.noise(NOT_RUN)
        entries = (entry for entry in tally.entries() if entry.noise != not_run and tally.kind(entry) == "round")
        made = {(entry.silo, entry.round) for entry in entries}
        rounds = Counter(silo for silo, _ in made)
        return [
            {
                "silo": silo,
                "num_records": count,
                "rounds": rounds[silo],
                "epsilon": _of_silo(silo, alone) if rounds[silo] else 0.0,
                **({} if self.shared is None else {"total_epsilon": _of_silo(silo, total)}),
            }
            for silo, count in enumerate(self._num_records)
        ]

    # Inside

    def _once(self, what: str, by: tuple[object, ...], make: Callable[[], Made]) -> Made:
        """What ``make`` gives; worked out once for these very objects and all accountants, if only to be stated."""
        for name, known, made in self._made_once:
            if name == what and len(known) == len(by) and all(map(operator.is_, known, by)):
                return made  # type: ignore[no-any-return]
        made = make()
        if self._stating:
            self._made_once.append((what, by, made))
        return made

    def _charged(self) -> tuple[Tally, dict[int, RoundCost]]:
        """The charges of rounds, and what rounds cost: of a run that was killed, only the ledger may know the last."""
        tally = self.ledger.tally
        if not tally.only_rounds:
            tally = tally.only(lambda entry: self.ledger.tally.kind(entry) == "round")
        costs = _rounds_in(tally)
        costs.update(self.costs)
        return tally, costs

    def _to_state(self) -> list[Charge]:
        """What a statement has to know of the ledger by charge: releases beside the rounds, and those of rounds with
        several names of noise."""
        tally = self.ledger.tally
        kind_of = tally.kind
        names: dict[int, int] = {}
        several = {round for round, _, _, noise, _ in tally.entries() if names.setdefault(round, noise) != noise}
        return [tally.charge(entry) for entry in tally.entries() if entry.round in several or kind_of(entry) != "round"]

    def _check_planned(self, made: Iterable[Batch]) -> None:
        """Raise PluginError if silos released other than the budget was checked for.

        As with a schedule that answers anew each time, or a plugin that is another one at a silo's rank.
        """
        for charge, silos in made:
            cost = self.costs.get(charge.round)
            if cost is None or charge.kind != "round":
                continue
            sizes = {self._num_records[silo]: silo for silo in reversed(silos)}  # silos of one size have one plan
            for silo in sorted(sizes.values()):
                if charge.count <= self._counts(silo, cost).get(charge.release, 0):
                    continue
                levels = ", ".join(f"{count} of noise_multiplier {noise:g}" for noise, count in cost.levels)
                raise PluginError(
                    f"silo {silo} made {charge.count} releases of noise_multiplier "
                    f"{charge.release.noise_multiplier:g} in round {charge.round + 1}, which was planned with "
                    f"{levels or 'none'}: the mechanism and the factors of privacy.schedule must be the same whenever, "
                    "and wherever, they are asked for. Nothing of this left the silo."
                )

    def _counts(self, silo: int, cost: RoundCost) -> dict[SampledGaussian, int]:
        """{release: how many} that such a round makes of a silo."""
        kind = self._num_records[silo], cost
        if kind not in self._plans:
            self._plans[kind] = {one.release: one.count for one in self._planned(silo, cost)}
        return self._plans[kind]

    def _note(self, made: Iterable[Batch]) -> None:
        for charge, silos in made:
            kind = charge.kind
            assert kind is not None  # see `settle`
            if kind != "round":
                for silo in silos:
                    self._made[kind][silo, charge.round].add(charge.noise_id)
                self._priors.clear()
                noise = charge.release.noise_multiplier
                self._least[kind] = min(noise, self._least.get(kind, noise))
                continue
            noise_ids = self._noise_ids[charge.round]
            noise_ids.add(charge.noise_id)
            if len(noise_ids) > 1:
                self._repeated = True
                self._stretch.forget()
            if self._cap is None:
                continue
            for silo in silos:
                self._participations[silo].add((charge.round, charge.noise_id))
                if len(self._participations[silo]) >= self._cap:
                    self._retire(silo)

    def _retire(self, silo: int) -> None:
        """A silo has reached the cap."""
        place = bisect.bisect_left(self._eligible, silo)
        if self._eligible[place : place + 1] == [silo]:
            del self._eligible[place]

    def _kind(self, silo: int) -> tuple[int, tuple[Planned, ...]]:
        return self._num_records[silo], tuple(self._earlier.realised.get(silo, ()))

    def _cap_matters(self) -> bool:
        """Whether a silo may reach the cap, so that who is drawn later depends on who was drawn before."""
        if self._cap is None:
            return False
        again = sum(len(noise_ids) - 1 for noise_ids in self._noise_ids.values())
        return self._cap < (self._config_rounds or MOST_ROUNDS) + again

    def _everywhere(self, counted: Counter[RoundCost], prior: Prior | None = None) -> list[Terms]:
        """Compositions of silos that take part in every round, or in as many as they may; one of each kind."""
        earlier = (self.prior if prior is None else prior).realised
        found: list[Terms] = []
        for silo in self._silos():
            plans: Counter[tuple[Planned, ...]] = Counter()  # rounds of different costs may make the same releases
            for cost, rounds in counted.items():
                plans[tuple(self._planned(silo, cost))] += rounds
            found += worst_case_terms(plans, self._cap, earlier.get(silo, ()))
        return found

    def _cost(self, round: int, plan: RoundPlan) -> RoundCost:
        """What a round costs; worked out once for all rounds with alike plans, where their noise does not vary."""
        if self._rules.varies:
            return self._cost_of(round, plan)
        shape = plan.num_gradients, plan.most_gradients, plan.share, plan.participation
        if shape not in self._alike_plans:
            self._alike_plans[shape] = self._cost_of(round, plan)
        return self._alike_plans[shape]

    def _cost_of(self, round: int, plan: RoundPlan) -> RoundCost:
        if self._cap is not None and plan.participation == WITH_REPLACEMENT:
            raise ConfigError(
                f"max_participations={self._cap} with silos that are drawn with replacement: their probabilities are "
                "their weights, which those who are left do not have. Leave max_participations out, or draw without "
                "replacement."
            )
        levels = self._rules.noise_levels(round, plan.num_gradients)
        most = plan.most_gradients if self._rules.unit == "record" else None
        if most is not None and plan.num_gradients > most:
            self._check_length(plan.num_gradients, most, "at most the most_gradients of its round plan")
        # Of a round that makes different releases, or none, no mixture is proven: it counts as certain. So does one
        # whose number of releases and noise may both be other ones by earlier draws.
        by = participation(plan, self._setting)
        certain = self._certain or len(levels) > 1 or (self._rules.varies and most is not None)
        return RoundCost(levels, plan.share, CERTAIN if certain else by, most)

    def _check_length(self, num_gradients: int, wanted: int, what: str) -> None:
        if num_gradients != wanted:
            raise PluginError(
                f"the algorithm's round_plan asks for {num_gradients} gradients in a round of drawn silos; it should "
                f"have been {what}, {wanted}. Where the number changes, give most_gradients in every plan, the most "
                "that any round may ask for, whoever is drawn."
            )

    def _dearer(self, round: int, cost: RoundCost) -> RoundCost:
        """A round that is repeated without lost silos, and planned anew, counts as the dearer of its attempts."""
        before = self.costs.get(round) if self._lost else None
        return before if before is not None and before.num_releases > cost.num_releases else cost

    def _planned(self, silo: int, cost: RoundCost) -> list[Planned]:
        kind = self._num_records[silo], cost
        if kind in self._patterns:
            return self._patterns[kind]
        pattern = self._rules.pattern(self._num_records[silo], cost.share, cost.levels)
        planned = [Planned(release, count, cost.share) for release, count in pattern]
        if not self._rules.varies:  # else every round has its own
            self._patterns[kind] = planned
        return planned

    def _dearest(self, costs: Mapping[int, RoundCost]) -> Mapping[int, RoundCost]:
        """Rounds that are drawn count as the longest that any draws allow: which rounds cost more may depend on earlier
        draws, as the end of a warm-up does, and the mixture is proven for costs that do not. With lost silos all such
        rounds do: which silos were lost may decide it as well.
        """
        noise = self._rules.noise_multiplier
        if not any(cost.most for cost in costs.values()):
            return costs
        return {
            n: replace(cost, levels=((noise, cost.most),))
            if cost.most and (cost.probability < 1 or (self._lost and not self._rules.varies))
            else cost
            for n, cost in costs.items()
        }

    def _released_again(
        self, costs: Mapping[int, RoundCost], more: Mapping[int, set[str]] | None = None
    ) -> list[Charge]:
        """Charges of one silo, as good as any, for each round that was released more than once with fresh noise."""
        silo, charges = self._silos()[0], []
        for round, noise_ids in {**self._noise_ids, **(more or {})}.items():
            if len(noise_ids) > 1:
                for noise_id in noise_ids:
                    charges += self._charges(silo, round, costs[round], noise_id)
        return charges

    def _charges(self, silo: int, round: int, cost: RoundCost, noise_id: str) -> list[Charge]:
        return [
            Charge(
                round=round,
                silo=silo,
                release=planned.release,
                count=planned.count,
                share=planned.share,
                noise_id=noise_id,
            )
            for planned in self._planned(silo, cost)
        ]

    def _third_party(
        self, costs: Mapping[int, RoundCost], charges: Iterable[Charge], prior: Prior = NO_PRIOR
    ) -> ViewEpsilon:
        """The mixture of taking part and not; where a cap makes draws depend on each other, the server's worst case."""
        pattern = AlikeRounds(costs, self._planned)
        accountant, delta, silos = self._accountant, self._privacy.delta, self._silos()
        if not self._cap_matters():
            mixture = self._once(
                "mixture",
                (costs, charges, prior),
                lambda: third_party_composed(
                    charges,
                    silos=silos,
                    participation=_Probabilities(costs),
                    pattern=pattern,
                    earlier=prior.certain,
                ),
            ).stated(accountant, delta)
            return self._as_drawn(mixture, costs)
        worst = worst_case_view(
            charges,
            accountant,
            delta,
            silos=silos,
            rounds=costs,
            pattern=pattern,
            cap=self._cap,
            earlier=prior.realised,
        )
        why = "with a cap draws depend on earlier ones, so that the server's worst case is claimed and no mixture"
        return replace(worst, view="third_party", basis=f"{worst.basis}; {why}")

    def _mixed(self, costs: Mapping[int, RoundCost], prior: Prior) -> float:
        return self._mixture(Counter(costs.values()), prior)

    def _mixture(self, counted: Counter[RoundCost], prior: Prior = NO_PRIOR) -> float:
        """`_third_party`'s epsilon, round by round counted and not looked at, where that is the same."""
        if self._cap_matters():
            return worst_epsilon(self._accountant, self._everywhere(counted, prior), self._privacy.delta)
        if any(cost.share != (0.0, 1.0) for cost in counted):
            return self._third_party(dict(enumerate(counted.elements())), (), prior).epsilon
        mixtures = []
        for silo in self._silos():
            terms = prior.terms(silo, third_party=True)
            for cost, rounds in counted.items():
                for planned in self._planned(silo, cost):
                    made = Term(release=planned.release, count=planned.count, rounds=rounds)
                    terms.append(replace(made, participation=cost.probability))
            mixtures.append(normalise(terms))
        return worst_epsilon(self._accountant, mixtures, self._privacy.delta)

    def _stated_third_party(
        self, costs: Mapping[int, RoundCost], charges: Iterable[Charge], prior: Prior
    ) -> ViewEpsilon:
        """The third party's guarantee where the draws of participants may decide how a run goes.

        With a budget in the server's view a run ends when some silo has been drawn too often. Its length then depends
        on the draws, and the mixture over the rounds that happened to run proves nothing. What holds is the mixture
        over the most rounds that any draws allow, and the budget itself, which no silo passes whatever is drawn.
        Where rounds differ in their noise or length, those that other draws would have allowed are not followed up:
        given who was drawn, a third party sees no more than the server, and that is claimed.
        """
        alike = _drawn(self._dearest(costs), prior)
        if not self._draws_decide(alike.values()):
            return self._named(self._third_party(alike, charges, prior), alike)
        if self._rules.varies or any(cost.most for cost in alike.values()):
            alike = _made_certain(costs)
            return self._within_budget(self._named(self._third_party(alike, charges, prior), alike))
        if self._cap_matters():
            return self._within_budget(self._third_party(costs, charges, prior))
        limit = self._config_rounds or MOST_ROUNDS
        drawn = [cost for cost in alike.values() if cost.probability < 1]
        if all(cost.share == (0.0, 1.0) for cost in drawn):
            # Rounds on other records may go on where more on the same would not: of these all are counted, as if they
            # read the last ones.
            limit = max(self._most_rounds_of_any_draws(cost) for cost in set(drawn))
        first = max(alike) + 1
        padded = {**alike, **dict.fromkeys(range(first, first + limit - len(drawn)), drawn[-1])}
        mixture = self._third_party(padded, charges, prior)
        named = replace(mixture, basis=f"{mixture.basis}; over the {len(padded)} rounds that the budget may allow")
        return self._within_budget(named)

    def _as_drawn(self, view: ViewEpsilon, costs: Mapping[int, RoundCost]) -> ViewEpsilon:
        """With a word in its basis on how participants were drawn, where the number is an average over the draw."""
        if self._rules.secure or all(cost.probability == 1 for cost in costs.values()):
            return view
        return replace(view, basis=f"{view.basis}; {FROM_THE_SEED}")

    def _named(self, view: ViewEpsilon, costs: Mapping[int, RoundCost]) -> ViewEpsilon:
        """With a word in its basis on rounds that were drawn and count as certain, for the sake of their schedule."""
        drawn = self._setting.num_participants < self._setting.num_silos
        if not (self._rules.varies and drawn and any(cost.probability == 1 for cost in costs.values())):
            return view
        why = "rounds for which no mixture is proven, by their noise schedule, count as the server's worst case"
        return replace(view, basis=f"{view.basis}; {why}")

    def _within_budget(self, view: ViewEpsilon) -> ViewEpsilon:
        assert self._budget is not None
        if view.epsilon <= self._budget.epsilon or self._budget.accountant != self._accountant:
            return view  # a second opinion does not lean on what another accountant allowed
        basis = "the budget, which no silo's releases pass, whoever is drawn"
        return replace(view, epsilon=self._budget.epsilon, basis=basis)

    def _most_rounds_of_any_draws(self, cost: RoundCost) -> int:
        """The most rounds before every silo has used up its budget, or those of the configuration if that is fewer.

        As if no earlier run had used any of it: what one did, other draws would have changed too.
        """
        assert self._budget is not None
        limit = self._config_rounds or MOST_ROUNDS
        counts = {self._num_records[silo]: silo for silo in self._silos()}
        most = {n: self._most_rounds(silo, cost, self._budget.epsilon, limit) for n, silo in counts.items()}
        # In a round; with replacement one silo may be all who are drawn.
        fewest = 1 if cost.participation.law == "with_replacement" else self._setting.num_participants
        return min(limit, sum(most[count] for count in self._num_records) // fewest)

    def _silos(self) -> list[int]:
        return sorted(self._kinds.values())

    def _most_alike(self, cost: RoundCost, epsilon: float, limit: int) -> int:
        """How many rounds of this cost a third party's budget allows, up to ``limit``."""
        if self._cap_matters():
            assert self._cap is not None
            last = min(self._cap, limit)
            most = min(
                self._most_rounds(silo, cost, epsilon, last, self.prior.terms(silo, cost.share))
                for silo in self._kinds.values()
            )
            return limit if most == self._cap else most
        return min(
            self._most_rounds(
                silo, cost, epsilon, limit, self.prior.terms(silo, cost.share, third_party=True), cost.probability
            )
            for silo in self._kinds.values()
        )

    def _most_rounds(
        self,
        silo: int,
        cost: RoundCost,
        epsilon: float,
        limit: int,
        spent: Sequence[Term] = (),
        probability: float = 1.0,
    ) -> int:
        planned = next(iter(self._planned(silo, cost)), None)  # all that there is, where noise does not vary
        if planned is None:
            return limit
        term = Term(release=planned.release, count=planned.count, rounds=1, participation=probability)
        accountant = self._accountant if self._budget is None else self._budget.accountant
        likely = (self._config_rounds or 1) if spent else 1  # alone, more rounds never seem cheaper than fewer
        return max_rounds(accountant, term, spent, epsilon, self._privacy.delta, limit, likely)


def _drawn(costs: Mapping[int, RoundCost], prior: Prior) -> Mapping[int, RoundCost]:
    """Rounds count as certain where nothing is proven for drawn ones; see `dpfl_plugin.privacy.prior`."""
    return _made_certain(costs) if prior.draws_decided else costs


def _made_certain(costs: Mapping[int, RoundCost]) -> dict[int, RoundCost]:
    return {round: replace(cost, participation=CERTAIN) for round, cost in costs.items()}


def _rounds_in(charges: Iterable[Charge]) -> dict[int, RoundCost]:
    """Costs as charges show them. How probable the rounds were does not show, so they count as certain.

    Of each noise multiplier a round has as many releases as one silo made of it at once, the most of all.
    """
    tally = charges if isinstance(charges, Tally) else Tally(charges)
    made: dict[int, tuple[RoundCost, ...]] = {}  # of each share, the one that came last at the end
    # One object for all rounds that are alike, and what becomes of it by which charge.
    same: dict[tuple[RoundCost, ...], tuple[RoundCost, ...]] = {(): ()}
    after: dict[tuple[int, int, int], tuple[RoundCost, ...]] = {}
    for round, _, kind, _, count in tally.entries():
        before = made.get(round, same[()])
        change = id(before), kind, count
        if change not in after:
            share, release = tally.names.kinds[kind]
            costs = _with(before, share, release.noise_multiplier, count)
            after[change] = same.setdefault(costs, costs)
        made[round] = after[change]
    found: dict[int, Any] = made  # in place: there may be a million
    for round, shares in made.items():
        found[round] = shares[-1]
    return found


def _with(costs: tuple[RoundCost, ...], share: tuple[float, float], noise: float, count: int) -> tuple[RoundCost, ...]:
    """A round's costs, by share, with so many releases of a silo at once."""
    levels = {cost.share: dict(cost.levels) for cost in costs}
    of_share = levels.setdefault(share, {})
    of_share[noise] = max(of_share.get(noise, 0), count)
    return tuple(RoundCost(tuple(of.items()), share) for share, of in levels.items())


def earlier_runs(prior: Prior) -> str:
    return f"{len(prior.runs)} earlier run{'s' * (len(prior.runs) > 1)}"


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None


def _of_silo(silo: int, per_silo: Mapping[int, float]) -> float | None:
    """None where each silo's own epsilon was not worked out."""
    return _finite(per_silo.get(silo, 0.0)) if per_silo else None


def _plain(view: ViewEpsilon, prior: Prior) -> dict[str, Any]:
    return {
        "epsilon": _finite(view.epsilon),
        "delta": view.delta,
        "neighbouring": view.neighbouring,
        "unit": view.unit,
        "accountant": view.accountant,
        "worst_silo": view.worst_silo,
        "basis": _basis(view, prior),
    }


def _both(realised: ViewEpsilon, worst: ViewEpsilon, third_party: ViewEpsilon, prior: Prior) -> dict[str, Any]:
    return {
        "server": {
            **_plain(realised, prior),
            "worst_case_epsilon": _finite(worst.epsilon),
            "worst_case_basis": _basis(worst, prior),
        },
        "third_party": _plain(third_party, prior),
    }


def _basis(view: ViewEpsilon, prior: Prior) -> str:
    return view.basis + (f"; and what {earlier_runs(prior)} released" if prior.runs else "")
