"""Canaries: gradients of known size and direction among the real ones, for audits.

A canary's gradient lies along a coordinate of its own, behind the model's d: nothing else moves it, so that real
records, batches, clipping, noise, algorithm and ledger are those of the run, and any two canaries are orthogonal.
The last coordinates are moved by nobody: what is seen there is noise.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfl_plugin.core.streams import stream
from dpfl_plugin.errors import require
from dpfl_plugin.gradients.base import Engine, Records
from dpfl_plugin.gradients.persons import marks
from dpfl_plugin.gradients.stacked import MultiSiloEngine, Stack
from dpfl_plugin.privacy.rules import PrivacyRules

# A canary's gradient before clipping, in clipping norms: whatever the code takes for its bound is what is left of it.
# At silo level the whole update is clipped, after steps of any size; and bounds may be adapted.
RAW = 1e6


@dataclass(frozen=True, slots=True)
class Planting:
    """Which canary is where, and the secret bits.

    Attributes:
        silo: (m,) of each canary.
        bits: (m,) fair coins: which of two neighbouring data sets holds.
        quiet: number of coordinates that no record moves.
    """

    silo: NDArray[np.int64]
    bits: NDArray[np.bool_]
    quiet: int

    @property
    def num_canaries(self) -> int:
        return len(self.silo)

    @property
    def width(self) -> int:
        """Coordinates behind the model's."""
        return self.num_canaries + self.quiet

    def of(self, silo: int) -> NDArray[np.int64]:
        """The canaries of a silo."""
        return np.flatnonzero(self.silo == silo)

    def gradients(self, rules: PrivacyRules) -> NDArray[np.float64]:
        """(m,) each canary's gradient in units of its size: 1 or -1 where records are replaced, else 1 or none."""
        other = -1.0 if rules.neighbouring == "replace_one" else 0.0
        return np.where(self.bits, 1.0, other)


class CanaryEngine:
    """The run's engine on the first d coordinates, and the canaries on theirs.

    A record, or a person with all that it has, is canary i if its label is -1 - i. A canary is clipped to what the
    bounds of all layers are together: the norm that a release is charged for. Silos are answered together where the
    run's engine is asked to do so.

    Attributes:
        bounds: of each sum, in their order.
    """

    def __init__(self, engine: Engine, dimension: int, planting: Planting, rules: PrivacyRules) -> None:
        self.name = engine.name
        self._engine, self._dimension = engine, dimension
        self._raw = RAW * rules.clip_norm if math.isfinite(rules.clip_norm) else 1.0
        self.bounds: list[float] = []
        self._gradients = torch.from_numpy(planting.gradients(rules))

    @staticmethod
    def unsupported(model: torch.nn.Module, loss: object) -> str | None:
        return "it is for audits"

    def prepare(self, records: Records) -> Records:
        return records

    def clipped_sum(
        self, y: Tensor, batch: Records, clip_norm: float | tuple[float, ...], out: Tensor
    ) -> Tensor | None:
        labels = marks(batch.labels)
        d, planted = self._dimension, labels < 0
        bound = math.hypot(*clip_norm) if isinstance(clip_norm, tuple) else clip_norm
        self._add_canaries(labels.unsqueeze(0), planted.unsqueeze(0), [bound], out[d:].unsqueeze(0))
        real = batch.select((~planted).nonzero().squeeze(1))
        known = self._engine.clipped_sum(y[:d], real, clip_norm, out[:d])
        if known is None:
            return None
        norms = known.new_full((len(batch), *known.shape[1:]), self._raw)
        norms[~planted] = known
        return norms

    def clipped_sums(
        self, y: Tensor, batches: Stack, clip_norms: Tensor | None, out: Tensor, gamma: float | None = None
    ) -> Tensor | None:
        """See `stacked.MultiSiloEngine`."""
        d, planted = self._dimension, batches.labels < 0
        bounds = [math.inf] * len(batches) if clip_norms is None else [math.hypot(*one) for one in clip_norms.tolist()]
        self._add_canaries(batches.labels, planted, bounds, out[:, d:])
        real, where = _without(batches, planted)
        how = () if gamma is None else (gamma,)
        known = cast(MultiSiloEngine, self._engine).clipped_sums(y[:, :d], real, clip_norms, out[:, :d], *how)
        if known is None:
            return None
        norms = known.new_full((*planted.shape, known.shape[2]), math.inf)
        norms[torch.arange(len(where), device=where.device).unsqueeze(1), where] = known
        norms[planted] = self._raw
        return norms

    def _add_canaries(self, labels: Tensor, planted: Tensor, bounds: list[float], out: Tensor) -> None:
        """Write the sums of the clipped canaries among ``labels`` (m, b) to ``out`` (m, w)."""
        self.bounds += bounds
        sizes = out.new_tensor([min(self._raw, bound) for bound in bounds])
        silo, place = planted.nonzero(as_tuple=True)
        canary = -1 - labels[silo, place]
        out.zero_().index_put_((silo, canary), self._gradients.to(out)[canary] * sizes[silo], accumulate=True)


def _without(batches: Stack, planted: Tensor) -> tuple[Stack, Tensor]:
    """(batches without the records that are ``planted`` (m, b), where in them each of its places came from (m, b'))."""
    aside = planted | batches.padding
    longest = int((~aside).sum(dim=1).max())
    where = aside.int().argsort(dim=1, stable=True)[:, :longest]  # those that stay come first, in their order
    filling = aside.gather(1, where)

    def taken(values: Tensor) -> Tensor:
        index = torch.arange(len(where), device=where.device).unsqueeze(1), where
        return values[index].masked_fill_(filling.view(*filling.shape, *[1] * (values.dim() - 2)), 0)

    constants = None if batches.constants is None else taken(batches.constants)
    return Stack(taken(batches.features), taken(batches.labels), constants, filling), where


def plant(
    train: Mapping[int, Records], silos: list[int], canaries: int, quiet: int, seed: int, unit: str
) -> tuple[Planting, dict[int, Records]]:
    """Replace records of ``silos`` by canaries: about ``canaries`` in all, at most half of each silo's records.

    At silo level every one of ``silos`` is one canary, with all its records.
    """
    rng = stream(seed, "audit")
    share = -(-canaries // len(silos))
    found: list[int] = []
    marked = dict(train)
    for silo in silos:
        records = train[silo]
        if unit == "silo":
            labels = torch.full_like(records.labels, -1 - len(found))
            found.append(silo)
        else:
            count = min(share, len(records) // 2)
            where = torch.from_numpy(rng.choice(len(records), count, replace=False)).to(records.labels.device)
            labels = records.labels.clone()
            marked_as = -1 - torch.arange(len(found), len(found) + count, device=labels.device)
            labels[where] = marked_as.view(-1, *[1] * (labels.dim() - 1))  # of a person all records at once
            found += [silo] * count
        marked[silo] = dataclasses.replace(records, labels=labels)
    require(len(found) > 0, "--silos", silos, "have at least two records each, one of which a canary can replace")
    bits = rng.random(len(found)) < 0.5
    return Planting(np.array(found), bits, quiet), marked
