"""What was released, and what may be made of it: functions of it alone, free of charge."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.privacy.noise import SiloNoise
from dpfl_plugin.privacy.rules import PrivacyRules


def check_released(up: Vectors, released: Sequence[Tensor]) -> None:
    """Raise UnsupportedError unless every vector of ``up`` equals one of ``released``: what is sent at silo level."""
    for name, value in up.items():
        if not any(torch.equal(value, known) for known in released):
            raise UnsupportedError(
                f"privacy.unit='silo': this algorithm sends {name!r} without releasing it as it is: no guarantee "
                "would hold. Use unit: record, or an algorithm that sends one released update (fedavg)."
            )


class Squares:
    """||update||^2 of what was released (m, 1), less what the round's noise adds to it in the mean; may be sent.

    A function of what is released, and of the standard deviations of the noise, which are public or, where the clipping
    adapts, functions of what was released before: post-processing, free of charge.

    Attributes:
        made: what was answered.
    """

    def __init__(
        self, rules: Sequence[PrivacyRules], divisors: Sequence[float], noise: SiloNoise, released: Sequence[Tensor]
    ) -> None:
        self._rules, self._divisors, self._noise, self._released = rules, divisors, noise, released
        self.made: list[Tensor] = []

    @torch.no_grad()
    def __call__(self, update: Tensor, scale: float) -> Tensor:
        """Of each silo's ``update`` (m, d).

        Args:
            update: ``scale`` times the sum of the round's gradients and what is known without them; or, at silo level,
                what `release` gave, as it is. Where a gradient is taken at a point that earlier noise has moved, what
                this noise does to it stays in.

        Raises:
            UnsupportedError: at silo level, it is not what `release` gave.
        """
        silo_level = self._rules[0].unit == "silo"
        if silo_level:
            check_released({"update": update}, self._released)
        found = update.to(torch.float64).square().sum(dim=1, keepdim=True)
        for row, (rules, size) in enumerate(zip(self._rules, self._noise.sizes, strict=True)):
            if size == 0 or math.isinf(size):  # inf * 0: no clipping goes with no noise (checked in PrivacyRules)
                continue
            z = rules.mechanism.event("full", 1.0, rules.neighbouring, rules.unit).noise_multiplier
            per_number = z**2 * size * (1.0 if silo_level else (scale / self._divisors[row]) ** 2)
            found[row] -= update.shape[1] * per_number
        self.made.append(found.to(update.dtype))
        return self.made[-1].clone()
