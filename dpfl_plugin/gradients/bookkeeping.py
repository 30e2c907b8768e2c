"""Book-keeping: one forward and one backward pass for the whole batch, for anything made of common layers.

What a layer was given and the derivative of the loss by what it put out are kept. Of an example's gradient only the
norm is worked out from these (ghost norms: Goodfellow 2015, arXiv:1510.01799; Li et al. 2022, arXiv:2110.05679), or
the gradient of one layer at a time where that is smaller. The clipped sum comes from the same derivatives, scaled:
there is no second backward pass (Bu et al. 2023, arXiv:2210.00038).

A layer's gradient is a sum over T positions (pixels, words; 1 for a Linear layer on vectors) of outer products of
g_t (o) and a_t (i). Its squared norm is sum_{s,t} <a_s, a_t> <g_s, g_t>, T^2 (i + o) products, or that of the sum
itself, T i o products; whichever is cheaper is used. Where the gradient is formed, it is added up within the record
before its norm is taken; where it is not, all is multiplied and added up in float64 (`blocks`, 5.): for float32 models
only.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.gradients.base import (
    Loss,
    Records,
    bad_among,
    clip_factors,
    mixing,
    squared_inputs,
    squared_norms,
)
from dpfl_plugin.gradients.blocks import add_products, add_rows, blocks_of, chunk_of, pieces
from dpfl_plugin.gradients.persons import Persons
from dpfl_plugin.gradients.precision import Precision, passes

CONVOLUTIONS: Final = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(slots=True)
class Call:
    """What a layer was given (b, ...), and what it put out: later, the derivative of the losses by that."""

    input: Tensor
    output: Tensor
    version: int  # of the output, when it was put out


Add = Callable[[Tensor | None, Tensor | None, Tensor], None]
"""(factors (b,) or None for 1, examples (b,) that count as zero or None, a part of the sum in float64): see `Part`."""


@dataclass(frozen=True, slots=True)
class Part:
    """The gradients of one parameter: squared norms (b,) in float64; what adds the sum of gradients times factors."""

    squares: Callable[[], Tensor]
    add: Add


class BookKeeping:
    """Clipped sums of models whose parameters lie in Linear, Conv, Embedding, GroupNorm and LayerNorm layers."""

    name = "bookkeeping"
    normalises = True
    capturable = True
    persons = True
    precisions = ("bf16", "tf32")

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        chunk_bytes: int,
        precision: Precision = "float32",
        in_place: bool = False,
    ) -> None:
        """
        Args:
            in_place: whether to call ``model`` itself, at its own parameters; else a copy of it is called.
        """
        self._layout, self._precision, self._in_place = Layout.of(model), precision, in_place
        self._loss, self._chunk_bytes = loss, chunk_bytes
        # A copy has hooks, and parameters that are views of y.
        self.runs = self._model = model if in_place else copy.deepcopy(model)
        named, owners = dict(self._model.named_modules()), _owners(self._model)
        # Of each parameter, in the order of the flat vector: the part of the vector that is clipped together, the layer
        # that computes with it, and its name there.
        self._places = [(name.rpartition(".")[0], *owners[name][0]) for name in self._layout.names]
        self._layers = {path: named[path] for _, path, _ in self._places}
        self._keepers = [(layer, self._keeper(path)) for path, layer in self._layers.items()]
        if not in_place:
            self._attach()
            for parameter in self._model.parameters():
                parameter.requires_grad_(False)  # derivatives by outputs are all that backward has to compute
        self._kept: dict[str, list[Call]] = {}
        self._bytes: dict[torch.Size, int] = {}
        self._of_persons = isinstance(model, Persons)

    @staticmethod
    def unsupported(model: nn.Module, loss: Loss) -> str | None:
        """Layers that are called twice, or other than as modules, show only when the model runs: see `clipped_sum`."""
        places = _owners(model)
        for name, found in places.items():
            if len(found) > 1:
                paths = " and ".join(path or "the model" for path, _ in found)
                return f"{paths} share the parameter {name}, of whose gradient each sees a part"
        owners = {path for found in places.values() for path, _ in found}
        for path, layer in model.named_modules():
            place = f"{path or 'the model'}: {type(layer).__name__}"
            if path in owners and (reason := _unsupported_layer(layer)):
                return f"{place} {reason}"
            if getattr(layer, "inplace", False):
                return f"{place} overwrites its input, which may be another layer's output"
        return mixing(model)

    def on(self, model: nn.Module) -> BookKeeping:
        """See `Engine`."""
        return BookKeeping(model, self._loss, self._chunk_bytes, self._precision, in_place=True)

    def prepare(self, records: Records) -> Records:
        return records

    def record_bytes(self, y: Tensor, batch: Records) -> int:
        """Inputs and outputs of all layers, twice, and the largest of their own needs."""
        shape = batch.features.shape[1:]
        if shape not in self._bytes:
            self._forward_backward(y, batch.between(0, 1))
            kept, self._kept = self._kept, {}
            own = max(_working_size(self._layers[path], *_joined(calls)) for path, calls in kept.items())
            numbers = sum(call.input.numel() + 2 * call.output.numel() for calls in kept.values() for call in calls)
            self._bytes[shape] = (2 * numbers + own) * y.element_size()
        return self._bytes[shape]

    def clipped_sum(
        self, y: Tensor, batch: Records, clip_norm: float | tuple[float, ...], out: Tensor
    ) -> Tensor | None:
        """See `Engine`.

        Raises:
            UnsupportedError: a layer is not called exactly once, its parameters are used elsewhere, or its output is
                overwritten.
        """
        assert out.dtype is torch.float64
        out.zero_()
        if clip_norm == math.inf and self._precision == "float32":
            for chunk in self._chunks(y, batch):
                self._add_unclipped(y, chunk, out)
            return None
        norms = [self._chunk_sum(y, chunk, clip_norm, out) for chunk in self._chunks(y, batch)]
        if clip_norm == math.inf:
            return None
        if len(norms) == 1:
            return norms[0]
        return torch.cat(norms) if norms else y.new_empty((0, len(clip_norm)) if isinstance(clip_norm, tuple) else 0)

    def _chunk_sum(self, y: Tensor, batch: Records, clip_norm: float | tuple[float, ...], out: Tensor) -> Tensor:
        """Add the chunk's clipped sum to ``out``; returns norms, (b,) or (b, L)."""
        layers = self._parts(y, batch)
        if clip_norm == math.inf:
            self._add(layers, [None], None, out)
            return y.new_empty(0)
        squares = torch.stack([functools.reduce(torch.add, (p.squares() for p in parts)) for parts in layers], dim=1)
        norms = (squares if isinstance(clip_norm, tuple) else squares.sum(dim=1)).sqrt_()
        bad = bad_among(norms, clip_norm, y.dtype, batch.usable)
        self._add(layers, clip_factors(norms, clip_norm, y.dtype), bad, out)
        return norms.to(y.dtype)

    def _add(self, layers: list[list[Part]], factors: list[Any], bad: Tensor | None, out: Tensor) -> None:
        places = iter(out.split(self._layout.sizes))
        for number, parts in enumerate(layers):
            for part in parts:
                part.add(factors[number % len(factors)], bad, next(places))

    def _parts(self, y: Tensor, batch: Records) -> list[list[Part]]:
        """The gradients of every parameter, by layer, in the order of the flat vector."""
        self._forward_backward(y, batch)
        joined = {path: _joined(self._kept[path]) for path in self._layers}
        squares = {
            path: functools.cache(functools.partial(squared_norms, g.flatten(1))) for path, (_, g) in joined.items()
        }
        count = len(batch) if self._of_persons else None
        found: dict[str, list[Part]] = {}
        for group, path, name in self._places:
            parts = found.setdefault(group, [])
            parts.append(_part(self._layers[path], name, *joined[path], squares[path], count))
        self._kept = {}
        return list(found.values())

    def _add_unclipped(self, y: Tensor, batch: Records, out: Tensor) -> None:
        """Add the chunk's sum as autograd makes it: nobody needs gradients of records, which take as long again."""
        parameters = [getattr(self._layers[path], name) for _, path, name in self._places]
        try:
            for parameter in parameters:
                parameter.requires_grad_()
            total = self._losses(y, batch)
            self._check_kept()
            gradients = torch.autograd.grad(total, parameters, materialize_grads=True)
        finally:
            for parameter in parameters:
                parameter.requires_grad_(self._in_place)
            self._kept = {}
        for place, gradient in zip(out.split(self._layout.sizes), gradients, strict=True):
            place += gradient.flatten()

    def _losses(self, y: Tensor, batch: Records) -> Tensor:
        """The sum of the losses, of which derivatives can be taken; ``_kept`` is what layers were given and put out."""
        self._kept = {}
        if self._in_place:
            hooks = self._attach()
        else:
            # A copy: products of matrices may round by where these begin in memory, and rows of a stack begin anywhere.
            values = self._layout.unflatten(y.clone()).values()
            for (_, path, name), value in zip(self._places, values, strict=True):
                getattr(self._layers[path], name).data = value
            hooks = []
        try:
            with torch.enable_grad():
                with passes(self._precision, y.device):
                    outputs = self._model(batch.features)
                return self._loss(outputs.to(y.dtype), batch.labels).sum()
        finally:
            for hook in hooks:
                hook.remove()

    def _attach(self) -> list[RemovableHandle]:
        """Have layers keep what they are given and put out, before other hooks change that."""
        return [layer.register_forward_hook(keeper, prepend=True) for layer, keeper in self._keepers]

    def _forward_backward(self, y: Tensor, batch: Records) -> None:
        """Leaves each layer's input, and the derivative of the losses by its output, in ``_kept``."""
        total = self._losses(y, batch)
        self._check_kept()
        calls = [call for path in self._layers for call in self._kept[path]]
        gradients = torch.autograd.grad(total, [call.output for call in calls])
        for call, g in zip(calls, gradients, strict=True):
            call.output = g.to(y.dtype)
            if call.input.is_floating_point():
                call.input = call.input.to(y.dtype)

    def _check_kept(self) -> None:
        for path in self._layers:
            if path not in self._kept:
                raise UnsupportedError(
                    f"engine: bookkeeping: the model's layer {path or 'itself'} is not called, or its parameters are "
                    "used without calling it. Use engine: vmap."
                )
            if any(call.output._version != call.version for call in self._kept[path]):
                raise UnsupportedError(
                    f"engine: bookkeeping: the output of the model's layer {path or 'itself'} is overwritten by what "
                    "follows it (inplace=True, relu_, +=). Write a new tensor instead, or use engine: vmap."
                )

    def _keeper(self, path: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def keep(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if path in self._kept and not isinstance(layer, nn.Linear):
                raise UnsupportedError(
                    f"engine: bookkeeping: the model calls its layer {path or 'itself'}, a {type(layer).__name__}, "
                    "more than once for a record. Use engine: vmap."
                )
            if len(inputs) != 1:
                raise UnsupportedError(
                    f"engine: bookkeeping: the model calls its layer {path or 'itself'} with keywords. "
                    "Use engine: vmap."
                )
            if self._in_place and (reason := _unsupported_layer(layer)):  # it may have been changed since the last call
                raise UnsupportedError(f"engine: bookkeeping: the model's layer {path or 'itself'} {reason} any more.")
            if not output.requires_grad:
                output.requires_grad_()
            self._kept.setdefault(path, []).append(Call(inputs[0].detach(), output, output._version))

        return keep

    def _chunks(self, y: Tensor, batch: Records) -> Iterator[Records]:
        # Rows of a table are added up one record after another, whatever the chunk.
        depth = len(batch) if any(isinstance(layer, nn.Embedding) for layer in self._layers.values()) else None
        size = chunk_of(len(batch), self._chunk_bytes // self.record_bytes(y, batch), depth) if len(batch) else 1
        for first, last in pieces(len(batch), size):
            yield batch.between(first, last)


def _owners(model: nn.Module) -> dict[str, list[tuple[str, str]]]:
    """{trainable parameter: the layers that compute with it, by path, and its name there}.

    A recurrent layer made of parts (Opacus' DPLSTM) has its parts' parameters once more, under names of its own.
    """
    named = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    found: dict[str, list[tuple[str, str]]] = {name: [] for name in named.values()}
    modules = dict(model.named_modules())
    for path, layer in modules.items():
        for own, parameter in layer._parameters.items():
            if id(parameter) in named:
                found[named[id(parameter)]].append((path, own))
    for name, places in found.items():
        if len(places) == 1:
            continue
        known = [place for place in places if _unsupported_layer(modules[place[0]]) is None]
        by_parts = [place for place in places if place not in known and list(modules[place[0]].children())]
        if known and len(known) + len(by_parts) == len(places):
            found[name] = known
    return found


def _joined(calls: list[Call]) -> tuple[Tensor, Tensor]:
    """The inputs of a layer, and the derivatives by its outputs: of several calls one after another, (b, T, ...)."""
    if len(calls) == 1:
        return calls[0].input, calls[0].output
    inputs = torch.cat([_positions(call.input) for call in calls], dim=1)
    return inputs, torch.cat([_positions(call.output) for call in calls], dim=1)


def _positions(value: Tensor) -> Tensor:
    """(b, T, i), from (b, i) or (b, ..., i)."""
    return value.flatten(1, -2) if value.dim() > 2 else value.unsqueeze(1)


def _unsupported_layer(layer: nn.Module) -> str | None:
    if type(layer) in (nn.GroupNorm, nn.LayerNorm):
        return None
    if isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward:
        return None
    if type(layer) in CONVOLUTIONS:
        return None if layer.padding_mode == "zeros" else f"with padding_mode={layer.padding_mode!r} is not supported"
    if type(layer) is nn.Embedding:
        plain = layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
        return None if plain else "with max_norm, scale_grad_by_freq or sparse is not supported"
    return "has parameters of its own and is not supported"


def _part(layer: nn.Module, name: str, a: Tensor, g: Tensor, squares: Callable[[], Tensor], count: int | None) -> Part:
    """The gradients of parameter ``name`` of a layer with inputs ``a`` and derivatives by its outputs ``g``.

    squares: (b,) squared norms of ``g``, worked out once for weight and bias.

    count: of persons, where these are the examples: the layer has seen k records of each, one after another, and a
    person has k times as many positions as a record.
    """
    if isinstance(layer, nn.Embedding):
        return _embedding(layer, a if count is None else a.reshape(count, -1), g)
    if isinstance(layer, nn.GroupNorm | nn.LayerNorm):
        return _normalisation(layer, name, a, g, count)
    if isinstance(layer, nn.Linear) and g.dim() == 2 and count is None:
        return _outer(a.unsqueeze(1), g.unsqueeze(1), squares) if name == "weight" else _bias(g, squares)
    if isinstance(layer, nn.Linear):
        g = _positions(g)  # (b, T, o)
        if name == "bias":
            return _instantiated(_by_example(g, count).sum(dim=1))
        return _products(_by_example(_positions(a), count).unsqueeze(1), _by_example(g, count).unsqueeze(1))
    groups = cast(int, layer.groups)
    g = g.flatten(2)
    if name == "bias":
        return _instantiated(g.sum(dim=2) if count is None else _by_example(g.transpose(1, 2), count).sum(dim=1))
    g = g.unflatten(1, (groups, -1))  # (b, G, o / G, T)
    patches = _patches(layer, a).unflatten(1, (groups, -1))
    return _products(*(_of_groups(values.transpose(2, 3), count) for values in (patches, g)))


def _by_example(values: Tensor, count: int | None) -> Tensor:
    """(b, k T, ...) of b = ``count`` persons, from (b k, T, ...)."""
    return values if count is None else values.reshape(count, -1, *values.shape[2:])


def _of_groups(values: Tensor, count: int | None) -> Tensor:
    """(b, G, k T, i) of b = ``count`` persons, from (b k, G, T, i)."""
    if count is None:
        return values
    by_person: Tensor = values.unflatten(0, (count, -1))
    return by_person.transpose(1, 2).flatten(2, 3)


def _instantiated(gradients: Tensor) -> Part:
    """Gradients (b, p) of a parameter, which may be overwritten."""

    def add(factors: Tensor | None, bad: Tensor | None, place: Tensor) -> None:
        if bad is not None:
            gradients.masked_fill_(bad.unsqueeze(1), 0.0)
        add_rows(factors, gradients, place)

    return Part(squares=lambda: squared_norms(gradients), add=add)


def _bias(g: Tensor, squares: Callable[[], Tensor]) -> Part:
    """Gradients ``g`` (b, o) of a Linear layer's bias, with their squared norms."""

    def add(factors: Tensor | None, bad: Tensor | None, place: Tensor) -> None:
        add_rows(factors, g if bad is None else g.masked_fill(bad.unsqueeze(1), 0.0), place)

    return Part(squares=squares, add=add)


def _products(a: Tensor, g: Tensor) -> Part:
    """Gradients sum_t g_t a_t^T of a matrix for each of G groups: ``a`` (b, G, T, i), ``g`` (b, G, T, o)."""
    T, i, o = a.shape[2], a.shape[3], g.shape[3]
    if T == 1:
        a, g = a.squeeze(2), g.squeeze(2)
        return _outer(a, g, lambda: squared_norms(g.reshape(-1, o)))
    if ghost(T, i, o, a.element_size()):
        return _ghost(a, g)
    return _instantiated((g.transpose(2, 3) @ a).flatten(1))


def _outer(a: Tensor, g: Tensor, of_outputs: Callable[[], Tensor]) -> Part:
    """Gradients g a^T for each of G groups: ``a`` (b, G, i), ``g`` (b, G, o) with its squared norms (b G,)."""
    count, groups, i = a.shape

    def squares() -> Tensor:
        of_inputs = squared_inputs(a.reshape(-1, i)).double()
        by_group = (of_inputs * of_outputs()).view(count, groups)
        return by_group[:, 0] if groups == 1 else by_group.sum(dim=1)

    def add(factors: Tensor | None, bad: Tensor | None, place: Tensor) -> None:
        scaled = g if factors is None else g * factors.view(-1, 1, 1)
        if bad is not None:
            scaled.masked_fill_(bad.view(-1, 1, 1), 0.0)
        for group, total in enumerate(place.view(groups, 1, g.shape[2], i).unbind()):
            add_products(scaled[:, group].unsqueeze(0), a[:, group].unsqueeze(0), total, bad)

    return Part(squares=squares, add=add)


def _ghost(a: Tensor, g: Tensor) -> Part:
    """The same as `_products`, from products of positions; float32 numbers, multiplied and added up in float64."""
    count, groups, _, i = a.shape
    o = g.shape[3]

    def add(factors: Tensor | None, bad: Tensor | None, place: Tensor) -> None:
        total, length = place.view(groups, o, i), blocks_of(count).length
        for first in range(0, count, length):
            some = slice(first, first + length)
            wide_a, wide_g = a[some].double(), g[some].double()
            if factors is not None:
                wide_g *= factors[some].view(-1, 1, 1, 1)
            if bad is not None:
                for wide in (wide_a, wide_g):
                    wide.masked_fill_(bad[some].view(-1, 1, 1, 1), 0.0)
            by_group = wide_g.transpose(0, 1).reshape(groups, -1, o).transpose(1, 2)
            total += by_group @ wide_a.transpose(0, 1).reshape(groups, -1, i)

    return Part(squares=lambda: _ghost_squares(a, g), add=add)


def _ghost_squares(a: Tensor, g: Tensor) -> Tensor:
    """(b,) sums over groups of ||sum_t g_t a_t^T||^2, from products of positions; ``a`` and ``g`` as `_products`."""
    wide_a, wide_g = a.double(), g.double()
    lengths = (wide_a.square().sum(dim=3) * wide_g.square().sum(dim=3)).sqrt_().flatten(1).sum(dim=1)
    products = (wide_a @ wide_a.transpose(2, 3)) * (wide_g @ wide_g.transpose(2, 3))
    return _with_slack(products.flatten(1).sum(dim=1), lengths, g.shape[2])


def _with_slack(squares: Tensor, lengths: Tensor, positions: int) -> Tensor:
    """An upper bound of ``squares`` (b,), a hair above, for the sake of positions that cancel each other.

    ``lengths`` (b,) are the sums L of the positions' norms. Where the gradient is but a small rest of them, rounding
    may leave nothing of its square, hence products in float64, of error 4096 epsilon L^2 at most. And sums of many
    records in float64 are off by a share of what their L, clipped, are together (`blocks`, 5.): a norm of
    (T + 4) 2^-24 L or more bounds that.
    """
    exact = (squares.clamp_(min=0.0) + 4096 * torch.finfo(torch.float64).eps * lengths.square()).sqrt_()
    return (exact + (positions + 4) * 2.0**-24 * lengths).square_()


def ghost(T: int, i: int, o: int, itemsize: int) -> bool:
    """Whether norms come from T x T products: by operations, where the gradient of one layer is not formed.

    Not of float64 models: there is no wider format to add up in.
    """
    return itemsize < 8 and T * (i + o) < i * o


def _embedding(layer: nn.Embedding, index: Tensor, g: Tensor) -> Part:
    """Rows of the table: g (b, T, i) is added to row ``index`` (b, T); of a word that comes again, to its first place,
    within the record and before norms are taken."""
    index, g = index.flatten(1), g.reshape(len(index), -1, layer.embedding_dim)
    if layer.padding_idx is not None:
        g = g * (index != layer.padding_idx).unsqueeze(2)
    same = index.unsqueeze(1) == index.unsqueeze(2)
    first = same.int().argmax(dim=2) == torch.arange(index.shape[1], device=index.device)
    rows = (same & first.unsqueeze(2)).double() @ g.double()

    def add(factors: Tensor | None, bad: Tensor | None, place: Tensor) -> None:
        if bad is not None:
            rows.masked_fill_(bad.view(-1, 1, 1), 0.0)
        scaled = rows if factors is None else rows * factors.view(-1, 1, 1)
        place.view(layer.num_embeddings, -1).index_add_(0, index.flatten(), scaled.flatten(0, 1))

    return Part(squares=lambda: rows.square().flatten(1).sum(dim=1), add=add)


def _normalisation(layer: nn.GroupNorm | nn.LayerNorm, name: str, a: Tensor, g: Tensor, count: int | None) -> Part:
    if isinstance(layer, nn.GroupNorm):
        g = g.flatten(2) if g.dim() > 2 else g.unsqueeze(2)
        if name == "weight":
            g = g * functional.group_norm(a, layer.num_groups, None, None, layer.eps).reshape(g.shape)
        found = g.sum(dim=2)
        return _instantiated(found if count is None else found.unflatten(0, (count, -1)).sum(dim=1))
    if name == "weight":
        g = g * functional.layer_norm(a, layer.normalized_shape, None, None, layer.eps)
    return _instantiated(g.reshape(count or len(g), -1, math.prod(layer.normalized_shape)).sum(dim=1))


def _patches(layer: nn.Module, a: Tensor) -> Tensor:
    """(b, C * kernel, T): what each output position of a convolution sees; channels first: groups are blocks."""
    kernel, stride, dilation = (cast(tuple[int, ...], getattr(layer, k)) for k in ("kernel_size", "stride", "dilation"))
    pads = cast(list[int], layer._reversed_padding_repeated_twice)
    if isinstance(layer.padding, tuple):  # else "same" or "valid", whose pads torch keeps under this name
        pads = [pad for side in reversed(layer.padding) for pad in (side, side)]
    if any(pads):  # else all of it would be copied
        a = functional.pad(a, pads)
    dims = len(kernel)
    for axis, (size, step, gap) in enumerate(zip(kernel, stride, dilation, strict=True)):
        a = a.unfold(2 + axis, gap * (size - 1) + 1, step)[..., ::gap]
    # (b, C, positions..., kernel...) -> (b, C, kernel..., positions...)
    order = (0, 1, *range(2 + dims, 2 + 2 * dims), *range(2, 2 + dims))
    return a.permute(order).flatten(2 + dims).flatten(1, 1 + dims)


def _working_size(layer: nn.Module, a: Tensor, g: Tensor) -> int:
    """Numbers that the norms of one example need at a time."""
    if isinstance(layer, nn.Embedding):
        return int(a.numel() ** 2 * 4 + 8 * g.numel())
    if isinstance(layer, nn.GroupNorm | nn.LayerNorm):
        return 2 * g.numel()
    if isinstance(layer, nn.Linear):
        T, i, o, patches = g.numel() // layer.out_features, layer.in_features, layer.out_features, 0
    else:
        T = len(g) * math.prod(g.shape[2:])
        i = math.prod(cast(Tensor, layer.weight).shape[1:])
        o, patches = g.shape[1], T * i * cast(int, layer.groups)
    if T == 1:
        return patches
    return patches + (8 * T * T + 2 * T * (i + o) if ghost(T, i, o, a.element_size()) else i * o)
