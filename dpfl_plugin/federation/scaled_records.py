"""Records that are scaled by private statistics: what of it silos and server have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from dpfl_plugin.core.outcome_counts import codes_of
from dpfl_plugin.core.scaling import Scaling
from dpfl_plugin.core.streams import FreshStream, Source, Stream
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.persons import has_label
from dpfl_plugin.gradients.shares import part_of
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.events import Neighbouring
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.statistics import Statistics

SUMS: Final = "private_statistics"  # in checkpoints


def noisy_sums(
    statistics: Statistics,
    silos: Mapping[int, Records],
    ids: Sequence[int],
    share: tuple[float, float],
    rules: PrivacyRules,
    draw: Draw,
) -> Tensor:
    """(m, D) over a share of each silo's records, as `dpfl_plugin.privacy.statistics.Statistics.noisy`."""
    source: Source = FreshStream() if rules.fresh else Stream()
    sums = []
    for silo in ids:
        part, rng = part_of(silos[silo], share).only_usable(), source.seek(draw.key("statistics", silo, 0))
        real = has_label(part.labels) if rules.unit == "person" else torch.ones(len(part), 1, dtype=torch.bool)
        codes = None
        if statistics.counts_labels:
            labels = part.labels.flatten(0, 1) if rules.unit == "person" else part.labels
            codes = codes_of(statistics.outcome, labels).view(real.shape)
        sums.append(statistics.noisy(part.features, real, rules.neighbouring, rng, codes).to(part.features.device))
    return torch.stack(sums)


def scaling_of(statistics: Statistics, sums: Tensor, neighbouring: Neighbouring) -> Scaling:
    """``sums`` (2 + D,): of how many records and silos, and their noisy sum."""
    num_records, num_silos = sums[:2].tolist()
    return statistics.scaling(sums[2:].cpu(), num_records, num_silos, neighbouring)


def scaled(silos: Mapping[int, Records], scaling: Scaling) -> dict[int, Records]:
    """Their records, to be prepared for an engine."""
    return {
        silo: Records(scaling(records.features), records.labels, usable=records.usable)
        for silo, records in silos.items()
    }
