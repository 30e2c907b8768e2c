"""The digest of a silo's records: what tells that they are others."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from dpfl_plugin.data.base import Silo, digest


def silo() -> Silo:
    """Of two records for training and two for tests."""
    x, y = np.arange(4, dtype=np.float32).reshape(2, 2), np.array([0, 1])
    usable = np.array([True, False])
    return Silo(x, y, x + 7, 1 - y, np.array([3, 4]), np.array([4, 3]), usable, ~usable)


@pytest.mark.parametrize("name", [field.name for field in fields(Silo) if field.name != "cut"])
def test_any_value_type_shape_and_order_counts(name: str) -> None:
    given = getattr(silo(), name)
    changed = given.copy()
    changed.flat[-1] = 1 - changed.flat[-1] if given.dtype == bool else changed.flat[-1] + 1
    others = [changed, given[::-1].copy(), given[:1], given.astype(np.float64)]
    found = [digest(replace(silo(), **{name: other})) for other in (given, *others)]
    assert found[0] == digest(silo()) and len(set(found)) == len(found)


def test_a_record_that_moves_from_training_to_tests_counts() -> None:
    one = silo()
    moved = Silo(one.test_x, one.test_y, one.train_x, one.train_y)
    assert digest(moved) != digest(one)


def test_whose_records_they_are_counts() -> None:
    """And persons of training records are not mistaken for those of test records; without any, nothing is added."""
    one, nobody = silo(), replace(silo(), persons=None, test_persons=None)
    assert one.persons is not None
    found = {digest(other) for other in (one, nobody, replace(nobody, persons=one.persons))}
    found.add(digest(replace(nobody, test_persons=one.persons)))
    assert len(found) == 4
