"""Means of the global models that a run went through: what is returned, evaluated and exported instead of the last one.

A mean of released models is a function of them, so it costs no privacy; silos go on from the last model, so that what
they release stays the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from dpfl_plugin.algorithms.base import Setting, algorithm
from dpfl_plugin.core.exact import floor_share
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import ConfigError, require

Average = Literal["last", "uniform", "linear", "tail", "ema"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Averages:
    """Weights of the models w_1, ..., w_r in what is returned after round r of R.

    Attributes:
        kind: "last": w_r alone; "uniform": 1 each; "linear": k for w_k; "tail": 1 for the last rounds, 0 before;
            "ema": ema_decay^(r - k), divided by their sum (Kingma and Ba 2015, arXiv:1412.6980, sec. 3).
        tail_share: of the rounds, those that a tail has: floor(tail_share R) of them, at least one. Until they begin
            the last model is returned.
        ema_decay: of an "ema"; about 1 / (1 - ema_decay) rounds count.
    """

    kind: Average = "last"
    tail_share: float = 0.5
    ema_decay: float = 0.9

    def __post_init__(self) -> None:
        require(self.kind in get_args(Average), "average", self.kind, f"be one of {', '.join(get_args(Average))}")
        require(0 < self.tail_share <= 1, "tail_share", self.tail_share, "be in (0, 1] (1: average: uniform)")
        require(0 < self.ema_decay < 1, "ema_decay", self.ema_decay, "be in (0, 1)")

    def first(self, rounds: int) -> int:
        """The first round, from 1, that a tail of ``rounds`` has."""
        return rounds - max(1, floor_share(self.tail_share, rounds)) + 1

    def part(self, r: int, rounds: int) -> float:
        """The part of w_r in the mean after round ``r`` (from 1) of ``rounds``; the mean before it keeps the rest."""
        match self.kind:
            case "last":
                return 1.0
            case "uniform":
                return 1 / r
            case "linear":
                return 2 / (r + 1)
            case "tail":
                return 1 / max(1, r - self.first(rounds) + 1)
            case "ema":
                # (1 - beta) / (1 - beta^r): the mean with its bias corrected, kept as a running one.
                return (1 - self.ema_decay) / -math.expm1(r * math.log(self.ema_decay))


@algorithm
class AveragedModels:
    """Options of algorithms that return a mean of their global models.

    Attributes:
        average: the last global model, or a mean of all: "uniform", "linear" (weighted by the round's number, as [G]
            Alg. 3, l. 10, see `mb_sgd`), "tail" (of the last rounds) or "ema" (exponentially decaying).
        tail_share: of the rounds, those of a tail.
        ema_decay: of an ema, from one round to the next.
    """

    average: Average = "last"
    tail_share: float = 0.5
    ema_decay: float = 0.9

    @property
    def averages(self) -> Averages:
        """The mean's weights. Raises ConfigError if an option is out of range."""
        return Averages(kind=self.average, tail_share=self.tail_share, ema_decay=self.ema_decay)

    def begin_average(self, model: torch.Tensor, setting: Setting) -> Vectors:
        """What the server's state has beside "model", the mean: "iterate" (d,), the last model, and counts.

        Raises:
            ConfigError: a tail of nobody knows how many rounds.
        """
        if self.average == "last":
            return {}
        none = torch.zeros((), dtype=torch.int64, device=model.device)
        state = {"iterate": model.clone(), "averaged": none}
        if self.average == "tail":
            if setting.rounds is None:
                raise ConfigError(
                    "average='tail' is the mean over the last tail_share of rounds, which are not given: give rounds "
                    "(privacy.epsilon stays a bound on them), or use average: ema."
                )
            state["planned"] = none + setting.rounds
        return state

    def sent(self, server: Vectors) -> torch.Tensor:
        """The global model that silos go on from (d,)."""
        return server["model" if self.average == "last" else "iterate"]

    def waited(self, server: Vectors) -> Vectors:
        """The state after a round in which the model stays: it has no weight, but is one of a tail's rounds."""
        return {"averaged": server["averaged"] + 1} if self.average == "tail" else {}

    def averaged(self, server: Vectors, iterate: torch.Tensor) -> Vectors:
        """The state of the mean after another round, which ended at ``iterate`` (d,)."""
        if self.average == "last":
            return {"model": iterate}
        r = server["averaged"] + 1
        planned = {"planned": server["planned"]} if self.average == "tail" else {}
        part = self.averages.part(int(r), int(planned.get("planned", 0)))
        # A running mean; the initial model has no weight. Before a tail begins there is nothing to keep.
        waits = self.average == "tail" and part == 1
        mean = iterate.clone() if waits else server["model"] + part * (iterate - server["model"])
        return {"model": mean, "iterate": iterate, "averaged": r, **planned}

    def average_notes(self, server: Vectors) -> list[str]:
        """That a run ended before its tail began."""
        if self.average != "tail":
            return []
        done, first = int(server["averaged"]), self.averages.first(int(server["planned"]))
        if done >= first:
            return []
        before = f"the run ended after round {done}, before its tail (round {first} on)"
        return [f"average: tail: {before}: nothing is averaged."]
