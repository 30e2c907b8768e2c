"""Fully connected networks in closed form: forward and backward by hand, no autograd.

With a_l the input of layer l and g_l the derivative of example j's loss by that layer's output, the layer's gradient is
the outer product of g_l and (a_l, 1). Its norm is ||g_l|| sqrt(||a_l||^2 + 1) (Goodfellow 2015, arXiv:1510.01799), and
the clipped sum is one product of matrices, (clip factor * g_l)^T a_l: no gradient of one example is formed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.gradients import fused
from dpfl_plugin.gradients.base import (
    Loss,
    Records,
    bad_among,
    clip_factors,
    in_chunks,
    prepared,
    squared_inputs,
    squared_norms,
)
from dpfl_plugin.gradients.blocks import add_products, add_up, chunk_of
from dpfl_plugin.gradients.closed_form import OF_LAYER, PADDING_BIAS, padded, unknown_loss
from dpfl_plugin.gradients.fused import Fused
from dpfl_plugin.gradients.losses import residuals
from dpfl_plugin.gradients.stacked import Stack, StackedLayers
from dpfl_plugin.gradients.wrapped import unwrapped

Backward = Callable[[Tensor, Tensor], Tensor]
"""(derivative by an activation's output, that output) -> derivative by its input, (b, h) each."""

_ops = torch.ops.aten
ACTIVATIONS: Final[dict[type[nn.Module], tuple[Callable[[Tensor], Tensor], Backward]]] = {
    nn.ReLU: (torch.relu_, lambda g, a: _ops.threshold_backward(g, a, 0)),
    nn.Tanh: (torch.tanh_, lambda g, a: _ops.tanh_backward(g, a)),
    nn.Sigmoid: (torch.sigmoid_, lambda g, a: _ops.sigmoid_backward(g, a)),
    nn.ELU: (nn.functional.elu_, lambda g, a: _ops.elu_backward(g, 1.0, 1.0, 1.0, True, a)),
}


class Dense:
    """Clipped sums of Linear layers with activations between them, for a loss whose derivative by outputs is known."""

    name = "dense"
    normalises = True
    capturable = True
    compiles = True

    def __init__(self, model: nn.Module, loss: Loss, chunk_bytes: int, compiled: bool = True) -> None:
        chain = dense_layers(model)
        assert chain is not None
        self._layers, activations = chain
        self._activations = [ACTIVATIONS[type(activation)] for activation in activations]
        self._loss, self._sizes, self._chunk_bytes = loss, Layout.of(model).sizes, chunk_bytes
        self._outputs = self._layers[-1].out_features
        self._padded = padded(loss, self._outputs)
        self._weight, self._offset = torch.empty(0), torch.empty(0)
        # Products of matrices may round by where these begin in memory, and silos' rows of a stack begin anywhere.
        self._y = torch.empty(0)
        self._together = StackedLayers(
            self._layers,
            self._activations,
            functools.partial(residuals, loss=loss),
            padded=self._padded,
            padding_bias=PADDING_BIAS,
            beside=0.0 if self._layers[0].bias is None else 1.0,
            engine=self,
            chunk_bytes=chunk_bytes,
        )
        self._fused = Fused.of(self._layers, activations, loss) if compiled else None

    @property
    def kernels(self) -> str | None:
        """What has compiled the loops that it uses; None where torch does it all."""
        return None if self._fused is None else fused.version()

    @staticmethod
    def unsupported(model: nn.Module, loss: Loss) -> str | None:
        chain = dense_layers(model)
        if chain is None:
            known = ", ".join(sorted(kind.__name__ for kind in ACTIVATIONS))
            return f"the model is not Linear layers one after another, all trainable, with one of {known} between them"
        return unknown_loss(loss, chain[0][-1].out_features)

    def prepare(self, records: Records) -> Records:
        """Adds each record's ||x||^2."""
        features = records.features.flatten(1)
        return prepared(records, features, squared_inputs(features))

    def record_bytes(self, y: Tensor, batch: Records) -> int:
        # Of each layer the output, the derivative by it, and that times the clip factor; of the last, padded ones.
        outputs = sum(layer.out_features for layer in self._layers) + self._padded
        return 4 * outputs * y.element_size() + OF_LAYER * len(self._layers)

    def clipped_sum(
        self, y: Tensor, batch: Records, clip_norm: float | tuple[float, ...], out: Tensor
    ) -> Tensor | None:
        assert out.dtype is torch.float64
        count, unclipped = len(batch), clip_norm == math.inf
        if count == 0:
            out.zero_()
            return None if unclipped else y.new_empty((0, len(clip_norm)) if isinstance(clip_norm, tuple) else 0)
        size = chunk_of(count, self._chunk_bytes // self.record_bytes(y, batch))
        if count > size:
            return in_chunks(self.clipped_sum, size, y, batch, clip_norm, out)
        if self._fused is not None and self._fused.takes(y, batch):
            return self._fused.clipped_sum(y, batch, clip_norm, out)
        if self._y.dtype != y.dtype or self._y.device != y.device or not self._y.numel():
            self._y = torch.empty_like(y)
        inputs, derivatives = self._derivatives(self._y.copy_(y), batch)
        out.zero_()
        if unclipped:
            self._add_up(inputs, derivatives, None, None, out)
            return None
        squares = self._squares(batch, inputs, derivatives)
        norms = (squares if isinstance(clip_norm, tuple) else squares.sum(dim=1)).sqrt_()
        bad = bad_among(norms, clip_norm, y.dtype)
        self._add_up(inputs, derivatives, clip_factors(norms, clip_norm, y.dtype), bad, out)
        return norms.to(y.dtype)

    def clipped_sums(
        self, y: Tensor, batches: Stack, clip_norms: Tensor | None, out: Tensor, gamma: float | None = None
    ) -> Tensor | None:
        """See `stacked.MultiSiloEngine`."""
        return self._together.clipped_sums(y, batches, clip_norms, out, gamma)

    def _derivatives(self, y: Tensor, batch: Records) -> tuple[list[Tensor], list[Tensor]]:
        """Each layer's inputs (b, i), and the derivatives of the losses by its outputs (b, o)."""
        parameters = self._parameters(y)
        inputs = [batch.features]
        for (weight, bias), (forward, _) in zip(parameters[:-1], self._activations, strict=True):
            inputs.append(forward(_linear(inputs[-1], weight, bias)))
        weight, bias = parameters[-1]
        found = residuals(_linear(inputs[-1], weight, bias), batch.labels, self._loss)
        derivatives = [found]
        for layer in reversed(range(1, len(parameters))):
            _, backward = self._activations[layer - 1]
            derivatives.append(backward(derivatives[-1] @ parameters[layer][0], inputs[layer]))
        return inputs, derivatives[::-1]

    def _parameters(self, y: Tensor) -> list[tuple[Tensor, Tensor | None]]:
        """(weight, bias) of each layer, views of ``y``; the last one's padded: see `closed_form`."""
        parts, found = iter(y.split(self._sizes)), []
        for layer in self._layers:
            weight = next(parts).view(layer.out_features, layer.in_features)
            found.append((weight, next(parts) if layer.bias is not None else None))
        if self._padded == self._outputs or not y.is_cpu:
            return found
        weight, bias = found[-1]
        if self._weight.dtype != y.dtype or not self._weight.numel():
            self._weight = torch.zeros(self._padded, weight.shape[1], dtype=y.dtype)
            self._offset = torch.full((self._padded,), PADDING_BIAS, dtype=y.dtype)
            self._offset[: self._outputs] = 0.0
        self._weight[: self._outputs] = weight
        if bias is not None:
            self._offset[: self._outputs] = bias
        return [*found[:-1], (self._weight, self._offset)]

    def _squares(self, batch: Records, inputs: Sequence[Tensor], derivatives: Sequence[Tensor]) -> Tensor:
        """(b, L) squared norms of the layers' gradients."""
        assert batch.constants is not None
        of_inputs = [batch.constants, *map(squared_inputs, inputs[1:])]
        squares = torch.empty(len(batch), len(inputs), dtype=torch.float64, device=inputs[0].device)
        for column, (layer, of_input, g) in enumerate(zip(self._layers, of_inputs, derivatives, strict=True)):
            one = 1.0 if layer.bias is not None else 0.0
            torch.mul(squared_norms(g), of_input.double() + one, out=squares[:, column])
        return squares

    def _add_up(
        self,
        inputs: Sequence[Tensor],
        derivatives: Sequence[Tensor],
        factors: Sequence[Tensor] | None,
        bad: Tensor | None,
        out: Tensor,
    ) -> None:
        """Add the gradients, each layer's times its ``factors`` (b,), to ``out``: of all records but the ``bad``."""
        parts = iter(out.split(self._sizes))
        for number, (layer, a, g) in enumerate(zip(self._layers, inputs, derivatives, strict=True)):
            scaled = g if factors is None else g * factors[number % len(factors)].unsqueeze(1)
            if bad is not None:
                scaled.masked_fill_(bad.unsqueeze(1), 0.0)
            own = scaled[:, : layer.out_features].unsqueeze(0)
            place = next(parts).view(1, layer.out_features, layer.in_features)
            add_products(own, a.unsqueeze(0), place, bad)
            if layer.bias is not None:
                add_up(own, next(parts).unsqueeze(0))


def dense_layers(model: nn.Module) -> tuple[list[nn.Linear], list[nn.Module]] | None:
    """The Linear layers of a model that is nothing else, and the activations between them; None if it is not that."""
    leaves = _in_order(model)
    if leaves is None:
        return None
    while leaves and type(leaves[0]) in (nn.Flatten, nn.Identity):
        leaves.pop(0)
    linear = [layer for layer in leaves[::2] if type(layer) is nn.Linear]
    activations = leaves[1::2]
    if len(leaves) % 2 == 0 or len(linear) != len(activations) + 1 or len(set(map(id, linear))) != len(linear):
        return None
    if not all(type(a) in ACTIVATIONS and getattr(a, "alpha", 1.0) == 1.0 for a in activations):
        return None
    own = sum(1 if layer.bias is None else 2 for layer in linear)  # fewer in all, where layers share a parameter
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return (linear, activations) if len(trainable) == own else None


def _in_order(module: nn.Module) -> list[nn.Module] | None:
    """What a Sequential of Sequentials calls, one after the other; None for any other module with parts."""
    module = unwrapped(module)
    if type(module) is not nn.Sequential:
        return None if list(module.children()) else [module]
    parts = [_in_order(part) for part in module]
    return None if any(part is None for part in parts) else [leaf for part in parts for leaf in part or ()]


def _linear(a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return a @ weight.t() if bias is None else torch.addmm(bias, a, weight.t())
