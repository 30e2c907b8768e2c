"""Who takes part in a round, and with what weight: drawn from the run's seed, never from data."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dpfl_plugin.algorithms.base import Algorithm, RoundPlan, Setting
from dpfl_plugin.core.streams import stream
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import ConfigError


def draw_participants(seed: int, round: int, setting: Setting) -> list[int]:
    """S of M silos, uniformly, without replacement, independently of all data; ascending."""
    if setting.num_participants == setting.num_silos:
        return list(range(setting.num_silos))
    rng = stream(seed, "participants", round)
    chosen = rng.choice(setting.num_silos, setting.num_participants, replace=False)
    return sorted(int(silo) for silo in chosen)


@dataclass(frozen=True, slots=True)
class Planner:
    """Completes an algorithm's round plans.

    Attributes:
        weights: of each silo, adding up to 1.
    """

    algorithm: Algorithm
    setting: Setting
    weights: tuple[float, ...]
    seed: int

    def plan(self, server: Vectors, round: int) -> RoundPlan:
        """The plan of a round, with its participants and their weights.

        Raises:
            ConfigError: the algorithm asks for a participation that is not known.
        """
        plan = self.algorithm.round_plan(server, round, self.setting, stream(self.seed, "plan", round))
        if plan.participation not in ("all", "sampled"):
            raise ConfigError(f"the algorithm's round plan has participation {plan.participation!r}: all or sampled.")
        sampled = plan.participation == "sampled"
        chosen = draw_participants(self.seed, round, self.setting) if sampled else list(range(self.setting.num_silos))
        if len(set(self.weights)) == 1:  # exactly 1/S and S/M, whatever their floating sum
            weights, share = (1 / len(chosen),) * len(chosen), len(chosen) / self.setting.num_silos
        else:
            share = math.fsum(self.weights[silo] for silo in chosen)
            weights = tuple(self.weights[silo] / share for silo in chosen)
        return replace(plan, participants=tuple(chosen), weights=weights, silo_share=share)
