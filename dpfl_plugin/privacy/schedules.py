"""Noise schedules: how the noise of a release compares with `noise_multiplier`, by round and release.

[C] Chang, Seif, Tandon 2022, "Differentially Private Federated Learning with Drift Control" (CISS), section III.

A schedule is a function of the round and of how many releases the round makes, both of which are public: it reads no
data, so that its factors need no privacy. What is added and what is charged come from the same factor; see
`dpfl_plugin.oracle`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import numpy as np

from dpfl_plugin.errors import ConfigError, PluginError, require

_LARGEST: Final = 100 * math.log(10)  # of |log factor|: beyond, there is no noise to speak of, or nothing else


class Schedule(Protocol):
    """Registered as ``dpfl_plugin.schedules``."""

    @property
    def statement(self) -> str:
        """What it does, for the privacy statement, in words."""
        ...

    def factors(self, round: int, num_releases: int) -> Sequence[float]:
        """Noise standard deviation of each release of a round, in units of the configuration's noise.

        Must depend on nothing but its arguments and options: the budget is checked for the same answer that the
        silos will add noise by. A run in which they differ is stopped before anything leaves.

        Args:
            round: from 0.
            num_releases: that a silo makes in this round, as planned; 1 at silo level.

        Returns:
            (num_releases,) positive and finite.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """The same noise for every release. [C] scheme 0."""

    @property
    def statement(self) -> str:
        return "every release has the same noise"

    def factors(self, round: int, num_releases: int) -> Sequence[float]:
        return (1.0,) * num_releases


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometric:
    """The variance of the noise times beta with every round, or with every local step, after the first rounds.

    With rounds r and the tau releases t of a round counted from 1, the variance is sigma_0^2 up to r = threshold; then

        by: round    beta^(r - threshold) sigma_0^2                       [C] scheme 1, Eq. 6
        by: step     beta^(tau (r - threshold - 1) + t - 1) sigma_0^2     [C] scheme 2, Eq. 7

    Attributes:
        beta: factor of the variance; below 1 noise falls, as in [C], above 1 it grows.
        threshold: R_th, the last round of constant noise; 0 for none.
        by: what makes it change.
    """

    beta: float
    threshold: int = 0
    by: Literal["round", "step"] = "round"

    def __post_init__(self) -> None:
        require(0 < self.beta < math.inf, "beta", self.beta, "be positive and finite: the noise variance is times it")
        require(self.threshold >= 0, "threshold", self.threshold, "be at least 0: rounds with constant noise")

    @property
    def statement(self) -> str:
        first = f"up to round {self.threshold} the noise is constant; then " if self.threshold else ""
        return f"{first}its variance is multiplied by {self.beta:.15g} with every {self._unit}"

    @property
    def _unit(self) -> str:
        return {"round": "round", "step": "release of a silo"}[self.by]

    def factors(self, round: int, num_releases: int) -> Sequence[float]:
        """See `Schedule.factors`.

        Raises:
            ConfigError: the noise of this round is too small or too large for a number.
        """
        later = round + 1 - self.threshold
        if later <= 0:
            return (1.0,) * num_releases
        if self.by == "round":
            return (self._factor(later, round),) * num_releases
        first = num_releases * (later - 1)
        return tuple(self._factor(first + step, round) for step in range(num_releases))

    def _factor(self, exponent: int, round: int) -> float:
        if abs(exponent / 2 * math.log(self.beta)) > _LARGEST:
            raise ConfigError(
                f"privacy.schedule.beta={self.beta!r} multiplies the noise of round {round + 1} by a number beyond "
                "1e100, or below 1e-100. Use a beta nearer 1, or fewer rounds."
            )
        return float(self.beta ** (exponent / 2))  # of the standard deviation


def checked_factors(schedule: Schedule, round: int, num_releases: int) -> tuple[float, ...]:
    """A schedule's factors of a round.

    Raises:
        PluginError: they are not so many positive finite numbers.
    """
    factors = tuple(schedule.factors(round, num_releases))
    if type(schedule) is Constant:
        return factors
    if len(factors) != num_releases or not all(_is_factor(factor) for factor in factors):
        raise PluginError(
            f"privacy.schedule: {type(schedule).__name__} gives {factors!r} for the {num_releases} releases of round "
            f"{round + 1}: it must give as many positive finite numbers."
        )
    return tuple(map(float, factors))


def _is_factor(value: object) -> bool:
    return type(value) is not bool and isinstance(value, int | float | np.floating) and bool(0 < value < math.inf)
