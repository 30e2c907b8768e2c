"""FedProx (Li et al. 2020, arXiv:1812.06127v5, Alg. 2); with a private oracle DP-FedProx."""

from __future__ import annotations

from typing import ClassVar

from dpfl_plugin.algorithms.base import Oracle, RoundPlan, algorithm
from dpfl_plugin.algorithms.fedavg import FedAvg
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import require


@algorithm
class FedProx(FedAvg):
    """FedAvg whose local steps are pulled back to the global model by a proximal term. Li et al. 2020, Alg. 2.

    They go along the gradient of f_i(y) + mu/2 ||y - x||^2. The paper minimises it inexactly, by a solver left open;
    here that is K steps.

    Attributes:
        mu: of the proximal term, at least 0; 0 is FedAvg.
    """

    sends_releases_alone: ClassVar[bool] = True  # fedexp is refused
    sends_squares: ClassVar[bool] = False  # the pull shortens what earlier steps' noise adds to an update

    mu: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.mu < float("inf"), "mu", self.mu, "be finite and at least 0 (0: FedAvg)")

    def local_update(self, down: Vectors, silos: Vectors, oracle: Oracle, plan: RoundPlan) -> tuple[Vectors, Vectors]:
        x = down["model"]
        y = x.repeat(oracle.num_silos, 1)
        for _ in range(plan.local_steps):
            # The proximal term is a function of y and x alone: added after clipping and noise.
            y.sub_(oracle.gradient(y).add_((y - x).mul_(self.mu)).mul_(plan.local_lr))  # l. 5
        return {"model": oracle.release(y - x)}, {}
