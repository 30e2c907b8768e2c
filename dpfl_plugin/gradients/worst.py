"""Pairs of batches for which rounding moves a sum by most: what an engine's sums are tried on.

They are for a model of one feature that counts, so they try how an engine adds up, not what it computes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from dpfl_plugin.core.balls import inner
from dpfl_plugin.gradients.base import Engine, Records

FEATURES = 16
PLACE = 3  # of the feature that counts
COUNTS = (400, 5000)
LANES = (1, 4, 16)  # how many sums a product may be made of, each of every so many records
SHARES = (0.5,)  # of the records, that bring the sum to where it rounds


def model() -> nn.Module:
    """A record's gradient by it is half its features, with its label for the sign, at parameters 0."""
    return nn.Sequential(nn.Linear(FEATURES, 1, bias=False))


def worst_batches(count: int, clip_norm: float, lanes: int, share: float, ulps: float = 0.4) -> Tensor:
    """(count,) gradients, of one coordinate, the first of which moves a float32 sum by most, if they are added up one
    after another, or in ``lanes`` sums.

    A ``share`` of them adds up to -(2^k + one unit of its last place - C). With -C for the first that is beyond -2^k,
    where ``ulps`` of the last place are rounded away; with C it is not, and they are rounded to half of it.
    """
    gradients = np.zeros(count)
    own = np.arange(0, count, lanes)
    c = inner(clip_norm, torch.float32)
    big = 2.0 ** math.floor(math.log2(c))
    k = math.floor(math.log2(max(2.0, share * len(own))))
    sum_of = big * 2.0**k
    last = sum_of * 2.0**-23
    rest = sum_of + last - c
    many = int(rest // big)
    if many + 2 >= len(own):
        many = len(own) - 2
    gradients[own[1 : many + 1]] = -big
    gradients[own[many + 1]] = -min(big, max(0.0, rest - many * big))
    gradients[own[many + 2 :]] = ulps * last
    gradients[0] = c
    return torch.from_numpy(gradients)


def records_of(gradients: Tensor, dtype: torch.dtype = torch.float32) -> Records:
    """Records of `model` with these gradients (b,), along one coordinate, at parameters 0."""
    features = torch.zeros(len(gradients), FEATURES, dtype=dtype)
    features[:, PLACE] = (2 * gradients.abs()).to(dtype)
    return Records(features, (gradients < 0).to(torch.int64))


def neighbours(gradients: Tensor) -> Iterator[tuple[str, Records, Records, float]]:
    """(how they differ, D, D', Delta / C) of batches that differ in the first record."""
    whole = records_of(gradients)
    replaced = gradients.clone()
    replaced[0] *= -1
    nothing = Records(whole.features.clone(), whole.labels)
    nothing.features[0] = math.nan
    yield "a record is replaced", whole, records_of(replaced), 2.0
    yield "a record counts as zero", whole, nothing, 1.0
    yield "a record counts as zero", records_of(replaced), nothing, 1.0


def moved(engine: Engine, one: Records, other: Records, clip_norm: float) -> float:
    """||S(one) - S(other)|| of an engine of `model`, at parameters 0."""
    y, sums = torch.zeros(FEATURES), []
    for batch in (one, other):
        sums.append(torch.full((FEATURES,), math.nan, dtype=torch.float64))
        with torch.no_grad():
            engine.clipped_sum(y, engine.prepare(batch), clip_norm, sums[-1])
    return float(torch.linalg.vector_norm(sums[0] - sums[1]))


def farthest(
    engine: Engine, counts: tuple[int, ...] = COUNTS, clip_norm: float = 1.0, climbs: int = 8
) -> tuple[float, str]:
    """(the most by which neighbours move a sum, over Delta, how these differ): worst cases for sums of many orders, and
    from the worst of them on uphill."""
    found: list[tuple[float, str, tuple[int, int, float, float]]] = []

    def trial(count: int, lanes: int, share: float, ulps: float) -> None:
        for what, one, other, delta in neighbours(worst_batches(count, clip_norm, lanes, share, ulps)):
            far = moved(engine, one, other, clip_norm) / (delta * clip_norm)
            found.append((far, f"{what} among {count}", (count, lanes, share, ulps)))

    for count, lanes, share in itertools.product(counts, LANES, SHARES):
        trial(count, lanes, share, 0.4)
    rng = np.random.default_rng(0)
    for _ in range(climbs):
        count, lanes, share, ulps = max(found)[2]
        some = max(8, int(count * rng.uniform(0.5, 1.1)))
        nearby = share * rng.uniform(0.7, 1.3), ulps * rng.uniform(0.6, 1.6)
        trial(min(some, max(counts)), int(rng.choice([lanes, *LANES])), min(0.9, nearby[0]), nearby[1])
    return max(found)[:2]
