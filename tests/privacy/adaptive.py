"""People who look at what was released before they decide what is released next: how much they learn, exactly."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import brentq
from scipy.signal import fftconvolve
from scipy.special import log_ndtr

from dpfl_plugin.privacy.events import SampledGaussian

Array = NDArray[np.float64]


def poisson(noise_multiplier: float, rate: float = 1.0) -> SampledGaussian:
    return SampledGaussian(
        noise_multiplier=noise_multiplier,
        sampler="poisson" if rate < 1 else "full",
        rate=rate,
        neighbouring="add_or_remove",
    )


def gaussian_profile(mu: float, log_a: Array) -> Array:
    """H_a(N(mu, 1), N(0, 1))."""
    first, second = log_ndtr(mu / 2 - log_a / mu), log_a + log_ndtr(-mu / 2 - log_a / mu)
    return np.asarray(np.exp(first) * -np.expm1(np.minimum(second - first, 0.0)))


def removal_profile(release: SampledGaussian, log_a: Array) -> Array:
    """H_a of ((1 - q) N(0, s^2) + q N(1, s^2), N(0, s^2)): q H_b(N(1, s^2), N(0, s^2)) with b = (a - 1 + q) / q."""
    q, a = release.rate, np.exp(np.minimum(log_a, 600.0))
    b = (a - 1 + q) / q
    inside = q * gaussian_profile(1 / release.noise_multiplier, np.log(np.maximum(b, 1e-300)))
    return np.asarray(np.where(b > 0, inside, 1 - a))


def delta_of_a_choice(first: SampledGaussian, then: Iterable[SampledGaussian], epsilon: float) -> float:
    """Delta at epsilon, when what the first release shows decides which one follows, if any."""
    s, q = first.noise_multiplier, first.rate
    x = np.linspace(-9 * s, 1 + 9 * s, 20_001)
    loss = np.logaddexp(math.log1p(-q) if q < 1 else -np.inf, math.log(q) + (2 * x - 1) / (2 * s * s))
    mass = stats.norm.pdf(x, 0, s) * np.exp(loss) * (x[1] - x[0])
    best = np.maximum(0.0, -np.expm1(np.minimum(0.0, epsilon - loss)))
    for release in then:
        best = np.maximum(best, removal_profile(release, epsilon - loss))
    return float(mass @ best)


def epsilon_of_a_choice(first: SampledGaussian, then: Sequence[SampledGaussian], delta: float) -> float:
    return float(brentq(lambda epsilon: delta_of_a_choice(first, then, epsilon) - delta, 0.0, 20.0))


def least_noise(rate: float, fits: Callable[[SampledGaussian], bool]) -> SampledGaussian:
    """The release at this rate with the least noise that fits."""
    low, high = math.log(0.08), math.log(50.0)
    for _ in range(11):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(poisson(math.exp(middle), rate)) else (middle, high)
    return poisson(math.exp(high), rate)


def delta_of_a_stop(said: Sequence[float], mu: float) -> float:
    """The largest delta of who stops after so many Gaussian releases of mean ``mu`` as the losses suggest.

    Args:
        said: epsilon that is said after 1, 2, ... releases.

    The best stop by dynamic programming: after n releases of loss L it is worth max(0, 1 - exp(said - L)). Losses are
    rounded to a grid, whose variance is 3e-5 of their own.
    """
    cell = mu / 50
    half = math.ceil((max(1.0, min(said[-1], 60.0)) + 12 * mu * math.sqrt(len(said))) / cell)
    losses = (np.arange(2 * half + 1) - half) * cell
    reach = math.ceil(9 * mu / cell)
    steps = np.arange(-reach, reach + 1)
    ends = ((np.concatenate([steps, [reach + 1]]) - 0.5) * cell - mu**2 / 2) / mu
    mass = np.diff(stats.norm.cdf(ends))
    value = np.zeros_like(losses)
    for epsilon in reversed(said):
        value = np.maximum(value, np.maximum(0.0, -np.expm1(np.minimum(0.0, epsilon - losses))))
        padded = np.concatenate([np.full(reach, value[0]), value, np.full(reach, value[-1])])
        value = fftconvolve(padded, mass[::-1], mode="valid")
    return float(value[half])
