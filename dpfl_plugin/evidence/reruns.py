"""Two runs of one name that differ in what is under their noise: whether they have the same noise.

The name of a run is made of all that is known to decide its result. What if that is not all? Noise must depend on what
is asked and on the records, too, whatever the name says: under the same noise, the difference of two runs is what noise
was to hide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from dpfl_plugin.config.schema import Config
from dpfl_plugin.data.base import Holding, Silo, training_digest
from dpfl_plugin.evidence.linear_response import SeenRound
from dpfl_plugin.privacy import audit as statistics
from dpfl_plugin.privacy.audit import Correlation
from dpfl_plugin.runs.build import Parts, build
from dpfl_plugin.runs.setting import hold_all

FirstRound = Callable[[Parts], SeenRound]
"""The first round of a run with these parts, under the name of the run that is audited."""


def between_runs(
    config: Config, base: Path, parts: Parts, silos: Sequence[int], quiet: int, first_round: FirstRound, alarm: float
) -> Correlation:
    """The noise of the first round against that of runs of the same name: begun at a model that differs in one bit; and
    on records of which one differs in one bit, at each of ``silos``.

    Args:
        quiet: the last coordinates, which only noise moves.
        alarm: probability of a false alarm.
    """
    first = first_round(parts)
    others = [
        first_round(replace(parts, model=_beside(parts.model))),
        first_round(
            build(
                config,
                base,
                noise_multiplier=parts.noise_multiplier,
                hold=lambda config, base: _changed(hold_all(config, base), silos),
                chunk_bytes=parts.memory.chunk,
            )
        ),
    ]
    found = []
    for other in others:
        for row in range(len(first.silos)):
            for name, values in first.up.items():
                x, y = (one[row, -quiet:].numpy() for one in (values, other.up[name]))
                found.append((statistics.correlation(x, y), quiet))
    return statistics.striking(found, alarm)


def _beside(model: torch.Tensor) -> torch.Tensor:
    """The next model, a bit away."""
    other = model.clone()
    other[0] = torch.nextafter(other[0], other.new_tensor(torch.inf))
    return other


def _changed(holding: Holding, silos: Sequence[int]) -> Holding:
    changed = {silo: _with_another_record(holding.silos[silo]) for silo in silos}
    digests = {silo: training_digest(records) for silo, records in changed.items()}
    return replace(holding, silos={**holding.silos, **changed}, training={**holding.training, **digests})


def _with_another_record(silo: Silo) -> Silo:
    features = np.array(silo.train_x)
    first = features.reshape(-1)[:1]
    first[:] = np.nextafter(first, np.inf, dtype=first.dtype) if first.dtype.kind == "f" else np.bitwise_xor(first, 1)
    return replace(silo, train_x=features)
