"""Several silos at once: their clipped sums at their own parameters, by the same few operations as one silo's.

A GPU is kept busy by large operations, and a step of one silo is small. So silos that are advanced together have their
batches gathered into one tensor (m, b, ...), each filled up to the length of the longest with records of zeros, and
products of matrices are products of stacks of matrices. A record that only fills up adds exactly nothing: all that it
has in the products is replaced by zero.

Every silo has its own parameters and its own clipping norms, and what `Engine.clipped_sum` promises of a record holds
here: it adds at most C, and nothing if its gradient does not count as finite.

`Sums` is a function of tensors alone: nothing in it waits for the device, and no shape depends on a number. So it can
be recorded once and replayed with other numbers (`replay`).
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

from dpfl_plugin.core.balls import MOST_RATIO, inner
from dpfl_plugin.core.devices import to_device
from dpfl_plugin.gradients.base import Engine, Records, squared_inputs, squared_norms
from dpfl_plugin.gradients.blocks import add_products, add_up, chunk_of, filled, pieces


@dataclass(frozen=True, slots=True)
class Stack:
    """Batches of m silos, each filled up with records of zeros to b, the length of the longest or more.

    Attributes:
        features: (m, b, *feature_shape), all finite.
        labels: (m, b) int64 of classes, or (m, b, ...): see `Outcome`.
        constants: (m, b), or None: as `Records.constants`.
        padding: (m, b), where records only fill up, or stand for one that is not usable or not finite.
    """

    features: Tensor
    labels: Tensor
    constants: Tensor | None
    padding: Tensor

    def __len__(self) -> int:
        return self.labels.shape[0]

    @property
    def longest(self) -> int:
        return self.labels.shape[1]

    def part(self, silos: slice, records: slice) -> Stack:
        """Of these silos' batches these records, as views."""
        constants = None if self.constants is None else self.constants[silos, records]
        place = silos, records
        return Stack(self.features[place], self.labels[place], constants, self.padding[place])


class MultiSiloEngine(Protocol):
    """What an engine may have beside `Engine.clipped_sum`: the same for several silos at once."""

    def clipped_sums(
        self, y: Tensor, batches: Stack, clip_norms: Tensor | None, out: Tensor, gamma: float | None = None
    ) -> Tensor | None:
        """Write each silo's clipped sum at its parameters, rows of ``y`` (m, d), to its row of ``out`` (m, d), in
        float64. What `Engine.clipped_sum` promises holds of each.

        Args:
            clip_norms: of each silo, finite: (m, 1), or (m, L) for the model's L layers; float64, where ``y`` is.
                None where nothing is clipped.
            gamma: that of `balls.Normalised` where gradients are scaled to C instead of clipped, the same for all
                silos; given only to engines whose attribute ``normalises`` is true.

        Returns:
            None where nothing is clipped; else the norms before clipping, (m, b, 1) or (m, b, L), inf for examples
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
        usable = None
        if any(one.usable is not None for one in parts):
            every = [torch.ones(len(one), dtype=torch.bool, device=one.labels.device) for one in parts]
            known = zip(parts, every, strict=True)
            usable = _joined([good if one.usable is None else one.usable for one, good in known])
        whole = Records(self._features, self._labels, self._constants, usable)
        self.records = {silo: whole.between(at, at + len(silos[silo])) for silo, at in self._first.items()}
        # A record with a feature that is not finite has no finite gradient, and zero times infinity is not zero: it is
        # never gathered, but the record of zeros in its place. Nor is one that is not usable.
        self._zeros = len(self._labels) - 1
        good = torch.isfinite(self._features).flatten(1).all(dim=1)
        if usable is not None:
            good &= usable
        self._usable = torch.arange(len(self._labels), device=self.device).masked_fill_(~good, self._zeros)

    @property
    def device(self) -> torch.device:
        return self._labels.device

    def index(self, ids: Sequence[int], rows: Sequence[NDArray[np.int64]], least: int = 0) -> Tensor:
        """(m, b) where the records at ``rows`` (b_i,) of each of the silos ``ids`` are in the one place, filled up with
        the record of zeros to the longest, or to ``least`` where that is more, and to whole blocks; on the device."""
        index = np.full((len(ids), filled(max(least, *map(len, rows)))), self._zeros)
        for place, silo, found in zip(index, ids, rows, strict=True):
            place[: len(found)] = found + self._first[silo]
        return to_device(torch.from_numpy(index), self.device)

    def take(self, index: Tensor) -> Stack:
        """The batches at an `index` (m, b)."""
        flat = self._usable.index_select(0, index.flatten())

        def taken(values: Tensor) -> Tensor:
            return values.index_select(0, flat).view(*index.shape, *values.shape[1:])

        constants = None if self._constants is None else taken(self._constants)
        padding = flat.eq(self._zeros).view(index.shape)
        return Stack(taken(self._features), taken(self._labels), constants, padding)

    def gather(self, ids: Sequence[int], rows: Sequence[NDArray[np.int64]]) -> Stack:
        """Batches of the silos ``ids``: the records at ``rows`` (b_i,) of each."""
        return self.take(self.index(ids, rows))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([*parts, parts[0].new_zeros(1, *parts[0].shape[1:])])


class Sums:
    """Clipped sums of several silos' batches, as a function of tensors alone.

    Args:
        gamma: as of `MultiSiloEngine.clipped_sums`.
    """

    def __init__(self, engine: MultiSiloEngine, pool: Pool, gamma: float | None = None) -> None:
        self._engine, self._pool = engine, pool
        # Not said to an engine that only clips: it need not know the word.
        self._how: dict[str, float] = {} if gamma is None else {"gamma": gamma}

    def __call__(self, y: Tensor, index: Tensor, clip_norms: Tensor | None = None) -> tuple[Tensor, ...]:
        """Of the batches at ``index`` (m, b) of the pool, at ``y`` (m, d): (sums (m, d), norms as of
        `MultiSiloEngine.clipped_sums` where there are any)."""
        out = torch.empty(y.shape, dtype=torch.float64, device=y.device)
        norms = self._engine.clipped_sums(y, self._pool.take(index), clip_norms, out, **self._how)
        return (out,) if norms is None else (out, norms)


class SumsInTurn:
    """`Sums` of an engine that answers one silo after another.

    Args:
        clip_norm: finite, as of `Engine.clipped_sum`, of all silos.
    """

    def __init__(self, engine: Engine, pool: Pool, clip_norm: float | tuple[float, ...]) -> None:
        self._engine, self._pool, self._clip_norm = engine, pool, clip_norm

    def __call__(self, y: Tensor, index: Tensor) -> tuple[Tensor]:
        out = torch.empty(y.shape, dtype=torch.float64, device=y.device)
        for row, total in enumerate(out):
            one = self._pool.take(index[row])
            batch = Records(one.features, one.labels, one.constants, ~one.padding)
            self._engine.clipped_sum(y[row], batch, self._clip_norm, total)
        return (out,)


Activation = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]


class StackedLayers:
    """`MultiSiloEngine` for Linear layers with activations between them: see `dense` for the mathematics.

    Args:
        activations: between the layers; (forward in place, backward).
        residuals: (outputs (n, c), labels (n,)) -> derivatives of the losses by the outputs, (n, c).
        padded: on a CPU, outputs of the last layer; where more than it has, the others have the bias ``padding_bias``,
            for which ``residuals`` gives zero.
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

    def clipped_sums(
        self, y: Tensor, batches: Stack, clip_norms: Tensor | None, out: Tensor, gamma: float | None = None
    ) -> Tensor | None:
        """See `MultiSiloEngine`."""
        assert out.dtype is torch.float64
        norms = None
        if clip_norms is not None:
            norms = y.new_empty(len(batches), batches.longest, clip_norms.shape[1])
            clip_norms = inner(1.0, y.dtype) * clip_norms
        of_record: int = self._engine.record_bytes(  # type: ignore[attr-defined]
            y[0], Records(batches.features[0], batches.labels[0])
        )
        most = max(1, self._chunk_bytes // of_record)  # records at a time, of all silos together
        width = max(1, min(chunk_of(batches.longest, most), batches.longest))
        height = max(1, most // width)
        out.zero_()
        for at, end in pieces(batches.longest, width):
            records = slice(at, end)
            for first in range(0, len(batches), height):
                silos = slice(first, first + height)
                found = self._sums(
                    y[silos],
                    batches.part(silos, records),
                    None if clip_norms is None else clip_norms[silos].unsqueeze(1),
                    out[silos],
                    gamma,
                )
                if norms is not None and found is not None:
                    norms[silos, records] = found
        return norms

    def _sums(self, y: Tensor, batches: Stack, most: Tensor | None, out: Tensor, gamma: float | None) -> Tensor | None:
        """Add `clipped_sums` of as much as there is room for to ``out``; ``most`` (m, 1, 1 or L): clipped to that, or
        scaled to it."""
        inputs, derivatives = self._derivatives(y, batches)
        left_out = batches.padding.unsqueeze(2)
        if most is None:
            self._add_up(inputs, derivatives, None, left_out, out)
            return None
        squares = self._squares(batches, inputs, derivatives)
        norms = (squares if most.shape[2] > 1 else squares.sum(dim=2, keepdim=True)).sqrt_()
        longest = (MOST_RATIO * most).clamp_(max=torch.finfo(y.dtype).max)  # as `balls.longest` of each
        finite = norms <= longest  # not where it is NaN
        left_out = left_out | ~(finite if most.shape[2] == 1 else finite.all(dim=2, keepdim=True))
        norms.masked_fill_(left_out, math.inf)
        factors = most / (torch.maximum(norms, most) if gamma is None else norms + gamma)  # as `base.clip_factors`
        self._add_up(inputs, derivatives, factors.to(y.dtype), left_out, out)
        return norms.to(y.dtype)

    def _derivatives(self, y: Tensor, batches: Stack) -> tuple[list[Tensor], list[Tensor]]:
        """Each layer's inputs (m, b, i), and the derivatives of the losses by its outputs (m, b, o)."""
        parameters = self._parameters(y)
        inputs = [batches.features.flatten(2)]
        for (weight, bias), (forward, _) in zip(parameters[:-1], self._activations, strict=True):
            inputs.append(forward(_linear(inputs[-1], weight, bias)))
        outputs = _linear(inputs[-1], *parameters[-1])
        derivatives = [self._residuals(outputs.flatten(0, 1), batches.labels.flatten(0, 1)).view_as(outputs)]
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
        if self._padded == outputs or not y.is_cpu:
            return found
        whole = y.new_empty(len(y), self._padded, weight.shape[2])
        whole[:, :outputs].copy_(weight)
        whole[:, outputs:].zero_()
        offset = y.new_full((len(y), self._padded), self._padding_bias)
        if bias is None:
            offset[:, :outputs].zero_()
        else:
            offset[:, :outputs].copy_(bias)
        return [*found[:-1], (whole, offset)]

    def _squares(self, batches: Stack, inputs: Sequence[Tensor], derivatives: Sequence[Tensor]) -> Tensor:
        """(m, b, L) squared norms of the layers' gradients."""
        assert batches.constants is not None
        found = [_each(squared_norms, derivatives[0]) * (batches.constants.double() + self._beside)]
        for layer, a, g in zip(self._layers[1:], inputs[1:], derivatives[1:], strict=True):
            of_inputs = _each(squared_inputs, a).double()
            found.append(_each(squared_norms, g) * (of_inputs + (1.0 if layer.bias is not None else 0.0)))
        return torch.stack(found, dim=2)

    def _add_up(
        self,
        inputs: Sequence[Tensor],
        derivatives: Sequence[Tensor],
        factors: Tensor | None,
        left_out: Tensor,
        out: Tensor,
    ) -> None:
        """Add the sums of the gradients, each layer's times its ``factors`` (m, b, L or 1), to ``out``: of all
        records but those that are ``left_out`` (m, b, 1). Inputs and derivatives may be overwritten.

        Zero times what is not finite is not zero: both factors of a product are zero for what is left out. The first
        layer's inputs are finite.
        """
        parts = iter(out.split(self._sizes, dim=1))
        for number, (layer, a, g) in enumerate(zip(self._layers, inputs, derivatives, strict=True)):
            if factors is not None:
                column = number % factors.shape[2]
                g = g.mul_(factors[:, :, column : column + 1])
            g = g.masked_fill_(left_out, 0.0)
            if number > 0:
                a = a.masked_fill_(left_out, 0.0)
            place = next(parts).unflatten(1, (layer.out_features, layer.in_features))
            g = g[:, :, : layer.out_features]
            add_products(g, a, place)
            if layer.bias is not None:
                add_up(g, next(parts))


def _each(norms: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """(m, b) ``norms`` of ``rows`` (m, b, i)."""
    return norms(rows.flatten(0, 1)).view(rows.shape[:2])


def _linear(a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    turned = weight.transpose(1, 2)
    return torch.bmm(a, turned) if bias is None else torch.baddbmm(bias.unsqueeze(1), a, turned)
