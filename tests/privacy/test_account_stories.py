"""Whatever happens to a run, its account forgets nothing and says what a composition written out by hand does."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.accountants import RDP
from dpfl_plugin.privacy.events import Charge, Term
from dpfl_plugin.privacy.extra_releases import ExtraPlan
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.scores import Scores
from tests.privacy.test_account import DELTA, M, Round, account

PAIRS = tuple(itertools.combinations(range(M), 2))
SETTINGS: Sequence[dict[str, Any]] = (
    {},
    {"epsilon": 0.7},
    {"epsilon": 0.7, "view": "third_party"},
    {"epsilon": 0.7, "max_participations": 3},
    {"epsilon": 0.7, "beta": 0.97},
    {"epsilon": 0.7, "view": "third_party", "beta": 0.97},
    {"extra_plan": ExtraPlan(200, Scores((0.8, 1.0), 6.0), num_scores=3, statistics=6.0)},
)
EVENTS = ["round"] * 6 + ["again", "cut off", "extra", "lose", "crash"]


class Sum(RDP):
    """Takes no time: a number that differs among compositions, and grows with them."""

    def epsilon(self, composition: Sequence[Term], delta: float) -> float:
        return sum(
            term.count * term.rounds * term.participation**1.1 * term.release.rate**0.9 / term.release.noise_multiplier
            for term in composition
        )


class Story:
    """A run under an account that is asked before every release.

    Attributes:
        rounds: how many there are by now. names: of noise.
    """

    def __init__(self, **given: Any) -> None:
        self.given, self.ledger = {"accountant": Sum(), **given}, Ledger()
        self.account, self.rounds, self.names, self.lost = self.open(), 0, 0, False

    def open(self, **more: Any) -> PrivacyAccount:
        return account(ledger=self.ledger, **self.given, **more)

    def tell(self, event: str, silos: tuple[int, ...]) -> None:
        if event == "lose":
            self.account.lose()
            self.lost = True
        elif event == "crash":
            self.account = self.open(costs=self.account.costs, lost=self.lost)
        elif event == "extra":
            self._release_extra()
        else:
            self._run_round(self.rounds - (event == "again"), silos, whole=event != "cut off")

    def _name(self) -> str:
        self.names += 1
        return f"run.{self.names:032x}"

    def _run_round(self, round: int, silos: tuple[int, ...], *, whole: bool) -> None:
        eligible, share = self.account.eligible(), self.account.extra_plan.training
        plan = Round(silos, share=share)
        if round < 0 or not set(silos) <= set(range(M) if eligible is None else eligible):
            return
        if not self.account.affords(round, plan):
            return
        self.account.begin_round(round, plan)
        charges = self.account.charges(round, plan, self._name())
        self.account.append(charges if whole else charges[:1])
        self.rounds = round + 1

    def _release_extra(self) -> None:
        for kind in self.account.extra_plan.kinds:
            name = self._name()
            if self.account.affords_extra(kind, 0, name):
                one, _ = self.account.extra_plan.planned(kind, self.account.rules, 20)
                more = {"release": one.release, "count": one.count, "share": one.share, "noise_id": name, "kind": kind}
                self.account.append([Charge(round=0, silo=silo, **more) for silo in range(M)])


def server_by_hand(of: PrivacyAccount) -> float:
    """Of each silo all releases, those of disjoint shares apart; what a silo released beside rounds, all have."""
    rounds: defaultdict[tuple[int, bool], Counter[Any]] = defaultdict(Counter)
    for charge in of.ledger:
        rounds[charge.silo, charge.share[0] > 0][charge.release] += charge.count
    composed = ([Term(release=r, count=n, rounds=1) for r, n in made.items()] for made in rounds.values())
    return max((of.accountant.epsilon(terms, DELTA) for terms in composed), default=0.0)


def third_party_by_hand(of: PrivacyAccount) -> float:
    """Rounds as probable as they were drawn; those that were released again for certain, as often as they were."""
    names: defaultdict[int, set[str]] = defaultdict(set)
    beside: defaultdict[bool, set[tuple[str, Any, int]]] = defaultdict(set)
    for charge in of.ledger:
        if charge.kind == "round":
            names[charge.round].add(charge.noise_id)
        else:
            beside[charge.share[0] > 0].add((charge.noise_id, charge.release, charge.count))
    terms = [Term(release=release, count=count, rounds=1) for _, release, count in beside[False]]
    for round, cost in of.costs.items():
        again = len(names[round]) > 1
        ((release, count),) = of.rules.pattern(20, cost.share, cost.levels)
        p = 1.0 if again else cost.probability
        terms.append(Term(release=release, count=count, rounds=max(1, len(names[round])), participation=p))
    scores = [Term(release=release, count=count, rounds=1) for _, release, count in beside[True]]
    return max(of.accountant.epsilon(made, DELTA) for made in (terms, scores))


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from(SETTINGS),
    st.lists(st.tuples(st.sampled_from(EVENTS), st.sampled_from(PAIRS)), max_size=16),
)
def test_an_account_forgets_nothing(given_: dict[str, Any], events: list[tuple[str, tuple[int, ...]]]) -> None:
    story = Story(**given_)
    spent = {"server": 0.0, "third_party": 0.0}
    for event, silos in events:
        story.tell(event, silos)
        now: Any = story.account.epsilons_so_far()
        assert all(now[view] >= spent[view] * (1 - 1e-9) for view in spent), f"{event} takes something back"
        spent = now
    epsilon, view = given_.get("epsilon"), given_.get("view", "server")
    views, extra = story.account.views(), story.account.extra.releases(ahead=False)
    if epsilon is not None and not (story.lost and view == "third_party"):  # who fails may be what makes it dearer
        released = views["server"]["epsilon"] if view == "server" else story.account.third_party.epsilon_so_far(extra)
        assert released <= epsilon * (1 + 1e-9)
    made = Counter(silo for silo, _, _ in {(c.silo, c.round, c.noise_id) for c in story.ledger if c.kind == "round"})
    assert max(made.values(), default=0) <= given_.get("max_participations", 200)
    assert views == story.open(costs=story.account.costs, lost=story.lost, stating=True).views(), "by its ledger alone"
    assert views["server"]["epsilon"] <= views["server"]["worst_case_epsilon"] * (1 + 1e-9)
    assert views["server"]["epsilon"] == pytest.approx(server_by_hand(story.account), rel=1e-9)
    if not story.lost and "beta" not in given_ and "max_participations" not in given_:
        mixture = story.account.third_party.epsilon_so_far(extra)
        assert mixture == pytest.approx(third_party_by_hand(story.account), rel=1e-9)
        assert mixture <= views["server"]["worst_case_epsilon"] * (1 + 1e-9)
