"""FedAvg and FedSGD; with a private oracle DP-FedAvg and DP-FedSGD.

[N] is Noble et al., AISTATS 2022 (hal-03905078v1).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch

from dpfl_plugin.algorithms.base import Oracle, RoundPlan, Setting, algorithm
from dpfl_plugin.algorithms.steps import LocalSteps
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import ConfigError


class _Averaging(LocalSteps):
    """Local steps from the global model, and the mean of what they changed."""

    sends_squares: ClassVar[bool] = True

    @property
    def sends_releases_alone(self) -> bool:
        return self.server_optimizer != "fedexp"  # whose squared norms have the noise of their silo alone

    def init_server(self, model: torch.Tensor, setting: Setting) -> Vectors:
        return self.begin(model, setting)

    def init_silos(self, model: torch.Tensor, num_silos: int) -> Vectors:
        return {}

    def download(self, server: Vectors) -> Vectors:
        return {"model": self.sent(server)}

    def local_update(self, down: Vectors, silos: Vectors, oracle: Oracle, plan: RoundPlan) -> tuple[Vectors, Vectors]:
        x = down["model"]
        y = x.repeat(oracle.num_silos, 1)  # [N] Alg. 2, l. 5
        for _ in range(plan.local_steps):
            y.sub_(oracle.gradient(y).mul_(plan.local_lr))  # l. 7-12
        update = oracle.release(y - x)  # l. 13-14
        return {"model": update, **self.squares(update, oracle, plan)}, {}

    def aggregate(self, server: Vectors, mean_up: Vectors, plan: RoundPlan) -> Vectors:
        return self.advance(server, mean_up["model"], mean_up.get("square"))  # l. 15-16

    def notes(self, server: Vectors) -> list[str]:
        return self.average_notes(server)


@algorithm
class FedAvg(_Averaging):
    """K local SGD steps, then the mean of the updates. McMahan et al. 2017; [N] Alg. 2."""

    def round_plan(self, server: Vectors, round: int, setting: Setting, rng: np.random.Generator) -> RoundPlan:
        K = self.local_steps
        return RoundPlan(local_steps=K, local_lr=self.local_rate(setting, K), num_gradients=K)


@algorithm
class FedSGD(_Averaging):
    """FedAvg whose rounds pass over a silo's records once, in 1/s local steps or in one.

    * "epoch": K = 1/s steps ([N] sec. 5: "FedAvg with K s = 1");
    * "single": K = 1, the mean gradient at the global model (McMahan et al. 2017).
    """

    local_steps: int = 1  # set by the form
    form: Literal["epoch", "single"] = "epoch"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local_steps != 1:
            raise ConfigError(f"local_steps={self.local_steps}: fedsgd takes 1/record_rate or 1 by form. Leave it out.")

    def round_plan(self, server: Vectors, round: int, setting: Setting, rng: np.random.Generator) -> RoundPlan:
        K = 1 if self.form == "single" else self._steps_of_an_epoch(setting)
        return RoundPlan(local_steps=K, local_lr=self.local_rate(setting, K), num_gradients=K)

    def _steps_of_an_epoch(self, setting: Setting) -> int:
        if setting.record_rate is None:
            raise ConfigError("fedsgd with form: epoch needs privacy.record_rate (s), to take 1/s steps.")
        steps = round(1 / setting.record_rate)
        if abs(steps * setting.record_rate - 1) > 1e-9:
            raise ConfigError(
                f"fedsgd with form: epoch takes 1/s steps, and 1/{setting.record_rate} is not a whole number. "
                "Use a record_rate such as 0.5, 0.25, 0.2 or 0.1, or form: single."
            )
        return steps
