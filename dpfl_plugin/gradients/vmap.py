"""Per-example gradients of any functional module by vmap(grad): the reference for the other engines."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.gradients.base import Loss, Records, bad_among, clip_factors, layers, mixing, squared_norms
from dpfl_plugin.gradients.blocks import add_rows, chunk_of, pieces
from dpfl_plugin.gradients.precision import Precision, full, passes
from dpfl_plugin.gradients.trace import trace


class Vmap:
    """Instantiates each example's gradient, a chunk of the batch at a time."""

    name = "vmap"
    normalises = True
    capturable = True
    persons = True
    precisions = ("bf16", "tf32")

    def __init__(self, model: torch.nn.Module, loss: Loss, chunk_bytes: int, precision: Precision = "float32") -> None:
        self._layout, self._precision = Layout.of(model), precision
        self._layer_sizes = list(layers(self._layout).values())
        self._chunk_bytes = chunk_bytes
        self._model, self._loss = model, loss
        # Of layers that it computes record by record, such as nn.LSTM: torch asks users to report it to its authors.
        # What to write instead is told once, by `choice.faster`. Not undone: filters are the process', and no thread's.
        warnings.filterwarnings(
            "ignore", "There is a performance drop because we have not yet implemented the batching"
        )
        self._kept: dict[torch.Size, int] = {}

        def loss_of_one(parameters: dict[str, Tensor], features: Tensor, label: Tensor) -> Tensor:
            with passes(precision, features.device):
                outputs = functional_call(model, parameters, (features.unsqueeze(0),))
            return loss(full(outputs, parameters), label.unsqueeze(0))[0]

        self._gradients: Callable[[dict[str, Tensor], Tensor, Tensor], dict[str, Tensor]] = vmap(
            grad(loss_of_one), in_dims=(None, 0, 0)
        )

    @staticmethod
    def unsupported(model: torch.nn.Module, loss: Loss) -> str | None:
        """Modules whose output for one example depends on others, or on hidden random state, are refused."""
        return mixing(model)

    def on(self, model: torch.nn.Module) -> Vmap | None:
        """See `Engine`."""
        return Vmap(model, self._loss, self._chunk_bytes, self._precision)

    def prepare(self, records: Records) -> Records:
        return records

    def record_bytes(self, y: Tensor, batch: Records) -> int:
        """About four copies of the gradient live at once: by name, joined, squared, and vmap's own; and activations."""
        shape = batch.features.shape[1:]
        if shape not in self._kept:
            one = batch.features[:1].clone()  # what is kept of it is counted by storage: not that of the whole batch
            self._kept[shape] = trace(self._model, self._loss, one).kept
        return (4 * y.numel() + 4 * self._kept[shape]) * y.element_size()

    def clipped_sum(
        self, y: Tensor, batch: Records, clip_norm: float | tuple[float, ...], out: Tensor
    ) -> Tensor | None:
        assert out.dtype is torch.float64
        out.zero_()
        norms = []
        given = y.clone()  # parameters are views of it, which a model may write to
        parameters = self._layout.unflatten(given)
        for chunk in self._chunks(batch, y):
            by_name = self._gradients(parameters, chunk.features, chunk.labels)
            gradients = torch.cat([by_name[name].flatten(1) for name in self._layout.names], dim=1)
            if clip_norm == math.inf:
                add_rows(None, gradients, out)
            elif isinstance(clip_norm, tuple):
                sizes = self._layer_sizes
                each = gradients.split(sizes, dim=1)
                parts = _add_clipped(gradients, each, clip_norm, out.split(sizes), chunk.usable)
                norms.append(torch.stack(parts, dim=1))
            else:
                norms += _add_clipped(gradients, (gradients,), (clip_norm,), (out,), chunk.usable)
        if clip_norm == math.inf:
            return None
        none = (0, len(clip_norm)) if isinstance(clip_norm, tuple) else (0,)
        return torch.cat(norms) if norms else y.new_empty(none)

    def _chunks(self, batch: Records, y: Tensor) -> Iterator[Records]:
        size = chunk_of(len(batch), self._chunk_bytes // self.record_bytes(y, batch)) if len(batch) else 1
        for first, last in pieces(len(batch), size):
            yield batch.between(first, last)


def _add_clipped(
    gradients: Tensor,
    parts: Sequence[Tensor],
    bounds: Sequence[float],
    totals: Sequence[Tensor],
    usable: Tensor | None,
) -> list[Tensor]:
    """Add up each of the ``parts`` of ``gradients`` (b, d), clipped to its bound, and return their norms (b,).

    Examples that are not finite in some part, or not ``usable`` (b,), add nothing in any, and get the norms inf.
    """
    norms = torch.stack([_norms(part) for part in parts], dim=1)
    bad = bad_among(norms, tuple(bounds), gradients.dtype, usable)
    if bad is not None:
        gradients.masked_fill_(bad.unsqueeze(1), 0.0)
    for part, factors, total in zip(parts, clip_factors(norms, tuple(bounds), gradients.dtype), totals, strict=True):
        add_rows(factors, part, total)
    return list(norms.to(gradients.dtype).unbind(dim=1))


def _norms(gradients: Tensor) -> Tensor:
    """(b,) L2 norms, in float64. (torch's norm() adds up float32 numbers one by one, and comes out too short: by 1e-4
    at 2^16 numbers, by 1e-3 at 10^7.)"""
    return squared_norms(gradients).sqrt_()
