"""The privacy loss of one release on a grid, from above; what many of them come to: `dpfl_plugin.privacy.pld`."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.privacy.events import SampledGaussian

Array = NDArray[np.float64]
Direction = Literal["symmetric", "remove", "add"]

MAX_POINTS: Final = 2**24
_LEGENDRE: Final[tuple[Array, Array]] = np.polynomial.legendre.leggauss(8)


@dataclass(frozen=True, eq=False)
class StepLoss:
    """The discretised privacy loss of one release.

    Attributes:
        dl: grid spacing.
        first: index of the first grid point: the losses are dl * (first + arange(n)).
        mass: (n,) probabilities under the upper distribution.
        infinite: probability of an infinite loss; all mass adds up to 1.
    """

    dl: float
    first: int
    mass: Array
    infinite: float

    @functools.cached_property
    def index(self) -> NDArray[np.int64]:
        """(n,) grid indices that carry mass."""
        return self.first + np.flatnonzero(self.mass)

    @functools.cached_property
    def _support(self) -> tuple[Array, Array]:
        positive = self.mass[self.mass > 0]
        return self.index.astype(np.float64) * self.dl, np.log(positive)

    @property
    def largest(self) -> float:
        """The largest |loss| on the grid."""
        return self.dl * max(abs(self.first), abs(self.first + self.mass.size - 1))

    def log_mgf(self, tilt: float) -> float:
        """log of E exp(tilt * L; L finite)."""
        return log_sum_exp(tilt * self._support[0] + self._support[1])

    def tilted(self, tilt: float, log_mgf: float) -> Array:
        """(n,) masses times exp(tilt * loss - log_mgf), at ``index``."""
        masses: Array = np.exp(tilt * self._support[0] + self._support[1] - log_mgf)
        return masses


def log_sum_exp(x: Array) -> float:
    top = float(x.max())
    return top + math.log(float(np.exp(x - top).sum()))


def _panels(sigma: float, direction: Direction, reach: float, edges: Array) -> tuple[Array, Array]:
    """Quadrature nodes z (in noise standard deviations) and weights on panels that end at ``edges``.

    Gauss-Legendre with 8 nodes; the panels are so short against the scales of the integrands (1 / reach for the
    normal densities, sigma for the loss, whose nearest singularity is pi sigma off the line) that its relative
    error is below 1e-15.
    """
    shift = 1 / sigma
    low, high = (0.5 * shift if direction == "symmetric" else -reach), shift + reach
    pieces = max(1, math.ceil((high - low) * (1 + reach + shift)))
    inside = edges[(edges > low) & (edges < high)]
    ends = np.unique(np.concatenate([np.linspace(low, high, pieces + 1), inside]))
    half = np.diff(ends) / 2
    nodes, weights = _LEGENDRE
    z = (ends[:-1] + half)[:, None] + half[:, None] * nodes
    return z.ravel().astype(np.float64), (half[:, None] * weights).ravel()


def _loss(z: Array, sigma: float, rate: float) -> Array:
    """log((1 - q) N(0, s^2) + q N(1, s^2)) - log N(0, s^2) at x = s z, with full relative accuracy near 0."""
    t = (z - 0.5 / sigma) / sigma
    near = np.log1p(rate * np.expm1(np.clip(t, -1.0, 30.0)))
    above = t + math.log(rate) + np.log1p((1 - rate) / rate * np.exp(-np.maximum(t, 30.0)))
    if rate == 1:
        return t
    below = np.logaddexp(math.log1p(-rate), math.log(rate) + t)
    return np.where(t > 30, above, np.where(t < -1, below, near))


def _points(loss: Array, sigma: float, rate: float) -> Array:
    """The z at which `_loss` is ``loss``; its inverse, for losses above log(1 - rate)."""
    inner = np.where(loss > 30, loss - math.log(rate), np.log1p(np.expm1(np.minimum(loss, 30.0)) / rate))
    z: Array = sigma * inner + 0.5 / sigma
    return z


def _weighted_losses(
    release: SampledGaussian, direction: Direction, reach: float, edges: Array
) -> list[tuple[Array, Array]]:
    """(losses, masses) pairs that make up the exact loss of one release, up to what lies beyond ``reach``.

    Let N0 = N(0, sigma^2), N1 = N(1, sigma^2), and N = (1 - q) N0 + q N1.
    "remove": the loss of (N, N0); "add": of (N0, N) (Poisson; Zhu, Dong, Wang 2022, Thm 11).
    "symmetric": for batches without replacement, h(a) = q H_b(N1, N0) with b = 1 + (a - 1) / q for a >= 1, and
    h(a) = 1 - a + a h(1/a) below (Balle, Barthe, Gaboardi 2018, Thm 9; Zhu, Dong, Wang 2022). As -h'(a) is the lower
    distribution's mass above log a, h is the profile of the pair whose losses above 0 are those of (N, N0), i.e.
    at x > 1/2, whose losses below 0 mirror them (mass N0), and which is left with (1 - q) (1 - 2 N0(x > 1/2)) at 0.
    """
    sigma, rate = release.noise_multiplier, release.rate
    z, weight = _panels(sigma, direction, reach, edges)
    loss = _loss(z, sigma, rate)
    density = weight / math.sqrt(2 * math.pi)
    lower = density * np.exp(-0.5 * z * z)
    upper = (1 - rate) * lower + rate * density * np.exp(-0.5 * (z - 1 / sigma) ** 2)
    if direction == "remove":
        return [(loss, upper)]
    if direction == "add":
        return [(-loss, lower)]
    atom = (1 - rate) * math.erf(0.5 / sigma / math.sqrt(2))
    return [(loss, upper), (-loss, lower), (np.zeros(1), np.array([atom]))]


def _edges(release: SampledGaussian, direction: Direction, reach: float, dl: float) -> Array:
    sigma, rate = release.noise_multiplier, release.rate
    ends = _loss(np.array([-reach, 1 / sigma + reach]), sigma, rate) / dl
    first = 0 if direction == "symmetric" else math.floor(ends[0])
    last = math.ceil(ends[1])
    if last - first > MAX_POINTS // 8:
        raise UnsupportedError(
            f"noise_multiplier={sigma!r} with rate={rate!r} needs {last - first} grid points for one release: its "
            "losses differ too much in size. Use a larger rate or noise."
        )
    grid = dl * np.arange(first, last + 1, dtype=np.float64)
    inside = grid[grid > math.log1p(-rate)] if rate < 1 else grid
    return _points(inside, sigma, rate)


@functools.lru_cache(maxsize=128)
def step_loss(release: SampledGaussian, direction: Direction, reach: float, dl: float) -> StepLoss:
    """Pessimistic discretisation of the loss of one release: delta is never lowered, at any epsilon.

    Mass m at a loss l in [l_i, l_i + dl] goes to l_i + dl with weight (1 - e^{l_i - l}) / (1 - e^{-dl}), the rest to
    l_i; that keeps its mass m under the upper and m e^{-l} under the lower distribution, and lifts delta to its
    chords in e^epsilon. Mass further than ``reach`` standard deviations out counts as an infinite loss.
    """
    first, last = 0, 0
    split = []
    for loss, mass in _weighted_losses(release, direction, reach, _edges(release, direction, reach, dl)):
        cell = np.floor(loss / dl).astype(np.int64)
        up = np.clip(np.expm1(cell * dl - loss) / math.expm1(-dl), 0.0, 1.0)
        split.append((cell, mass * (1 - up), mass * up))
        first, last = min(first, int(cell.min())), max(last, int(cell.max()) + 1)
    total = np.zeros(last - first + 1)
    for cell, down, up in split:
        total += np.bincount(cell - first, weights=down, minlength=total.size)
        total += np.bincount(cell - first + 1, weights=up, minlength=total.size)
    from scipy.special import ndtr

    infinite = 2 * float(ndtr(-reach))
    assert abs(total.sum() + infinite - 1) < 1e-12 + 2 * infinite, "the masses of a privacy loss add up to one"
    return StepLoss(dl=dl, first=first, mass=total, infinite=infinite)


def renyi_moment(release: SampledGaussian, direction: Direction, order: float) -> float:
    """log E exp((order - 1) L) of the loss L of one release on a sample, from above.

    What lies beyond ``reach`` adds at most 2 exp(a (a - 1) / (2 s^2)) Q(reach - a / s) for order a, noise multiplier s
    and the normal tail Q: at x = s z, |L| <= |t| for the loss t = (z - 1 / (2 s)) / s of the Gaussian itself, and the
    upper density is at most exp(max(0, t)) times the lower one. ``reach`` is such that this is below exp(-50).
    """
    sigma = release.noise_multiplier
    growth = order * (order - 1) / (2 * sigma**2)
    reach = order / sigma + math.sqrt(2 * growth + 100)
    parts = _weighted_losses(release, direction, reach, np.empty(0))
    logs = [
        log_sum_exp((order - 1) * loss[mass > 0] + np.log(mass[mass > 0])) for loss, mass in parts if np.any(mass > 0)
    ]
    return log_sum_exp(np.array([*logs, math.log(2) - 50]))


@functools.lru_cache(maxsize=4096)
def loss_scale(release: SampledGaussian, direction: Direction) -> float:
    """sqrt(E L^2) of the loss of one release."""
    parts = _weighted_losses(release, direction, 10.0, np.empty(0))
    return math.sqrt(sum(float(np.dot(mass, loss**2)) for loss, mass in parts))
