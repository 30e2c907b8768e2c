"""Who takes part is drawn by the seed alone, each silo as often as any other."""

import numpy as np

from dpfl_plugin.algorithms.base import Setting
from dpfl_plugin.algorithms.fedavg import FedAvg
from dpfl_plugin.training.planning import Planner, draw_participants

SETTING = Setting(num_silos=4, num_participants=2, silo_rate=0.5, record_rate=None)


def test_silos_with_more_records_weigh_more_and_are_drawn_no_more_often() -> None:
    """A third party's epsilon takes S/M for granted, for every silo. 5.5 standard deviations of 400 draws are 55."""
    planner = Planner(FedAvg(local_steps=1, local_lr=0.1), SETTING, (0.7, 0.1, 0.1, 0.1), seed=3)
    plans = [planner.plan({}, round) for round in range(400)]
    assert [list(plan.participants) for plan in plans] == [draw_participants(3, round, SETTING) for round in range(400)]
    counts = np.bincount([silo for plan in plans for silo in plan.participants], minlength=4)
    assert abs(counts - 200).max() < 55
    first = next(plan for plan in plans if plan.participants == (0, 1))
    np.testing.assert_allclose(first.weights, (7 / 8, 1 / 8))
