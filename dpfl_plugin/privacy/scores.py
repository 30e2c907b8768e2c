"""Validation scores: noisy sums of how well records are predicted that no gradient reads, or noisy histograms.

A silo's validation records are a share of its records of its own. Each adds a number in [0, 1] to the sum, 1 where its
class is predicted (`core.validation_scores`): replacing it, or letting it count as zero, moves the sum by 1 at most.
That is the sensitivity under either relation. The number of validation records is public.

A histogram counts each record in one cell, by its class and by where the model's score lies on a fixed grid. A record
that counts as zero moves one count by 1: L2 sensitivity 1. Replacing it moves two by 1 each, sqrt(2) in all.

What is added is in whole steps of `STEP`, so that sums of up to 2^32 records are exact. Of persons, each adds the mean
of what its records add: 1 at most, so the sensitivity is that of a record. In a histogram it adds to each cell the
share of its records there: u with non-negative entries and L1 norm 1 at most, so |u|_2 <= 1, and for two persons
|u - v|_2^2 <= |u|_2^2 + |v|_2^2 <= 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpfl_plugin.privacy.events import Neighbouring, SampledGaussian, Unit
from dpfl_plugin.privacy.mechanisms import Gaussian

if TYPE_CHECKING:
    from torch import Tensor

STEP = 2.0**-20


@dataclass(frozen=True, slots=True)
class Scores:
    """How scores are released.

    Attributes:
        share: the part [first, 1) of each silo's records that they count; gradients read the rest.
        noise_multiplier: noise standard deviation / sensitivity of what is added up.
        bins: of a histogram of each of two classes; 0: one sum.
    """

    share: tuple[float, float]
    noise_multiplier: float
    bins: int = 0

    @property
    def training(self) -> tuple[float, float]:
        """The part of each silo's records that gradients may read."""
        return 0.0, self.share[0]

    def release(self, neighbouring: Neighbouring, unit: Unit = "record") -> SampledGaussian:
        """What one score of one silo is charged as."""
        return Gaussian(self.noise_multiplier).event("full", 1.0, neighbouring, unit)

    def sensitivity(self, neighbouring: Neighbouring) -> float:
        """L2, of what is added up: how far one record can move it."""
        return math.sqrt(2.0) if self.bins and neighbouring == "replace_one" else 1.0

    def noisy(self, sums: Tensor, neighbouring: Neighbouring, rng: np.random.Generator) -> Tensor:
        """``sums`` (1,) or (2 bins,), float64, with their noise."""
        out = sums.clone()
        Gaussian(self.noise_multiplier)(sums, self.sensitivity(neighbouring), rng, out)
        return out
