"""Options that the algorithms of local SGD steps share."""

from __future__ import annotations

from numbers import Integral, Real
from typing import ClassVar, cast

import torch

from dpfl_plugin.algorithms.averages import AveragedModels
from dpfl_plugin.algorithms.base import Oracle, RoundPlan, Setting, SquaringOracle, algorithm
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
class LocalSteps(AveragedModels, LocalRate):
    """K steps of size eta_l at each silo, and a step of the server.

    Attributes:
        server_lr: eta_g.
        server_optimizer: what the server does with the mean update.
        beta_1, beta_2, tau: its parameters.
    """

    server_lr: float = 1.0
    # Whether the algorithm sends the squared norms that fedexp needs, beside its update.
    sends_squares: ClassVar[bool] = False

    server_optimizer: Name = "sgd"
    beta_1: float = 0.9
    beta_2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.optimizer, self.averages  # check their own options
        if self.server_optimizer == "fedexp" and not self.sends_squares:
            raise ConfigError(
                "server_optimizer='fedexp' is for updates that are sums of gradients, of which the noise is known "
                "(fedavg, fedsgd): with a correction or a pull in them it has no such form. Use momentum."
            )

    @property
    def optimizer(self) -> ServerOptimizer:
        given = {"beta_1": self.beta_1, "beta_2": self.beta_2, "tau": self.tau}
        return ServerOptimizer(name=self.server_optimizer, learning_rate=self.server_lr, **given)

    def begin(self, model: torch.Tensor, setting: Setting) -> Vectors:
        """The server's state of the model, before the first round."""
        return {"model": model, **self.optimizer.init(model), **self.begin_average(model, setting)}

    def squares(self, update: torch.Tensor, oracle: Oracle, plan: RoundPlan) -> Vectors:
        """What is sent beside an ``update`` (m, d) that is -eta_l times the sum of a round's gradients."""
        wanted = self.server_optimizer == "fedexp"
        return {"square": cast(SquaringOracle, oracle).squared_norm(update, plan.local_lr)} if wanted else {}

    def advance(self, server: Vectors, update: torch.Tensor, square: torch.Tensor | None = None) -> Vectors:
        """The state of `begin` after another round, from the mean update (d,): post-processing, free of charge.

        Args:
            square: the mean of `squares`, where there are any.
        """
        new = self.optimizer.step({**server, "model": self.sent(server)}, update, square)
        return {**new, **self.averaged(server, new["model"])}
