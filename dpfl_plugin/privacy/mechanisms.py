"""Mechanisms: a value goes in, the noisy value and the event that accounts for it come out together."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dpfl_plugin.core import draws
from dpfl_plugin.core.grid import Grid
from dpfl_plugin.core.rounded_normals import MOST_STD
from dpfl_plugin.errors import UnsupportedError, require
from dpfl_plugin.privacy.events import Neighbouring, SampledGaussian, Sampler, Unit

if TYPE_CHECKING:
    from torch import Tensor


class Mechanism(Protocol):
    """Makes a value of known L2 sensitivity private."""

    def event(self, sampler: Sampler, rate: float, neighbouring: Neighbouring, unit: Unit) -> SampledGaussian:
        """What a release will be charged as, if noise is added in proportion to its sensitivity.

        Its noise multiplier is the same for every sampler, rate and unit.
        """
        ...

    def __call__(
        self,
        total: Tensor,
        sensitivity: float,
        rng: np.random.Generator,
        out: Tensor,
        factor: float = 1.0,  # pragma: no mutate
    ) -> None:
        """Write ``total`` (d,) to ``out`` (d,) with noise of a standard deviation in proportion to ``sensitivity``.

        Args:
            total: float64; arithmetic moves it by at most sensitivity (1 + `grid.SUM_SLACK`). May be ``out``.
            out: of any float type; what it has too few digits for is rounded after the noise.
            factor: by a noise schedule, of the noise; the release is charged as so much more noise.
        """
        ...


class OnDevice(Protocol):
    """A mechanism whose noise can be drawn where the value is: Gaussian, in whole steps of a grid."""

    def in_steps(self, sensitivity: float, dimension: int, factor: float) -> tuple[float, float]:
        """(The grid's step, the noise's standard deviation in steps) for a value of so many numbers."""
        ...


def can_draw_on_device(mechanism: Mechanism) -> bool:
    """Whether it is `OnDevice`: a class that changes what another's call adds has to say anew what its steps are."""
    own = next((kind for kind in type(mechanism).__mro__ if vars(kind).keys() & {"__call__", "in_steps"}), object)
    return "in_steps" in vars(own)


@dataclass(frozen=True, slots=True)
class Gaussian:
    """value + sensitivity * noise_multiplier * N(0, I), rounded to a grid. [N] Alg. 1, l. 13.

    The value is rounded to whole steps of a `Grid` and noise of whole steps is added, round(N(0, s^2)) with s in
    steps. k + round(N) is round(k + N) where k is whole: a function of the Gaussian mechanism's output in real
    numbers, with the sensitivity that the grid has (Delta', see `core.grid`). So every accountant of that mechanism
    holds for the bits that leave. The normals are exact: see `core.rounded_normals`.
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

    def __call__(
        self, total: Tensor, sensitivity: float, rng: np.random.Generator, out: Tensor, factor: float = 1.0
    ) -> None:
        """See `Mechanism`.

        Raises:
            UnsupportedError: so much noise that its integers have no room.
        """
        if self.noise_multiplier == 0:
            out.copy_(total)
            return
        draws.add_rounded(total, *self.in_steps(sensitivity, total.numel(), factor), rng, out)

    def in_steps(self, sensitivity: float, dimension: int, factor: float) -> tuple[float, float]:
        """See `OnDevice`."""
        return _in_steps(self.noise_multiplier, sensitivity, dimension, factor)


@functools.lru_cache(maxsize=1024)  # the same at each step of a round, where it would take as long as 2,000 numbers
def _in_steps(noise_multiplier: float, sensitivity: float, dimension: int, factor: float) -> tuple[float, float]:
    """(the grid's step, the noise's standard deviation in steps)."""
    grid = Grid.of(sensitivity, dimension)
    std = noise_multiplier * factor * grid.sensitivity / grid.step
    if not std <= MOST_STD:
        raise UnsupportedError(
            f"privacy.noise_multiplier={noise_multiplier:g}, times {factor:g} by the schedule, for {dimension} "
            "numbers: integers of 64 bits have no room for so much noise. Use less: it leaves nothing of a value."
        )
    return grid.step, std
