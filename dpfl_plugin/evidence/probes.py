"""What one record changes in an engine's clipped sum: real records of a run, and the worst that rounding may make.

Canaries of an audit lie behind the model's coordinates and do not pass the engine; these do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfl_plugin.core.balls import Normalised
from dpfl_plugin.core.streams import stream
from dpfl_plugin.gradients import losses, worst
from dpfl_plugin.gradients.base import Engine, Records, layers
from dpfl_plugin.gradients.persons import marks
from dpfl_plugin.gradients.stacked import MultiSiloEngine, Pool
from dpfl_plugin.gradients.views import several
from dpfl_plugin.runs.build import Parts

PROBED = 32  # real records of a silo whose influence on a sum is measured
MOST_ADDED = 20_000  # records of a batch that is made up; what float32 sums get wrong grows with their number
LEAST_ADDED = 32


def influence(parts: Parts, train: Mapping[int, Records], silos: Sequence[int]) -> float | None:
    """The most that leaving out one of a few real records changes the engine's clipped sum, in clipping norms."""
    if math.isinf(parts.rules.clip_norm):
        return None
    ways, most = [_alone, *([_beside_all] if parts.lockstep else [])], 0.0
    for silo in silos:
        real = train[silo].select((marks(train[silo].labels) >= 0).nonzero().squeeze(1)[:PROBED])
        if parts.rules.augmentation is not None:
            real = several(parts.rules.augmentation, real, stream(silo, "audit"))
        everyone = np.arange(len(real))
        for sum_of in ways:
            whole = sum_of(parts, real, everyone)
            for index in everyone:
                less = sum_of(parts, real, np.delete(everyone, index))
                most = max(most, float((whole - less).double().norm()))
    return most / parts.rules.clip_norm


def _alone(parts: Parts, records: Records, rows: NDArray[np.int64]) -> Tensor:
    """(d,) the clipped sum of the records at ``rows``."""
    found, bounds = torch.empty_like(parts.model, dtype=torch.float64), parts.rules.bounds(layers(parts.layout))
    batch = records.select(torch.from_numpy(rows).to(records.labels.device))
    parts.host.engine.clipped_sum(parts.model, batch, bounds, found)
    return found


def _beside_all(parts: Parts, records: Records, rows: NDArray[np.int64]) -> Tensor:
    """The same, of a silo that is answered together with one that has all of them, so that its batch is filled up."""
    bounds = parts.rules.bounds(layers(parts.layout))
    found = parts.model.new_empty(2, len(parts.model), dtype=torch.float64)
    clip_norms = torch.tensor([bounds if isinstance(bounds, tuple) else (bounds,)] * 2, dtype=torch.float64)
    batches = Pool({0: records}).gather([0, 0], [rows, np.arange(len(records))])
    engine = cast(MultiSiloEngine, parts.host.engine)
    engine.clipped_sums(parts.model.expand(2, -1), batches, clip_norms.to(parts.model.device), found, *_gamma(bounds))
    return found[0]


def worst_pair(parts: Parts, silos: Sequence[int]) -> float | None:
    """The most that one record moved a clipped sum, over the sensitivity, in batches made up for rounding to do its
    worst; as long as the longest of ``silos``, as far as `MOST_ADDED` goes.

    The engine is the run's, of a model of its own. None: the model is not in float32, or the engine cannot compute
    that one.
    """
    rules, kind = parts.rules, cast(Any, type(parts.engine))
    if rules.unit == "silo" or math.isinf(rules.clip_norm) or parts.model.dtype is not torch.float32:
        return None
    if kind.unsupported(worst.model(), losses.logistic) is not None:
        return None
    longest = max(rules.sampler.rate(parts.num_records[silo]) * parts.num_records[silo] for silo in silos)
    count = min(MOST_ADDED, max(LEAST_ADDED, math.ceil(longest)))
    engine: Engine = kind(worst.model(), losses.logistic, parts.memory.chunk)
    tried = [engine, *([_InLockstep(engine)] if parts.lockstep else [])]
    return max(worst.farthest(one, (count,), rules.clipping.whole(rules.clip_norm))[0] for one in tried)


class _InLockstep:
    """An engine that answers a batch together with one that is twice as long."""

    def __init__(self, engine: Engine) -> None:
        self.name, self._engine, self.prepare = engine.name, engine, engine.prepare

    @staticmethod
    def unsupported(model: torch.nn.Module, loss: object) -> str | None:
        return "it is for audits"

    def clipped_sum(self, y: Tensor, batch: Records, clip_norm: float | tuple[float, ...], out: Tensor) -> None:
        rows = np.arange(len(batch))
        stack = Pool({0: batch}).gather([0, 0], [rows, rows.repeat(2)])
        sums = torch.full((2, len(y)), math.nan, dtype=torch.float64)
        clip_norms = torch.tensor([[clip_norm]] * 2, dtype=torch.float64)
        engine = cast(MultiSiloEngine, self._engine)
        engine.clipped_sums(y.expand(2, -1), stack, clip_norms, sums, *_gamma(clip_norm))
        out.copy_(sums[0])


def _gamma(bound: object) -> tuple[float, ...]:
    """What an engine is given beside C for silos together: nothing where it clips."""
    return (bound.gamma,) if isinstance(bound, Normalised) else ()
