"""What the rounds of a run cost, as checkpoints keep it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dpfl_plugin.algorithms.base import Setting
from dpfl_plugin.privacy.costs import RoundCost
from dpfl_plugin.privacy.participation import CERTAIN, Participation


def in_runs(costs: Mapping[int, RoundCost]) -> list[list[Any]]:
    """[first round, last round, what each of them cost], so that a checkpoint does not grow with every round."""
    runs: list[tuple[int, int, RoundCost]] = []
    for round, cost in sorted(costs.items()):
        if runs and runs[-1][1] == round - 1 and runs[-1][2] == cost:
            runs[-1] = (runs[-1][0], round, cost)
        else:
            runs.append((round, round, cost))
    return [[first, last, *asdict(cost).values()] for first, last, cost in runs]


def read_costs(facts: dict[str, Any] | None, setting: Setting) -> dict[int, RoundCost]:
    """What the rounds that a checkpoint knows cost, from its facts."""
    found: dict[int, RoundCost] = {}
    for first, last, levels, share, participation, most in (facts or {"costs": ()})["costs"]:
        cost = RoundCost(
            tuple((float(noise), int(count)) for noise, count in levels),
            (float(share[0]), float(share[1])),
            _read_participation(participation, setting),
            most,
        )
        for round in range(int(first), int(last) + 1):
            found[round] = cost
    return found


def _read_participation(found: Any, setting: Setting) -> Participation:
    """As a checkpoint has it; those of earlier versions hold a probability only, of which S/M told the law."""
    if isinstance(found, dict):
        return Participation(found["law"], float(found["probability"]))
    probability, share = float(found), setting.num_participants / setting.num_silos
    if probability in (1, share):
        return CERTAIN if probability == 1 else Participation("without_replacement", share)
    # They moved a probability with replacement by one bit where it would have been S/M.
    moved = probability == math.nextafter(share, 1)
    return Participation("with_replacement", share if moved else probability)
