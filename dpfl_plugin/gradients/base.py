"""The seam for per-example gradient engines: clip each example's gradient and add them up, nothing else.

Sampling, noise, averaging, the drift step and the ledger stay outside: one audited copy for all engines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

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


def choose(name: str, model: torch.nn.Module, loss: Loss, chunk_bytes: int) -> tuple[Engine, str]:
    """The engine ``name``, or for "auto" the fastest that supports the model; and the reason in words.

    Raises:
        UnsupportedError: no engine, or not the one that was named, supports the model.
    """
    if name != "auto":
        engine = registry.load("engines", name)
        reason = engine.unsupported(model, loss)  # type: ignore[attr-defined]
        if reason:
            raise UnsupportedError(f"engine={name!r} cannot be used: {reason}. Use engine: auto.")
        return engine(model, loss, chunk_bytes), "named in the configuration"
    # Ours first, fastest first; then strangers' by name; the general one last.
    known = registry.names("engines")
    order = ["closed_form", *(n for n in known if n not in ("closed_form", "vmap")), "vmap"]
    reasons = []
    for candidate in order:
        engine = registry.load("engines", candidate)
        reason = engine.unsupported(model, loss)  # type: ignore[attr-defined]
        if reason is None:
            why = f"the first that supports this model, of: {', '.join(order)}"
            return engine(model, loss, chunk_bytes), why
        reasons.append(f"{candidate}: {reason}")
    raise UnsupportedError(f"no engine supports this model. {'; '.join(reasons)}.")
