"""What a budget allows round by round stays within it, and long runs ask an accountant a few times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfl_plugin.algorithms.base import RoundPlan, Setting
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.accountants import RDP, Accountant
from dpfl_plugin.privacy.events import Term
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import FixedSize
from dpfl_plugin.runs.accounting import make_account

SIGMA, RATE, RECORDS, ROUNDS = 8.0, 0.5, (20, 20, 30), 60
PLAN = RoundPlan(local_steps=2, local_lr=0.1, num_gradients=2, participants=(0, 1, 2))
PLANS = (
    PLAN,
    replace(PLAN, num_gradients=5, participation="all"),
    replace(PLAN, share=(0.0, 0.5)),
    replace(PLAN, share=(0.5, 1.0), num_gradients=3, participation="all"),
    replace(PLAN, num_gradients=3, most_gradients=4),
)


def account(view: str, accountant: Accountant, drawn: int = 3, **given: Any) -> PrivacyAccount:
    epsilon = given.pop("epsilon", 4.0)
    privacy = {"clip_norm": 1, "noise_multiplier": SIGMA, "record_rate": RATE, "epsilon": epsilon, "budget_view": view}
    more = {"rounds": ROUNDS, **given.pop("more", {})}
    rules = PrivacyRules(
        unit="record",
        neighbouring="replace_one",
        clip_norm=1.0,
        mechanism=Gaussian(SIGMA),
        sampler=FixedSize(record_rate=RATE),
    )
    return make_account(
        Config(algorithm={"name": "fedavg"}, privacy=privacy, **more),
        rules=rules,
        accountant=accountant,
        setting=Setting(num_silos=3, num_participants=drawn, silo_rate=drawn / 3, record_rate=RATE),
        num_records=RECORDS,
        **{"ledger": Ledger(), **given},
    )


OPTIONS: Sequence[dict[str, Any]] = (
    {},
    {"drawn": 1},
    {"drawn": 2, "more": {"max_participations": 9}},
    {"more": {"early_stopping": {"every": 20, "noise_multiplier": 40.0}}},
)


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[str, int]]:
    """What happens: mostly rounds of one kind, and once in a while something else."""
    usual, found = draw(st.sampled_from([0, 0, 0, 2, 4])), list[tuple[str, int]]()
    for _ in range(draw(st.integers(3, 25))):
        what = draw(st.sampled_from(["rounds"] * 12 + ["other", "again", "half", "score", "lose", "resume", "unbegun"]))
        found.append((what, draw(st.integers(0, 4)) if what in ("other", "again", "half") else usual))
    return found


@settings(deadline=None, max_examples=30)
@given(
    stories(),
    st.sampled_from(["server", "third_party"]),
    st.sampled_from(OPTIONS),
)
def test_rounds_that_are_afforded_stay_within_the_budget(story, view: str, options) -> None:  # type: ignore[no-untyped-def]
    """In the view that the budget bounds, whatever happens between rounds."""
    accountant = RDP()  # quick
    of, t, lost = account(view, accountant, **options, ledger=Ledger()), 0, False
    budget = 4.0

    def charge(round: int, plan: RoundPlan, name: str) -> None:
        of.append([replace(one, noise_id=name) for one in of.charges(round, plan)])

    for what, number in story:
        plan = PLANS[number]
        if options.get("drawn") == 1:
            plan = replace(plan, participants=(t % 3,) if t % 5 else (0,))
        elif options.get("drawn") == 2 and plan.participation != "all":
            plan = replace(plan, participants=((0, 1), (1, 2), (0, 2))[t % 3])
        if what == "resume":
            ledger = Ledger()
            ledger.append(list(of.ledger))
            of = account(view, accountant, **options, ledger=ledger, costs=dict(of.costs), lost=lost)
        elif what == "lose":
            lost = True
            of.lose()
        elif what == "again" and t:
            last = max(of.costs)
            of.append([replace(one, noise_id=f"{t}") for one in of.ledger if one.round == last][:3])
        elif what == "score" and "early_stopping" in options.get("more", {}):
            of.charge_scores_not_made([t])
        unasked = _spent(of, view)  # what happened without asking counts, and ends the run if it passes the budget
        for _ in range(min(6 if what == "rounds" else 1, ROUNDS - t)):
            try:
                affords = of.affords(t, plan)
                assert of.affords(t, plan) == affords  # to ask changes nothing
            except UnsupportedError:  # no mixture of what such a round releases is known
                break
            if not affords:
                break
            of.begin_round(t, plan)
            charge(t, replace(plan, participants=plan.participants[:1] if what == "half" else plan.participants), "a")
            assert _spent(of, view) <= max(budget, unasked) * (1 + 1e-9)
            t += 1


def _spent(of: PrivacyAccount, view: str) -> float:
    """Epsilon of what was released, by the observer's claims, before the budget itself bounds them."""
    extra = of.extra.releases(ahead=False)
    return of.server.spent(extra) if view == "server" else of.third_party.epsilon_so_far(extra)


@pytest.mark.parametrize(("odd", "usual"), [(8, 4), (10, 0), (14, 4)])
def test_a_third_partys_budget_with_a_cap_is_not_passed(odd: int, usual: int) -> None:
    """Whoever is drawn, also beyond the cap, with a round of another kind in between."""
    of = account("third_party", RDP(), drawn=2, epsilon=3.5, more={"max_participations": 9})
    for t in range(ROUNDS):
        plan = replace(PLANS[3 if t == odd else usual], participants=((0, 1), (1, 2), (0, 2))[t % 3])
        if not of.affords(t, plan):
            break
        of.begin_round(t, plan)
        of.append([replace(one, noise_id="a") for one in of.charges(t, plan)])
    assert 5 < t < ROUNDS and of.views()["third_party"]["epsilon"] <= 3.5


def test_a_third_partys_long_run_after_a_crash_is_looked_at_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that was released twice makes each check a pass over all rounds."""
    asked, epsilon = [0], RDP.epsilon

    def counted(of: RDP, composition: Sequence[Term], delta: float) -> float:
        asked[0] += 1
        return epsilon(of, composition, delta)

    def last(of: PrivacyAccount) -> int:
        twice = of.charges(0, PLAN)
        of.begin_round(0, PLAN)
        of.append([*(replace(one, noise_id="a") for one in twice), *(replace(one, noise_id="b") for one in twice)])
        for round in range(1, 1000):
            if not of.affords(round, PLAN):
                return round
            of.begin_round(round, PLAN)
            of.append(of.charges(round, PLAN))
        raise AssertionError("the budget ends it")

    monkeypatch.setattr(RDP, "epsilon", counted)
    given: dict[str, Any] = {"drawn": 1, "epsilon": 20.0, "more": {"rounds": 1000}}
    rounds = last(account("third_party", RDP(), **given))
    assert asked[0] < 100 < rounds


@pytest.mark.parametrize("what", ["nothing", "again", "other", "lost"])
def test_what_a_third_party_is_promised_is_looked_at_again(what: str) -> None:
    """Whatever else uses up the budget ends the run at once, amid rounds of which it was known that they would fit.

    The first round is of another kind, so that not all are alike and counted only.
    """
    of = account("third_party", RDP(), drawn=1, epsilon=3.0, more={"rounds": 1000})
    of.begin_round(0, PLANS[1])
    for round in range(1, 14):
        assert of.affords(round, PLAN)
        of.begin_round(round, PLAN)
        of.append(of.charges(round, PLAN))
    if what == "again":
        of.append([replace(one, noise_id=f"{n}") for n in range(200) for one in of.charges(9, PLAN)])
    elif what == "other":
        of.begin_round(500, replace(PLANS[1], num_gradients=1000))
    elif what == "lost":
        of.lose()
    assert of.affords(14, PLAN) == (what == "nothing")
