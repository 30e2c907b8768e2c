"""Noise that is correlated from step to step: banded matrix factorisation, exact on a grid.

Let x_0, x_1, ... be what a silo sums, one batch a step, batches in a cycle of B: step t has batch t mod B, so that a
record takes part in every B-th step and in no other. Instead of x_t + noise the silo releases

    r_t = sum_k c_k x_{t-k} + z_t,    k = 0, ..., b - 1,   c_0 = 1,   b <= B,

z_t independent Gaussian noise, and decodes x^_t = r_t - sum_{k>0} c_k x^_{t-k}, which is x_t plus noise that is
correlated from step to step: sums of many x^_t have much less of it than as many independent releases. (Kairouz et al.
2021; Denisov et al. 2022; Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", arXiv:2306.08153;
McKenna 2024, for banded Toeplitz matrices.)

**Theorem.** Let a record move x_t by at most Delta in norm at the steps that it takes part in, which are at least b
apart and k in number, and not at all at others. With z_t of standard deviation sigma ||c|| Delta, ||c||^2 = sum of
c_k^2, all that was released has the privacy of k Gaussian releases of noise multiplier sigma, however each x_t depends
on what was released before.

**Proof.** Were the x_t chosen in advance: at a step of its own a record moves x_t by some v with ||v|| <= Delta, and
so r_{t+k} by c_k v, for k < b: rows t, ..., t + b - 1, which no other step of its own reaches. The squares of what it
moves all rows by add up to k ||c||^2 Delta^2 at most, and noise of standard deviation sigma ||c|| Delta on each row is
a Gaussian mechanism of noise multiplier sigma / sqrt(k). Adaptively: given r_0, ..., r_{t-1}, and with them the points
at which x_0, ..., x_t are computed, r_t is normal, with the same covariance in both worlds and means that are as far
apart as above, whatever the points are. So the log-likelihood ratio of r_0, ..., r_T is that of such a mechanism with a
shift that depends on the past and is never longer, along a path, than sqrt(k) ||c|| Delta: Denisov et al. 2022, Theorem
2.1. []

The x_t are multiples of g (`core.grid`) and the c_k of 2^-10, so that sum_k c_k x_{t-k} is a multiple of g 2^-10, and
is computed without rounding; noise is rounded to such multiples. So what was proven for real numbers holds for the
bits: k + round(N) is round(k + N) where k is whole.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.core import draws
from dpfl_plugin.core.grid import Grid
from dpfl_plugin.core.rounded_normals import MOST_STD, nearest
from dpfl_plugin.errors import UnsupportedError, require
from dpfl_plugin.late import torch

if TYPE_CHECKING:
    from torch import Tensor

DIGITS: Final = 10
"""Of the c_k: multiples of 2^-10."""
PASSES: Final = 20
"""For which the c_k are the best of their kind. In 5 to 100 passes errors are at most 5 % above those with the c_k that
are best for so many, in 2 passes 11 % (tests/privacy/test_correlation.py)."""
_FINENESS: Final = 64


@dataclass(frozen=True, slots=True)
class Correlation:
    """The c_k.

    Attributes:
        weights: (b,) 2^10 c_k, whole numbers; the first is 2^10.
    """

    weights: tuple[int, ...]

    @property
    def coefficients(self) -> tuple[float, ...]:
        """(b,) c_k."""
        return tuple(math.ldexp(weight, -DIGITS) for weight in self.weights)

    @property
    def bands(self) -> int:
        """b."""
        return len(self.weights)

    @property
    def norm(self) -> float:
        """||c||, rounded up."""
        return math.nextafter(math.sqrt(sum(weight**2 for weight in self.weights)), math.inf) * 2.0**-DIGITS

    @property
    def reach(self) -> int:
        """By how much sums of multiples of g, as multiples of g 2^-10, may be longer than one of them: 2^10 sum of c_k.

        All weights are positive.
        """
        return sum(self.weights)


@functools.lru_cache(maxsize=64)
def correlation(bands: int, batches: int) -> Correlation:
    """Coefficients of ``bands`` steps, for cycles of ``batches``.

    c_k = c_{k-1} (k - 1 + p) / k are those of (1 - x)^-p: independent noise for p = 0, the square root that is optimal
    for a single pass for p = 1/2 (Fichtenberger, Henzinger, Upadhyay 2023). p is that multiple of 1/64 whose sums x_0 +
    ... + x_t have the least mean squared error over `PASSES` passes.

    Raises:
        ConfigError: ``bands`` is not in 1, ..., ``batches``: rows of one record would overlap.
    """
    require(
        1 <= bands <= batches,
        "privacy.bands",
        bands,
        f"be in 1 to {batches}, the number of batches: noise that is correlated over more steps than there are batches "
        "in a pass is not accounted for",
    )
    if bands == 1:
        return Correlation((1 << DIGITS,))
    powers = np.arange(_FINENESS) / _FINENESS
    columns = [np.ones_like(powers)]
    for k in range(1, bands):
        columns.append(columns[-1] * (k - 1 + powers) / k)
    weights = np.rint(np.stack(columns, axis=1) * 2.0**DIGITS)
    best = int(np.argmin(_squared_errors(weights * 2.0**-DIGITS, PASSES * batches)))
    found = [int(weight) for weight in weights[best]]
    while found[-1] == 0:
        found.pop()
    return Correlation(tuple(found))


def relative_error(found: Correlation, steps: int) -> float:
    """The root mean squared error of x^_0 + ... + x^_t, over t < ``steps``, against that of independent noise of the
    same privacy."""
    squared = _squared_errors(np.array([found.coefficients, (1.0,) + (0.0,) * (found.bands - 1)]), steps)
    return math.sqrt(squared[0] / squared[1])


def _squared_errors(coefficients: NDArray[np.float64], steps: int) -> NDArray[np.float64]:
    """(n,) mean over t < ``steps`` of the variance of x^_0 + ... + x^_t, for (n, b) coefficients, times ||c||^2.

    With a = coefficients of 1 / ((1 - x) c(x)), the error of x^_0 + ... + x^_t is sum_j a_j z_{t-j}.
    """
    num, bands = coefficients.shape
    recent = np.zeros((num, bands - 1))
    of_sum, variance, total = np.zeros(num), np.zeros(num), np.zeros(num)
    for step in range(steps):
        inverse = (1.0 if step == 0 else 0.0) - (coefficients[:, 1:] * recent).sum(axis=1)
        recent = np.concatenate([inverse[:, None], recent], axis=1)[:, : bands - 1]
        of_sum = of_sum + inverse
        variance = variance + of_sum**2
        total = total + variance
    return np.asarray(total / steps * (coefficients**2).sum(axis=1))


class Chain:
    """The releases of one silo, each with the b - 1 before it.

    Attributes:
        sums: b - 1 of (d,), x_{t-1}, x_{t-2}, ...: what the records say, without noise. They never leave the silo.
        decoded: b - 1 of (d,), x^_{t-1}, ...: functions of what was released.
        steps: how many releases were made.
    """

    def __init__(
        self, found: Correlation, noise_multiplier: float, sums: Sequence[Tensor], decoded: Sequence[Tensor]
    ) -> None:
        self._found, self._noise_multiplier = found, noise_multiplier
        self.sums, self.decoded, self.steps = list(sums), list(decoded), 0

    def __call__(self, total: Tensor, sensitivity: float, rng: np.random.Generator, out: Tensor) -> None:
        """Write x^_t, of x_t = ``total`` (d,) float64, to ``out`` (d,), of any float type.

        Args:
            sensitivity: L2, of ``total``; the same for every step.

        Raises:
            UnsupportedError: so much noise that its integers have no room.
        """
        self.steps += 1
        if self._noise_multiplier == 0:
            out.copy_(total)
            return
        grid = Grid.of(sensitivity, total.numel())
        fine = math.ldexp(grid.step, -DIGITS)
        std = self._noise_multiplier * self._found.norm * grid.sensitivity / fine
        if not std <= MOST_STD:
            raise UnsupportedError(
                f"privacy.noise_multiplier={self._noise_multiplier:g} for {total.numel()} numbers: integers of 64 bits "
                "have no room for so much noise, correlated. Use less, or bands: 1."
            )
        x = torch.from_numpy(nearest(total.cpu().numpy(), grid.step) * grid.step)
        first, *later = self._found.coefficients
        mixed = x * first
        for c, before in zip(later, self.sums, strict=True):
            mixed.add_(before, alpha=c)  # exact: multiples of ``fine``, of 51 bits at most
        released = torch.empty_like(mixed)
        draws.add_rounded(mixed, fine, std, rng, released)
        for c, before in zip(later, self.decoded, strict=True):  # of what was released, from here on
            released.sub_(before, alpha=c)
        if later:
            self.sums = [x, *self.sums[:-1]]
            self.decoded = [released, *self.decoded[:-1]]
        out.copy_(released)
