"""Validation scores: noisy counts of correct predictions on records that no gradient reads.

A silo's validation records are a share of its records of its own. Replacing one of them, or letting it count as zero,
moves the count of correct predictions by 1 at most: that is the sensitivity under either relation. The number of
validation records is public.

Of persons, each adds the share of its records that are predicted correctly, in whole steps of `STEP`: 1 at most, so
the sensitivity is that of a record, and sums of up to 2^32 persons are exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from dpfl_plugin.privacy.events import Neighbouring, SampledGaussian, Unit
from dpfl_plugin.privacy.mechanisms import Gaussian

SENSITIVITY = 1.0
STEP = 2.0**-20


@dataclass(frozen=True, slots=True)
class Scores:
    """How scores are released.

    Attributes:
        share: the part [first, 1) of each silo's records that they count; gradients read the rest.
        noise_multiplier: noise standard deviation / sensitivity of a count.
    """

    share: tuple[float, float]
    noise_multiplier: float

    @property
    def training(self) -> tuple[float, float]:
        """The part of each silo's records that gradients may read."""
        return 0.0, self.share[0]

    def release(self, neighbouring: Neighbouring, unit: Unit = "record") -> SampledGaussian:
        """What one score of one silo is charged as."""
        return Gaussian(self.noise_multiplier).event("full", 1.0, neighbouring, unit)

    def noisy(self, correct: float, rng: np.random.Generator) -> float:
        """A count of correct predictions with its noise."""
        count = torch.tensor([float(correct)], dtype=torch.float64)
        Gaussian(self.noise_multiplier)(count, SENSITIVITY, rng, count)
        return float(count)
