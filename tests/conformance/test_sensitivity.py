"""Neighbouring data sets, the same batches, no noise: releases differ by at most Delta, and by all of it at worst."""

import math

import numpy as np
import pytest
import torch

from dpfl_plugin.gradients.base import Records
from tests.conformance.cases import C, Case, cases, claimed_sensitivity, run, zero_records

SAME_BATCHES = [case for case in cases() if not case.secure]  # which can be drawn twice
F = 4
HUGE = torch.tensor([3e5, -1e5, 2e5, 7e5], dtype=torch.float64)  # a gradient a million times C
SMALL = HUGE * 1e-8
NAN = torch.full((F,), math.nan, dtype=torch.float64)
INFINITE = torch.tensor([math.inf, 1.0, -math.inf, 0.0], dtype=torch.float64)
NONE = torch.zeros(F, dtype=torch.float64)
CHANGED = 5  # the record that is changed
REPLACED = [(HUGE, -HUGE), (HUGE, NONE), (NAN, HUGE), (INFINITE, -HUGE), (SMALL, -HUGE), (SMALL, -SMALL)]
REMOVED = [(HUGE, NONE), (NAN, NONE), (INFINITE, NONE), (SMALL, NONE)]


def records(seed: int, changed: torch.Tensor | None = None) -> Records:
    base = zero_records(F)
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(base.features.shape, generator=generator, dtype=torch.float64)
    if changed is not None:
        features[CHANGED] = changed
    return Records(features, base.labels)


def distances(case: Case, before: Records, after: Records) -> tuple[np.ndarray, float]:
    """(rounds, steps) distances of the changed silo's releases; and Delta. The others' must not change at all."""
    others = [records(seed) for seed in range(2)]
    first, second = (run(case, [*others, one], sigma=0.0, steps=8, rounds=2) for one in (before, after))
    assert np.array_equal(first.values[:, :, :2], second.values[:, :, :2])
    assert np.isfinite(first.values).all() and np.isfinite(second.values).all()
    far = np.linalg.norm(first.values[:, :, 2] - second.values[:, :, 2], axis=-1)
    (event,) = {charge.release for charge in first.charges if charge.silo == 2}
    return far, claimed_sensitivity(event)


def rounding(case: Case) -> float:
    """How far below Delta the worst may be: in float32, clipping stays 64 epsilon inside."""
    return 1e-9 if case.dtype == torch.float64 else 2e-5


@pytest.mark.parametrize("case", [c for c in SAME_BATCHES if c.unit == "record"], ids=str)
def test_one_record_changes_a_release_by_at_most_delta_and_the_worst_by_delta(case: Case) -> None:
    far = []
    for before, after in REPLACED if case.neighbouring == "replace_one" else REMOVED:
        moved, delta = distances(case, records(9, before), records(9, after))
        assert (moved <= delta * (1 + 1e-9)).all()
        far.append(moved)
    # Opposite gradients far beyond C (or one and none): all of Delta, in a batch that the record is in.
    assert far[0].max() == pytest.approx(delta, rel=rounding(case))
    drawn = far[0] > 0
    assert np.all(far[0][drawn] >= delta * (1 - rounding(case)))
    if case.sampler == "full":
        assert drawn.all()
    else:
        assert 0 < drawn.mean() < 1, "batches are drawn afresh: the record is in some of them"


@pytest.mark.parametrize("case", [c for c in SAME_BATCHES if c.unit == "silo"], ids=str)
def test_a_silos_data_set_changes_its_release_by_at_most_delta_and_the_worst_by_delta(case: Case) -> None:
    scaled = {
        value: Records(records(9).features * value, records(9).labels) for value in (1e6, -1e6, 1e-3, 0.0, math.nan)
    }
    pairs = [(1e6, -1e6), (1e6, 0.0), (math.nan, 1e6), (1e-3, -1e6)]
    if case.neighbouring == "add_or_remove":
        pairs = [(1e6, 0.0), (math.nan, 0.0), (1e-3, 0.0)]
    far = []
    for before, after in pairs:
        moved, delta = distances(case, scaled[before], scaled[after])
        assert (moved <= delta * (1 + 1e-9)).all()
        far.append(moved)
    assert delta == (2 * C if case.neighbouring == "replace_one" else C)
    np.testing.assert_allclose(far[0], delta, rtol=rounding(case))
