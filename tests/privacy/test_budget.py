"""A budget stops a run before the round that would pass it, and not a round earlier."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.privacy.accountants import PLD, RDP
from dpfl_plugin.privacy.budget import Budget
from dpfl_plugin.privacy.calibration import max_rounds
from dpfl_plugin.privacy.composition import Planned, Spending
from dpfl_plugin.privacy.events import Charge, SampledGaussian, Term
from dpfl_plugin.privacy.views import server_view

DELTA = 1e-5
A = SampledGaussian(noise_multiplier=20.0, sampler="fixed", rate=0.1, neighbouring="replace_one")


def charges(round: int, silos: Sequence[int], plan: Planned) -> list[Charge]:
    return [
        Charge(round=round, silo=s, release=plan.release, count=plan.count, share=plan.share, noise_id="s")
        for s in silos
    ]


class Counting(PLD):
    """Counts what it is asked."""

    asked = 0

    def epsilon(self, composition: Sequence[Term], delta: float) -> float:
        Counting.asked += 1
        return PLD().epsilon(composition, delta)


@pytest.mark.parametrize("schedule", ["constant", "alternating"])
def test_stops_before_the_round_that_would_pass(schedule: str) -> None:
    def plan(t: int) -> Planned:
        return Planned(A if schedule == "constant" or t % 2 else replace(A, noise_multiplier=15.0), 50)

    budget, spent, made = Budget(1.0, DELTA, PLD()), Spending(), []
    for t in range(1000):
        silos = [0, 1] if t % 3 else [1]
        if not budget.allows(spent, {s: [plan(t)] for s in silos}):
            break
        made += charges(t, silos, plan(t))
        spent.add(charges(t, silos, plan(t)))
    assert server_view(made, PLD(), DELTA).epsilon <= 1.0
    assert server_view([*made, *charges(t, [1], plan(t))], PLD(), DELTA).epsilon > 1.0
    assert 2 < t < 999


def test_allows_exactly_what_fits() -> None:
    budget, one = Budget(1.0, DELTA, PLD()), Term(release=A, count=1, rounds=1)
    most = max_rounds(PLD(), one, [], 1.0, DELTA, 10**6)
    assert budget.allows(Spending(), {0: [Planned(A, most)]})
    assert not budget.allows(Spending(), {0: [Planned(A, most + 1)]})
    spent = Spending(charges(0, [0], Planned(A, most - 3)))
    assert [bool(budget.allows(spent, {0: [Planned(A, n)]})) for n in (2, 3, 4)] == [True, True, False]


def test_one_silo_stops_it() -> None:
    spent = Spending([c for t in range(60) for c in charges(t, [4], Planned(A, 50))])
    budget = Budget(1.0, DELTA, PLD())
    assert not budget.allows(spent, {s: [Planned(A, 50)] for s in range(6)})
    assert budget.allows(spent, {s: [Planned(A, 50)] for s in (0, 5)})


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_dearest_of_silos_that_cannot_be_compared_stops_it(order: tuple[int, int]) -> None:
    """More releases at a smaller rate, or fewer at a larger one: epsilon decides, not the number of records."""
    plans = [Planned(replace(A, noise_multiplier=5.0, rate=r), n) for r, n in ((0.1, 100), (0.8, 10))]
    alone = [PLD().epsilon([Term(release=p.release, count=p.count, rounds=1)], DELTA) for p in plans]
    assert alone[1] > 1.5 * alone[0]
    budget = Budget(1.2 * alone[0], DELTA, PLD())
    assert not budget.allows(Spending(), {silo: [plans[silo]] for silo in order})
    assert budget.allows(Spending(), {0: [plans[0]]})
    roomy = Budget(1.2 * alone[1], DELTA, PLD())
    assert roomy.allows(Spending(), {silo: [plans[silo]] for silo in order})


def test_one_search_serves_all_rounds_with_the_same_release() -> None:
    Counting.asked = 0
    budget, spent = Budget(4.0, DELTA, Counting()), Spending()
    for t in range(100):
        assert budget.allows(spent, {s: [Planned(A, 5)] for s in range(20)})
        if t == 0:
            first = Counting.asked
        spent.add(charges(t, range(20), Planned(A, 5)))
    assert Counting.asked == first


def test_a_thousand_silos_of_their_own_sizes_are_quick() -> None:
    spent, plans = Spending(), {s: [Planned(replace(A, rate=20 / (200 + s)), 5)] for s in range(1000)}
    budget = Budget(1.0, DELTA, PLD())
    start = time.process_time()
    for t in range(5):
        assert budget.allows(spent, plans)
        spent.add(c for s, (plan,) in plans.items() for c in charges(t, [s], plan))
    assert time.process_time() - start < 100  # a quadratic algorithm would take more, a slow machine does not


def test_disjoint_shares_have_a_budget_each() -> None:
    budget = Budget(1.0, DELTA, PLD())
    most = 0
    while budget.allows(Spending(), {0: [Planned(A, most + 50)]}):
        most += 50
    spent = Spending(charges(0, [0], Planned(A, most, (0.0, 0.5))))
    assert budget.allows(spent, {0: [Planned(A, most, (0.5, 1.0))]})
    assert not budget.allows(spent, {0: [Planned(A, 50, (0.0, 0.5))]})
    assert not budget.allows(spent, {0: [Planned(A, 50, (0.4, 1.0))]})


def test_no_noise_fits_no_finite_budget() -> None:
    plan = {0: [Planned(replace(A, noise_multiplier=0.0), 1)]}
    assert not Budget(1e6, DELTA, PLD()).allows(Spending(), plan)
    assert not Budget(0.0, DELTA, PLD()).allows(Spending(), {0: [Planned(A, 500)]})
    assert Budget(0.0, DELTA, PLD()).allows(Spending(), {0: []})
    assert Budget(math.inf, DELTA, PLD()).allows(Spending(), plan)


def test_the_accountant_decides() -> None:
    plan = {0: [Planned(A, 2500)]}
    assert Budget(1.8, DELTA, PLD()).allows(Spending(), plan)
    assert not Budget(1.8, DELTA, RDP()).allows(Spending(), plan)


def test_refusals() -> None:
    for epsilon, delta in ((-1.0, DELTA), (math.nan, DELTA), (1.0, 0.0), (1.0, 1.0)):
        with pytest.raises(ConfigError):
            Budget(epsilon, delta, PLD())
    with pytest.raises(UnsupportedError):
        Budget(1.0, DELTA, PLD()).allows(Spending(), {0: [Planned(replace(A, sampler="poisson"), 1)]})


def test_what_fits_together_fits_in_part() -> None:
    """PLD's grid follows the mean loss: a few releases of much noise after many of little look dearer than more do."""
    first = replace(A, noise_multiplier=6.4339, rate=0.2)
    earlier = Term(release=first, count=1, rounds=800)
    whole, part = (
        (earlier, Term(release=replace(first, noise_multiplier=669.0), count=1, rounds=n)) for n in (800, 60)
    )
    assert PLD().epsilon(part, DELTA) > 4 >= PLD().epsilon(whole, DELTA)
    budget = Budget(4.0, DELTA, PLD())
    assert not budget.fits(part)  # nothing is known of more
    budget = Budget(4.0, DELTA, PLD())
    assert budget.holds(whole) and budget.fits(part) and budget.fits(part[1:])
    more = (earlier, replace(part[1], rounds=801))
    other = (earlier, replace(part[1], release=replace(first, noise_multiplier=668.0), rounds=800))
    assert not budget.fits(more) and not budget.fits(other)  # part of nothing that fits


def test_what_does_not_fit_vouches_for_nothing() -> None:
    budget = Budget(1.0, DELTA, PLD())
    term = Term(release=A, count=1, rounds=10**5)
    assert not budget.holds((term,)) and not budget.fits((replace(term, rounds=10**5 - 1),))


def test_more_releases_than_are_searched_for_are_composed_as_they_come() -> None:
    """20 million with noise 20,000: one Gaussian of noise 4.47, epsilon 0.85."""
    one = SampledGaussian(noise_multiplier=2e4, sampler="full", rate=1.0, neighbouring="replace_one")
    terms = (Term(release=one, count=1, rounds=2 * 10**7),)
    assert Budget(0.9, 1e-5, PLD()).fits(terms)
    assert not Budget(0.8, 1e-5, PLD()).fits(terms)
