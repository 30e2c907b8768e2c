"""What a round will do, known without any record: who takes part, with what weight, and what silos will send.

Participants are never drawn from data: in a seeded run from its seed, in a fresh one from ``coins`` of the
operating system, which nobody has before the run. Who may claim what of the draw: `privacy.views.third_party_composed`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from dpfl_plugin.algorithms.base import Algorithm, RoundPlan, Setting
from dpfl_plugin.core.exact import floor_share
from dpfl_plugin.core.streams import Stream, stream_key
from dpfl_plugin.core.vectors import Vectors, columns
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.federation.participant_sampling import drawn_silos
from dpfl_plugin.late import torch
from dpfl_plugin.privacy.participation import PARTICIPATIONS, WITH_REPLACEMENT

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Planner:
    """Completes an algorithm's round plans.

    Attributes:
        weights: of each silo, adding up to 1.
        training: the part [0, last) of each silo's records that rounds may read; shares are shares of it.
        coins: by which participants are drawn; empty where they follow from the seed.
    """

    algorithm: Algorithm
    setting: Setting
    weights: tuple[float, ...]
    seed: int
    training: tuple[float, float] = (0.0, 1.0)
    coins: str = field(default="", repr=False)
    equal_weights: bool = field(init=False)
    _coins: Stream = field(init=False, repr=False, compare=False, default_factory=Stream)

    def __post_init__(self) -> None:
        object.__setattr__(self, "equal_weights", len(set(self.weights)) == 1)  # not in every round: O(M)

    def asks(self, server: Vectors, round: int) -> RoundPlan:
        """The algorithm's plan of a round, before anybody is drawn.

        Raises:
            ConfigError: the algorithm asks for a participation that is not known.
        """
        coins = self._coins.seek(stream_key(self.seed, "plan", round))
        plan = self.algorithm.round_plan(server, round, self.setting, coins)
        if plan.participation not in PARTICIPATIONS:
            raise ConfigError(
                f"the algorithm's round plan has participation {plan.participation!r}: {', '.join(PARTICIPATIONS)}."
            )
        first, last = plan.share
        share = first * self.training[1], last * self.training[1]
        if (plan.task, plan.share) == ("train", share):
            return plan
        return replace(plan, task="train", share=share)

    def alive(self, lost: Collection[int]) -> list[int]:
        """All silos but those that were lost, ascending."""
        return [silo for silo in range(self.setting.num_silos) if silo not in lost]

    def weights_of(self, silos: Sequence[int]) -> tuple[float, ...]:
        """Their weights in a mean of them alone, adding up to 1; with all silos, the weights as they are."""
        if len(silos) == self.setting.num_silos:
            return self.weights
        return self.shares_of(silos)[0]

    def of_all(
        self,
        task: Literal["statistics", "scale", "score", "personalise"],
        local_steps: int = 0,
        local_lr: float = 0.0,
        *,
        lost: Collection[int] = (),
    ) -> RoundPlan:
        """A plan beside the algorithm's rounds, of all silos but those that were ``lost``."""
        silos = self.alive(lost)
        return RoundPlan(
            local_steps=local_steps,
            local_lr=local_lr,
            num_gradients=local_steps,
            participation="all",
            share=self.training,
            phase=task,
            task=task,
            participants=tuple(silos),
            weights=self.weights_of(silos),
        )

    def plan(
        self, server: Vectors, round: int, eligible: Sequence[int] | None = None, lost: Collection[int] = ()
    ) -> RoundPlan | None:
        """The plan of a round, with its participants and their weights; None if too few silos are eligible.

        Without the silos that were ``lost`` it is that of a federation of the others: l of them take part, at least
        one, or all; weights and ``silo_share`` are shares of theirs.

        Args:
            eligible: silos that may still take part, ascending; None for all.

        Raises:
            ConfigError: as `asks`.
        """
        plan = self.asks(server, round)
        alive, setting = self.alive(lost), self.setting
        if lost:
            setting = self._without(alive)
            eligible = [silo for silo in (alive if eligible is None else eligible) if silo not in lost]
        everybody = plan.participation == "all"
        if eligible is not None and len(eligible) < (len(alive) if everybody else setting.num_participants):
            return None
        times = Counter(alive if everybody else drawn_silos(self.seed, round, plan, setting, eligible, self.coins))
        chosen = sorted(times)
        weights, share = self.shares_of(chosen)
        if lost:
            share = len(chosen) / len(alive) if self.equal_weights else share / self.shares_of(alive)[1]
        if plan.participation == WITH_REPLACEMENT:
            weights = tuple(times[silo] / setting.num_participants for silo in chosen)
            share = math.fsum(setting.weights[silo] for silo in chosen)
        return replace(plan, participants=tuple(chosen), weights=weights, silo_share=share)

    def _without(self, alive: Sequence[int]) -> Setting:
        """As if there were only these silos to draw: l of them, at least one, with their shares of the weights."""
        weights = dict(zip(alive, self.weights_of(alive), strict=True))
        return replace(
            self.setting,
            num_participants=max(1, floor_share(self.setting.silo_rate, len(alive))),
            weights=tuple(weights.get(silo, 0.0) for silo in range(self.setting.num_silos)),
        )

    def shares_of(self, chosen: Sequence[int]) -> tuple[tuple[float, ...], float]:
        """(weights among the chosen, the chosen's part of all silos' weights)."""
        if self.equal_weights:  # exactly 1/S and S/M, whatever their floating sum
            return (1 / len(chosen),) * len(chosen), len(chosen) / self.setting.num_silos
        share = math.fsum(self.weights[silo] for silo in chosen)
        return tuple(self.weights[silo] / share for silo in chosen), share


@dataclass(slots=True)
class Rehearsal:
    """Stands in for the oracle of one silo, without records: its gradients are zero."""

    num_silos: int = 1
    released: list[Tensor] = field(default_factory=list)

    def gradient(self, y: Tensor) -> Tensor:
        return torch.zeros_like(y)

    def release(self, update: Tensor) -> Tensor:
        self.released.append(update + 1)  # as noise would, it tells what was released from what was not
        return self.released[-1]

    def squared_norm(self, update: Tensor, scale: float) -> Tensor:
        if any(torch.equal(update, known) for known in self.released):
            self.released.append(update.square().sum(dim=1, keepdim=True))
            return self.released[-1]
        return update.square().sum(dim=1, keepdim=True)


def rehearse(algorithm: Algorithm, server: Vectors, plan: RoundPlan) -> tuple[Vectors, Rehearsal]:
    """What one silo would send in a round, (1, d) each, and what it released: known without any record."""
    oracle = Rehearsal()
    silos = algorithm.init_silos(server["model"], 1)
    up, _ = algorithm.local_update(algorithm.download(server), silos, oracle, plan)
    return columns(up), oracle
