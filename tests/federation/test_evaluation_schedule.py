"""When a run is evaluated: seldom enough that evaluations are a tenth of its work, whatever the machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.federation.evaluation_schedule import (
    CALL,
    LITTLE,
    EvaluationSchedule,
    affordable,
    evaluation_work,
    round_work,
)
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import FixedSize


def count(when: EvaluationSchedule, rounds: int) -> int:
    return sum(when.due(number) for number in range(1, rounds + 1))


@pytest.mark.parametrize("rounds", [1, 2, 3, 7, 10, 19, 40, 100, 399, 1000, 12_345])
@pytest.mark.parametrize("ratio", [1e-4, 0.01, 0.1, 0.5, 1, 3, 40, 1000])
def test_evaluations_are_a_tenth_of_the_work_at_most(rounds: int, ratio: float) -> None:
    round_ = 100.0 * LITTLE  # so that no evaluation is little
    when = affordable(rounds, round_, ratio * round_)
    spent = count(when, rounds) * ratio * round_
    assert when.due(rounds), "the last round is always evaluated"
    # One evaluation, that of the result, is made however short the run.
    assert spent <= max(0.1 * (spent + rounds * round_) * (1 + 1e-9), ratio * round_)


def test_cheap_evaluations_are_as_many_as_a_plot_needs() -> None:
    when = affordable(400, 1e12, 1e6)
    assert when == EvaluationSchedule(4, 400, first=True) and when.due(1)
    assert all(when.due(rounds) for rounds in range(361, 401))


def test_a_curve_begins_with_the_first_round_where_two_evaluations_are_affordable() -> None:
    round_ = 100.0 * LITTLE
    found = [affordable(10, round_, ratio * round_) for ratio in (0.5, 1.0)]  # of a budget of 1.1 rounds
    assert [[at for at in range(1, 11) if when.due(at)] for when in found] == [[1, 10], [10]]


def test_a_small_run_is_evaluated_after_every_round() -> None:
    assert count(affordable(10, 1.0, LITTLE / 10), 10) == 10


def test_work_is_counted_by_records_steps_and_parameters() -> None:
    rules = PrivacyRules(
        unit="record",
        neighbouring="replace_one",
        clip_norm=1.0,
        mechanism=Gaussian(1.0),
        sampler=FixedSize(record_rate=0.5),
    )
    plan = RoundPlan(local_steps=5, local_lr=0.1, num_gradients=5)
    one = round_work([plan], rules, [10, 30], 1, 7)
    assert one == 3 * 5 * (7 * 10 + CALL)  # batches of 5 and 15, and one of the two silos
    everybody = replace(plan, participation="all")
    assert round_work([everybody], rules, [10, 30], 1, 7) == 2 * one
    assert round_work([plan, everybody], rules, [10, 30], 1, 7) == 1.5 * one
    half = replace(plan, share=(0.0, 0.5))
    assert round_work([half], rules, [10, 30], 1, 7) == 3 * 5 * (7 * (2 + 7) / 2 + CALL)
    assert evaluation_work([10, 30], [2, 3], 7, False) == 7 * 45 + 4 * CALL
    assert evaluation_work([10, 30], [2, 3], 7, True) == 7 * (4 * 40 + 5) + 10 * CALL
