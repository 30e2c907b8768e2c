"""An account from a BudgetSpec alone: what it claims towards each observer is the composition written out by hand."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfl_plugin.errors import LedgerError
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.accountants import PLD, RDP, Accountant
from dpfl_plugin.privacy.events import Charge, ChargeKind, SampledGaussian, Term, Unit
from dpfl_plugin.privacy.extra_releases import ExtraPlan
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import FixedSize
from dpfl_plugin.privacy.schedules import Constant, Geometric
from dpfl_plugin.privacy.scores import Scores
from dpfl_plugin.privacy.spec import BudgetSpec, BudgetView

SIGMA, RATE, DELTA, K = 8.0, 0.5, 1e-5, 2
M, S = 4, 2
BOTH: tuple[BudgetView, ...] = ("server", "third_party")


@dataclass(frozen=True)
class Round:
    """A plan of a class that is no algorithm's."""

    participants: tuple[int, ...] = (0, 1)
    num_gradients: int = K
    most_gradients: int | None = None
    participation: str = "sampled"
    share: tuple[float, float] = (0.0, 1.0)


def account(unit: Unit = "record", beta: float = 1.0, **given: Any) -> PrivacyAccount:
    facts: dict[str, Any] = {"epsilon": None, "delta": DELTA, "rounds": 200, "num_records": (20,) * M, "num_silos": M}
    facts["num_participants"] = S
    names = BudgetSpec.__dataclass_fields__
    spec = BudgetSpec(**{**facts, **{key: given.pop(key) for key in list(given) if key in names}})
    rules = PrivacyRules(
        unit=unit,
        neighbouring="replace_one",
        clip_norm=1.0,
        mechanism=Gaussian(SIGMA),
        sampler=given.pop("sampler", FixedSize(record_rate=RATE)),
        fresh=given.pop("fresh", False),
        schedule=Constant() if beta == 1 else Geometric(beta=beta, threshold=3),
    )
    more: dict[str, Any] = {"accountant": RDP(), "extra_plan": ExtraPlan(200), "ledger": Ledger(), **given}
    return PrivacyAccount(spec, rules=rules, draw=lambda round, plan, eligible: (0, 1), **more)


def run(of: PrivacyAccount, rounds: int, plan: Round = Round(), first: int = 0) -> int:
    """Run rounds for as long as the budget allows; how many."""
    for t in range(first, rounds):
        if not of.affords(t, plan):
            return t
        of.begin_round(t, plan)
        of.append(of.charges(t, plan, "a"))
    return rounds


def test_rounds_of_drawn_length_that_the_ledger_alone_knows_leave_no_mixture() -> None:
    """They might have been longer, which nothing says: a mixture over them would be given their draws, and over the
    others' it would not."""
    long, whole = replace(Round(), num_gradients=9, most_gradients=9), account(rounds=4)
    run(whole, 4, replace(long, num_gradients=1))
    for known in (4, 2):
        costs = {round: cost for round, cost in whole.costs.items() if round < known}
        views = account(rounds=4, ledger=whole.ledger, costs=costs, stating=True).views()
        third_party = views["third_party"]
        given = "of some of them the ledger alone is left" in third_party["basis"]
        assert given == (known < 4) == (third_party["epsilon"] == views["server"]["worst_case_epsilon"])


def epsilon(rounds: int, participation: float = 1.0, accountant: Accountant | None = None, **release: Any) -> float:
    event = {"noise_multiplier": SIGMA, "sampler": "fixed", "rate": RATE, "neighbouring": "replace_one", **release}
    count = 1 if event.get("unit") == "silo" else K
    term = Term(release=SampledGaussian(**event), count=count, rounds=rounds, participation=participation)
    return (accountant or RDP()).epsilon([term], DELTA)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 12), st.integers(0, 12))
def test_each_observer_is_told_its_own_composition(both: int, others: int) -> None:
    """Silos 0 and 1 are drawn in some rounds, 2 and 3 in the others: the server saw the more frequent pair, could have
    seen one silo in all of them, and a third party is promised the mixture."""
    one = account()
    for t in range(both + others):
        plan = Round((0, 1) if t < both else (2, 3))
        one.begin_round(t, plan)
        one.append(one.charges(t, plan, "a"))
    views = one.views()
    assert views["server"]["epsilon"] == pytest.approx(epsilon(max(both, others)), rel=1e-12)
    assert views["server"]["worst_case_epsilon"] == pytest.approx(epsilon(both + others), rel=1e-12)
    assert views["third_party"]["epsilon"] == pytest.approx(epsilon(both + others, S / M), rel=1e-12)
    assert one.epsilons_so_far() == {view: views[view]["epsilon"] for view in BOTH}
    assert one.outsider() is None  # nothing is proven of records
    for row in one.per_silo():
        rounds = both if row["silo"] < 2 else others
        assert row["rounds"] == rounds
        assert row["epsilon"] == pytest.approx(epsilon(rounds) if rounds else 0.0, rel=1e-12)


def test_an_outsider_is_told_of_the_sum_over_a_sample_of_silos() -> None:
    """Where silos keep no state and all uploads weigh the same; else nothing."""
    for in_sums, equal_weights in ((True, True), (True, False), (False, True)):
        one = account("silo", in_sums=in_sums, equal_weights=equal_weights)
        run(one, 7)
        view = one.outsider()
        if not (in_sums and equal_weights):
            assert view is None
            continue
        assert view is not None
        seen = {"noise_multiplier": SIGMA * math.sqrt(S), "sampler": "fixed", "rate": S / M, "unit": "silo"}
        assert view.epsilon == pytest.approx(epsilon(7, **seen), rel=1e-12)


@pytest.mark.parametrize("drawn_again", [(0, 1), (2, 3)], ids=["the same silos", "others"])
def test_a_round_counts_as_often_as_it_was_released_whoever_took_part(drawn_again: tuple[int, int]) -> None:
    """A silo that was in none of the attempts might have been in all; nobody repeats draws that no seed tells."""
    for names in ("a", "ab", "abc"):
        one = account()
        for t, name in itertools.product(range(2), names):
            plan = Round((0, 1) if name == "a" else drawn_again)
            one.begin_round(t, plan)
            one.append(one.charges(t, plan, name))
        views, released = one.views(), len(names) * 2
        assert views["server"]["worst_case_epsilon"] == pytest.approx(epsilon(released), rel=1e-12)
        several = epsilon(released) if len(names) > 1 else epsilon(released, S / M)
        assert views["third_party"]["epsilon"] == pytest.approx(several, rel=1e-12)
        assert one.epsilons_so_far()["third_party"] == pytest.approx(several, rel=1e-12)


@pytest.mark.parametrize("fresh", [False, True])
def test_an_outsider_is_told_of_one_sample_only_where_the_draw_repeats(fresh: bool) -> None:
    one = account("silo", in_sums=True, equal_weights=True, fresh=fresh)
    for name in "ab":
        view = one.outsider() if one.costs else None
        assert (view is None) == (not one.costs)
        one.begin_round(0, Round())
        one.append(one.charges(0, Round(), name))
    assert (one.outsider() is None) == fresh


@pytest.mark.slow
def test_rounds_that_other_draws_would_have_allowed_are_not_taken_for_cheaper_ones() -> None:
    """Two phases on halves and quarters of the records, the second at twice the rate; the budget ends the first."""
    half, quarter = (Round((0, 1), share=share) for share in ((0.0, 0.5), (0.5, 0.75)))
    given = {"num_records": (80,) * M, "sampler": FixedSize(batch_size=10), "accountant": PLD()}
    phases = [half] * 9 + [quarter] * 3
    for budget, ends in ((None, 12), (1e3, 12), (0.3, None)):
        one, t = account(epsilon=budget, rounds=12, **given), 0
        while t < 12 and one.affords(t, phases[t]):
            one.begin_round(t, phases[t])
            one.append(one.charges(t, phases[t], "a"))
            t += 1
        assert t == ends or (ends is None and 0 < t < 9)
        views = one.views()
        third, server = views["third_party"], views["server"]
        if ends is None:  # who was drawn is all that is known to have decided it: the server's, of the rounds run
            assert third["epsilon"] == min(server["worst_case_epsilon"], budget)
        else:
            assert third["epsilon"] < server["worst_case_epsilon"]


@pytest.mark.parametrize("beta", [1.0, 0.9], ids=["constant noise", "a schedule"])
@pytest.mark.parametrize("view", BOTH)
def test_the_budget_bounds_the_observer_that_it_is_for(view: BudgetView, beta: float) -> None:
    """The last round that it allows is within it, the next would not be; what the other is told does not matter."""
    rounds = run(account(epsilon=1.3, view=view, beta=beta), 200)
    assert 3 < rounds < 200
    for ran in (rounds, rounds + 1):
        free = account(beta=beta)
        run(free, ran)
        assert (free.epsilons_so_far()[view] <= 1.3) == (ran == rounds)


def test_a_second_opinion_and_another_ledger_leave_the_account_as_it_is() -> None:
    class Twice(RDP):
        name = "twice"

        def epsilon(self, composition, delta):  # type: ignore[no-untyped-def]
            return 2 * super().epsilon(composition, delta)

    one = account()
    run(one, 6)
    before, ahead = one.views(), Ledger()
    ahead.append([*one.ledger, *one.charges(6, Round(), "a")])
    doubled, held = one.statement().views(Twice()), one.holding(ahead)
    for view in BOTH:
        assert doubled[view]["epsilon"] == 2 * before[view]["epsilon"]
    assert held.views()["server"]["epsilon"] == pytest.approx(epsilon(7), rel=1e-12)
    assert one.views() == before and len(one.ledger) < len(ahead)


@pytest.mark.parametrize(("first", "second"), [(3, 2), (2, 3)])
def test_a_round_that_is_planned_anew_counts_as_the_dearer_of_its_attempts(first: int, second: int) -> None:
    """Attempts count towards a cap, so that the second draws others, to whom a warm-up may be longer or shorter."""
    one = account(max_participations=4, rounds=8)
    plan = Round((0, 1), first, most_gradients=3)
    one.begin_round(0, plan)
    one.append(one.charges(0, plan, "a"))
    again, plan = account(max_participations=4, rounds=8, ledger=one.ledger), Round((2, 3), second, most_gradients=3)
    again.begin_round(0, plan)
    again.append(again.charges(0, plan, "b"))
    event = {"noise_multiplier": SIGMA, "sampler": "fixed", "rate": RATE, "neighbouring": "replace_one"}
    dearer = Term(release=SampledGaussian(**event), count=3, rounds=2)  # type: ignore[arg-type]
    expected = pytest.approx(RDP().epsilon([dearer], DELTA), rel=1e-12)
    for made in (again, account(max_participations=4, rounds=8, ledger=one.ledger, stating=True)):
        try:
            views = made.views()
        except LedgerError as error:
            raise AssertionError("no statement can be made") from error
        assert views["server"]["worst_case_epsilon"] == expected == views["third_party"]["epsilon"]


@pytest.mark.parametrize("lost", [False, True])
def test_a_budget_counts_a_round_that_is_planned_anew_as_the_dearer_of_its_attempts(lost: bool) -> None:
    """A third party's, with noise that varies; what is released fits it, or is not allowed."""
    for budget in (1.0, 1.2, 1.37):
        one = account(view="third_party", epsilon=budget, beta=0.9, rounds=8, max_participations=7)
        run(one, 3, Round((0, 1, 2, 3), 1, most_gradients=4, participation="all"))
        first, second = Round((0, 1), 3, most_gradients=4), Round((2, 3), 1, most_gradients=4)
        assert one.affords(3, first)
        one.begin_round(3, first)
        one.append(one.charges(3, first, "a"))
        if lost:
            one.lose()
        if one.affords(3, second):
            one.begin_round(3, second)
            one.append(one.charges(3, second, "b"))
        assert one.views()["third_party"]["epsilon"] <= budget


def test_after_a_loss_attempts_at_a_score_count_whoever_was_in_them() -> None:
    def worst(*attempts: tuple[int, ...]) -> float:
        scores = Scores((0.8, 1.0), 3.0)
        one = account(extra_plan=ExtraPlan(200, scores=scores, num_scores=1), rounds=3)
        run(one, 2, Round((0, 1, 2, 3), participation="all", share=(0.0, 0.8)))
        one.lose()
        release = scores.release("replace_one")
        for name, silos in zip("xy", attempts, strict=False):
            more = {"release": release, "count": 1, "share": scores.share, "noise_id": name, "kind": "score"}
            one.append([Charge(round=2, silo=silo, **more) for silo in silos])  # type: ignore[arg-type]
        views = one.views()
        assert views["server"]["worst_case_epsilon"] == views["third_party"]["epsilon"]
        return float(views["third_party"]["epsilon"])

    assert worst((0,), (1, 2, 3)) == worst((0, 1, 2, 3), (0, 1, 2, 3)) > 1.4 * worst((0, 1, 2, 3))


def test_after_a_loss_a_third_party_is_told_the_worst_case_in_every_number() -> None:
    one = account()
    run(one, 6)
    assert one.epsilons_so_far()["third_party"] < epsilon(6)
    one.lose()
    views = one.views()
    assert (
        views["third_party"]["epsilon"] == views["server"]["worst_case_epsilon"] == one.epsilons_so_far()["third_party"]
    )
    assert views["third_party"]["epsilon"] == pytest.approx(epsilon(6), rel=1e-12) == one.ahead()[1]
    again = account(ledger=one.ledger, costs=one.costs, lost=True)
    assert again.views() == views


def test_after_a_loss_the_budget_bounds_nothing_that_a_third_party_is_told() -> None:
    """It bounds the silos that were drawn; that a silo failed, and with it who was, may depend on records."""
    one, t = account(epsilon=2.0), 0
    while one.affords(t, plan := Round((0, 1) if t % 2 else (2, 3))):
        one.begin_round(t, plan)
        one.append(one.charges(t, plan, "a"))
        t += 1
    assert one.epsilons_so_far()["third_party"] <= 2.0 < epsilon(t)
    one.lose()
    assert one.epsilons_so_far()["third_party"] == pytest.approx(epsilon(t), rel=1e-12)
    again = account(epsilon=2.0, ledger=one.ledger, costs=one.costs, lost=True)
    assert again.epsilons_so_far() == one.epsilons_so_far()


def test_why_no_round_is_allowed_is_told_with_a_budget_and_without() -> None:
    assert account(epsilon=2.0).why_not() == "one more would pass epsilon 2 at delta 1e-05 (server view)"
    assert "no budget" in account().why_not()
    for view in BOTH:
        lost = account(epsilon=2.0, view=view)
        lost.lose()
        assert ("since silos were lost" in lost.why_not()) == (view == "third_party")


def test_how_silos_take_part_is_the_federations() -> None:
    """With replacement that of the likeliest silo, 1 - (1 - p)^S; with all silos there is no mixture."""
    weights = (0.4, 0.3, 0.2, 0.1)
    for participation, probability in (
        ("sampled", S / M),
        ("sampled_with_replacement", 1 - (1 - 0.4) ** S),
        ("all", 1.0),
    ):
        one = account(weights=weights)
        one.begin_round(0, replace(Round(), participation=participation))
        assert one.costs[0].probability == pytest.approx(probability, rel=1e-12)
        assert one.ahead()[1] == pytest.approx(epsilon(1, probability), rel=1e-12)


def test_rounds_that_are_made_again_count_once_and_only_when_they_are_made() -> None:
    """A seeded run that goes on from round 10 takes the undisturbed one's way, and ends with what that was charged."""
    ledger = Ledger()
    assert run(account(ledger=ledger), 19) == 19
    again = account(epsilon=epsilon(12), ledger=ledger, pending=lambda charge: charge.round >= 10)
    for t in range(10, 12):
        assert again.affords(t, Round())
        again.begin_round(t, Round())
        again.append(again.charges(t, Round(), "a"))
    assert not again.affords(12, Round()) and len(list(ledger)) == 19 * S


def test_statistics_that_are_made_again_count_in_a_third_partys_budget_at_once() -> None:
    given: dict[str, Any] = {"view": "third_party", "epsilon": 2.5, "extra_plan": ExtraPlan(200, statistics=4.0)}
    undisturbed, one = run(account(**given), 200), account(**given)
    run(one, 2)
    planned, _ = one.extra_plan.planned("statistics", one.rules, 20)
    for name in ("first", "again"):
        more = {"release": planned.release, "count": planned.count, "share": planned.share, "noise_id": name}
        one.append([Charge(round=0, silo=silo, kind="statistics", **more) for silo in range(M)])  # type: ignore[arg-type]
    assert 2 < run(one, 200, first=2) < undisturbed
    assert one.views()["third_party"]["epsilon"] <= 2.5


EXTRA_PLAN = ExtraPlan(200, scores=Scores((0.8, 1.0), 3.0), num_scores=2, statistics=2.0, local_steps=K)


@pytest.mark.parametrize("kind", ["round", "score", "statistics", "personalise"])
def test_what_is_to_be_made_again_is_stated_as_what_it_is_released(kind: ChargeKind) -> None:
    """A run that ends right after it went on has not repeated it yet, but its silos did send it."""
    first = account(extra_plan=EXTRA_PLAN, max_participations=2)
    run(first, 2, Round((0, 1), share=(0.0, 0.8)))
    if kind != "round":
        planned, _ = EXTRA_PLAN.planned(kind, first.rules, 20)
        more = {"release": planned.release, "count": planned.count, "share": planned.share, "kind": kind}
        at = {"score": 2, "statistics": 0, "personalise": 200}[kind]
        first.append([Charge(round=at, silo=silo, noise_id="x", **more) for silo in range(M)])  # type: ignore[arg-type]
    given: dict[str, Any] = {"extra_plan": EXTRA_PLAN, "max_participations": 2, "ledger": first.ledger}
    again = account(**given, costs=first.costs, pending=lambda charge: charge.kind == kind)
    stated = again.views()
    assert stated == account(**given, costs=first.costs, stating=True).views() == first.views()
    assert stated["server"]["epsilon"] <= stated["server"]["worst_case_epsilon"]


@pytest.mark.parametrize("cap", [None, 4])
def test_the_worst_case_so_far_has_every_attempt(cap: int | None) -> None:
    one = account(max_participations=cap, rounds=3)
    for t in range(3):
        for name in "ab":
            one.begin_round(t, Round((t, t + 1)))
            one.append(one.charges(t, Round((t, t + 1)), name))
    worst = one.views()["server"]["worst_case_epsilon"]
    assert one.epsilon_ahead("server") == pytest.approx(worst, rel=1e-12) == pytest.approx(epsilon(cap or 6), rel=1e-12)
