"""What is known of a budget's room says what the check says, round by round, and spares most checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfl_plugin.privacy import accountants
from dpfl_plugin.privacy.accountants import PLD, RDP, Accountant
from dpfl_plugin.privacy.budget import Budget
from dpfl_plugin.privacy.composition import Earlier, Planned, Spending
from dpfl_plugin.privacy.events import Charge, SampledGaussian, Term
from dpfl_plugin.privacy.headroom import Headroom

DELTA = 1e-5
A = SampledGaussian(noise_multiplier=4.0, sampler="fixed", rate=0.2, neighbouring="replace_one")
SILOS = range(4)
RATES = (0.2, 0.2, 0.1, 0.05)  # of silos of three sizes
HALVES = ((0.0, 0.5), (0.5, 1.0))


def of_silo(silo: int, plan: Planned) -> Planned:
    return replace(plan, release=replace(plan.release, rate=plan.release.rate * RATES[silo] / 0.2))


PLANS = (
    (Planned(A, 1),),
    (Planned(A, 3),),
    (Planned(replace(A, noise_multiplier=6.0), 2),),
    (Planned(A, 2, HALVES[0]),),
    (Planned(A, 2, HALVES[1]),),
    (Planned(A, 1), Planned(replace(A, noise_multiplier=8.0), 1)),
    (),
)
BESIDE: tuple[Earlier, ...] = (
    {},
    dict.fromkeys(SILOS, (Planned(replace(A, noise_multiplier=3.0, rate=0.3), 5),)),
    {1: (Planned(replace(A, noise_multiplier=9.0), 4), Planned(A, 2, HALVES[1])), 2: (Planned(A, 6),)},
)


@st.composite
def runs(draw: st.DrawFn) -> list[tuple[int, int, list[int], int, bool]]:
    """(plan, beside, who takes part, how many charge something, under a name of noise of its own or the first one's)
    round by round: mostly of one kind."""
    usual, beside = draw(st.sampled_from([0, 0, 1, 3])), draw(st.sampled_from([0, 0, 1, 2]))
    found = []
    for _ in range(draw(st.integers(5, 40))):
        odd = draw(st.integers(0, 9)) == 0
        plan = draw(st.integers(0, len(PLANS) - 1)) if odd else usual
        beside = draw(st.integers(0, len(BESIDE) - 1)) if draw(st.integers(0, 19)) == 0 else beside
        silos = draw(st.lists(st.sampled_from(SILOS), min_size=1, max_size=5))
        found.append((plan, beside, silos, draw(st.integers(0, 4)) or 5, draw(st.integers(0, 7)) > 0))
    return found


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(runs(), st.floats(0.3, 3.0), st.sampled_from([*[RDP()] * 15, PLD()]))
def test_round_by_round_it_is_the_check(run, epsilon: float, accountant: Accountant) -> None:  # type: ignore[no-untyped-def]
    budget, exact, spent = Budget(epsilon, DELTA, accountant), Budget(epsilon, DELTA, accountant), Spending()
    room = Headroom(budget, spent)
    for t, (number, which, silos, charging, fresh) in enumerate(run):
        made = {silo: [of_silo(silo, one) for one in PLANS[number]] for silo in silos}
        beside = BESIDE[which]
        planned = {silo: [*plans, *beside.get(silo, ())] for silo, plans in made.items()}
        expected = bool(exact.allows(spent, planned))
        found = room.covers(number, silos, beside)
        assert not found or expected
        if not found:
            found = bool(budget.allows(spent, planned))
            if found:
                room.learn(number, made, beside)
        assert found == expected
        if not found:
            continue
        for silo in silos[:charging]:
            spent.add(
                Charge(
                    round=t if fresh else 0, silo=silo, release=o.release, count=o.count, share=o.share, noise_id="a"
                )
                for o in made[silo]
            )


class Asked:
    """How often an accountant is asked for an epsilon."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, accountant: type[accountants.Checked]) -> None:
        self.times, epsilon = 0, accountant.epsilon

        def counted(of: accountants.Checked, composition: Sequence[Term], delta: float) -> float:
            self.times += 1
            return epsilon(of, composition, delta)

        monkeypatch.setattr(accountant, "epsilon", counted)


def last_round(room: Headroom | None, budget: Budget, spent: Spending, beside: Earlier, silos: Sequence[int]) -> int:
    """How many rounds fit."""
    one, t = (Planned(A, 1),), 0
    made = {silo: [of_silo(silo, plan) for plan in one] for silo in silos}
    planned = {silo: [*plans, *beside.get(silo, ())] for silo, plans in made.items()}
    while True:
        if room is None or not room.covers("", silos, beside):
            if not budget.allows(spent, planned):
                return t
            if room is not None:
                room.learn("", made, beside)
        spent.add(
            Charge(round=t, silo=silo, release=o.release, count=o.count, noise_id="a")
            for silo, plans in made.items()
            for o in plans
        )
        t += 1


@pytest.mark.parametrize("which", [0, 1], ids=["one kind of release", "two"])
def test_a_long_run_asks_an_accountant_a_few_times(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, spent, budget = Asked(monkeypatch, RDP), Spending(), Budget(9.0, DELTA, RDP())
    rounds = last_round(Headroom(budget, spent), budget, spent, BESIDE[which], SILOS)
    few = asked.times
    assert rounds > 200 and few < 60
    budget = Budget(9.0, DELTA, RDP())
    assert rounds == last_round(None, budget, Spending(), BESIDE[which], SILOS)
    assert which == 0 or asked.times - few >= rounds  # what is spared


def test_an_accountant_that_nobody_knows_to_be_steady_is_always_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RDP, "wavers", accountants.Checked.wavers)
    asked, spent, budget = Asked(monkeypatch, RDP), Spending(), Budget(4.0, DELTA, RDP())
    rounds = last_round(Headroom(budget, spent), budget, spent, BESIDE[1], [0])
    assert 20 < rounds <= asked.times


def test_what_else_was_released_takes_room() -> None:
    budget, spent = Budget(2.0, DELTA, RDP()), Spending()
    room, made = Headroom(budget, spent), {0: (Planned(A, 1),)}
    assert budget.allows(spent, made) and not room.covers("", [0], {})
    room.learn("", made, {})
    assert room.covers("", [0], {}) and not room.covers("", [0, 1], {}) and not room.covers("another", [0], {})
    assert not room.covers("", [0], {0: (Planned(A, 10**6),)})
    spent.add([Charge(round=0, silo=0, release=replace(A, noise_multiplier=0.1), count=1, noise_id="a")])
    assert not room.covers("", [0], {})
