"""Mechanisms: a value goes in, the noisy value and the event that accounts for it come out together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from dpfl_plugin.core import draws
from dpfl_plugin.errors import require
from dpfl_plugin.privacy.events import Neighbouring, SampledGaussian, Sampler, Unit


class Mechanism(Protocol):
    """Makes a value of known L2 sensitivity private."""

    def event(self, sampler: Sampler, rate: float, neighbouring: Neighbouring, unit: Unit) -> SampledGaussian:
        """What a release will be charged as, if noise is added in proportion to its sensitivity.

        Its noise multiplier is the same for every sampler, rate and unit.
        """
        ...

    def __call__(self, value: Tensor, sensitivity: float, rng: np.random.Generator) -> None:
        """Add noise to ``value`` (d,) in place, of a standard deviation in proportion to ``sensitivity``.

        A noise schedule says another sensitivity than the value's; the release is charged as so much more noise.
        """
        ...


class OnDevice(Protocol):
    """A mechanism whose noise can be computed where the value is (``runtime.noise: device``)."""

    def add(self, value: Tensor, sensitivities: Tensor, normals: Tensor) -> None:
        """As calling the mechanism for each of the rows of ``value`` (m, d), with noise made of ``normals``.

        Args:
            sensitivities: of each row, (m, 1) float64; normals: standard ones, (m, d) float64.
        """
        ...


@dataclass(frozen=True, slots=True)
class Gaussian:
    """value + sensitivity * noise_multiplier * N(0, I). [N] Alg. 1, l. 13.

    The normals are drawn in float64 and rounded once, so that the tails are those of a 53-bit ziggurat.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        require(
            0 <= self.noise_multiplier < float("inf"),
            "privacy.noise_multiplier",
            self.noise_multiplier,
            "be finite and at least 0 (0: no noise, and no privacy guarantee)",
        )

    def event(self, sampler: Sampler, rate: float, neighbouring: Neighbouring, unit: Unit) -> SampledGaussian:
        return SampledGaussian(
            noise_multiplier=self.noise_multiplier, sampler=sampler, rate=rate, neighbouring=neighbouring, unit=unit
        )

    def __call__(self, value: Tensor, sensitivity: float, rng: np.random.Generator) -> None:
        if self.noise_multiplier == 0:
            return
        draws.add_normals(value, sensitivity * self.noise_multiplier, rng)

    def add(self, value: Tensor, sensitivities: Tensor, normals: Tensor) -> None:
        """See `OnDevice`. The normals are scaled in float64 and rounded once."""
        if self.noise_multiplier > 0:
            value.add_((normals * (sensitivities * self.noise_multiplier)).to(value))
