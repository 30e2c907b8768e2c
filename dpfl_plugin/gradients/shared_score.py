"""Linear models with one score behind which a head has parameters of its own: ordinal levels, grouped Cox models.

With r_j the derivative of example j's loss by the head's outputs, the head gives the derivatives by the score, s_j, and
by its own parameters, t_j. The gradient is s_j (x_j, 1) and t_j, of squared norm s_j^2 (||x_j||^2 + 1) + ||t_j||^2, and
the clipped sum is one product of a matrix and a vector, and one sum of short rows: no gradient is instantiated.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dpfl_plugin.core.vectors import Layout
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
from dpfl_plugin.gradients.closed_form import OF_LAYER, linear_layer
from dpfl_plugin.gradients.losses import residuals, unweighted
from dpfl_plugin.gradients.outcome_losses import ClosedLoss
from dpfl_plugin.gradients.wrapped import unwrapped
from dpfl_plugin.models.score_heads import ScoreHead


class SharedScore:
    """Clipped sums of one linear score and a `ScoreHead`, for a loss whose derivative by its outputs is known."""

    name = "shared_score"
    normalises = True

    def __init__(self, model: nn.Module, loss: Loss, chunk_bytes: int) -> None:
        parts = _parts(model)
        assert parts is not None
        linear, self._head = parts
        self._loss, self._chunk_bytes = loss, chunk_bytes
        self._bias, self._features = linear.bias is not None, linear.in_features
        self._sizes = Layout.of(model).sizes

    @staticmethod
    def unsupported(model: nn.Module, loss: Loss) -> str | None:
        if _parts(model) is None:
            return "the model is not one Linear layer of one output and a ScoreHead behind it, all of it trainable"
        return None if isinstance(unweighted(loss), ClosedLoss) else "the derivative of the loss is not known"

    def prepare(self, records: Records) -> Records:
        """Adds each record's ||(x, 1)||^2 (without the 1 if there is no bias)."""
        features = records.features.flatten(1)
        return prepared(records, features, squared_inputs(features) + (1.0 if self._bias else 0.0))

    def record_bytes(self, y: Tensor, batch: Records) -> int:
        return 8 * sum(self._sizes[1:]) * y.element_size() + 2 * OF_LAYER  # outputs, and a few forms of them

    def clipped_sum(
        self, y: Tensor, batch: Records, clip_norm: float | tuple[float, ...], out: Tensor
    ) -> Tensor | None:
        assert out.dtype is torch.float64
        unclipped, by_layer = clip_norm == math.inf, isinstance(clip_norm, tuple)
        count = len(batch)
        if count == 0:
            out.zero_()
            return None if unclipped else y.new_empty((0, 2) if by_layer else 0)
        size = chunk_of(count, self._chunk_bytes // self.record_bytes(y, batch))
        if count > size:
            return in_chunks(self.clipped_sum, size, y, batch, clip_norm, out)
        assert batch.constants is not None
        by_score, by_parameters = self._derivatives(y, batch)
        out.zero_()
        if unclipped:
            self._add_up(by_score, by_parameters, batch.features, None, out)
            return None
        of_head = torch.stack([squared_norms(rows) for rows in by_parameters]).sum(dim=0)
        squares = torch.stack([squared_norms(by_score.unsqueeze(1)) * batch.constants, of_head], dim=1)
        norms = (squares if by_layer else squares.sum(dim=1)).sqrt_()
        bad = bad_among(norms, clip_norm, y.dtype)
        factors = clip_factors(norms, clip_norm, y.dtype)
        by_score = by_score * factors[0]
        by_parameters = [rows * factors[-1].unsqueeze(1) for rows in by_parameters]
        if bad is not None:
            by_score.masked_fill_(bad, 0.0)
            by_parameters = [rows.masked_fill(bad.unsqueeze(1), 0.0) for rows in by_parameters]
        self._add_up(by_score, by_parameters, batch.features, bad, out)
        return norms.to(y.dtype)

    def _derivatives(self, y: Tensor, batch: Records) -> tuple[Tensor, list[Tensor]]:
        """Of each record's loss by its score (b,), and by each parameter of the head (b, q)."""
        weight, *rest = y.split(self._sizes)
        bias, parameters = (rest[0], rest[1:]) if self._bias else (None, rest)
        # Of two columns, as rows of a product of one may be rounded by their place (`blocks`).
        scores = (batch.features @ torch.stack([weight, weight], dim=1))[:, 0]
        if bias is not None:
            scores = scores + bias
        by_outputs = residuals(self._head.outputs(scores, parameters), batch.labels, self._loss)
        return self._head.derivatives(scores, parameters, by_outputs)

    def _add_up(
        self, by_score: Tensor, by_parameters: list[Tensor], features: Tensor, bad: Tensor | None, out: Tensor
    ) -> None:
        weight, *rest = out.split(self._sizes)
        column = by_score.view(1, -1, 1)
        add_products(column, features.unsqueeze(0), weight.view(1, 1, -1), bad)
        if self._bias:
            add_up(column, rest.pop(0).unsqueeze(0))
        for rows, part in zip(by_parameters, rest, strict=True):
            add_up(rows.unsqueeze(0), part.unsqueeze(0))


def _parts(model: nn.Module) -> tuple[nn.Linear, ScoreHead] | None:
    """The Linear layer and the head of a model that is nothing else; None if it is not that."""
    model = unwrapped(model)
    if not isinstance(model, nn.Sequential) or type(model).forward is not nn.Sequential.forward or len(model) < 2:
        return None
    *layers, last = model
    head, linear = unwrapped(last), linear_layer(nn.Sequential(*layers))
    if linear is None or linear.out_features != 1:
        return None
    if not isinstance(head, ScoreHead) or type(head).forward is not ScoreHead.forward:
        return None
    return (linear, head) if all(parameter.requires_grad for parameter in head.parameters()) else None
