"""Gradients at the ends of the number formats: records beside which C is next to nothing, squares that vanish."""

from __future__ import annotations

import math
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from dpfl_plugin.core.balls import MOST_RATIO, inner
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.gradients import fused, losses
from dpfl_plugin.gradients.base import Records, squared_norms
from dpfl_plugin.gradients.bookkeeping import BookKeeping
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.gradients.dense import Dense
from dpfl_plugin.gradients.stacked import Pool, Sums
from dpfl_plugin.gradients.vmap import Vmap

WITHOUT = pytest.mark.skipif(fused.kernels() is None, reason="no compiled loops here")
WAYS = [(Vmap, "alone"), (BookKeeping, "alone"), (Dense, "alone"), (Dense, "together")]


def answered(how, kind, model, y, records, clip_norm):
    """(sum, norms (b, n)) of an engine: "alone", by itself; "compiled", by its loops; "together", of two silos."""
    with mock.patch.object(fused, "kernels", return_value=None) if how != "compiled" else mock.MagicMock():
        engine = kind(model, losses.cross_entropy, 2**24)
    batch = engine.prepare(records)
    if how == "together":
        pool = Pool({0: batch, 1: batch})
        bounds = clip_norm if isinstance(clip_norm, tuple) else (clip_norm,)
        of_both = torch.tensor([bounds, bounds], dtype=torch.float64)
        index = pool.index([0, 1], [np.arange(len(batch))] * 2)
        sums, norms = Sums(engine, pool)(torch.stack([y, y]), index, of_both)
        return sums[1], norms[1, : len(batch)]
    out = torch.empty(len(y), dtype=torch.float64)
    norms = engine.clipped_sum(y, batch, clip_norm, out)
    return out, norms.reshape(len(batch), -1)


def steep(slope):
    """(a network, parameters): its first layer does not look at feature 0, by which all derivatives are multiplied;
    they are about ``slope``."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    first = torch.zeros(8, 4)
    first[:, 1] = 1.0
    second = torch.tensor([[1.0], [-1.0], [0.5]]).repeat(1, 8) * slope
    values = {"0.weight": first, "0.bias": torch.ones(8), "2.weight": second, "2.bias": torch.zeros(3)}
    return model, Layout.of(model).flatten(values)


@pytest.mark.parametrize("by_layer", [False, True])
@pytest.mark.parametrize(("kind", "how"), [*WAYS, pytest.param(Dense, "compiled", marks=WITHOUT)])
def test_a_clip_factor_is_a_normal_number_or_the_record_counts_as_zero(kind, how, by_layer):
    """Of gradients 2^100 to 2^131 times as long as C: a factor below 2^-126 is a multiple of 2^-149."""
    clip_norm = 2.0**-36
    bounds = (0.6 * clip_norm, 0.8 * clip_norm) if by_layer else (clip_norm,)
    features = torch.zeros(12, 4)
    features[:, 0] = 2.0**63 * torch.linspace(-0.9, 0.95, 12)
    features[:, 1] = 1e-3
    records, seen = Records(features, torch.ones(12, dtype=torch.int64)), set()
    for power in range(0, 31, 3):
        model, y = steep(2.0**power)
        of_them = tuple(bounds) if by_layer else clip_norm
        large = (2.0**30,) * 2 if by_layer else 2.0**30
        known = answered("alone", Vmap, model, y, records, large)[1].double()
        limits = MOST_RATIO * torch.tensor([inner(bound, y.dtype) for bound in bounds], dtype=torch.float64)
        zero = (known > limits).any(dim=1)
        parts = torch.zeros(len(y), dtype=torch.float64)
        for number in range(len(records)):
            out, norms = answered(how, kind, model, y, records.between(number, number + 1), of_them)
            assert bool(norms.isinf().all()) == bool(norms.isinf().any()) == bool(zero[number]) == (not out.any())
            assert float(out.norm()) <= clip_norm
            parts += out
        out, norms = answered(how, kind, model, y, records, of_them)
        assert torch.equal(norms.isinf().all(dim=1), zero)
        assert float((out - parts).norm()) <= 1e-5 * clip_norm
        seen |= set(zero.tolist())
    assert seen == {True, False}


@pytest.mark.parametrize(("kind", "how"), [*WAYS, (ClosedForm, "alone"), (ClosedForm, "together")])
@pytest.mark.parametrize("clip_norm", [1e-9, 2.0**-40])
def test_squares_of_float64_numbers_that_vanish_do_not_hide_a_gradient_from_clipping(kind, how, clip_norm):
    """Derivatives of 1e-162, whose square is 0, times an input of 1e154 are a gradient of 1e-8."""
    model = nn.Sequential(nn.Linear(2, 2)).double()
    longest = 0.0
    for exponent in np.linspace(180, 187, 30).tolist():  # p = exp(-2 * 186) is 1e-162
        y = torch.tensor([0.0, exponent, 0.0, -exponent, 0.0, 0.0], dtype=torch.float64)
        for number in (1e154, -1e154, 1e153):
            record = Records(torch.tensor([[number, 1.0]], dtype=torch.float64), torch.zeros(1, dtype=torch.int64))
            out, _ = answered(how, kind, model, y, record, clip_norm)
            longest = max(longest, float(abs(number) * 2**0.5 * math.exp(-2 * exponent)))
            assert float(out.norm()) <= clip_norm
    assert longest > 10 * clip_norm


def test_squared_norms_are_never_too_small():
    """Of what is below 1e-154, squares are 0, or have few digits."""
    for power in (-150, -155, -160, -165, -300):
        rows = 1.1 * torch.logspace(power, power + 3, 7, dtype=torch.float64).unsqueeze(0)
        exact = sum(Fraction(value) ** 2 for value in rows[0].tolist())
        assert Fraction(float(squared_norms(rows))) >= exact * (1 - Fraction(1, 2**50))
