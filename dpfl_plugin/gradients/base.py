"""The seam for per-example gradient engines: clip each example's gradient and add them up, nothing else.

Sampling, noise, averaging, the drift step and the ledger stay outside: one audited copy for all engines.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor, nn

from dpfl_plugin.core.balls import Normalised, inner, longest
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.errors import PluginError
from dpfl_plugin.gradients.blocks import pieces
from dpfl_plugin.models.fixed import FREEZE, frozen_norm

PIECE: Final = {"cpu": 2**17, "cuda": 2**24}
"""Numbers that are turned into float64 at a time, to add up their squares."""
ASKED: Final = {"cpu"}
"""Devices that are asked whether all gradients are finite: any other would have to be waited for."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs (n, ...), labels (n,)) -> losses (n,), one for each example."""


@dataclass(frozen=True, slots=True)
class Records:
    """Some records of one silo.

    Attributes:
        features: (n, *feature_shape).
        labels: (n,) int64.
        constants: (n,) what an engine precomputes from each record by itself, or None.
        usable: (n,), False for records that add nothing to any sum, count or statistic, at their place; None if all do.
            Their features and labels are placeholders, the same for all.
    """

    features: Tensor
    labels: Tensor
    constants: Tensor | None = None
    usable: Tensor | None = None

    def __len__(self) -> int:
        return self.features.shape[0]

    def select(self, index: Tensor) -> Records:
        """The records at ``index`` (b,)."""
        rest = [None if part is None else part.index_select(0, index) for part in (self.constants, self.usable)]
        return Records(self.features.index_select(0, index), self.labels.index_select(0, index), *rest)

    def between(self, first: int, last: int) -> Records:
        """The records [first, last), as views."""
        rest = [None if part is None else part[first:last] for part in (self.constants, self.usable)]
        return Records(self.features[first:last], self.labels[first:last], *rest)

    def only_usable(self) -> Records:
        """Those that are usable, without the places of the others: for what no rounding is proven of."""
        return self if self.usable is None else self.select(self.usable.nonzero().squeeze(1))

    @property
    def num_usable(self) -> int:
        return len(self) if self.usable is None else int(self.usable.sum())


class Engine(Protocol):
    """Computes sum_j clip(grad f(y, d_j), C) over a batch.

    It is made of a model, its loss, and the bytes that it may use at a time: a batch that needs more is cut up.
    An engine with a method ``record_bytes(y, batch) -> int`` tells about what one of the examples needs, so that a run
    for which even that is too much is refused before it begins. One with a method ``clipped_sums`` answers several
    silos at once (`stacked.MultiSiloEngine`). One with a class attribute ``persons`` that is true takes persons for
    examples, too, where the model is `persons.Persons`: features (b, k, *feature_shape), labels (b, k). One that runs a
    copy of the model has it as ``runs``, whose fixed state is compared in each round (`fixed_state`). One with a method
    ``on(model) -> Engine | None`` gives its like that calls that very model, at the model's own parameters, and so sees
    whatever changes in it; None where there is none. One with a class attribute ``capturable`` that is true promises
    that on a GPU its sums neither wait for the device, nor move anything to it, nor have shapes that depend on numbers,
    nor write to tensors that it keeps: a CUDA graph may replay them (`replay`).
    """

    name: str

    @staticmethod
    def unsupported(model: torch.nn.Module, loss: Loss) -> str | None:
        """None if the engine computes this model with this loss exactly, else the reason why it does not."""
        ...

    def prepare(self, records: Records) -> Records:
        """The silo's records with what the engine precomputes; called once per silo."""
        ...

    def clipped_sum(
        self, y: Tensor, batch: Records, clip_norm: float | tuple[float, ...], out: Tensor
    ) -> Tensor | None:
        """Write the sum of the batch's clipped gradients at parameters ``y`` (d,) to ``out`` (d,), in float64.

        clip(g, C) = g / max(1, ||g|| / C), so that one example adds a vector of norm at most C whatever it is:
        a gradient that is not finite, or 2^120 times as long as C (`longest`), adds nothing, and neither does a record
        that is not usable, unless ``clip_norm`` is inf: then no batch has any. An empty batch gives zeros.

        Noise covers what one record does to the sum, rounding included. For two batches that differ in one record, or
        in that it counts as zero or is missing in one of them, it moves by no more than Delta (1 + SUM_SLACK), Delta =
        2 C or C: `blocks` has the proof, and what an engine keeps for it; `testing.EngineContract` tests it.

        Args:
            clip_norm: C; or a finite bound for each of the model's `layers`, each of which is clipped by itself.
                `balls.Normalised`, with whose factor a gradient is scaled instead of clipped, is given only to engines
                with a class attribute ``normalises`` that is true.

        Returns:
            The norms before clipping, (b,) or (b, L) for L layers, inf for examples whose gradient does not count
            as finite and for those that are not usable. None where ``clip_norm`` is inf, or from an engine that does
            not tell.
        """
        ...


def in_place(engine: Engine, model: nn.Module) -> Engine | None:
    """The like of an engine that calls ``model`` itself: see `Engine`. None where there is none."""
    on: Callable[[nn.Module], Engine | None] | None = getattr(engine, "on", None)
    return None if on is None else on(model)


def layers(layout: Layout) -> dict[str, int]:
    """{layer: its number of parameters}, consecutive parts of the flat vector in its order.

    A layer is a module that owns parameters directly: its weight and its bias together.
    """
    sizes: Counter[str] = Counter()
    for name, size in zip(layout.names, layout.sizes, strict=True):
        sizes[name.rpartition(".")[0]] += size
    return dict(sizes)


def squared_norms(rows: Tensor) -> Tensor:
    """(b,) squared norms of ``rows`` (b, p), added up in float64, in which no square of a float32 number vanishes.

    Of float64 numbers they may, and what a product of two norms lacks then may be long. As much as may have been lost,
    added, it is never too small.
    """
    if rows.dtype is torch.float64:
        return _added_up(rows) + rows.shape[1] * torch.finfo(torch.float64).tiny
    return _added_up(rows)


def _added_up(rows: Tensor) -> Tensor:
    count, width = rows.shape
    most = PIECE.get(rows.device.type, PIECE["cuda"])  # torch copies what it adds up in another format
    if rows.numel() <= most:
        return _squares(rows).sum(dim=1)
    found = rows.new_zeros(count, dtype=torch.float64)
    across = min(width, most)
    for first in range(0, count, max(1, most // across)):
        some = slice(first, first + max(1, most // across))
        for left in range(0, width, across):
            found[some] += _squares(rows[some, left : left + across]).sum(dim=1)
    return found


def _squares(rows: Tensor) -> Tensor:
    return rows.square() if rows.dtype is torch.float64 else rows.double().square_()


def squared_inputs(rows: Tensor) -> Tensor:
    """(b,) `squared_norms` of one factor of a product of two, rounded to the number format of ``rows`` (b, p).

    Beyond its largest number they are inf: rows so long do not count as finite (`blocks`, 1.). A square that vanishes
    below its smallest may matter, times that of something very long. With as much as may have been lost, added, the
    product is never too small.
    """
    return (squared_norms(rows) + rows.shape[1] * torch.finfo(rows.dtype).tiny).to(rows.dtype)


def prepared(records: Records, features: Tensor, squares: Tensor) -> Records:
    """Records with ``squares`` (n,) of their inputs for constants: inf where they are not usable, so that no norm that
    is made of them is finite."""
    if records.usable is not None:
        squares = squares.masked_fill(~records.usable, math.inf)
    return Records(features.contiguous(), records.labels, squares, records.usable)


def in_chunks(
    clipped_sum: Callable[[Tensor, Records, float | tuple[float, ...], Tensor], Tensor | None],
    size: int,
    y: Tensor,
    batch: Records,
    clip_norm: float | tuple[float, ...],
    out: Tensor,
) -> Tensor | None:
    """`Engine.clipped_sum` of one chunk of ``size`` examples after another."""
    part, norms = torch.empty_like(out), []
    out.zero_()
    for first, last in pieces(len(batch), size):
        norms.append(clipped_sum(y, batch.between(first, last), clip_norm, part))
        out += part
    known = [norm for norm in norms if norm is not None]
    return torch.cat(known) if len(known) == len(norms) else None


def clip_factors(norms: Tensor, clip_norm: float | tuple[float, ...], dtype: torch.dtype) -> list[Tensor]:
    """min(1, C / norm), (b,) in ``dtype``: for norms (b,), or for each of the L layers of norms (b, L), in float64; C a
    hair inside its own. 0 for norms that are inf, as `bad_among` leaves those for which a factor would be too small.
    C / (norm + gamma) where C is `Normalised`."""
    if isinstance(clip_norm, tuple):
        pairs = zip(clip_norm, norms.unbind(dim=1), strict=True)
        return [factor for c, norm in pairs for factor in clip_factors(norm, c, dtype)]
    bound = inner(clip_norm, dtype)
    if isinstance(clip_norm, Normalised):
        return [(bound / (norms + clip_norm.gamma)).to(dtype)]
    return [(bound / norms.clamp(min=bound)).to(dtype)]


def bad_among(
    norms: Tensor, clip_norm: float | tuple[float, ...], dtype: torch.dtype, usable: Tensor | None = None
) -> Tensor | None:
    """(b,) which examples' ``norms``, (b,) or (b, L) in float64, do not count as finite in ``dtype``, for C or for a
    bound of each layer (`longest`), or are not ``usable`` (b,): they become inf, in all layers. None if there are
    none, on devices that are `ASKED`."""
    bounds = clip_norm if isinstance(clip_norm, tuple) else (clip_norm,)
    most = [longest(inner(bound, dtype), dtype) for bound in bounds]
    # Where a norm is not a number, neither is it at most anything.
    if norms.dim() == len(most) == 1:
        good = norms <= most[0]
    else:
        columns = norms.reshape(len(norms), -1).unbind(dim=1)
        good = torch.stack([norm <= limit for norm, limit in zip(columns, most, strict=True)]).all(dim=0)
    if usable is not None:
        good = good & usable
    if good.device.type in ASKED and bool(good.all()):
        return None
    bad = ~good
    norms.masked_fill_(bad if norms.dim() == 1 else bad.unsqueeze(1), math.inf)
    return bad


def clipped_sum_and_norms(
    engine: Engine, y: Tensor, batch: Records, clip_norm: float | tuple[float, ...], out: Tensor
) -> Tensor:
    """`Engine.clipped_sum` where its norms are needed.

    Raises:
        PluginError: the engine does not return them.
    """
    norms = engine.clipped_sum(y, batch, clip_norm, out)
    shape = (len(batch), len(clip_norm)) if isinstance(clip_norm, tuple) else (len(batch),)
    if norms is None or tuple(norms.shape) != shape:
        found = None if norms is None else tuple(norms.shape)
        raise PluginError(
            f"engine: {engine.name} must return the gradients' norms, of shape {shape}, for this privacy.clip; it "
            f"returned {found}. Use another engine, or clip: flat."
        )
    return norms


def mixing(model: nn.Module) -> str | None:
    """A layer that no engine can compute with, and what to use in its place; None if there is none."""
    for path, layer in model.named_modules():
        place = f"{path or 'the model'}: {type(layer).__name__}"
        norm = isinstance(layer, nn.modules.batchnorm._BatchNorm | nn.modules.batchnorm._NormBase)
        if frozen_norm(layer):
            continue
        if norm and (not isinstance(layer, nn.modules.instancenorm._InstanceNorm) or layer.track_running_stats):
            return (
                f"{place} mixes the records of a batch, so no example has a gradient of its own. Use nn.GroupNorm or "
                f"nn.LayerNorm, which normalise each record by itself; or freeze a pretrained BatchNorm: {FREEZE}"
            )
        if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:
            return (
                f"{place} draws from torch's global generator, so no run could be repeated or resumed. Leave it out, "
                "or give it p=0: the noise of private training regularises, too"
            )
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
            return (
                f"{place} has max_norm={layer.max_norm:g}: it shortens the weights of a record's words, and so tells "
                "which there are, without noise. Leave max_norm out"
            )
        if isinstance(layer, nn.RNNBase) and layer.dropout > 0:
            return f"{place} has dropout, which draws from torch's global generator. Give it dropout=0"
    return None
