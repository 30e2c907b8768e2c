"""FedDyn (Acar et al., ICLR 2021, arXiv:2111.04263v2); with a private oracle DP-FedDyn.

Each silo's loss is tilted and pulled towards the global model, so that the minima of all silos come to agree with that
of the mean loss: a correction of drift by one vector up and one down. All that a silo keeps is a function of what it
released, so that it costs no privacy of its own.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from dpfl_plugin.algorithms.base import Oracle, RoundPlan, Setting
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import require


@dataclass(frozen=True, kw_only=True)
class FedDyn:
    """K steps on L_i(y) - <g_i, y> + alpha/2 ||y - x||^2 at each silo, instead of its minimum. Alg. 1.

    The paper's g_i = grad L_i(theta_i) is kept as it is there, by its own recursion, which presumes the exact minimum:
    after K steps it is an estimate.

    Attributes:
        local_steps: K.
        local_lr: eta.
        alpha: the paper's alpha, strength of the pull.
    """

    local_steps: int
    local_lr: float
    alpha: float = 0.1

    def __post_init__(self) -> None:
        require(self.local_steps >= 1, "local_steps", self.local_steps, "be at least 1")
        require(0 < self.local_lr < float("inf"), "local_lr", self.local_lr, "be positive and finite")
        require(0 < self.alpha < float("inf"), "alpha", self.alpha, "be positive and finite")

    def init_server(self, model: Tensor, setting: Setting) -> Vectors:
        return {"model": model, "h": model.new_zeros(len(model))}

    def init_silos(self, model: Tensor, num_silos: int) -> Vectors:
        return {"g": model.new_zeros(num_silos, len(model))}

    def round_plan(self, server: Vectors, round: int, setting: Setting, rng: np.random.Generator) -> RoundPlan:
        K = self.local_steps
        return RoundPlan(local_steps=K, local_lr=self.local_lr, num_gradients=K)

    def download(self, server: Vectors) -> Vectors:
        return {"model": server["model"]}

    def local_update(self, down: Vectors, silos: Vectors, oracle: Oracle, plan: RoundPlan) -> tuple[Vectors, Vectors]:
        x, g_i = down["model"], silos["g"]  # [d], [m, d]
        y = x.expand_as(g_i)
        for _ in range(plan.local_steps):
            y = y - plan.local_lr * (oracle.gradient(y) - g_i + self.alpha * (y - x))
        update = oracle.release(y - x)
        return {"update": update}, {"g": g_i - self.alpha * update}

    def aggregate(self, server: Vectors, mean_up: Vectors, plan: RoundPlan) -> Vectors:
        h = server["h"] - self.alpha * plan.silo_share * mean_up["update"]  # 1/m times the sum over participants
        return {"model": server["model"] + mean_up["update"] - h / self.alpha, "h": h}

    def notes(self, server: Vectors) -> list[str]:
        return []
