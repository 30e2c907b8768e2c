"""What the server, a third party and an outsider learn of a run, and what a budget allows of it.

The server sees every message of every silo; a third party the models that the server made, and nothing else; an
outsider the models, without knowing who took part. What their guarantees rest on is in `dpfl_plugin.privacy.views`.
"""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dpfl_plugin.privacy.accountants import MOST_LEVELS, Accountant, rounded_down
from dpfl_plugin.privacy.budget import Budget
from dpfl_plugin.privacy.calibration import worst_epsilon
from dpfl_plugin.privacy.composition import ReleasesBySilo, Terms, compositions, undominated
from dpfl_plugin.privacy.costs import MOST_ROUNDS, RoundCost, attempted, made_certain
from dpfl_plugin.privacy.events import Term
from dpfl_plugin.privacy.extra_releases import NOT_RUN, WHOLE, extra_terms
from dpfl_plugin.privacy.participation import PlannedRound
from dpfl_plugin.privacy.tally import Tally
from dpfl_plugin.privacy.views import (
    Composed,
    ViewEpsilon,
    check_charges,
    in_drawn_rounds,
    outsider_view,
    server_composed,
    third_party_composed,
    worst_case_composed,
)

if TYPE_CHECKING:
    from dpfl_plugin.privacy.account import PrivacyAccount

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
LOST = (
    "silos were lost, which may depend on their records, so that the server's worst case is claimed and nothing of the "
    "draw of participants"
)
CAPPED = "with a cap draws depend on earlier ones, so that the server's worst case is claimed and no mixture"
SCHEDULED = "rounds for which no mixture is proven, by their noise schedule, count as the server's worst case"


def _most_rounds(
    account: PrivacyAccount, budget: Budget, silo: int, cost: RoundCost, limit: int, extra: Iterable[Sequence[Term]]
) -> int:
    """How many rounds of this cost a silo may be in within a budget, with each of what is ``beside`` them."""
    # All that there is, where noise does not vary.
    planned = next(iter(account.pricing.planned(silo, cost)), None)
    if planned is None:
        return limit
    one = Term(release=planned.release, count=planned.count, rounds=1, participation=cost.probability)
    likely = account.spec.rounds or 1  # alone, more rounds never seem cheaper than fewer
    return min(budget.most(one, tuple(terms), limit, likely if terms else 1) for terms in extra)


@dataclass(frozen=True, slots=True)
class Server:
    """What the server learned and may learn."""

    account: PrivacyAccount

    # What a budget allows

    def affords(self, round: int, cost: RoundCost, plan: PlannedRound) -> bool:
        """Whether those who were drawn for the next round stay within the budget."""
        extra, releases = self.account.extra.releases(ahead=True), self.account.pricing.planned
        return self._allows({silo: [*releases(silo, cost), *extra.get(silo, ())] for silo in plan.participants})

    def affords_extra(self, extra: ReleasesBySilo) -> bool:
        """Whether all silos stay within it with these releases ``beside`` the rounds."""
        return self._allows(extra)

    def _allows(self, releases: ReleasesBySilo) -> bool:
        assert self.account.budget is not None
        return self.account.budget.allows(self.account.spending, releases)

    def affords_all(self, rounds: Counter[RoundCost]) -> bool:
        """Whether rounds with these costs fit, so many of each, whoever is drawn."""
        return all(budget.holds(terms) for budget, terms in self.certain_compositions(rounds))

    def certain_compositions(self, rounds: Counter[RoundCost]) -> Iterator[tuple[Budget, Terms]]:
        """(budget, composition) of silos in as many of these rounds as may be, whoever is drawn."""
        assert self.account.budget is not None
        for budget, silos in self.account.budget.shared_by(self.account.silos):
            for terms in undominated(self.account.certain_compositions(rounds, silos=silos)):
                yield budget, terms

    def fits_ahead(self, later: Mapping[int, RoundCost]) -> bool:
        """Whether every silo stays within it to the end of rounds to come, whoever is drawn."""
        assert self.account.budget is not None
        return all(self.account.budget.fits(terms) for terms in undominated(self._ahead(later.values())))

    def fits_alone(self, silo: int, costs: Iterable[RoundCost]) -> bool:
        """Whether a silo that has spent nothing in this run stays within it by taking part in these rounds."""
        account = self.account
        assert account.budget is not None
        planned = [one for cost in costs for one in account.pricing.planned(silo, cost)]
        extra = account.extra.releases(ahead=True).get(silo, ())
        return all(account.budget.fits(terms) for terms in compositions([*planned, *extra]))

    def most_rounds(self, silo: int, cost: RoundCost, limit: int, extra: Iterable[Sequence[Term]] = ((),)) -> int:
        """How many rounds of this cost a silo may be in, with each of what is ``beside`` them; up to ``limit``."""
        assert self.account.budget is not None
        certain = made_certain(cost)
        return _most_rounds(self.account, self.account.budget.of(silo), silo, certain, limit, extra)

    def _ahead(self, costs: Iterable[RoundCost]) -> list[Terms]:
        """Compositions that dominate what any silo has released by the end of rounds to come."""
        account, extra = self.account, self.account.extra.releases(ahead=True)
        counted, alike = Counter(costs), account.silos_by_kind()
        noises = {noise for cost in counted for noise, _ in cost.levels} | account.spending.noise_multipliers()
        found: list[Terms] = []
        for kind, silo in account.kinds.items():
            planned = [*account.spending.envelope(alike[kind]), *extra.get(silo, ())]
            for cost, rounds in counted.items():
                planned += [replace(one, count=one.count * rounds) for one in account.pricing.planned(silo, cost)]
            if len(noises) + len(extra.get(silo, ())) > MOST_LEVELS:
                # A silo may have more of them than what dominates it, and be accounted for by levels.
                planned = [replace(one, release=rounded_down(one.release)) for one in planned]
            found += compositions(planned)
        return found

    # What it learned

    def epsilon_of(self, rounds: Counter[RoundCost]) -> float:
        """Epsilon of rounds with these costs, so many of each, of a silo in as many of them as may be."""
        account = self.account
        return worst_epsilon(account.accountant, account.certain_compositions(rounds), account.spec.delta)

    def spent(self, extra: ReleasesBySilo) -> float:
        """Epsilon of what silos released, in rounds and beside them; with a schedule, of what dominates a kind."""
        account, spending = self.account, self.account.spending
        if account.rules.varies:
            made = [
                terms for silos in account.silos_by_kind().values() for terms in compositions(spending.envelope(silos))
            ]
        else:
            silos = {*spending, *extra}
            made = [terms for silo in silos for terms in spending.compositions(silo, extra.get(silo, ()))]
        return worst_epsilon(account.accountant, made, account.spec.delta)


@dataclass(frozen=True, slots=True)
class ThirdParty:
    """What a third party learned and may learn."""

    account: PrivacyAccount

    # What a budget allows

    def affords(self, round: int, cost: RoundCost, plan: PlannedRound) -> bool:
        """Whether a round, the next to come, stays within the budget, whoever was drawn."""
        account = self.account
        assert account.budget is not None
        rounds, attempts = account.with_round(round, cost), account.attempts()
        if account.noise_ids.get(round):
            attempts[round] = len(account.noise_ids[round]) + 1
        certain: Counter[RoundCost] = Counter()
        for again, number in attempts.items():
            repeated = cost if again == round else account.cost_of(again)
            assert repeated is not None  # it was released
            rounds[repeated] -= 1
            certain[repeated] += number
        counted = self._longest(+rounds)
        if len(counted) == 1 and not certain and not account.cap_matters():  # one search serves all rounds
            return counted.total() <= self.most_alike(next(iter(counted)), MOST_ROUNDS)
        for alike, number in self._longest(certain).items():  # as in `attempted`
            counted[made_certain(alike)] += number
        extra = account.extra.releases(ahead=True)
        return all(map(account.budget.fits, undominated(self._compositions(counted, extra, plan.participants))))

    def affords_extra(self, extra: ReleasesBySilo) -> bool:
        """Whether the rounds that were begun stay within it with these releases ``beside`` them."""
        assert self.account.budget is not None
        return self.epsilon_so_far(extra) <= self.account.budget.epsilon

    def affords_all(self, rounds: Counter[RoundCost]) -> bool:
        """Whether rounds with these costs fit, so many of each, whoever is drawn."""
        assert self.account.budget is not None
        if len(rounds) == 1 and not self.account.rules.varies:
            return rounds.total() <= self.most_alike(next(iter(rounds)), MOST_ROUNDS)
        return self.epsilon_of(rounds) <= self.account.budget.epsilon

    def fits_ahead(self, later: Mapping[int, RoundCost]) -> bool:
        """Whether a third party's epsilon is within it at the end of rounds to come."""
        account = self.account
        assert account.budget is not None
        costs = {
            **account.found,
            **account.costs,
            **{n: account.costliest_attempt(n, cost) for n, cost in later.items()},
        }
        again = {round: len(account.noise_ids[round]) + 1 for round in later if account.noise_ids.get(round)}
        extra = account.extra.releases(ahead=True)
        return self._epsilon(costs, {**account.attempts(), **again}, extra) <= account.budget.epsilon

    def most_alike(self, cost: RoundCost, limit: int) -> int:
        """How many rounds of this cost a third party's budget allows, up to ``limit``."""
        account, cap = self.account, self.account.spec.max_participations
        assert account.budget is not None
        extra, last = account.extra.releases(ahead=True), limit
        if account.cap_matters():
            assert cap is not None
            cost, last = made_certain(cost), min(cap, limit)
        most = min(
            _most_rounds(account, account.budget, silo, cost, last, extra_terms(extra, silo, cost.share))
            for silo in account.kinds.values()
        )
        return limit if account.cap_matters() and most == cap else most

    # What a third party learned

    def epsilon_of(self, rounds: Counter[RoundCost]) -> float:
        """Epsilon of rounds with these costs, so many of each, whoever is drawn."""
        return self._worst(self._longest(rounds), self.account.extra.releases(ahead=True))

    def of_begun(self) -> float:
        """Epsilon of all rounds that were begun, with all that they are composed with."""
        account, extra = self.account, self.account.extra.releases(ahead=True)
        if self._draws_decide(account.costs.values()):
            return self.stated(account.costs, {}, extra).stated(account.accountant, account.spec.delta).epsilon
        return self.epsilon_so_far(extra) if account.repeated else self.epsilon_of(Counter(account.costs.values()))

    def epsilon_so_far(self, extra: ReleasesBySilo) -> float:
        """Epsilon of the rounds that count by now."""
        return self._epsilon({**self.account.found, **self.account.costs}, self.account.attempts(), extra)

    def _epsilon(self, costs: Mapping[int, RoundCost], attempts: Mapping[int, int], extra: ReleasesBySilo) -> float:
        return self._worst(attempted(self.account.pricing.dearest(costs), attempts), extra)

    def _worst(self, counted: Counter[RoundCost], extra: ReleasesBySilo) -> float:
        return worst_epsilon(self.account.accountant, self._compositions(counted, extra), self.account.spec.delta)

    def _compositions(
        self, counted: Counter[RoundCost], extra: ReleasesBySilo, participants: Iterable[int] = ()
    ) -> list[Terms]:
        """The mixture of taking part and not; where a cap makes draws depend on each other, the server's worst case."""
        account = self.account
        if account.cap_matters():
            return account.certain_compositions(counted, extra, participants=participants)
        of_silos = in_drawn_rounds(counted, account.pricing.planned, account.silos, extra).values()
        return [terms for of_silo in of_silos for terms in of_silo]

    def _longest(self, rounds: Counter[RoundCost]) -> Counter[RoundCost]:
        """As a third party's epsilon counts them; see `Pricing.longest`."""
        found: Counter[RoundCost] = Counter()
        for cost, number in rounds.items():
            found[self.account.pricing.longest(cost)] += number
        return found

    # What is stated

    def stated(self, costs: Mapping[int, RoundCost], attempts: Mapping[int, int], extra: ReleasesBySilo) -> Composed:
        """The third party's guarantee where the draws of participants may decide how a run goes.

        With a budget in the server's view a run ends when some silo has been drawn too often. Its length then depends
        on the draws, and the mixture over the rounds that happened to run proves nothing. What holds is the mixture
        over the most rounds that any draws allow, and the budget itself, which no silo passes whatever is drawn.
        Where rounds differ in their noise, their length or their records, those that other draws would have allowed
        are not followed up: given who was drawn, a third party sees no more than the server, and that is claimed. So it
        is of a run that failed, as it does again and again where a silo that is broken is drawn.
        """
        account = self.account
        alike = account.pricing.dearest(costs)
        ended, limit_ended = self._draws_decide(alike.values()), self._limit_ended(alike)
        within = account.budget if ended else None
        why = GIVEN_WHO if limit_ended else self._why_given(alike, ended)
        if why is not None:
            certain = {round: made_certain(cost) for round, cost in costs.items()}
            given = self._mixture(certain, attempts, extra).because(why)
            return given if limit_ended else replace(given, within=within)
        if not ended:
            return self._named(self._mixture(alike, attempts, extra), alike)
        if account.cap_matters():
            return replace(self._mixture(costs, attempts, extra), within=within)
        drawn = [round for round, cost in alike.items() if cost.probability < 1]
        padded = dict(alike)
        if len(alike) != account.spec.rounds:
            first, last, limit = max(alike) + 1, alike[max(drawn)], account.spec.rounds or MOST_ROUNDS
            if last.share == WHOLE:  # rounds on other records may go on where more on the same would not
                limit = self._most_rounds_of_any_draws(last)
            padded |= dict.fromkeys(range(first, first + limit - len(drawn)), last)
        whole = self._mixture(padded, attempts, extra)
        return replace(whole.because(f"over the {len(padded)} rounds that the budget may allow"), within=within)

    def _mixture(self, costs: Mapping[int, RoundCost], attempts: Mapping[int, int], extra: ReleasesBySilo) -> Composed:
        """The mixture of taking part and not; where a cap makes draws depend on each other, the server's worst case."""
        account, releases, silos = self.account, self.account.pricing.planned, self.account.silos
        if account.cap_matters():
            cap = account.most_attempts()
            worst = worst_case_composed(costs, attempts, releases, silos=silos, cap=cap, extra=extra)
            return replace(worst.because(CAPPED), view="third_party")
        mixture = third_party_composed(costs, attempts, releases, silos=silos, extra=extra)
        drawn = any(cost.probability < 1 for cost in costs.values())
        return mixture.because(FROM_THE_SEED) if drawn and not account.rules.fresh else mixture

    def _why_given(self, costs: Mapping[int, RoundCost], ended: bool) -> str | None:
        """Why no more is claimed than given who was drawn; None where more is.

        Args:
            ended: whether the draws may decide how long the run is.
        """
        if all(cost.probability == 1 for cost in costs.values()):
            return None
        account, lengths = self.account, any(cost.most for cost in costs.values())
        if account.failed:
            return FAILED
        if lengths and any(round not in account.costs for round in costs):
            return UNKNOWN_LENGTHS
        return GIVEN_WHO if ended and (account.rules.varies or lengths or not self._known_to_come(costs)) else None

    def _known_to_come(self, costs: Mapping[int, RoundCost]) -> bool:
        """Whether rounds that other draws would have allowed cost no more than if they were the last one again.

        So it is where no more are planned, or where all since the first that was drawn are alike. Rounds that read a
        part of the records are followed by those that read another, and of fewer records a batch is a larger part,
        unless the sampler has one rate for all parts; on one part, more rounds then cost more than on several.
        """
        if len(costs) == self.account.spec.rounds:
            return True
        first = min(round for round, cost in costs.items() if cost.probability < 1)
        since = [cost for round, cost in costs.items() if round >= first]
        one_rate = self.account.rules.sampler.name in ("full", "poisson")
        read_alike = one_rate or all(cost.share == WHOLE for cost in since)
        return read_alike and len({replace(cost, share=WHOLE) for cost in since}) == 1

    def _limit_ended(self, costs: Mapping[int, RoundCost]) -> bool:
        """Whether the limit of a shared ledger, which is asked about those who were drawn, may have ended the run."""
        shared = self.account.ledger.facts.get("shared")
        limited = isinstance(shared, Mapping) and "limited" in shared
        drawn = any(cost.probability < 1 for cost in costs.values())
        return limited and len(costs) != self.account.spec.rounds and drawn

    def _draws_decide(self, costs: Iterable[RoundCost]) -> bool:
        """Whether the draws of participants may decide how long a run of such rounds is."""
        drawn = any(cost.probability < 1 for cost in costs)
        return drawn and self.account.budget is not None and self.account.spec.view == "server"

    def _named(self, composed: Composed, costs: Mapping[int, RoundCost]) -> Composed:
        """With a word in its basis on rounds that were drawn and count as certain, for the sake of their schedule."""
        spec = self.account.spec
        certain = any(cost.probability == 1 for cost in costs.values())
        scheduled = self.account.rules.varies and spec.num_participants < spec.num_silos and certain
        return composed.because(SCHEDULED) if scheduled else composed

    def _most_rounds_of_any_draws(self, cost: RoundCost) -> int:
        """The most rounds before every silo has used up its budget, or those of the configuration if that is fewer."""
        account, spec = self.account, self.account.spec
        limit = spec.rounds or MOST_ROUNDS
        most = {kind: account.server.most_rounds(silo, cost, limit) for kind, silo in account.kinds.items()}
        # In a round; with replacement one silo may be all who are drawn.
        fewest = 1 if cost.participation.law == "with_replacement" else spec.num_participants
        return min(limit, sum(most[account.kind(silo)] for silo in range(len(spec.num_records))) // fewest)


def outsider(account: PrivacyAccount, accountant: Accountant) -> ViewEpsilon | None:
    """`outsider_view` of all rounds that were begun, or None where its conditions are not met.

    The ends of runs count among them: where the draws decide how long a run lasts, its length tells of them. So does a
    shared ledger: runs of one seed draw the same silos, and a sample that is used twice amplifies once. And attempts at
    a round by draws that nobody can repeat may be one sample or several, which no ledger tells.
    """
    spec, costs, ledger = account.spec, account.costs, account.ledger
    release = account.rules.release(1.0)
    if (release.unit, release.neighbouring) != ("silo", "replace_one"):
        return None
    certain = all(cost.probability == 1 for cost in costs.values())
    drawn_end = not certain and account.budget is not None and spec.view == "server"
    known = all(entry.round in costs for entry in ledger.tally.entries())
    if (
        account.rules.varies
        or not (spec.in_sums and spec.equal_weights and known and costs)
        or account.cap_matters()
        or drawn_end
        or account.lost
        or (account.rules.fresh and not certain and ledger.tally.several())
        or "shared" in ledger.facts
        or account.rules.silos
    ):
        return None
    S, M = spec.num_participants, spec.num_silos
    if any(cost.participation.law == "with_replacement" for cost in costs.values()):
        return None  # nothing is proven for that
    rounds = {round: (M if cost.probability == 1 else S, M) for round, cost in costs.items()}
    seen: defaultdict[int, set[int]] = defaultdict(set)
    for entry in ledger.tally.entries():
        seen[entry.round].add(entry.silo)
    if any(len(silos) != rounds[round][0] for round, silos in seen.items()):
        return None  # a round that counts as certain, or was cut short, has not the noise of all these silos
    return outsider_view(ledger, accountant, spec.delta, release=release, rounds=rounds)


class Statement:
    """What a run's ledger proves, by any accountant.

    What is composed is worked out once for all of them: of a million charges that takes longer than any epsilon.

    Args:
        account: it must not grow meanwhile.
    """

    def __init__(self, account: PrivacyAccount) -> None:
        self._account = account

    def views(self, accountant: Accountant) -> dict[str, Any]:
        """The guarantees as plain values: the server's (realised, and the worst case), a third party's, and an
        outsider's where one is proven."""
        delta = self._account.spec.delta
        realised, (worst, third_party) = self._realised.stated(accountant, delta), self._of_rounds
        worst_case = worst.stated(accountant, delta)
        views = {
            "server": {
                **_plain(realised),
                "worst_case_epsilon": finite(worst_case.epsilon),
                "worst_case_basis": worst_case.basis,
            },
            "third_party": _plain(third_party.stated(accountant, delta)),
        }
        if (view := outsider(self._account, accountant)) is not None:
            views["outsider"] = _plain(view)
        return views

    def per_silo(self, accountant: Accountant) -> list[dict[str, Any]]:
        """Each silo's records, rounds and epsilon."""
        account = self._account
        alone = self._realised.stated(accountant, account.spec.delta).per_silo
        charged, rounds = _taken_part(account.ledger.tally)
        return [
            {
                "silo": silo,
                "num_records": count,
                "rounds": rounds[silo],
                # None where each silo's own epsilon was not worked out.
                "epsilon": (finite(alone.get(silo, 0.0)) if alone else None) if silo in charged else 0.0,
                **(_settings(account, silo) if account.rules.silos else {}),
            }
            for silo, count in enumerate(account.spec.num_records)
        ]

    @functools.cached_property
    def _realised(self) -> Composed:
        return server_composed(self._account.ledger.tally)

    @functools.cached_property
    def _of_rounds(self) -> tuple[Composed, Composed]:
        """What the server might have learned of any silo, and what a third party did."""
        account, releases = self._account, self._account.pricing.planned
        charges, made = account.charged()
        costs: Mapping[int, RoundCost] = account.pricing.dearest(made) if account.lost else made
        check_charges(charges, costs, releases)
        attempts, extra = charges.again(), account.extra.releases(ahead=False)
        cap = account.most_attempts()
        worst = worst_case_composed(costs, attempts, releases, silos=account.silos, cap=cap, extra=extra)
        if account.lost:
            return worst, replace(worst.because(LOST), view="third_party")
        return worst, account.third_party.stated(costs, attempts, extra)


def _taken_part(tally: Tally) -> tuple[set[int], Counter[int]]:
    """(silos that are charged, for scores or statistics only, too; in how many rounds each of them took part)."""
    charged, made = set(), set()
    noises = {entry.noise for entry in tally.entries()}
    not_run = {noise for noise in noises if tally.names.noise_id(noise).startswith(NOT_RUN)}
    for entry in tally.entries():
        charged.add(entry.silo)
        if entry.noise not in not_run and tally.kind(entry) == "round":
            made.add((entry.silo, entry.round))
    return charged, Counter(silo for silo, _ in made)


def _settings(account: PrivacyAccount, silo: int) -> dict[str, Any]:
    """A silo's budget and how its releases are made, where silos differ in that."""
    spec, rules = account.spec, account.rules.of(silo)
    return {
        "budget": spec.epsilons.get(silo, spec.epsilon),
        "noise_multiplier": rules.noise_multiplier,
        "record_rate": rules.sampler.rate(spec.num_records[silo]),
        "clip_norm": finite(rules.clip_norm),
    }


def finite(epsilon: float) -> float | None:
    """None where nothing is guaranteed."""
    return epsilon if math.isfinite(epsilon) else None


def _plain(view: ViewEpsilon) -> dict[str, Any]:
    """One guarantee; epsilon None where there is none."""
    return {
        "epsilon": finite(view.epsilon),
        "delta": view.delta,
        "neighbouring": view.neighbouring,
        "unit": view.unit,
        "accountant": view.accountant,
        "worst_silo": view.worst_silo,
        "basis": view.basis,
    }
