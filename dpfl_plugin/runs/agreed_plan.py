"""The plan that a silo agrees to before the first round: which releases it may be asked for, solved in advance.

It is worked out from public things: settings, the algorithm's round plans, and the silo's own number of records. See
`dpfl_plugin.privacy.slots` for what it is good for.

* What the algorithm plans for each round is rehearsed without records. Where the length of a round depends on draws, it
  is the most that any draws allow (``most_gradients``); else it is what the seed of the settings says.
* With an epsilon, the plan is that of as many rounds as fit the budget, together and in order. Where a budget alone
  ends the run, this is found before it begins. Where all releases are alike, it is as many of them as fit, to twice
  those of all rounds: what there is room for beyond is for rounds that are run again (a void one, a silo killed in it).
* Without an epsilon it is all rounds, and room for `SPARE` rounds that are run again.
* Where releases differ (scores, statistics, own models, disjoint shares), there is as much room for what is released
  once more: for a round and one of each release beside them together, and, where that is all that fits, of any of them
  alone. Under a schedule there is none: every round has noise of its own, and a spare round would be all of them.
* With ``max_participations``, each kind of release is planned as often as the rounds with most of it make it, as many
  rounds as the cap allows.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dpfl_plugin.errors import ConfigError
from dpfl_plugin.federation.rehearsal import rounds_ahead
from dpfl_plugin.privacy.budget import Budget
from dpfl_plugin.privacy.calibration import most, worst_epsilon
from dpfl_plugin.privacy.composition import Planned, compositions, undominated
from dpfl_plugin.privacy.costs import RoundCost
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.slots import SlotKind, count_kinds, planned_of
from dpfl_plugin.runs.extra_plan import extra_plan
from dpfl_plugin.runs.forecast import MOST_PLANNED, Forecast

SPARE: Final = 3  # rounds that may be run again where no epsilon says how many; a server gives up after 3 void rounds


@dataclass(frozen=True, slots=True)
class AgreedPlan:
    """The slots of one silo.

    Attributes:
        epsilon, delta: what the whole plan comes to towards the server; the agreed epsilon where there is one.
            math.inf where nothing is guaranteed.
    """

    planned: tuple[Planned, ...]
    epsilon: float
    delta: float


def agreed_plan(forecast: Forecast, rules: PrivacyRules, num_records: int) -> AgreedPlan:
    """The plan of a silo with so many records, of what the forecast's algorithm asks for.

    Args:
        forecast: of the silo, with the setting that server and silo have in common.
        rules: how its releases are made, with the noise that was given or solved for.

    Raises:
        ConfigError: not even the first round fits the budget.
        UnsupportedError: no sound bound is known for a release.
    """
    privacy = forecast.config.privacy
    planned = registered_plan(forecast, rules, num_records, spare=None)
    if privacy.epsilon is not None and privacy.budget_view == "server":
        return AgreedPlan(planned, privacy.epsilon, privacy.delta)
    return AgreedPlan(planned, worst_epsilon(forecast.accountant, compositions(planned), privacy.delta), privacy.delta)


def registered_plan(
    forecast: Forecast, rules: PrivacyRules, num_records: int, spare: int | None = 0
) -> tuple[Planned, ...]:
    """What a silo with so many records releases in a run at most.

    Args:
        forecast, rules: as in `agreed_plan`.
        spare: how many rounds may be run again; None for as many as the module says.

    Raises:
        ConfigError, UnsupportedError: as `agreed_plan`.
    """
    privacy = forecast.config.privacy
    # A budget towards a third party does not bound what the server sees, which the owner of the data goes by.
    agreed = privacy.epsilon if privacy.budget_view == "server" else None
    budget = None if agreed is None else Budget(agreed, privacy.delta, forecast.accountant)
    return _Rounds(forecast, rules, num_records).plan(budget, spare)


class _Rounds:
    """The releases of a silo in the first n rounds, for any n."""

    def __init__(self, forecast: Forecast, rules: PrivacyRules, num_records: int) -> None:
        self._config, self._rules, self._num_records = forecast.config, rules, num_records
        self._limit = forecast.config.rounds or MOST_PLANNED
        open_ended = forecast.changed(epsilon=None, noise_multiplier=rules.noise_multiplier)
        open_ended = replace(open_ended, config=open_ended.config.model_copy(update={"max_participations": None}))
        self._account = open_ended.account(rules.noise_multiplier)
        self._ahead = rounds_ahead(self._account, open_ended.planner, self._limit)
        self._of_round: list[tuple[Planned, ...]] = []
        self._drawn: list[tuple[Planned, ...]] = []  # the same, as long as the seed's draws make them
        self._of_cost: dict[RoundCost, tuple[tuple[Planned, ...], tuple[Planned, ...]]] = {}
        releases = extra_plan(forecast.config, forecast.accountant)
        made = [releases.planned(kind, rules, num_records) for kind in releases.kinds]
        self._once = [one for one, count in made if count]  # beside the rounds
        self._beside = [replace(one, count=one.count * count) for one, count in made if count]

    def plan(self, budget: Budget | None, spare: int | None) -> tuple[Planned, ...]:
        """The releases of all rounds, or of those that fit; see `registered_plan`."""
        if spare is None and budget is None:
            spare = SPARE

        def fits(planned: Sequence[Planned]) -> bool:
            return budget is None or all(budget.fits(terms) for terms in undominated(compositions(planned)))

        whole: list[Planned] = []
        if self._config.rounds is not None:
            whole = self._first(self._limit)
            if budget is not None:  # noise is solved for all rounds together: then fewer fit, too
                for all_rounds in (self._first(self._limit, longest=False), whole):
                    for terms in undominated(compositions(all_rounds)):
                        budget.holds(terms)
        if len(whole) == 1 and not self._beside:
            planned = self._alike(whole[0], fits, spare)
        else:
            planned = self._in_order(fits, spare)
        if not planned:
            raise ConfigError(
                f"privacy.epsilon={self._config.privacy.epsilon!r} does not allow a single round. Raise it, or ask for "
                "more noise or fewer local steps."
            )
        return tuple(planned)

    def _alike(self, one: Planned, fits: Callable[[Sequence[Planned]], bool], spare: int | None) -> list[Planned]:
        """All releases are of one kind: as many as fit, to twice those of all rounds; or ``spare`` rounds more."""
        longest, cap = max(sum(p.count for p in each) for each in self._of_round), self._config.max_participations
        limit = 2 * one.count if spare is None else one.count + spare * longest
        limit = limit if cap is None else min(limit, cap * longest)
        count = most(lambda n: fits([replace(one, count=n)]), limit, min(one.count, limit))
        return [replace(one, count=count)] if count else []

    def _in_order(self, fits: Callable[[Sequence[Planned]], bool], spare: int | None) -> list[Planned]:
        """The first rounds, as many as fit: the longest that draws allow, or where not all of these do, as drawn."""
        rounds, longest = self._most(fits, longest=True), True
        if rounds < self._limit and self._of_round != self._drawn:
            rounds, longest = self._most(fits, longest=False), False
        planned = self._first(rounds, longest=longest)
        all_fit = rounds == self._limit and self._config.rounds is not None and not self._rules.varies
        return self._with_spare(planned, fits, self._limit if spare is None else spare) if all_fit else planned

    def _with_spare(
        self, planned: list[Planned], fits: Callable[[Sequence[Planned]], bool], spare: int
    ) -> list[Planned]:
        """With slots for what is released once more, as many times as fit, up to ``spare``."""
        rounds: Counter[SlotKind] = Counter()
        if self._config.max_participations is None:  # a round that is run again counts for the cap
            for each in self._of_round:
                rounds |= count_kinds(each)
        once = [*planned_of(rounds), *self._once]

        def more(some: Sequence[Planned], times: int) -> list[Planned]:
            return planned_of(count_kinds([*planned, *(replace(one, count=one.count * times) for one in some)]))

        left = spare
        for some in (once, *([one] for one in once)):
            times = most(functools.partial(lambda these, n: fits(more(these, n)), some), left)
            planned = more(some, times) if times else planned
            left = left - times if some is once else left
        return planned

    def _most(self, fits: Callable[[Sequence[Planned]], bool], *, longest: bool) -> int:
        def fit(rounds: int) -> bool:
            return self._known(rounds) == rounds and fits(self._first(rounds, longest=longest))

        # All rounds, where their number is known; else it is the budget that ends them, long before the limit.
        return most(fit, self._limit, 1 if self._config.rounds is None else self._limit)

    def _known(self, number: int) -> int:
        """Look ahead for so many rounds; how many of them there are."""
        while len(self._of_round) < number and next(self._ahead, None) is not None:
            cost = self._account.costs[len(self._of_round)]
            if self._rules.varies or cost not in self._of_cost:
                longest = cost.levels if cost.most is None else self._rules.noise_levels(len(self._of_round), cost.most)
                self._of_cost[cost] = self._releases(cost, longest), self._releases(cost, cost.levels)
            self._of_round.append(self._of_cost[cost][0])
            self._drawn.append(self._of_cost[cost][1])
        return min(number, len(self._of_round))

    def _releases(self, cost: RoundCost, levels: Iterable[tuple[float, int]]) -> tuple[Planned, ...]:
        pattern = self._rules.pattern(self._num_records, cost.share, levels)
        return tuple(Planned(release, count, cost.share) for release, count in pattern)

    def _first(self, rounds: int, *, longest: bool = True) -> list[Planned]:
        """What the first rounds release in all, and what is released beside them; nothing of no rounds."""
        if rounds == 0:
            return []
        made: defaultdict[SlotKind, Counter[int]] = defaultdict(Counter)  # how many rounds make so many of a kind
        number = self._known(rounds)
        for each in (self._of_round if longest else self._drawn)[:number]:
            for kind, count in count_kinds(each).items():
                made[kind][count] += 1
        cap = self._config.max_participations
        return [
            *(Planned(release, _of_most(rounds_of, cap), share) for (release, share), rounds_of in made.items()),
            *self._beside,
        ]


def _of_most(rounds: Counter[int], cap: int | None) -> int:
    """Releases in the ``cap`` rounds that make most of them, or in all."""
    total, left = 0, rounds.total() if cap is None else cap
    for count in sorted(rounds, reverse=True):
        taken = min(left, rounds[count])
        total, left = total + taken * count, left - taken
    return total
