"""A run whose budget is looked at ahead takes the way of one that is checked before every round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfl_plugin.algorithms.base import RoundPlan, Setting
from dpfl_plugin.config.schema import Config
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.accountants import RDP, Accountant
from dpfl_plugin.privacy.composition import Planned
from dpfl_plugin.privacy.events import SampledGaussian, Term
from dpfl_plugin.privacy.headroom import Stretch
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.prior import Prior
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
EARLIER = (Planned(SampledGaussian(noise_multiplier=6.0, sampler="fixed", rate=0.5, neighbouring="replace_one"), 4),)


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


def checked(of: PrivacyAccount) -> PrivacyAccount:
    """The same that knows nothing ahead."""
    of._server.headroom = None
    of._book.stretch.learn = lambda *given: None  # type: ignore[method-assign]
    return of


OPTIONS: Sequence[dict[str, Any]] = (
    {},
    {"drawn": 1},
    {"drawn": 2, "more": {"max_participations": 9}},
    {"more": {"early_stopping": {"every": 20, "noise_multiplier": 40.0}}},
    {"prior": Prior(realised=dict.fromkeys(range(3), EARLIER), certain=dict.fromkeys(range(3), EARLIER), runs=({},))},
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
def test_each_round_is_decided_as_by_the_check(story, view: str, options) -> None:  # type: ignore[no-untyped-def]
    accountant = RDP()  # quick

    def made(**more: Any) -> tuple[PrivacyAccount, PrivacyAccount]:
        given = {**options, **more}
        copies = [{**given, "ledger": Ledger()} for _ in range(2)]
        if "ledger" in more:
            for copy in copies:
                copy["ledger"].append(more["ledger"])
        return account(view, accountant, **copies[0]), checked(account(view, accountant, **copies[1]))

    def charge(of: PrivacyAccount, round: int, plan: RoundPlan, name: str) -> None:
        of.append([replace(one, noise_id=name) for one in of.charges(round, plan)])

    pair, t, lost = made(), 0, False
    for what, number in story:
        plan = PLANS[number]
        if options.get("drawn") == 1:
            plan = replace(plan, participants=(t % 3,) if t % 5 else (0,))
        if what == "resume":
            before = pair[0]
            pair = made(ledger=list(before.ledger), costs=dict(before.costs), lost=lost)
            continue
        if what == "lose":
            lost = True
            for of in pair:
                of.lose()
            continue
        if what == "again" and t:
            last = next(iter(before for before in sorted(pair[0].costs, reverse=True)), None)
            for of in pair:
                of.append([replace(one, noise_id=f"{t}") for one in of.ledger if one.round == last][:3])
            continue
        if what == "score" and "more" in options and "early_stopping" in options["more"]:
            for of in pair:
                of.charge_scores_not_made([t])
            continue
        for _ in range(min(6 if what == "rounds" else 1, ROUNDS - t)):
            try:
                wanted = pair[1].affords(t, plan)
            except Exception as error:  # refused, alike
                with pytest.raises(type(error)):
                    pair[0].affords(t, plan)
                break
            assert pair[0].affords(t, plan) == wanted, (what, t)
            assert pair[0].affords(t, plan) == wanted  # to ask changes nothing
            if not wanted:
                break
            for of in pair:
                if what != "unbegun":
                    try:
                        of.begin_round(t, plan)
                    except Exception:
                        break
                participants = plan.participants[:1] if what == "half" else plan.participants
                charge(of, t, replace(plan, participants=participants), "a")
            t += 1


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
    few, asked[0] = asked[0], 0
    assert rounds == last(checked(account("third_party", RDP(), **given)))
    assert few < 100 < rounds <= asked[0]


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


def test_what_else_is_counted_ends_what_was_looked_at() -> None:
    stretch = Stretch()
    stretch.learn("kind", "beside", 5, lambda more: True)
    assert stretch.covers("kind", "beside", 6) and not stretch.covers("kind", "beside", 7)
    assert not stretch.covers("other", "beside", 6) and not stretch.covers("kind", "more", 6)
    stretch.begun("kind")
    assert stretch.covers("kind", "beside", 6)
    stretch.begun("other")
    assert not stretch.covers("kind", "beside", 5)
