"""The digest of a silo's records: what tells that they are others."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from dpfl_plugin.data.base import Silo, digest, training_digest


def silo() -> Silo:
    """Of two records for training and two for tests."""
    x, y = np.arange(4, dtype=np.float32).reshape(2, 2), np.array([0, 1])
    return Silo(x, y, x + 7, 1 - y, np.array([3, 4]), np.array([4, 3]))


@pytest.mark.parametrize("name", [field.name for field in fields(Silo)])
def test_any_value_type_shape_and_order_counts(name: str) -> None:
    """Labels as well as features: with the noise of other labels, the difference of two releases is the gradients'."""
    given = getattr(silo(), name)
    changed = given.copy()
    changed.flat[-1] += 1
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
    assert len({training_digest(other) for other in (one, nobody, replace(one, persons=one.persons[::-1]))}) == 3


def test_training_records_are_named_by_their_values() -> None:
    """In float32 or float64: noise does not depend on how a platform holds them. Any value, label and order counts."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((70_000, 3)).astype(np.float32), rng.integers(0, 3, 70_000)
    one = Silo(x, y, x[:1], y[:1])
    assert training_digest(one) == training_digest(replace(one, train_x=x.astype(np.float64), test_x=x[:2]))
    near = x.astype(np.float64)
    near[-1, -1] += 1e-12
    swapped = x.copy()
    swapped[[0, 1]] = x[[1, 0]]
    changes = {"train_x": (near, swapped, x[1:]), "train_y": (np.where(np.arange(70_000) == 9, 1 - y, y), y[1:])}
    others = [replace(one, **{name: value}) for name, values in changes.items() for value in values]
    found = {training_digest(other) for other in [one, *others]}
    assert len(found) == 1 + len(others)
