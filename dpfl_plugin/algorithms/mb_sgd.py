"""ISRL-DP MB-SGD: noisy projected minibatch SGD at the server; the baseline of [G] sec. 4, and Alg. 3 for subgradients.

[G] is Gao, Lowy, Zhou and Wright, ICML 2024.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from dpfl_plugin.algorithms.base import algorithm
from dpfl_plugin.algorithms.isrl import ENDLESS, ConstraintSet, Facts, OneGradient, Stage, known_rounds, positive
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import ConfigError

Average = Literal["last", "uniform", "linear"]


@dataclass(frozen=True, slots=True)
class SGD:
    """w_r = Pi_W[w_{r-1} - eta_r g_r]; returns the last iterate or an average.

    Attributes:
        average: "uniform": of w_1, ..., w_R; "linear": weighted by r (Alg. 3, l. 10).
        decreasing: eta_r = 2 / (mu r) with r from 1 (Alg. 4, l. 7), else the stage's rate.
    """

    average: Average = "last"
    decreasing: bool = False

    def start(self, w: Tensor) -> Vectors:
        return {"model": w, "w": w.clone()}

    def query(self, state: Vectors, stage: Stage, r: int) -> Tensor:
        return state["w"]  # Alg. 3, l. 3

    def step(self, state: Vectors, g: Tensor, stage: Stage, r: int, sets: ConstraintSet) -> Vectors:
        eta = 2 / (stage.modulus * r) if self.decreasing else stage.rate
        w = sets.project(state["w"] - eta * g)  # Alg. 3, l. 8
        # Weights 1 or r of w_r, kept as a running mean. The first mean is w_1: w_0 has no weight.
        share = {"last": 1.0, "uniform": 1 / r, "linear": 2 / (r + 1)}[self.average]
        return {"w": w, "model": w.clone() if share == 1 else state["model"] + share * (w - state["model"])}


@algorithm
class MBSGD(OneGradient):
    """Noisy projected minibatch SGD, one pass or many. Baseline of Gao et al. 2024, sec. 4 (Lowy, Razaviyayn 2023).

    Attributes:
        lr: eta.
        average: what is returned: the last iterate, the mean of all, or their mean weighted by r.
    """

    lr: float
    average: Average = "last"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "lr")

    @property
    def solver(self) -> SGD:
        return SGD(self.average)

    def stages(self, facts: Facts) -> Sequence[Stage]:
        if self.passes == "one":
            known_rounds(facts, "one pass divides the records among all rounds")
        return [Stage(phase=1, rounds=facts.rounds or ENDLESS, rate=self.lr)]


@algorithm
class NoisySubgradient(OneGradient):
    """Noisy projected minibatch subgradient method, returning an average weighted by r. Gao et al. 2024, Alg. 3.

    Attributes:
        strong_convexity: mu of the loss; step sizes 2 / (mu (r + 1)), r from 0.
        lr: instead, one step size.
    """

    strong_convexity: float | None = None
    lr: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "strong_convexity", "lr")
        if (self.strong_convexity is None) == (self.lr is None):
            raise ConfigError("strong_convexity (step sizes 2 / (mu (r + 1))) and lr (constant): give exactly one.")

    @property
    def solver(self) -> SGD:
        return SGD("linear", decreasing=self.lr is None)

    def stages(self, facts: Facts) -> Sequence[Stage]:
        if self.passes == "one":
            known_rounds(facts, "one pass divides the records among all rounds")
        rounds = facts.rounds or ENDLESS
        return [Stage(phase=1, rounds=rounds, modulus=self.strong_convexity or 0.0, rate=self.lr or 0.0)]

    def remarks(self, facts: Facts) -> Iterator[str]:
        if self.lr is not None:
            yield "Lemma G.2 of Gao et al. 2024 does not apply: it has step sizes 2 / (mu (r + 1)), not a constant lr."
