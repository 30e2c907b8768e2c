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
from torch import Tensor

from dpfl_plugin import registry
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.errors import PluginError, UnsupportedError

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs (n, ...), labels (n,)) -> losses (n,), one for each example."""


@dataclass(frozen=True, slots=True)
class Records:
    """Some records of one silo.

    Attributes:
        features: (n, *feature_shape).
        labels: (n,) int64.
        constants: (n,) what an engine precomputes from each record by itself, or None.
    """

    features: Tensor
    labels: Tensor
    constants: Tensor | None = None

    def __len__(self) -> int:
        return self.features.shape[0]

    def select(self, index: Tensor) -> Records:
        """The records at ``index`` (b,)."""
        constants = None if self.constants is None else self.constants.index_select(0, index)
        return Records(self.features.index_select(0, index), self.labels.index_select(0, index), constants)

    def between(self, first: int, last: int) -> Records:
        """The records [first, last), as views."""
        constants = None if self.constants is None else self.constants[first:last]
        return Records(self.features[first:last], self.labels[first:last], constants)


class Engine(Protocol):
    """Computes sum_j clip(grad f(y, d_j), C) over a batch."""

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
        """Write the sum of the batch's clipped gradients at parameters ``y`` (d,) to ``out`` (d,).

        clip(g, C) = g / max(1, ||g|| / C), so that one example adds a vector of norm at most C whatever it is:
        a gradient that is not finite adds nothing, unless ``clip_norm`` is inf. An empty batch gives zeros.

        Args:
            clip_norm: C; or a finite bound for each of the model's `layers`, each of which is clipped by itself.

        Returns:
            The norms before clipping, (b,) or (b, L) for L layers, inf for examples whose gradient is not finite. None
            where ``clip_norm`` is inf, or from an engine that does not tell.
        """
        ...


def layers(layout: Layout) -> dict[str, int]:
    """{layer: its number of parameters}, consecutive parts of the flat vector in its order.

    A layer is a module that owns parameters directly: its weight and its bias together.
    """
    sizes: Counter[str] = Counter()
    for name, size in zip(layout.names, layout.sizes, strict=True):
        sizes[name.rpartition(".")[0]] += size
    return dict(sizes)


def squared_norms(rows: Tensor) -> Tensor:
    """(b,) squared norms of ``rows`` (b, d), to be multiplied by those of another factor.

    A square may vanish below the smallest number (1e-38 in float32) and yet matter, times the square of something very
    long. With as much as may have been lost, added, the product is never too small.
    """
    return rows.square().sum(dim=1) + rows.shape[1] * torch.finfo(rows.dtype).tiny


MARGIN: Final = 64
"""Of the clipping norm, in units of the number format's epsilon: 8e-6 of C in float32.

A norm that was added up in floating point may be too short, and a gradient may grow as it is scaled. Sums are torch's
`sum`, which adds up in blocks: for up to 10^7 numbers, the worst ones that we know, norms were up to 6 epsilon too short
(torch's `norm` adds up one by one, and was up to 9,000 too short). Scaling adds one more.
"""


def inner(clip_norm: float, dtype: torch.dtype) -> float:
    """What to clip to in floating point, so that no example adds more than ``clip_norm``."""
    return clip_norm * (1 - MARGIN * torch.finfo(dtype).eps)


def clip_factors(norms: Tensor, clip_norm: float | tuple[float, ...]) -> list[Tensor]:
    """min(1, C / norm), (b,): for norms (b,), or for each of the L layers of norms (b, L); C a hair inside its own."""
    if isinstance(clip_norm, tuple):
        pairs = zip(clip_norm, norms.unbind(dim=1), strict=True)
        return [factor for c, norm in pairs for factor in clip_factors(norm, c)]
    bound = inner(clip_norm, norms.dtype)
    return [bound / norms.clamp(min=bound)]


def mark_bad(norms: Tensor) -> Tensor:
    """The examples (g,) whose ``norms``, (b,) or (b, L), are finite; those of the others become inf, in all layers."""
    finite = torch.isfinite(norms).reshape(len(norms), -1).all(dim=1)
    norms[~finite] = math.inf
    return finite.nonzero().squeeze(1)


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


# Ours, fastest first; strangers' come after them, by name, and the general one is the last.
OURS = ("closed_form", "dense", "bookkeeping")
TRIAL_TOLERANCE = 1e-3  # of float32, and of bfloat16 products where torch uses them


def choose(
    name: str, model: torch.nn.Module, loss: Loss, chunk_bytes: int, trial: Tensor | None = None
) -> tuple[Engine, str]:
    """The engine ``name``, or for "auto" the fastest that supports the model; and the reason in words.

    Args:
        trial: made-up features (n, *feature_shape) on the model's device: what an engine cannot tell from the model's
            layers shows when it runs.

    Raises:
        UnsupportedError: no engine, or not the one that was named, supports the model.
    """
    if name != "auto":
        engine, reason = _make(name, model, loss, chunk_bytes, trial)
        if engine is None:
            raise UnsupportedError(f"engine={name!r} cannot be used: {reason}. Use engine: auto.")
        return engine, "named in the configuration"
    known = registry.names("engines")
    order = [*OURS, *(n for n in known if n not in (*OURS, "vmap")), "vmap"]
    reasons: list[str] = []
    for candidate in order:
        engine, reason = _make(candidate, model, loss, chunk_bytes, trial)
        if engine is not None:
            return engine, f"the first that supports this model, of: {', '.join(order)}"
        reasons.append(f"{candidate}: {reason}")
    raise UnsupportedError(f"no engine supports this model. {'; '.join(reasons)}.")


def _make(
    name: str, model: torch.nn.Module, loss: Loss, chunk_bytes: int, trial: Tensor | None
) -> tuple[Engine | None, str]:
    """The engine, or None and why it does not support the model."""
    kind = registry.load("engines", name)
    reason = kind.unsupported(model, loss)  # type: ignore[attr-defined]
    if reason is not None:
        return None, reason
    engine: Engine = kind(model, loss, chunk_bytes)
    return (engine, "") if trial is None else _tried(engine, model, loss, trial)


def _tried(engine: Engine, model: torch.nn.Module, loss: Loss, trial: Tensor) -> tuple[Engine | None, str]:
    """The engine, if its unclipped sum over the ``trial`` is autograd's: a layer may be used in ways nobody sees.

    And if it is the sum over the records one by one. A model that mixes the records of a batch has a gradient of the
    sum all the same, but none of one record: what clipping then bounds would depend on the other records.
    """
    labels = torch.zeros(len(trial), dtype=torch.int64, device=trial.device)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    layout = Layout.of(model)
    y = layout.flatten(parameters)
    found, alone = torch.full_like(y, math.nan), torch.zeros_like(y)
    try:
        with torch.no_grad():
            batch = engine.prepare(Records(trial, labels))
            engine.clipped_sum(y, batch, math.inf, found)
            for row in range(len(trial)):
                one = torch.full_like(y, math.nan)
                engine.clipped_sum(y, batch.between(row, row + 1), math.inf, one)
                alone += one
    except UnsupportedError as error:
        return None, str(error)
    except Exception as error:  # an engine of a stranger, or one that meets a stranger's model, may fail in any way
        return None, f"it fails on made-up records: {type(error).__name__}: {error}"
    with torch.enable_grad():
        total = loss(model(trial), labels).sum()
        gradients = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
    filled = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters.values(), gradients, strict=True)]
    expected = layout.flatten(dict(zip(parameters, filled, strict=True)))
    tolerance = TRIAL_TOLERANCE * (1 + float(expected.norm()))
    if not float((found - expected).norm()) <= tolerance:
        return None, "its gradients on made-up records are not autograd's"
    if not float((alone - expected).norm()) <= tolerance:
        return None, "the model mixes the records of a batch, so no example has a gradient of its own"
    return engine, ""
