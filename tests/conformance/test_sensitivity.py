"""Neighbouring data sets, the same batches, no noise: releases differ by at most Delta, and by all of it at worst."""

import math

import numpy as np
import pytest
import torch

from dpfl_plugin.gradients.base import Records
from tests.conformance.cases import C, Case, cases, claimed_sensitivity, run, zero_records

SAME_BATCHES = [case for case in cases() if not case.fresh]  # which can be drawn twice
F = 4
HUGE = torch.tensor([3e5, -1e5, 2e5, 7e5], dtype=torch.float64)  # a gradient a million times C
SMALL = HUGE * 1e-8
NAN = torch.full((F,), math.nan, dtype=torch.float64)
INFINITE = torch.tensor([math.inf, 1.0, -math.inf, 0.0], dtype=torch.float64)
NONE = torch.zeros(F, dtype=torch.float64)
CHANGED = 5  # the record that is changed
RECORDS = {"huge": HUGE, "-huge": -HUGE, "none": NONE, "nan": NAN, "inf": INFINITE, "small": SMALL, "-small": -SMALL}
REPLACED = [
    ("huge", "-huge"),
    ("huge", "none"),
    ("nan", "huge"),
    ("inf", "-huge"),
    ("small", "-huge"),
    ("small", "-small"),
]
REMOVED = [("huge", "none"), ("nan", "none"), ("inf", "none"), ("small", "none")]


def records(seed: int, changed: torch.Tensor | None = None) -> Records:
    base = zero_records(F)
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(base.features.shape, generator=generator, dtype=torch.float64)
    if changed is not None:
        features[CHANGED] = changed
    return Records(features, base.labels)


def distances(
    case: Case, given: dict[str, Records], pairs: list[tuple[str, str]], steps: int
) -> tuple[list[np.ndarray], float]:
    """(rounds, steps) distances of the changed silo's releases, by pair; and Delta. Those of others must not change."""
    others = [records(seed) for seed in range(2)]
    needed = dict.fromkeys(name for pair in pairs for name in pair)
    made = {name: run(case, [*others, given[name]], sigma=0.0, steps=steps, rounds=2) for name in needed}
    first = next(iter(made.values()))
    for one in made.values():
        assert np.array_equal(one.values[:, :, :2], first.values[:, :, :2]) and np.isfinite(one.values).all()
    (event,) = {charge.release for one in made.values() for charge in one.charges if charge.silo == 2}
    far = [np.linalg.norm(made[a].values[:, :, 2] - made[b].values[:, :, 2], axis=-1) for a, b in pairs]
    return far, claimed_sensitivity(event)


def rounding(case: Case) -> float:
    """How far below Delta the worst may be: in float32, clipping stays 64 epsilon inside."""
    return 1e-9 if case.dtype == torch.float64 else 2e-5


@pytest.mark.parametrize("case", [c for c in SAME_BATCHES if c.unit == "record"], ids=str)
def test_one_record_changes_a_release_by_at_most_delta_and_the_worst_by_delta(case: Case) -> None:
    given = {name: records(9, changed) for name, changed in RECORDS.items()}
    far, delta = distances(case, given, REPLACED if case.neighbouring == "replace_one" else REMOVED, steps=8)
    assert all((moved <= delta * (1 + 1e-9)).all() for moved in far)
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
    scales = {"huge": 1e6, "-huge": -1e6, "small": 1e-3, "none": 0.0, "nan": math.nan}
    scaled = {name: Records(records(9).features * value, records(9).labels) for name, value in scales.items()}
    pairs = [("huge", "-huge"), ("huge", "none"), ("nan", "huge"), ("small", "-huge")]
    if case.neighbouring == "add_or_remove":
        pairs = [("huge", "none"), ("nan", "none"), ("small", "none")]
    far, delta = distances(case, scaled, pairs, steps=1)
    assert all((moved <= delta * (1 + 1e-9)).all() for moved in far)
    assert delta == (2 * C if case.neighbouring == "replace_one" else C)
    np.testing.assert_allclose(far[0], delta, rtol=rounding(case))
