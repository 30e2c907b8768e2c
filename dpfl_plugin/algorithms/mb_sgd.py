"""ISRL-DP MB-SGD: noisy projected minibatch SGD at the server; the baseline of [G] sec. 4, and Alg. 3 for subgradients.

[G] is Gao, Lowy, Zhou and Wright, ICML 2024.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from torch import Tensor

from dpfl_plugin.algorithms.averages import Average, Averages
from dpfl_plugin.algorithms.base import algorithm
from dpfl_plugin.algorithms.isrl import ENDLESS, ConstraintSet, Facts, OneGradient, Stage, known_rounds, positive
from dpfl_plugin.algorithms.server_optimizer import Name, ServerOptimizer
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import ConfigError, require

LAST: Final = Averages()
GRADIENT_STEP: Final = ServerOptimizer()


@dataclass(frozen=True, slots=True)
class SGD:
    """w_r = Pi_W[w_{r-1} - eta_r g_r]; returns the last iterate or an average.

    Attributes:
        averages: the weights of w_1, ..., w_r in what is returned (linear: Alg. 3, l. 10).
        decreasing: eta_r = 2 / (mu r) with r from 1 (Alg. 4, l. 7), else the stage's rate.
        optimizer: takes the step along -g_r in place of the gradient step, before the projection; of its own numbers
            all but the rate, which is eta_r.
    """

    averages: Averages = LAST
    decreasing: bool = False
    optimizer: ServerOptimizer = GRADIENT_STEP

    def start(self, w: Tensor) -> Vectors:
        return {"model": w, "w": w.clone(), **self.optimizer.init(w)}

    def query(self, state: Vectors, stage: Stage, r: int) -> Tensor:
        return state["w"]  # Alg. 3, l. 3

    def step(self, state: Vectors, g: Tensor, stage: Stage, r: int, sets: ConstraintSet) -> Vectors:
        eta = 2 / (stage.modulus * r) if self.decreasing else stage.rate
        moved = replace(self.optimizer, learning_rate=eta).step({**state, "model": state["w"]}, -g)
        w = sets.project(moved.pop("model"))  # Alg. 3, l. 8
        # Kept as a running mean. The first mean is w_1: w_0 has no weight.
        part = self.averages.part(r, stage.rounds)
        return {**moved, "w": w, "model": w.clone() if part == 1 else state["model"] + part * (w - state["model"])}


@algorithm
class MBSGD(OneGradient):
    """Noisy projected minibatch SGD, one pass or many. Baseline of Gao et al. 2024, sec. 4 (Lowy, Razaviyayn 2023).

    Attributes:
        lr: eta.
        average: what is returned: the last iterate, or a mean of all (see `averages`).
        tail_share: of the rounds, those of a tail.
        ema_decay: of an ema, from one round to the next.
        server_optimizer: what the server does with the mean gradient (see `server_optimizer`), at the rate lr.
        beta_1, beta_2, tau: its parameters.
    """

    lr: float
    average: Average = "last"
    tail_share: float = 0.5
    ema_decay: float = 0.9
    server_optimizer: Name = "sgd"
    beta_1: float = 0.9
    beta_2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "lr")
        local = self.server_optimizer != "fedexp"
        require(
            local, "server_optimizer", self.server_optimizer, "be one of those without updates of silos", "Use fedavg."
        )
        _ = self.solver  # checks its own options

    @property
    def solver(self) -> SGD:
        optimizer = ServerOptimizer(name=self.server_optimizer, beta_1=self.beta_1, beta_2=self.beta_2, tau=self.tau)
        averages = Averages(kind=self.average, tail_share=self.tail_share, ema_decay=self.ema_decay)
        return SGD(averages, optimizer=optimizer)

    def stages(self, facts: Facts) -> Sequence[Stage]:
        if self.passes == "one":
            known_rounds(facts, "one pass divides the records among all rounds")
        if self.average == "tail":
            known_rounds(facts, "average: tail is the mean over the last tail_share of them")
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
        return SGD(Averages(kind="linear"), decreasing=self.lr is None)

    def stages(self, facts: Facts) -> Sequence[Stage]:
        if self.passes == "one":
            known_rounds(facts, "one pass divides the records among all rounds")
        rounds = facts.rounds or ENDLESS
        return [Stage(phase=1, rounds=rounds, modulus=self.strong_convexity or 0.0, rate=self.lr or 0.0)]

    def remarks(self, facts: Facts) -> Iterator[str]:
        if self.lr is not None:
            yield "Lemma G.2 of Gao et al. 2024 does not apply: it has step sizes 2 / (mu (r + 1)), not a constant lr."
