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

    def psi_0(self, start: Array, num_silos: int, mu: float, L: float) -> float:
        """psi_0 of `ScaffNewProblem` for h_0 = 0, eta = 1/L and p = sqrt(mu/L)."""
        return num_silos * float(np.square(start - self.point).sum()) + self.gradients / (L * mu)


def loss(parts: Parts, l2: float, w: Array) -> tuple[float, Array]:
    """F(w) and its gradient (d,)."""
    silos = list(parts.host.evaluate(torch.from_numpy(w), True).values())
    gradients = torch.stack([silo.gradient for silo in silos if silo.gradient is not None])
    value = math.fsum(silo.train_loss for silo in silos) / len(silos) + l2 / 2 * float(w @ w)
    mean: Array = gradients.mean(dim=0).numpy() + l2 * w
    return value, mean


def optimum(parts: Parts, l2: float) -> Optimum:
    """Of parts that were built in float64, by L-BFGS."""
    from scipy.optimize import minimize

    start = np.zeros(parts.model.numel())
    options: dict[str, Any] = {"gtol": 1e-9, "ftol": 1e-15, "maxiter": 1000}
    found = minimize(lambda w: loss(parts, l2, w), start, jac=True, method="L-BFGS-B", options=options)
    silos = parts.host.evaluate(torch.from_numpy(found.x), True).values()
    gradients = [silo.gradient.numpy() + l2 * found.x for silo in silos if silo.gradient is not None]
    return Optimum(found.x, float(found.fun), math.fsum(float(np.square(one).sum()) for one in gradients))


def least_loss(config: Any, base: Path) -> float:
    """Return min F of a configuration's records, without its regulariser, in double precision."""
    exact = config.model_copy(update={"runtime": config.runtime.model_copy(update={"dtype": "float64"}), "l2": 0.0})
    return optimum(build(exact, base), 0.0).loss
