"""Private statistics of columns, and counts of labels: one noisy sum of each silo, before the first round.

What a record adds, and that it is of norm 1 at most for each column: `dpfl_plugin.core.scaling`. So with m columns of
which q have a mean, one record moves a silo's sum by sqrt(m) where it counts as zero, and by sqrt(4 q + 2 (m - q))
where it is replaced. Of persons, each adds the mean of what its records add, which has the same bounds. The numbers of
records and persons are public.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from dpfl_plugin.core.grid import has_room
from dpfl_plugin.core.outcomes import CLASSES, Outcome
from dpfl_plugin.core.scaling import OF_LABELS, Measured, Scaling, contributions
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.late import torch
from dpfl_plugin.privacy.events import Neighbouring, SampledGaussian, Unit
from dpfl_plugin.privacy.mechanisms import Gaussian

if TYPE_CHECKING:
    from torch import Tensor

STEP: Final = 2.0**-32  # what a record adds is rounded to whole steps, so that sums of integers are exact
MOST_RECORDS: Final = 2**30
AT_ONCE: Final = 2**14  # records, so that little more than they are is in memory


@dataclass(frozen=True, slots=True)
class Statistics:
    """Which statistics are released, and how.

    Attributes:
        noise_multiplier: noise standard deviation / sensitivity of a silo's sum.
        outcome: what labels are, where they are counted.
    """

    measured: tuple[Measured, ...]
    noise_multiplier: float
    outcome: Outcome = CLASSES

    @property
    def size(self) -> int:
        """D, the numbers of a sum."""
        return sum(one.size for one in self.measured)

    @property
    def counts_labels(self) -> bool:
        return any(one.kind in OF_LABELS for one in self.measured)

    def sensitivity(self, neighbouring: Neighbouring) -> float:
        """By how much one record, or person, moves a sum; see the module."""
        if neighbouring == "add_or_remove":
            return math.sqrt(len(self.measured))
        return math.sqrt(sum(4 if one.kind == "mean" else 2 for one in self.measured))

    def release(self, neighbouring: Neighbouring, unit: Unit = "record") -> SampledGaussian:
        """What the sum of one silo is charged as."""
        return Gaussian(self.noise_multiplier).event("full", 1.0, neighbouring, unit)

    def noisy(
        self,
        features: Tensor,
        real: Tensor,
        neighbouring: Neighbouring,
        rng: np.random.Generator,
        labels: Tensor | None = None,
    ) -> Tensor:
        """The sum (D,) float64 over a silo's records, with its noise.

        Args:
            features: (n, d), or (n, k, d) of n persons; real: (n, k), which of these are records; of records (n, 1).
            labels: (n,) or (n, k) codes of labels (`outcome_counts`), where they are counted.

        Raises:
            UnsupportedError: so many records that their sum does not fit into the integers of the noise.
        """
        if len(features) > MOST_RECORDS or not has_room(len(features), self.size):
            raise UnsupportedError(
                f"private_statistics: a sum over {len(features)} records of {self.size} numbers each does not fit into "
                "the integers that noise is added to. Split the silo."
            )
        steps = torch.zeros(self.size, dtype=torch.int64)
        for rows in self._added(features, real, labels):
            steps += (rows / STEP).round().long().sum(dim=0)
        total = steps.double() * STEP
        Gaussian(self.noise_multiplier)(total, self.sensitivity(neighbouring), rng, total)
        return total

    def _added(self, features: Tensor, real: Tensor, labels: Tensor | None) -> Iterator[Tensor]:
        """What each record or person adds, (some, D) at a time."""
        size = max(1, AT_ONCE // real.shape[1])
        for first in range(0, len(features), size):
            some, there = features[first : first + size].cpu(), real[first : first + size].cpu().double()
            classes = None if labels is None else labels[first : first + size].cpu().flatten()
            flat = some.reshape(there.numel(), -1)
            rows = contributions(flat, self.measured, classes).view(*there.shape, self.size)
            yield (rows * (there / there.sum(dim=1, keepdim=True)).unsqueeze(2)).sum(dim=1)

    def scaling(self, sums: Tensor, num_records: float, num_silos: float, neighbouring: Neighbouring) -> Scaling:
        """What follows from the sum (D,) of the noisy sums of so many silos."""
        noise = self.noise_multiplier * self.sensitivity(neighbouring) * math.sqrt(num_silos)
        return Scaling.by(self.measured, sums, num_records, noise)
