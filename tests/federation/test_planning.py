"""Who takes part is drawn by the seed alone, each silo as often as any other."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from dpfl_plugin.algorithms.base import Setting
from dpfl_plugin.algorithms.fedavg import FedAvg
from dpfl_plugin.federation.participant_sampling import draw_participants, draw_with_replacement
from dpfl_plugin.federation.planning import Planner
from dpfl_plugin.privacy.participation import CERTAIN, Participation, participation

SETTING = Setting(num_silos=4, num_participants=2, silo_rate=0.5, record_rate=None)


def test_silos_with_more_records_weigh_more_and_are_drawn_no_more_often() -> None:
    """A third party's epsilon takes S/M for granted, for every silo. 5.5 standard deviations of 400 draws are 55."""
    planner = Planner(FedAvg(local_steps=1, local_lr=0.1), SETTING, (0.7, 0.1, 0.1, 0.1), seed=3)
    plans = [planner.plan({}, round) for round in range(400)]
    for round, plan in enumerate(plans):
        assert list(plan.participants) == draw_participants(3, round, SETTING), round
    counts = np.bincount([silo for plan in plans for silo in plan.participants], minlength=4)
    assert abs(counts - 200).max() < 55
    first = next(plan for plan in plans if plan.participants == (0, 1))
    np.testing.assert_allclose(first.weights, (7 / 8, 1 / 8))


HEAVY = replace(SETTING, weights=(0.7, 0.1, 0.1, 0.1))


class WithReplacement(FedAvg):
    def round_plan(self, server, round, setting, rng):
        return replace(super().round_plan(server, round, setting, rng), participation="sampled_with_replacement")


def planner_with_replacement(setting=HEAVY):
    return Planner(WithReplacement(local_steps=1, local_lr=0.1), setting, setting.weights, seed=3)


def test_with_replacement_a_silo_counts_as_often_as_it_was_drawn():
    plans = [planner_with_replacement().plan({}, round) for round in range(400)]
    twice = [plan for plan in plans if len(plan.participants) == 1]
    assert twice and all(plan.weights == (1.0,) for plan in twice)  # sends once, with double weight
    assert all(plan.weights == (0.5, 0.5) for plan in plans if len(plan.participants) == 2)
    assert all(list(plan.participants) == sorted(set(plan.participants)) for plan in plans)
    drawn = [Counter(draw_with_replacement(3, round, HEAVY)) for round in range(400)]
    assert all(
        sum(times.values()) == 2 and tuple(sorted(times)) == plan.participants
        for times, plan in zip(drawn, plans, strict=True)
    )


def test_with_replacement_silos_are_drawn_by_their_weights_and_take_part_as_often_as_is_accounted():
    """800 draws and 400 rounds, 5.5 standard deviations; sampling without replacement would be 140 off at silo 0."""
    drawn = np.array([draw_with_replacement(3, round, HEAVY) for round in range(400)])
    for silo, p in enumerate(HEAVY.weights):
        assert abs((drawn == silo).sum() - 800 * p) < 5.5 * math.sqrt(800 * p * (1 - p))
    plan = planner_with_replacement().plan({}, 0)
    likeliest = participation(plan, HEAVY).probability
    assert likeliest == pytest.approx(1 - 0.3**2, rel=1e-15)
    present = (drawn == 0).any(axis=1).sum()
    assert abs(present - 400 * likeliest) < 5.5 * math.sqrt(400 * likeliest * (1 - likeliest))


def test_with_replacement_is_told_from_draws_without_where_their_probabilities_agree():
    """One draw from two equal silos."""
    even = Setting(num_silos=2, num_participants=1, silo_rate=0.5, record_rate=None, weights=(0.5, 0.5))
    plan = planner_with_replacement(even).plan({}, 0)
    assert participation(plan, even) == Participation("with_replacement", 0.5)
    assert participation(replace(plan, participation="sampled"), even) == Participation("without_replacement", 0.5)
    assert participation(replace(plan, participation="all"), even) == CERTAIN


def test_as_many_draws_as_silos_do_not_reach_them_all():
    everybody = replace(HEAVY, num_participants=4, silo_rate=1.0)
    plan = planner_with_replacement(everybody).plan({}, 0)
    assert len(plan.participants) < 4 and math.fsum(plan.weights) == 1
    assert participation(plan, everybody).probability == pytest.approx(1 - 0.3**4)
    alone = Setting(num_silos=1, num_participants=1, silo_rate=1.0, record_rate=None, weights=(1.0,))
    assert participation(planner_with_replacement(alone).plan({}, 0), alone) == CERTAIN
