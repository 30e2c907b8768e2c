"""Epsilon once more, from the lines of a ledger alone: nothing of it is the package's.

The privacy loss of a release is put on a grid by its distribution function, half of each cell's mass at each end of it,
and composed by FFT: no bound, but some 1e-4 (relative) from the exact value at such small compositions as tests make.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

Array = NDArray[np.float64]
CELLS = 1 << 18


class Release(NamedTuple):
    """What a ledger says of one."""

    sigma: float
    sampler: str
    rate: float
    neighbouring: str
    unit: str


class Line(NamedTuple):
    """What a ledger says once of one silo; ``noise`` names the bits that were added."""

    round: int
    silo: int
    share: tuple[float, float]
    release: Release
    noise: str


class Factor(NamedTuple):
    """``count`` releases at once, which are made with a probability."""

    sampler: str
    sigma: float
    rate: float
    count: int = 1
    probability: float = 1.0


class Part(NamedTuple):
    """Of one silo: ``count`` releases on a share of its records, which are made with a probability."""

    share: tuple[float, float]
    release: Release
    count: int
    probability: float = 1.0


def read(path: Path) -> tuple[dict[str, Any], dict[Line, tuple[int, str]]]:
    """(facts, {line: (how many releases, what for)}) of a ledger."""
    facts: dict[str, Any] = {}
    held: dict[Line, tuple[int, str]] = {}
    for text in path.read_text().splitlines():
        body = json.loads(text)
        facts = body.get("facts", facts)
        made = body.get("release")
        for ranges, names in body.get("silos", ()):
            release = Release(
                made["noise_multiplier"], made["sampler"], made["rate"], made["neighbouring"], made["unit"]
            )
            for silo in (silo for low, high in ranges for silo in range(low, high + 1)):
                for name in names:
                    line = Line(body["round"], silo, tuple(body["share"]), release, name)
                    held[line] = max(held.get(line, (0, ""))[0], body["count"]), body["kind"]
    return facts, held


def composed(parts: Iterable[Part], delta: float) -> float:
    """The largest epsilon of the groups of a silo's records: those that no chain of shares connects."""
    parts = list(parts)
    groups: list[set[tuple[float, float]]] = []
    for share in {part.share for part in parts}:
        whole = parts[0].release.unit == "silo"
        touched = [one for one in groups if whole or any(share[0] < b and a < share[1] for a, b in one)]
        groups = [one for one in groups if one not in touched] + [{share}.union(*touched)]
    found = [0.0]
    for group in groups:
        factors: Counter[Factor] = Counter()
        cyclic: Counter[tuple[float, float]] = Counter()
        for share, release, count, probability in parts:
            if share not in group:
                continue
            if release.sampler == "cyclic":
                cyclic[release.sigma, release.rate] += count
            elif probability == 1:
                factors[Factor(release.sampler, release.sigma, release.rate)] += count
            else:
                factors[Factor(release.sampler, release.sigma, release.rate, count, probability)] += 1
        for (sigma, rate), steps in cyclic.items():  # a record is in every 1 / rate-th of them
            factors[Factor("full", sigma, 1.0)] += -(-steps // round(1 / rate))
        found.append(epsilon(factors, delta))
    return max(found)


def epsilon(factors: Mapping[Factor, int], delta: float) -> float:
    """Of so many of each factor together."""
    if not factors:
        return 0.0
    if all(one.rate == 1 and one.probability == 1 for one in factors):
        return _gaussian(math.sqrt(sum(n * one.count / one.sigma**2 for one, n in factors.items())), delta)
    sampled = any(one.sampler == "poisson" and one.rate < 1 for one in factors)
    return max(_directed(factors, delta, way) for way in (("remove", "add") if sampled else ("either",)))


def _gaussian(mu: float, delta: float) -> float:
    def excess(e: float) -> float:
        return float(ndtr(mu / 2 - e / mu) - math.exp(e + log_ndtr(-mu / 2 - e / mu)) - delta)

    return float(brentq(excess, 0.0, mu * (mu + 40))) if excess(0.0) > 0 else 0.0


def _distribution(sigma: float, rate: float, way: str) -> Callable[[Array], Array]:
    """Of the loss log(1 - q + q exp((2 x - 1) / (2 sigma^2))), x of the mixture or of N(0, sigma^2)."""

    def point(loss: Array) -> Array:
        inside = (np.expm1(loss) + rate) / rate
        return np.where(inside > 0, sigma**2 * np.log(np.where(inside > 0, inside, 1.0)) + 0.5, -np.inf)

    def with_it(loss: Array) -> Array:
        x = point(loss)
        return np.asarray((1 - rate) * ndtr(x / sigma) + rate * ndtr((x - 1) / sigma))

    def without(loss: Array) -> Array:
        return np.asarray(ndtr(-point(-loss) / sigma))

    if way == "remove":
        return with_it
    if way == "add":
        return without
    return lambda loss: np.where(loss >= 0, with_it(np.maximum(loss, 0)), without(np.minimum(loss, 0)))


def _reach(one: Factor) -> float:
    """No loss beyond it has a probability of 1e-18."""
    return math.log1p(one.rate * math.expm1((1 + 18 * one.sigma) / (2 * one.sigma**2)))


def _directed(factors: Mapping[Factor, int], delta: float, direction: str) -> float:
    reach = max(_reach(one) for one in factors)
    sizes = {one: 4 * one.rate / one.sigma + 0.5 / one.sigma**2 for one in factors}
    spread = math.sqrt(sum(n * one.count * min(_reach(one), sizes[one]) ** 2 for one, n in factors.items()))
    drift = sum(n * one.count * (one.rate / one.sigma) ** 2 for one, n in factors.items())
    step = 2 * (reach + 9 * spread + drift) / CELLS
    cells = min(math.ceil(reach / step), CELLS // 2 - 1)
    places = np.arange(-cells, cells)
    law = np.ones(CELLS // 2 + 1, dtype=complex)
    for one, times in factors.items():
        way = direction if one.sampler == "poisson" and one.rate < 1 else "either"
        below = _distribution(one.sigma, one.rate, way)(np.arange(-cells, cells + 1) * step)
        masses = np.zeros(CELLS)
        for end in (places, places + 1):
            np.add.at(masses, end % CELLS, np.diff(below) / 2)
        masses[-cells] += below[0]
        masses[cells] += 1 - below[-1]
        law *= (1 - one.probability + one.probability * np.fft.rfft(masses) ** one.count) ** times
    weights, losses = np.fft.fftshift(np.fft.irfft(law, CELLS)), np.arange(-CELLS // 2, CELLS // 2) * step

    def excess(e: float) -> float:
        above = losses > e
        return float(weights[above] @ -np.expm1(e - losses[above])) - delta

    return float(brentq(excess, 0.0, losses[-1])) if excess(0.0) > 0 else 0.0


def by_silo(held: Mapping[Line, tuple[int, str]], delta: float) -> dict[int, float]:
    """What the server learned of each silo, by all that the ledger holds."""
    parts: defaultdict[int, list[Part]] = defaultdict(list)
    for line, (count, _) in held.items():
        parts[line.silo].append(Part(line.share, line.release, count))
    return {silo: composed(of, delta) for silo, of in sorted(parts.items())}


def everywhere(
    held: Mapping[Line, tuple[int, str]], silo: int, delta: float, probability: Callable[[int], float] = lambda _: 1.0
) -> float:
    """Of a silo as if it had been in each round, and in each attempt at it, as the silos were that have its rate.

    Args:
        probability: that a silo takes part in a round; attempts at a round that was made again are certain.
    """
    mine = {line.release.rate for line in held if line.silo == silo}
    made: dict[tuple[int, str, tuple[float, float], Release], int] = {}
    names: defaultdict[int, set[str]] = defaultdict(set)
    beside: dict[tuple[int, tuple[float, float], Release], int] = {}
    for line, (count, kind) in held.items():
        if line.release.rate not in mine:
            continue
        if kind == "round":
            names[line.round].add(line.noise)
            key = line.round, line.noise, line.share, line.release
            made[key] = max(made.get(key, 0), count)
        elif line.silo == silo:
            at = line.round, line.share, line.release
            beside[at] = beside.get(at, 0) + count
    parts = [Part(share, release, count) for (_, share, release), count in beside.items()]
    for (round_, _, share, release), count in made.items():
        parts.append(Part(share, release, count, 1.0 if len(names[round_]) > 1 else probability(round_)))
    return composed(parts, delta)
