"""Counts and sums of variables: one noisy vector of each silo, of which a description of its records is made.

A vector has m histograms, in each of which a record counts once or not at all, and of q variables with values x from -1
to 1 the sums of (x, x^2 - 1), to which a missing value adds nothing. So one record adds m + q parts, each of L2 norm 1
at most, and where it counts as zero it moves the vector by sqrt(m + q). Where it is replaced, two cells of a histogram
are sqrt(2) apart, and two (x, x^2 - 1) are 2 apart (`dpfl_plugin.core.scaling`): sqrt(2 m + 4 q) in all. Of persons,
each adds the mean of what its records add, which has the same bounds.

The vector is one Gaussian release: every number in it has noise of the same standard deviation. That is the rule by
which a budget is shared among statistics; each of the m + q parts has the same share of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.core.grid import Grid, has_room
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.late import torch
from dpfl_plugin.privacy.events import Neighbouring, SampledGaussian, Unit
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.statistics import MOST_RECORDS, STEP

Integers = NDArray[np.int64]
Doubles = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tabulation:
    """What a silo releases.

    Attributes:
        sizes: cells of each histogram. num_moments: q. noise_multiplier: noise standard deviation / sensitivity.
    """

    sizes: tuple[int, ...]
    num_moments: int
    noise_multiplier: float

    @property
    def size(self) -> int:
        """D, the numbers of a vector: the histograms, then the sums of x and x^2 - 1 of each variable."""
        return sum(self.sizes) + 2 * self.num_moments

    def sensitivity(self, neighbouring: Neighbouring) -> float:
        """L2, of a vector; see the module."""
        if neighbouring == "add_or_remove":
            return math.sqrt(len(self.sizes) + self.num_moments)
        return math.sqrt(2 * len(self.sizes) + 4 * self.num_moments)

    def noise_std(self, neighbouring: Neighbouring) -> float:
        """Standard deviation of the noise in each number."""
        return self.noise_multiplier * Grid.of(self.sensitivity(neighbouring), self.size).sensitivity

    def release(self, neighbouring: Neighbouring, unit: Unit = "record") -> SampledGaussian:
        """What the vector of one silo is charged as."""
        return Gaussian(self.noise_multiplier).event("full", 1.0, neighbouring, unit)

    def total(self, codes: Sequence[Integers], values: Sequence[Doubles], owners: Integers) -> Doubles:
        """The vector (D,) without noise, exact in whole steps of `STEP`.

        Args:
            codes: of each histogram the cell of each record (n,), negative where it counts in none.
            values: of each variable with moments x (n,), and nan where it is missing.
            owners: (n,) whose record each is: 0, 1, ... for persons, of whom each counts once in all.
        """
        weight = np.rint(1 / (STEP * np.bincount(owners)[owners])).astype(np.int64)
        parts: list[Integers] = []
        for size, cells in zip(self.sizes, codes, strict=True):
            counts = np.zeros(size, np.int64)
            np.add.at(counts, cells[cells >= 0], weight[cells >= 0])
            parts.append(counts)
        for x in values:
            there = ~np.isnan(x)
            known, of = np.clip(x[there], -1.0, 1.0), weight[there]
            sums = (np.rint(known * of), np.rint((np.square(known) - 1) * of))
            parts.append(np.array([part.astype(np.int64).sum() for part in sums], np.int64))
        return np.concatenate(parts).astype(np.float64) * STEP

    def noisy(
        self,
        codes: Sequence[Integers],
        values: Sequence[Doubles],
        owners: Integers,
        neighbouring: Neighbouring,
        rng: np.random.Generator,
    ) -> Doubles:
        """`total` with its noise.

        Raises:
            UnsupportedError: so many records that their sum does not fit into the integers of the noise.
        """
        num_owners = len(np.unique(owners))
        if num_owners > MOST_RECORDS or not has_room(num_owners, self.size):
            raise UnsupportedError(
                f"counts of {num_owners} records in {self.size} cells do not fit into the integers that noise is added "
                "to. Ask for fewer bins or cross-tables."
            )
        total = torch.from_numpy(self.total(codes, values, owners))
        Gaussian(self.noise_multiplier)(total, self.sensitivity(neighbouring), rng, total)
        noisy: Doubles = total.numpy()
        return noisy
