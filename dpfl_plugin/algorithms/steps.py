"""Options that the algorithms of local SGD steps share."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal

from dpfl_plugin.algorithms.base import Setting
from dpfl_plugin.algorithms.server_optimizer import Name, ServerOptimizer
from dpfl_plugin.errors import ConfigError, require


@dataclass(frozen=True, kw_only=True)
class LocalSteps:
    """K steps of size eta_l at each silo, and a step of the server.

    Attributes:
        local_steps: K.
        local_lr: eta_l.
        eta_0: instead of local_lr: eta_l = eta_0 / (s K), the paper's scaling ([N] sec. 5).
        server_lr: eta_g.
        server_optimizer: what the server does with the mean update.
        beta_1, beta_2, tau: its parameters.
    """

    local_steps: int
    local_lr: float | None = None
    eta_0: float | None = None
    server_lr: float = 1.0
    server_optimizer: Literal["sgd", "momentum", "adam", "yogi", "adagrad"] = "sgd"
    beta_1: float = 0.9
    beta_2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        whole = isinstance(self.local_steps, Integral)
        require(whole and self.local_steps >= 1, "local_steps", self.local_steps, "be at least 1, a whole number")
        if (self.local_lr is None) == (self.eta_0 is None):
            raise ConfigError("local_lr (eta_l) and eta_0 (eta_l = eta_0 / (s K)): give exactly one of them.")
        for key in ("local_lr", "eta_0"):
            value = getattr(self, key)
            known = isinstance(value, Real) and 0 < float(value) < float("inf")
            require(value is None or known, key, value, "be positive and finite")
        _ = self.optimizer  # checks its own options

    @property
    def optimizer(self) -> ServerOptimizer:
        name: Name = self.server_optimizer
        return ServerOptimizer(
            name=name, learning_rate=self.server_lr, beta_1=self.beta_1, beta_2=self.beta_2, tau=self.tau
        )

    def local_rate(self, setting: Setting, local_steps: int) -> float:
        """eta_l."""
        if self.local_lr is not None:
            return self.local_lr
        assert self.eta_0 is not None
        if setting.record_rate is None:
            raise ConfigError("eta_0 needs privacy.record_rate (s), the same for all silos. Use local_lr instead.")
        return self.eta_0 / (setting.record_rate * local_steps)
