"""Against a server that looks before it asks: the best that any strategy can do, found by dynamic programming."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import fftconvolve
from scipy.stats import norm

from dpfl_plugin.errors import LedgerError
from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.budget import Budget
from dpfl_plugin.privacy.composition import Planned, Spending, compositions
from dpfl_plugin.privacy.events import SampledGaussian
from dpfl_plugin.privacy.slots import Slots, from_plain, to_plain, together

EPSILON, DELTA = 4.0, 1e-3
CELL, HALF = 0.04, 750  # of the grid of losses, from -30 to 30
GRID = (np.arange(2 * HALF + 1) - HALF) * CELL


def release(noise, rate):
    sampler = "poisson" if rate < 1 else "full"
    return SampledGaussian(noise_multiplier=noise, sampler=sampler, rate=rate, neighbouring="add_or_remove")


KINDS = release(0.4, 0.01), release(2.0, 1.0)
"""Rarely a large loss, else hardly any; and always a little. Which is worth more depends on what came before."""


def planned(counts):
    return [Planned(one, count) for one, count in zip(KINDS, counts, strict=True) if count]


def losses(one, down):
    """The law of log P/Q under P, where a record is there (P) or not (Q): (least cell, masses).

    Losses are rounded down, so that what is found with them is reached by a real server; or put on the grid by
    connecting the dots, so that they are those of a pair of distributions which dominates the real one.
    """
    s, q = one.noise_multiplier, one.rate
    x = np.linspace(-12 * s, 1 + 12 * s, 200_001)
    mass = ((1 - q) * norm.pdf(x, 0, s) + q * norm.pdf(x, 1, s)) * (x[1] - x[0])
    loss = np.log1p(q * np.expm1((2 * x - 1) / (2 * s * s))) / CELL
    cell = np.floor(loss).astype(int)
    up = 0.0 if down else np.expm1(-CELL * (loss - cell)) / np.expm1(-CELL)
    first, count = cell.min(), cell.max() - cell.min() + 2
    return first, sum(np.bincount(cell - first + n, mass * part, count) for n, part in ((0, 1 - up), (1, up)))


BUDGET = Budget(EPSILON, DELTA, PLD())
LOSSES = {down: [losses(one, down) for one in KINDS] for down in (True, False)}


def expected(value, law):
    """E value(loss so far + loss of one more release), for each loss so far."""
    least, mass = law
    before, after = max(0, -least), len(mass) + max(0, least)
    padded = np.concatenate([np.full(before, value[0]), value, np.full(after, value[-1])])
    return fftconvolve(padded, mass[::-1], mode="valid")[before + least :][: len(value)]


def most_delta(allowed, *, down):
    """The largest delta at EPSILON of any server that goes on, or stops, by what it saw.

    Args:
        allowed: whether the silo answers a request, after which it has released so many of each kind.
    """
    stopped = np.maximum(0.0, -np.expm1(np.minimum(0.0, EPSILON - GRID)))

    @functools.cache
    def value(counts):
        best = stopped
        for kind, law in enumerate(LOSSES[down]):
            more = tuple(count + (kind == n) for n, count in enumerate(counts))
            if allowed(counts, kind):
                best = np.maximum(best, expected(value(more), law))
        return best

    return float(value((0, 0))[HALF])


def by_a_budget(counts, kind):
    """As silos did: what was released, and the next, fit epsilon together."""
    return bool(BUDGET.allows(Spending(), {0: [*planned(counts), Planned(KINDS[kind], 1)]}))


def by_slots(plan):
    def allowed(counts, kind):
        slots = Slots(planned(plan))
        slots.take(planned(counts))
        return slots.lacking([Planned(KINDS[kind], 1)]) is None

    return allowed


def fits(counts):
    return all(PLD().epsilon(terms, DELTA) <= EPSILON for terms in compositions(planned(counts)))


def full_plan(seldom):
    """A plan within the budget that has no room for one more release of the second kind."""
    return seldom, max(n for n in range(9) if fits((seldom, n)))


def test_a_budget_that_is_checked_before_each_release_is_passed_by_a_server_that_looks():
    assert most_delta(by_a_budget, down=True) > 1.3 * DELTA  # epsilon 4.33 in the place of 4


@pytest.mark.parametrize("seldom", [0, 4, 8, 12])
def test_slots_bound_every_server_by_the_composition_of_the_full_plan(seldom):
    """And the theorem is tight: to ask for all of it, in any order, is the best that a server can do."""
    plan = full_plan(seldom)
    assert most_delta(by_slots(plan), down=True) <= DELTA
    assert most_delta(by_slots(plan), down=False) == pytest.approx(stopped_at_the_end(plan), rel=1e-9)


def stopped_at_the_end(plan):
    """Delta at EPSILON of the full plan, in a fixed order, on the same grid."""
    value = np.maximum(0.0, -np.expm1(np.minimum(0.0, EPSILON - GRID)))
    for law, count in zip(LOSSES[False], plan, strict=True):
        for _ in range(count):
            value = expected(value, law)
    return float(value[HALF])


counts = st.dictionaries(st.sampled_from([*KINDS, release(2.0, 0.5)]), st.integers(1, 4))


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(plan=counts, asked=st.lists(counts, max_size=6), shares=st.lists(st.sampled_from([(0.0, 1.0), (0.0, 0.5)])))
def test_no_slot_is_used_twice_and_a_release_takes_one_of_exactly_its_kind(plan, asked, shares):
    slots, left = Slots(Planned(one, count) for one, count in plan.items()), dict(plan)
    for number, wanted in enumerate(asked):
        share = shares[number] if number < len(shares) else (0.0, 1.0)
        made = [Planned(one, count, share) for one, count in wanted.items()]
        there = share == (0.0, 1.0) and all(left.get(one, 0) >= count for one, count in wanted.items())
        assert (slots.lacking(made) is None) == (there or not made)
        if not made:
            continue
        if not there:
            with pytest.raises(LedgerError, match=r"in the plan that was agreed on|of those in the agreed plan"):
                slots.take(made)
            continue
        slots.take(made)
        for one, count in wanted.items():
            left[one] -= count


def test_plans_as_plain_values_and_with_what_was_released():
    plan = [Planned(KINDS[0], 3), Planned(KINDS[1], 2, (0.0, 0.5))]
    assert from_plain(to_plain(plan)) == plan
    with pytest.raises(LedgerError, match="cannot be read"):
        from_plain([{"release": {"noise": 1}, "share": [0, 1], "count": 1}])
    made = [Planned(KINDS[0], 5), Planned(KINDS[1], 1)]
    assert set(together(plan, made)) == {Planned(KINDS[0], 5), Planned(KINDS[1], 2, (0.0, 0.5)), Planned(KINDS[1], 1)}
