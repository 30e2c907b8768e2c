"""Clipped sums of Linear layers with activations between them, where numba is installed: torch multiplies matrices, and
all that lies between two products is one pass of `kernels`.

On a processor each operation of torch takes microseconds, whatever it has to do, and these models are small. Matrices
are (units, records), buffers are kept from step to step.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpfl_plugin.core.balls import Normalised, inner
from dpfl_plugin.core.terminal import keep_stdout_plain
from dpfl_plugin.gradients import losses
from dpfl_plugin.gradients.base import Loss, Records
from dpfl_plugin.gradients.blocks import AT_ONCE, Blocks, blocks_of

CACHE_LINE: Final = 64  # bytes
VIEWS_PAY: Final = 2**14  # parameters: a copy of more takes longer than torch's views of them
# Numbers of outputs for which the product with records in rows gains more than what it takes to turn the result.
BY_RECORD: Final = range(32, 65)
_KINDS = {nn.ReLU: "RELU", nn.Tanh: "TANH", nn.Sigmoid: "SIGMOID", nn.ELU: "ELU"}
_FORWARD: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.Tanh: torch.tanh_,
    nn.Sigmoid: torch.sigmoid_,
    nn.ELU: nn.functional.elu_,
}
_LOSSES: dict[Loss, str] = {losses.cross_entropy: "cross_entropy", losses.logistic: "logistic", losses.hinge: "hinge"}


@functools.cache
def kernels() -> ModuleType | None:
    """The compiled loops; None where numba is missing, or does not work with this Python, numpy or processor."""
    try:
        return importlib.import_module("dpfl_plugin.gradients.kernels")
    except Exception:
        return None
    finally:
        keep_stdout_plain()


def version() -> str | None:
    """What compiles the loops of this process; None for none. It decides bits."""
    found = kernels()
    return None if found is None else str(found.VERSION)


@dataclass(frozen=True, slots=True)
class _Group:
    """Some blocks of n records each whose products of one layer are formed at a time, k of them.

    Attributes:
        first, last: the records.
        derivatives: (k, o, n); inputs: (k, n, i), None for the first layer's, which are the records'.
        sums, array: (k, o, i) and (k, o i), the products.
    """

    first: int
    last: int
    derivatives: Tensor
    inputs: Tensor | None
    sums: Tensor
    array: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Buffers:
    """For batches of one size b, of each layer in its order: views of memory that is kept, as tensors and as arrays.

    Attributes:
        outputs: (o, b), which become the next layer's inputs; derivatives: (o, b), by the outputs, the last one's in
            place of these.
        of_inputs, of_outputs: (L, b) squared norms; factors: (L, b), by which gradients are multiplied.
        rows, row_arrays: (b, o), the outputs of a model of one layer, where their product is faster so; each row is
            filled up to whole cache lines.
        blocks: of b records; groups: of each layer, the products that its sum is made of.
    """

    outputs: list[Tensor]
    derivatives: list[Tensor]
    output_arrays: list[NDArray[np.float32]]
    derivative_arrays: list[NDArray[np.float32]]
    of_inputs: NDArray[np.float64]
    of_outputs: NDArray[np.float64]
    factors: NDArray[np.float64]
    rows: Tensor | None
    row_arrays: NDArray[np.float32]
    blocks: Blocks
    groups: list[list[_Group]]


@dataclass(frozen=True, slots=True)
class _Views:
    """Each layer's weight (o, i) and bias (o,) in a flat vector at an address; of a layer without, zeros of no use."""

    address: int
    weights: list[Tensor]
    biases: list[NDArray[np.float32]]


def _lies_well(flat: Tensor) -> bool:
    """Whether views of a vector (d,) cost less than a copy of it, and it begins at a whole cache line."""
    return flat.numel() >= VIEWS_PAY and flat.data_ptr() % CACHE_LINE == 0 and flat.is_contiguous()


class Fused:
    """Clipped sums of one model on a processor, in float32.

    Args:
        with_bias: whether the records' constants, ||x||^2, have the 1 of the first layer's bias added already.
    """

    def __init__(
        self, layers: Sequence[nn.Linear], activations: Sequence[nn.Module], loss: Loss, *, with_bias: bool = False
    ) -> None:
        self._activations = [type(activation) for activation in activations]
        self._loss = _LOSSES[loss]
        self._loops = _loops()
        self._shapes = [(layer.out_features, layer.in_features) for layer in layers]
        self._ones = np.array([float(layer.bias is not None) for layer in layers])
        self._ones[0] *= not with_bias
        sizes = [
            o * i + (o if layer.bias is not None else 0) for (o, i), layer in zip(self._shapes, layers, strict=True)
        ]
        self._ends = np.cumsum(sizes).tolist()
        self._y = torch.empty(sum(sizes))
        self._of_y = self._views(self._y)
        self._parameters = self._of_y
        self._memory, self._sums = torch.empty(0), torch.empty(0)
        self._none = np.zeros(max(o for o, _ in self._shapes))
        self._buffers: _Buffers | None = None
        self._bounds: tuple[float | tuple[float, ...], NDArray[np.float64]] = (math.inf, np.empty(0))

    def _views(self, flat: Tensor) -> _Views:
        """Of a flat vector (d,)."""
        weights, biases, array, first = [], [], flat.numpy(), 0
        # Between two products nothing of Python's is in the caches: few calls.
        for (o, i), end in zip(self._shapes, self._ends, strict=True):
            bias = first + o * i
            weights.append(flat.as_strided((o, i), (i, 1), flat.storage_offset() + first))
            biases.append(array[bias:end] if bias < end else np.zeros(o, np.float32))
            first = end
        return _Views(flat.data_ptr(), weights, biases)

    def _take(self, y: Tensor) -> None:
        """Compute with these parameters: where they lie, if that is worth its views; else with a copy.

        Products round by where matrices begin in a cache line: at the beginning of one, where the copy is.
        """
        if not _lies_well(y):
            self._parameters = self._of_y
            self._y.copy_(y)
        elif y.data_ptr() != self._parameters.address:  # views keep their memory: at this address it is the same
            self._parameters = self._views(y)

    @staticmethod
    def of(
        layers: Sequence[nn.Linear], activations: Sequence[nn.Module], loss: Loss, *, with_bias: bool = False
    ) -> Fused | None:
        """For a model on the processor in float32, where there are `kernels`; else None, and torch does it all."""
        weights = [layer.weight for layer in layers]
        suits = all(weight.dtype == torch.float32 and weight.device.type == "cpu" for weight in weights)
        suits = suits and loss in _LOSSES
        return Fused(layers, activations, loss, with_bias=with_bias) if suits and kernels() is not None else None

    def takes(self, y: Tensor, batch: Records) -> bool:
        """Whether it computes with these, (d,) parameters and at least one record."""
        x, constants = batch.features, batch.constants
        on_processor = y.is_cpu and x.is_cpu and batch.labels.is_contiguous()
        single = y.dtype is x.dtype is torch.float32 and constants is not None and constants.dtype is torch.float32
        return on_processor and single

    def clipped_sum(
        self, y: Tensor, batch: Records, clip_norm: float | tuple[float, ...], out: Tensor
    ) -> Tensor | None:
        """`Engine.clipped_sum` of one chunk, not empty.

        Raises:
            IndexError: a label is not that of a class.
        """
        b = len(batch)
        work = self._buffers_of(b)
        self._take(y)
        self._derivatives(batch, work)
        if clip_norm == math.inf:
            self._add_up(batch.features, work, np.ones((1, b)), None, out)
            return None
        assert batch.constants is not None
        bounds = self._bounds_of(clip_norm)
        norms, factors = np.empty((len(bounds), b), np.float32), work.factors[: len(bounds)]
        num_bad = self._loops.factors(
            batch.constants.numpy(),
            work.of_inputs,
            work.of_outputs,
            self._ones,
            bounds,
            clip_norm.gamma if isinstance(clip_norm, Normalised) else 0.0,
            norms,
            factors,
        )
        bad = np.flatnonzero(np.isinf(norms[0])) if num_bad else None
        self._add_up(batch.features, work, factors, bad, out)
        found = torch.from_numpy(norms)
        return found.t() if isinstance(clip_norm, tuple) else found[0]

    def _bounds_of(self, clip_norm: float | tuple[float, ...]) -> NDArray[np.float64]:
        """(1,) or (L,) what norms are clipped to."""
        if self._bounds[0] != clip_norm:
            bounds = clip_norm if isinstance(clip_norm, tuple) else (clip_norm,)
            self._bounds = clip_norm, np.array([inner(bound, torch.float32) for bound in bounds])
        return self._bounds[1]

    def _derivatives(self, batch: Records, work: _Buffers) -> None:
        """Each layer's outputs and the derivatives of the losses by them, before activation, and their squares."""
        loops, a = self._loops, batch.features.t()
        for layer, activation in enumerate(self._activations):
            z = torch.mm(self._parameters.weights[layer], a, out=work.outputs[layer])
            if activation is not nn.ReLU:
                _FORWARD[activation](z.add_(torch.from_numpy(self._parameters.biases[layer]).unsqueeze(1)))
            kind = getattr(loops, _KINDS[activation])
            loops.forward(kind, work.output_arrays[layer], self._parameters.biases[layer], work.of_inputs[layer + 1])
            a = z
        if work.rows is None:
            torch.mm(self._parameters.weights[-1], a, out=work.outputs[-1])
        else:
            torch.mm(batch.features, self._parameters.weights[-1].t(), out=work.rows)
            loops.transpose(work.row_arrays, work.output_arrays[-1])
        residual = getattr(loops, self._loss)
        if not residual(work.output_arrays[-1], self._parameters.biases[-1], batch.labels.numpy(), work.of_outputs[-1]):
            raise IndexError(f"a label is not in 0 to {self._shapes[-1][0] - 1}, the model's classes.")
        for layer in reversed(range(len(self._activations))):
            torch.mm(self._parameters.weights[layer + 1].t(), work.derivatives[layer + 1], out=work.derivatives[layer])
            kind = getattr(loops, _KINDS[self._activations[layer]])
            loops.backward(kind, work.derivative_arrays[layer], work.output_arrays[layer], work.of_outputs[layer])

    def _add_up(
        self,
        features: Tensor,
        work: _Buffers,
        factors: NDArray[np.float64],
        bad: NDArray[np.int64] | None,
        out: Tensor,
    ) -> None:
        """Write the sum of the gradients, each layer's times its row of ``factors``, to ``out``: by blocks.

        Args:
            bad: records that count as zero. Their derivatives become zero with their factors; zero times what is not
                finite would not be zero, so their inputs have to, as well.
        """
        flat, first = out.numpy(), 0
        for layer, (o, i) in enumerate(self._shapes):
            bias = flat[first + o * i : self._ends[layer]]
            self._loops.scale(
                work.derivative_arrays[layer],
                factors[layer % len(factors)],
                work.blocks.length,
                bias if len(bias) else self._none[:o],
            )
            if layer and bad is not None:
                work.outputs[layer - 1][:, bad] = 0.0
            total, fresh = flat[first : first + o * i], True
            for group in work.groups[layer]:
                self._products(group, features, bad)
                self._loops.add_blocks(group.array, total, fresh)
                fresh = False
            first = self._ends[layer]

    def _products(self, group: _Group, features: Tensor, bad: NDArray[np.int64] | None) -> None:
        """A group's products of matrices. Blocks with ``bad`` records among their features are computed once more,
        as if these were zero: all others keep their bits."""
        if group.inputs is not None:
            torch.bmm(group.derivatives, group.inputs, out=group.sums)
            return
        count, _, length = group.derivatives.shape
        some = features if count * length == features.shape[0] else features[group.first : group.last]
        inputs = some.view(count, length, -1)
        torch.bmm(group.derivatives, inputs, out=group.sums)
        if bad is not None:
            own = bad[(bad >= group.first) & (bad < group.last)] - group.first
            for block in np.unique(own // length):
                clean = inputs[block].clone()
                clean[own[own // length == block] % length] = 0.0
                torch.mm(group.derivatives[block], clean, out=group.sums[block])

    def _buffers_of(self, b: int) -> _Buffers:
        """Views for batches of b records: always at the same places, for products round by where matrices begin."""
        if self._buffers is not None and self._buffers.of_inputs.shape[1] == b:
            return self._buffers
        rows = [o for o, _ in self._shapes] + [o for o, _ in self._shapes[:-1]]
        sizes = [-(-o * b // 16) * 16 for o in rows]  # each begins at a whole cache line
        width = -(-rows[0] // 16) * 16
        by_record = len(self._shapes) == 1 and rows[0] in BY_RECORD
        sizes.append(width * b if by_record else 0)
        if self._memory.numel() < sum(sizes):
            self._memory = torch.empty(sum(sizes))
        parts = self._memory[: sum(sizes)].split(sizes)
        by_rows = parts[-1].view(-1, width)[:, : rows[0]]
        views = [part[: o * b].view(o, b) for o, part in zip(rows, parts[:-1], strict=True)]
        outputs, num_layers = views[: len(self._shapes)], len(self._shapes)
        derivatives = [*views[num_layers:], outputs[-1]]
        blocks = blocks_of(b)
        per = [max(1, min(blocks.full, AT_ONCE["cpu"] // (o * i))) for o, i in self._shapes]
        most = max(n * o * i for n, (o, i) in zip(per, self._shapes, strict=True))
        if self._sums.numel() < most:
            self._sums = torch.empty(most)
        inputs = [None, *(z.t() for z in outputs[:-1])]
        self._buffers = _Buffers(
            outputs,
            derivatives,
            [z.numpy() for z in outputs],
            [g.numpy() for g in derivatives],
            np.empty((num_layers, b)),
            np.empty((num_layers, b)),
            np.empty((num_layers, b)),
            by_rows if by_record else None,
            by_rows.numpy(),
            blocks,
            [
                self._groups(blocks, n, g.t(), a, i)
                for n, g, a, (_, i) in zip(per, derivatives, inputs, self._shapes, strict=True)
            ],
        )
        return self._buffers

    def _groups(self, blocks: Blocks, per: int, g: Tensor, a: Tensor | None, i: int) -> list[_Group]:
        """``per`` blocks at a time of derivatives ``g`` (b, o) and inputs ``a`` (b, i); a shorter one by itself."""
        o, ends = g.shape[1], [*range(0, blocks.full, per), blocks.full]
        places = [(begin * blocks.length, end - begin, blocks.length) for begin, end in itertools.pairwise(ends)]
        if blocks.rest:
            places.append((blocks.full * blocks.length, 1, blocks.rest))
        found = []
        for first, count, length in places:
            last = first + count * length
            sums = self._sums[: count * o * i].view(count, o, i)
            derivatives = g[first:last].view(count, length, o).transpose(1, 2)
            inputs = None if a is None else a[first:last].view(count, length, i)
            found.append(_Group(first, last, derivatives, inputs, sums, sums.flatten(1).numpy()))
        return found


def _loops() -> ModuleType:
    found = kernels()
    assert found is not None
    return found
