"""Gradients of smoothed losses, for losses that are not smooth themselves; each record's is smoothed by itself.

[G] is Gao, Lowy, Zhou and Wright, ICML 2024. Each record's gradient is clipped and added up as any other engine does.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from dpfl_plugin.errors import ConfigError, UnsupportedError, require
from dpfl_plugin.gradients import losses
from dpfl_plugin.gradients.base import Engine, Loss
from dpfl_plugin.gradients.closed_form import linear_layer
from dpfl_plugin.gradients.vmap import Vmap

Smoothing = tuple[str, float]
"""What smooths, and its number: ("convolution", radius s) or ("moreau", beta)."""

CHUNK_BYTES = 2**28


class Convolution(Vmap):
    """grad f(y + v_j, d_j) for record j, v_j uniform in the ball of radius s, drawn afresh for every record and call.

    An unbiased estimate of the gradient of E_v f(y + v, d_j) ([G] Definition D.3, Alg. 7, l. 6 and 8).
    """

    name = "convolution"

    def __init__(self, model: torch.nn.Module, loss: Loss, radius: float, chunk_bytes: int = CHUNK_BYTES) -> None:
        super().__init__(model, loss, chunk_bytes)
        require(radius > 0, "smoothing radius", radius, "be positive")
        self._radius = radius
        self.rng = np.random.default_rng(0)  # the oracle puts a stream of its own here before every call

        def loss_at(point: Tensor, features: Tensor, label: Tensor) -> Tensor:
            outputs = functional_call(model, self._layout.unflatten(point), (features.unsqueeze(0),))
            return loss(outputs, label.unsqueeze(0))[0]

        each = vmap(grad(loss_at), in_dims=(0, 0, 0))

        def gradients(parameters: dict[str, Tensor], features: Tensor, labels: Tensor) -> dict[str, Tensor]:
            y = self._layout.flatten(parameters)
            points = y + self._radius * uniform_in_ball(len(features), len(y), self.rng).to(y)
            parts = each(points, features, labels).split(self._layout.sizes, dim=1)
            return dict(zip(self._layout.names, parts, strict=True))

        self._gradients = gradients


def uniform_in_ball(count: int, d: int, rng: np.random.Generator) -> Tensor:
    """(count, d) points, uniform in the unit ball: the first d coordinates of points on the sphere in d + 2 dimensions.

    Points come one after the other from ``rng``: the same, however many are asked for at a time.
    """
    normals = torch.from_numpy(rng.standard_normal((count, d + 2)))
    norms: Tensor = torch.linalg.vector_norm(normals, dim=1, keepdim=True)
    return normals[:, :d] / norms


class Moreau(Vmap):
    """Gradients of the Moreau envelopes f_beta(y) = min_v f(v) + beta/2 ||y - v||^2. [G] Lemma E.1.

    For the hinge loss of a linear score, f(y) = max(0, 1 - l <y, x>) with l = 1 or -1: the minimiser is y + t l x with
    t = (1 - l <y, x>) / ||x||^2 confined to [0, 1/beta], and the gradient is beta (y - v) = -beta t l x.
    """

    name = "moreau"

    def __init__(self, model: torch.nn.Module, loss: Loss, beta: float, chunk_bytes: int = CHUNK_BYTES) -> None:
        super().__init__(model, loss, chunk_bytes)
        require(beta > 0, "envelope", beta, "be positive")
        layer = linear_layer(model)
        if loss is not losses.hinge or layer is None or layer.out_features != 1:
            raise UnsupportedError(
                "the Moreau envelope is known for loss: hinge of a model that is one Linear layer with one output "
                "(model: logistic). Use that, or convolution smoothing."
            )
        weight, bias = self._layout.names[0], self._layout.names[1:]

        def gradients(parameters: dict[str, Tensor], features: Tensor, labels: Tensor) -> dict[str, Tensor]:
            x = features.flatten(1)
            squares = x.square().sum(dim=1) + (1.0 if bias else 0.0)  # ||(x, 1)||^2
            scores = x @ parameters[weight][0] + (parameters[bias[0]] if bias else 0.0)
            sign = 2.0 * labels.to(x.dtype) - 1.0
            t = ((1.0 - sign * scores) / squares.clamp(min=torch.finfo(x.dtype).tiny)).clamp(0.0, 1.0 / beta)
            slopes = -beta * t * sign
            return {weight: slopes[:, None] * x, **dict.fromkeys(bias, slopes[:, None])}

        self._gradients = gradients


def engine(kind: Smoothing, model: torch.nn.Module, loss: Loss, chunk_bytes: int = CHUNK_BYTES) -> Engine:
    """The engine of a smoothed loss.

    Raises:
        ConfigError: there is no such smoothing, or its number is not positive.
        UnsupportedError: it is not known for this model and loss.
    """
    name, value = kind
    if name == "convolution":
        if reason := Vmap.unsupported(model, loss):
            raise UnsupportedError(f"convolution smoothing cannot be used: {reason}.")
        return Convolution(model, loss, value, chunk_bytes)
    if name == "moreau":
        return Moreau(model, loss, value, chunk_bytes)
    raise ConfigError(f"the algorithm's round plan has smoothing {name!r}: convolution or moreau.")
