"""Options that the algorithms of local SGD steps share."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Literal, get_args

import torch

from dpfl_plugin.algorithms.base import Setting, algorithm
from dpfl_plugin.algorithms.mb_sgd import Average
from dpfl_plugin.algorithms.server_optimizer import Name, ServerOptimizer
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import ConfigError, require


@algorithm
class LocalRate:
    """K steps of size eta_l at each silo.

    Attributes:
        local_steps: K.
        local_lr: eta_l.
        eta_0: instead of local_lr: eta_l = eta_0 / (s K), the paper's scaling ([N] sec. 5).
    """

    local_steps: int
    local_lr: float | None = None
    eta_0: float | None = None

    def __post_init__(self) -> None:
        whole = isinstance(self.local_steps, Integral)
        require(whole and self.local_steps >= 1, "local_steps", self.local_steps, "be at least 1, a whole number")
        if (self.local_lr is None) == (self.eta_0 is None):
            raise ConfigError("local_lr (eta_l) and eta_0 (eta_l = eta_0 / (s K)): give exactly one of them.")
        for key in ("local_lr", "eta_0"):
            value = getattr(self, key)
            known = isinstance(value, Real) and 0 < float(value) < float("inf")
            require(value is None or known, key, value, "be positive and finite")

    def local_rate(self, setting: Setting, local_steps: int) -> float:
        """eta_l."""
        if self.local_lr is not None:
            return self.local_lr
        assert self.eta_0 is not None
        if setting.record_rate is None:
            raise ConfigError("eta_0 needs privacy.record_rate (s), the same for all silos. Use local_lr instead.")
        return self.eta_0 / (setting.record_rate * local_steps)


@algorithm
class LocalSteps(LocalRate):
    """K steps of size eta_l at each silo, and a step of the server.

    Attributes:
        server_lr: eta_g.
        server_optimizer: what the server does with the mean update.
        beta_1, beta_2, tau: its parameters.
        average: what is returned: the last global model, the mean of all, or their mean weighted by the round's number
            (as [G] Alg. 3, l. 10, see `mb_sgd`). Silos go on from the last, so that what they release stays the same.
    """

    server_lr: float = 1.0
    server_optimizer: Literal["sgd", "momentum", "adam", "yogi", "adagrad"] = "sgd"
    beta_1: float = 0.9
    beta_2: float = 0.99
    tau: float = 1e-3
    average: Average = "last"

    def __post_init__(self) -> None:
        super().__post_init__()
        known_average = self.average in get_args(Average)
        require(known_average, "average", self.average, f"be one of {', '.join(get_args(Average))}")
        _ = self.optimizer  # checks its own options

    @property
    def optimizer(self) -> ServerOptimizer:
        name: Name = self.server_optimizer
        return ServerOptimizer(
            name=name, learning_rate=self.server_lr, beta_1=self.beta_1, beta_2=self.beta_2, tau=self.tau
        )

    def begin(self, model: torch.Tensor) -> Vectors:
        """The server's state of the model, before the first round."""
        state = {"model": model, **self.optimizer.init(model)}
        if self.average != "last":
            state |= {"iterate": model.clone(), "averaged": torch.zeros((), dtype=torch.int64, device=model.device)}
        return state

    def sent(self, server: Vectors) -> torch.Tensor:
        """The global model that silos go on from (d,)."""
        return server["model" if self.average == "last" else "iterate"]

    def advance(self, server: Vectors, update: torch.Tensor) -> Vectors:
        """The state of `begin` after another round, from the mean update (d,): post-processing, free of charge."""
        if self.average == "last":
            return self.optimizer.step(server, update)
        new = self.optimizer.step({**server, "model": server["iterate"]}, update)
        iterate, averaged = new.pop("model"), server["averaged"] + 1
        # Weights 1 or r of the model after round r, kept as a running mean; the initial model has no weight.
        share = 1 / int(averaged) if self.average == "uniform" else 2 / (int(averaged) + 1)
        mean = server["model"] + share * (iterate - server["model"])
        return {**new, "model": mean, "iterate": iterate, "averaged": averaged}
