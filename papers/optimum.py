"""The minimum of a convex run's loss, found from the records without noise: for the experimenter, who publishes it of
public records only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpfl_plugin.runs.build import Parts, build

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Optimum:
    """x* (d,) of the mean loss F of all silos with its regulariser, F*, and sum_i ||grad f_i(x*)||^2."""

    point: Array
    loss: float
    gradients: float

    def psi_0(self, num_silos: int, mu: float, L: float) -> float:
        """psi_0 of `ScaffNewProblem` for x_0 = 0, h_0 = 0, eta = 1/L and p = sqrt(mu/L)."""
        return num_silos * float(np.square(self.point).sum()) + self.gradients / (L * mu)


def optimum(parts: Parts, l2: float) -> Optimum:
    """Minimise, of parts that were built in float64, by L-BFGS."""
    from scipy.optimize import minimize

    def loss(w: Array) -> tuple[float, Array]:
        silos = list(parts.host.evaluate(torch.from_numpy(w), True).values())
        gradients = torch.stack([silo.gradient for silo in silos if silo.gradient is not None])
        value = math.fsum(silo.train_loss for silo in silos) / len(silos) + l2 / 2 * float(w @ w)
        return value, gradients.mean(dim=0).numpy() + l2 * w

    options: dict[str, Any] = {"gtol": 1e-9, "ftol": 1e-15, "maxiter": 1000}
    found = minimize(loss, np.zeros(parts.model.numel()), jac=True, method="L-BFGS-B", options=options)
    silos = parts.host.evaluate(torch.from_numpy(found.x), True).values()
    gradients = [silo.gradient.numpy() + l2 * found.x for silo in silos if silo.gradient is not None]
    return Optimum(found.x, float(found.fun), math.fsum(float(np.square(one).sum()) for one in gradients))


def optimum_of(config: Any, base: Path, l2: float) -> Optimum:
    """Minimise the mean loss of a configuration's records with a regulariser, in double precision."""
    exact = {"runtime": config.runtime.model_copy(update={"dtype": "float64"}), "l2": l2}
    return optimum(build(config.model_copy(update=exact), base), l2)
