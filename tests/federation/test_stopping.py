"""When scores end a run: a function of them alone."""

import pytest

from dpfl_plugin.core.validation_scores import ValidationScore
from dpfl_plugin.federation.stopping import Stopping


def stopping(**changes):
    return Stopping(**{"every": 10, "patience": 2, "min_gain": 0.0, "keep_best": True, **changes})


def scores(*values):
    return [(10 * (i + 1), value) for i, value in enumerate(values)]


@pytest.mark.parametrize(
    ("values", "best", "stops"),
    [
        ((), None, False),
        ((0.5,), 0, False),
        ((0.5, 0.4), 0, False),
        ((0.5, 0.4, 0.5), 0, True),  # as good is no better
        ((0.5, 0.4, 0.6), 2, False),
        ((0.5, 0.4, 0.6, 0.6, 0.5), 2, True),
        ((-0.1, -0.2, -0.3), 0, True),  # noise makes negative scores
    ],
)
def test_patience(values, best, stops):
    assert stopping().best(scores(*values)) == best
    assert stopping().stops(scores(*values)) == stops


def test_a_loss_is_better_where_it_is_smaller():
    loss = stopping(score=ValidationScore("mae", 10.0), min_gain=0.5)
    assert loss.best(scores(3.0, 2.6, 2.4, 2.0, 4.0)) == 2 and not loss.stops(scores(3.0, 2.6, 2.4))
    assert loss.stops(scores(3.0, 2.4, 2.4, 2.0)) and "the best score, 2.400, is" in loss.why(scores(3.0, 2.4), 20, 60)


def test_a_gain_below_the_least_is_none():
    rising = scores(0.5, 0.54, 0.58)
    assert not stopping().stops(rising)
    assert stopping(min_gain=0.1).stops(rising)
    assert stopping(min_gain=0.07).best(rising) == 2  # measured from the best, not from the last


def test_a_score_is_due_every_so_often_and_once():
    due = [rounds for rounds in range(31) if stopping().due(rounds, scores(*[0.1] * ((rounds - 1) // 10)))]
    assert due == [10, 20, 30]
    assert not stopping().due(20, scores(0.1, 0.2))
