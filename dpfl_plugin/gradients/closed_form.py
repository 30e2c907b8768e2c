"""Linear models in closed form, for losses whose derivative is known: no gradient is instantiated, no autograd is run.

The gradient of example j is the outer product of its residual r_j and (x_j, 1), so its norm is ||r_j|| times
sqrt(||x_j||^2 + 1) and the clipped sum is one product of matrices, (clip factor * r)^T X. The residual, the derivative
by the outputs, is softmax(W x_j + b) - e_label, or sigmoid(z) - label, or the hinge's -1, 0 or 1; those
of other outcomes are in `outcome_losses`.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor
from torch.nn import functional

from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.gradients import fused, losses
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
from dpfl_plugin.gradients.fused import Fused
from dpfl_plugin.gradients.losses import residuals, unweighted
from dpfl_plugin.gradients.outcome_losses import ClosedLoss
from dpfl_plugin.gradients.stacked import Stack, StackedLayers
from dpfl_plugin.gradients.wrapped import unwrapped

# On a CPU torch's softmax over 16 columns is 6 times as fast as over 10: a whole vector register.
LANES = 16
# Below any output that counts as finite, so that a padded class has probability, residual and gradient 0; and a number
# of every format that products are computed in.
PADDING_BIAS = -3e38

# Bytes of a record for each layer beside its outputs: squares and factors in float64, and a norm.
OF_LAYER = 28


class ClosedForm:
    """Clipped sums of a single linear layer, for a loss whose derivative by its outputs is known."""

    name = "closed_form"
    normalises = True
    capturable = True
    compiles = True

    def __init__(self, model: torch.nn.Module, loss: Loss, chunk_bytes: int, compiled: bool = True) -> None:
        linear = linear_layer(model)
        assert linear is not None
        self._loss, self._chunk_bytes = loss, chunk_bytes
        self._bias = linear.bias is not None
        self._outputs, self._features = linear.out_features, linear.in_features
        self._padded = padded(loss, self._outputs)
        self._layout = Layout.of(model)
        self._weight = torch.empty(0)
        self._offset = torch.empty(0)
        self._together = StackedLayers(
            [linear],
            [],
            functools.partial(residuals, loss=loss),
            padded=self._padded,
            padding_bias=PADDING_BIAS,
            beside=0.0,
            engine=self,
            chunk_bytes=chunk_bytes,
        )
        self._fused = Fused.of([linear], [], loss, with_bias=True) if compiled else None

    @property
    def kernels(self) -> str | None:
        """What has compiled the loops that it uses; None where torch does it all."""
        return None if self._fused is None else fused.version()

    @staticmethod
    def unsupported(model: torch.nn.Module, loss: Loss) -> str | None:
        linear = linear_layer(model)
        if linear is None:
            return "the model is not one Linear layer (after Flatten), all of it trainable"
        return unknown_loss(loss, linear.out_features)

    def prepare(self, records: Records) -> Records:
        """Adds each record's ||(x, 1)||^2 (without the 1 if there is no bias)."""
        features = records.features.flatten(1)
        squares = squared_inputs(features) + (1.0 if self._bias else 0.0)
        return prepared(records, features, squares)

    def record_bytes(self, y: Tensor, batch: Records) -> int:
        return 4 * self._padded * y.element_size() + OF_LAYER  # the outputs, and a few forms of them

    def clipped_sum(
        self, y: Tensor, batch: Records, clip_norm: float | tuple[float, ...], out: Tensor
    ) -> Tensor | None:
        assert out.dtype is torch.float64
        if isinstance(clip_norm, tuple):
            (bound,) = clip_norm  # the model is one layer
            norms = self.clipped_sum(y, batch, bound, out)
            return None if norms is None else norms.unsqueeze(1)
        b = len(batch)
        if b == 0:
            out.zero_()
            return None if math.isinf(clip_norm) else y.new_empty(0)
        size = chunk_of(b, self._chunk_bytes // self.record_bytes(y, batch))
        if b > size:
            return in_chunks(self.clipped_sum, size, y, batch, clip_norm, out)
        if self._fused is not None and self._fused.takes(y, batch):
            return self._fused.clipped_sum(y, batch, clip_norm, out)
        assert batch.constants is not None
        residuals = self._residuals(y, batch)
        out.zero_()
        if math.isinf(clip_norm):
            self._add_up(residuals, batch.features, None, out)
            return None
        norms = (squared_norms(residuals) * batch.constants).sqrt_()
        bad = bad_among(norms, clip_norm, y.dtype)
        residuals.mul_(clip_factors(norms, clip_norm, y.dtype)[0].unsqueeze(1))
        if bad is not None:
            residuals.masked_fill_(bad.unsqueeze(1), 0.0)
        self._add_up(residuals, batch.features, bad, out)
        return norms.to(y.dtype)

    def clipped_sums(
        self, y: Tensor, batches: Stack, clip_norms: Tensor | None, out: Tensor, gamma: float | None = None
    ) -> Tensor | None:
        """See `stacked.MultiSiloEngine`."""
        return self._together.clipped_sums(y, batches, clip_norms, out, gamma)

    def _residuals(self, y: Tensor, batch: Records) -> Tensor:
        """(b, padded on a CPU): derivative of each example's loss by its outputs."""
        size = self._outputs * self._features
        weight, bias = y[:size].view(self._outputs, self._features), y[size:] if self._bias else None
        if not y.is_cpu:
            return residuals(functional.linear(batch.features, weight, bias), batch.labels, self._loss)
        if self._weight.dtype != y.dtype or not self._weight.numel():
            self._weight = torch.zeros(self._padded, self._features, dtype=y.dtype)
            self._offset = torch.full((self._padded,), PADDING_BIAS, dtype=y.dtype)
            self._offset[: self._outputs] = 0.0
        self._weight[: self._outputs] = weight
        if bias is not None:
            self._offset[: self._outputs] = bias
        outputs = torch.addmm(self._offset, batch.features, self._weight.t())
        return residuals(outputs, batch.labels, self._loss)

    def _add_up(self, residuals: Tensor, features: Tensor, bad: Tensor | None, out: Tensor) -> None:
        size = self._outputs * self._features
        own = residuals[:, : self._outputs].unsqueeze(0)
        add_products(own, features.unsqueeze(0), out[:size].view(1, self._outputs, self._features), bad)
        if self._bias:
            add_up(own, out[size:].unsqueeze(0))


def padded(loss: Loss, outputs: int) -> int:
    """Columns of outputs to compute with: a softmax is of all at once, other losses of each output by itself."""
    return math.ceil(outputs / LANES) * LANES if unweighted(loss) is losses.cross_entropy else outputs


def unknown_loss(loss: Loss, num_outputs: int) -> str | None:
    """None if `residuals` knows the loss of this many outputs, else why not."""
    loss = unweighted(loss)
    if isinstance(loss, ClosedLoss):
        return None
    known = (losses.cross_entropy,) if num_outputs > 1 else (losses.logistic, losses.hinge)
    return (
        None
        if loss in known
        else "the loss is neither cross_entropy of several outputs, nor logistic or hinge of one, nor one of another "
        "outcome whose derivative is known"
    )


def linear_layer(model: torch.nn.Module) -> torch.nn.Linear | None:
    """The one Linear layer of a model that is nothing else, or None."""
    model = unwrapped(model)
    layers = [module for module in model.modules() if not list(module.children())]
    linear = [m for m in layers if isinstance(m, torch.nn.Linear) and type(m).forward is torch.nn.Linear.forward]
    plain = all(type(module) in (torch.nn.Flatten, torch.nn.Identity) for module in layers if module not in linear)
    containers = [module for module in model.modules() if list(module.children())]
    sequential = all(type(module) is torch.nn.Sequential for module in containers)
    if len(linear) != 1 or not plain or not sequential or not all(p.requires_grad for p in model.parameters()):
        return None
    return linear[0]
