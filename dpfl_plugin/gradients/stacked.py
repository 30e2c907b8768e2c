"""Several silos at once: their clipped sums at their own parameters, by the same few operations as one silo's.

A GPU is kept busy by large operations, and a step of one silo is small. So silos that are advanced together have their
batches gathered into one tensor (m, b, ...), each filled up to the length of the longest with records of zeros, and
products of matrices are products of stacks of matrices. A record that only fills up adds exactly nothing: the
derivative of its loss is replaced by zero before anything is made of it.

Every silo has its own parameters and its own clipping norms, and what `Engine.clipped_sum` promises of a record holds
here: it adds at most C, and nothing if its gradient is not finite. A silo of which something is not finite is answered
once more by itself, by the engine's own path for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpfl_plugin.core.balls import inner
from dpfl_plugin.gradients.base import Engine, Records, squared_norms

Bound = float | tuple[float, ...]
"""C of a silo, or a bound for each of the model's layers."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Batches of m silos, each filled up with records of zeros to b, the length of the longest.

    Attributes:
        features: (m, b, *feature_shape).
        labels: (m, b) int64.
        constants: (m, b), or None: as `Records.constants`.
        sizes: how many records each batch really has, m numbers.
    """

    features: Tensor
    labels: Tensor
    constants: Tensor | None
    sizes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def longest(self) -> int:
        return self.labels.shape[1]

    def padding(self) -> Tensor | None:
        """(m, b), where records only fill up; None if none does."""
        if min(self.sizes) == self.longest:
            return None
        device = self.labels.device
        return torch.arange(self.longest, device=device) >= torch.tensor(self.sizes, device=device).unsqueeze(1)

    def silo(self, number: int) -> Records:
        """A silo's batch, without what fills it up, as views."""
        size = self.sizes[number]
        constants = None if self.constants is None else self.constants[number, :size]
        return Records(self.features[number, :size], self.labels[number, :size], constants)

    def between(self, first: int, last: int) -> Stack:
        """The silos [first, last), as views."""
        constants = None if self.constants is None else self.constants[first:last]
        return Stack(self.features[first:last], self.labels[first:last], constants, self.sizes[first:last])


class Together(Protocol):
    """What an engine may have beside `Engine.clipped_sum`: the same for several silos at once."""

    def clipped_sums(self, y: Tensor, batches: Stack, clip_norms: Sequence[Bound], out: Tensor) -> Tensor | None:
        """Write each silo's clipped sum at its parameters, rows of ``y`` (m, d), to its row of ``out`` (m, d).

        Args:
            clip_norms: of each silo, as for `Engine.clipped_sum`; finite ones of all silos, or inf of all.

        Returns:
            None where they are inf; else the norms before clipping, (m, b) or (m, b, L) for L layers, inf for examples
            whose gradient is not finite and for those that only fill up.
        """
        ...


class Pool:
    """Records of several silos in one place, one silo after another and a record of zeros at the end, so that batches
    of all of them are gathered at once.

    Args:
        silos: as an engine prepared them, by id.

    Attributes:
        records: the same, by id, as views of the one place.
    """

    def __init__(self, silos: Mapping[int, Records]) -> None:
        parts = list(silos.values())
        self._features = _joined([one.features for one in parts])
        self._labels = _joined([one.labels for one in parts])
        constants = [one.constants for one in parts if one.constants is not None]
        assert len(constants) in (0, len(parts)), "an engine prepares all silos alike"
        self._constants = _joined(constants) if constants else None
        self._first = dict(zip(silos, np.cumsum([0, *map(len, parts)])[:-1].tolist(), strict=True))
        whole = Records(self._features, self._labels, self._constants)
        self.records = {silo: whole.between(at, at + len(silos[silo])) for silo, at in self._first.items()}

    def gather(self, ids: Sequence[int], rows: Sequence[NDArray[np.int64]]) -> Stack:
        """Batches of the silos ``ids``: the records at ``rows`` (b_i,) of each."""
        sizes = tuple(map(len, rows))
        index = np.full((len(ids), max(sizes)), len(self._labels) - 1)  # of the record of zeros
        for place, silo, found in zip(index, ids, rows, strict=True):
            place[: len(found)] = found + self._first[silo]
        flat = torch.from_numpy(index).to(self._labels.device).flatten()

        def taken(values: Tensor) -> Tensor:
            return values.index_select(0, flat).view(*index.shape, *values.shape[1:])

        constants = None if self._constants is None else taken(self._constants)
        return Stack(taken(self._features), taken(self._labels), constants, sizes)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([*parts, parts[0].new_zeros(1, *parts[0].shape[1:])])


Activation = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]


class StackedLayers:
    """`Together` for Linear layers with activations between them: see `dense` for the mathematics.

    Args:
        activations: between the layers; (forward in place, backward).
        residuals: (outputs (n, c), labels (n,)) -> derivatives of the losses by the outputs, (n, c).
        padded: outputs of the last layer; where more than it has, the others have the bias ``padding_bias``, for which
            ``residuals`` gives zero.
        beside: what is added to the records' constants, to make them the squared lengths of the first layer's inputs.
        engine: answers a silo by itself, and tells what a record needs.
        chunk_bytes: for all records that are worked on at a time.
    """

    def __init__(
        self,
        layers: Sequence[nn.Linear],
        activations: Sequence[Activation],
        residuals: Callable[[Tensor, Tensor], Tensor],
        *,
        padded: int,
        padding_bias: float,
        beside: float,
        engine: Engine,
        chunk_bytes: int,
    ) -> None:
        self._layers, self._activations, self._residuals = list(layers), list(activations), residuals
        self._padded, self._padding_bias, self._beside = padded, padding_bias, beside
        self._engine, self._chunk_bytes = engine, chunk_bytes
        self._sizes = [
            size
            for one in layers
            for size in (one.out_features * one.in_features, *([one.out_features] if one.bias is not None else []))
        ]
        self._last: tuple[Tensor, Tensor] | None = None

    def clipped_sums(self, y: Tensor, batches: Stack, clip_norms: Sequence[Bound], out: Tensor) -> Tensor | None:
        """See `Together`."""
        unclipped = [clip_norm == math.inf for clip_norm in clip_norms]
        assert all(unclipped) or not any(unclipped), clip_norms
        several = isinstance(clip_norms[0], tuple)
        bounds = [c if isinstance(c, tuple) else (c,) for c in clip_norms]
        norms = y.new_full((len(batches), batches.longest, len(bounds[0])), math.inf)
        size = self._silos_at_a_time(y, batches)
        for first in range(0, len(batches), size or 1):
            part = slice(first, first + (size or 1))
            given = y[part], batches.between(first, part.stop), bounds[part], out[part], norms[part]
            bad = self._sums(*given) if size else [0]
            for number in bad:
                self._alone(number, *given, several=several)
        if unclipped[0]:
            return None
        return norms if several else norms.squeeze(2)

    def _silos_at_a_time(self, y: Tensor, batches: Stack) -> int:
        """0 where the batch of one is too much."""
        if batches.longest == 0:
            return len(batches)
        of_record: int = self._engine.record_bytes(y[0], batches.silo(0))  # type: ignore[attr-defined]
        return min(len(batches), self._chunk_bytes // (batches.longest * of_record))

    def _alone(
        self,
        number: int,
        y: Tensor,
        batches: Stack,
        bounds: Sequence[tuple[float, ...]],
        out: Tensor,
        norms: Tensor,
        *,
        several: bool,
    ) -> None:
        size, bound = batches.sizes[number], bounds[number]
        found = self._engine.clipped_sum(y[number], batches.silo(number), bound if several else bound[0], out[number])
        norms[number] = math.inf
        if found is not None:
            norms[number, :size] = found.view(size, norms.shape[2])

    def _sums(
        self, y: Tensor, batches: Stack, bounds: Sequence[tuple[float, ...]], out: Tensor, norms: Tensor
    ) -> list[int]:
        """Write sums and norms; returns the silos of which something is not finite."""
        padding = batches.padding()
        inputs, derivatives = self._derivatives(y, batches, padding)
        if math.isinf(bounds[0][0]):
            self._add_up(inputs, derivatives, None, out)
            total = out.sum(dim=1)
        else:
            squares = self._squares(batches, inputs, derivatives)
            found = (squares if norms.shape[2] > 1 else squares.sum(dim=2, keepdim=True)).sqrt_()
            inside = [[inner(c, y.dtype) for c in bound] for bound in bounds]
            most = torch.tensor(inside, dtype=torch.float64).to(y).unsqueeze(1)
            self._add_up(inputs, derivatives, most / torch.maximum(found, most), out)
            total = out.sum(dim=1) + found.sum(dim=(1, 2))
            norms.copy_(found if padding is None else found.masked_fill_(padding.unsqueeze(2), math.inf))
        return (~torch.isfinite(total)).nonzero().flatten().tolist()

    def _derivatives(self, y: Tensor, batches: Stack, padding: Tensor | None) -> tuple[list[Tensor], list[Tensor]]:
        """Each layer's inputs (m, b, i), and the derivatives of the losses by its outputs (m, b, o): zero for records
        that only fill up."""
        parameters = self._parameters(y)
        inputs = [batches.features.flatten(2)]
        for (weight, bias), (forward, _) in zip(parameters[:-1], self._activations, strict=True):
            inputs.append(forward(_linear(inputs[-1], weight, bias)))
        outputs = _linear(inputs[-1], *parameters[-1])
        last = self._residuals(outputs.flatten(0, 1), batches.labels.flatten()).view_as(outputs)
        derivatives = [last if padding is None else last.masked_fill_(padding.unsqueeze(2), 0.0)]
        for layer in reversed(range(1, len(parameters))):
            _, backward = self._activations[layer - 1]
            derivatives.append(backward(torch.bmm(derivatives[-1], parameters[layer][0]), inputs[layer]))
        return inputs, derivatives[::-1]

    def _parameters(self, y: Tensor) -> list[tuple[Tensor, Tensor | None]]:
        """(weight (m, o, i), bias (m, o)) of each layer, views of ``y`` (m, d); the last one's padded."""
        parts, found = iter(y.split(self._sizes, dim=1)), []
        for layer in self._layers:
            weight = next(parts).view(len(y), layer.out_features, layer.in_features)
            found.append((weight, next(parts) if layer.bias is not None else None))
        weight, bias = found[-1]
        outputs = self._layers[-1].out_features
        if self._padded == outputs:
            return found
        shape = (len(y), self._padded, weight.shape[2])
        like = self._last[0] if self._last is not None else None
        if like is None or (like.shape, like.dtype, like.device) != (shape, y.dtype, y.device):
            offset = y.new_full((len(y), self._padded), self._padding_bias)
            offset[:, :outputs] = 0.0
            self._last = y.new_zeros(shape), offset
        assert self._last is not None
        self._last[0][:, :outputs] = weight
        if bias is not None:
            self._last[1][:, :outputs] = bias
        return [*found[:-1], self._last]

    def _squares(self, batches: Stack, inputs: Sequence[Tensor], derivatives: Sequence[Tensor]) -> Tensor:
        """(m, b, L) squared norms of the layers' gradients."""
        assert batches.constants is not None
        found = [_squared(derivatives[0]) * (batches.constants + self._beside)]
        for layer, a, g in zip(self._layers[1:], inputs[1:], derivatives[1:], strict=True):
            found.append(_squared(g) * (_squared(a) + (1.0 if layer.bias is not None else 0.0)))
        return torch.stack(found, dim=2)

    def _add_up(
        self, inputs: Sequence[Tensor], derivatives: Sequence[Tensor], factors: Tensor | None, out: Tensor
    ) -> None:
        """Write the sums of the gradients, each layer's times its ``factors`` (m, b, L or 1), to ``out``."""
        parts = iter(out.split(self._sizes, dim=1))
        for number, (layer, a, g) in enumerate(zip(self._layers, inputs, derivatives, strict=True)):
            if factors is not None:
                column = number % factors.shape[2]
                g = g * factors[:, :, column : column + 1]
            found = torch.bmm(g.transpose(1, 2), a)[:, : layer.out_features]
            next(parts).view_as(found).copy_(found)
            if layer.bias is not None:
                next(parts).copy_(g.sum(dim=1)[:, : layer.out_features])


def _squared(rows: Tensor) -> Tensor:
    """(m, b) squared norms of ``rows`` (m, b, i)."""
    return squared_norms(rows.flatten(0, 1)).view(rows.shape[:2])


def _linear(a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    turned = weight.transpose(1, 2)
    return torch.bmm(a, turned) if bias is None else torch.baddbmm(bias.unsqueeze(1), a, turned)
