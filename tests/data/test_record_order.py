"""The order of records: of their set and not of the file, and with one rank that differs between neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfl_plugin.data.base import Dataset
from dpfl_plugin.data.record_order import ALL_SILOS, OrderKeys, key_of, order_of
from tests.data.coupling import coupled

KEY = bytes(range(32))
cells = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=30)


def of(rows: list[tuple[int, int]], **more: Any) -> Dataset:
    table = np.array(rows, dtype=np.int64)
    return Dataset(table[:, :1].astype(np.float32), table[:, 1], 2, class_names=("a", "b"), **more)


def ranked(data: Dataset, key: bytes = KEY) -> tuple[list[Any], str]:
    """(records by rank, the mark)"""
    order = order_of(key, data, np.arange(len(data.labels)))
    who = np.zeros(len(data.labels)) if data.persons is None else data.persons
    return [(*data.features[row].tolist(), data.labels[row], who[row]) for row in order.rows], order.mark


@settings(max_examples=60, deadline=None)
@given(rows=cells, data=st.data())
def test_it_is_the_order_of_a_set(rows: list[tuple[int, int]], data: Any) -> None:
    assert ranked(of(rows)) == ranked(of(data.draw(st.permutations(rows))))


@settings(max_examples=60, deadline=None)
@given(rows=cells, other=st.tuples(st.integers(0, 3), st.integers(0, 1)), data=st.data())
def test_one_rank_differs_between_neighbours(rows: list[tuple[int, int]], other: tuple[int, int], data: Any) -> None:
    """Whatever the order of each file, with many identical rows, and where the new record is one that is there."""
    changed = [other, *rows[1:]]
    both = coupled(lambda: ranked(of(rows)), lambda: ranked(of(data.draw(st.permutations(changed)))))
    (one, mark), (two, other_mark) = both
    assert sum(a != b for a, b in zip(one, two, strict=True)) == (rows[0] != other)
    assert (mark == other_mark) == (rows[0] == other)


def test_marks_know_sets_again() -> None:
    """Not what classes are numbered, but what they are called; the schema, the key and each row once more do count."""
    rows = [(1, 0), (1, 0), (2, 1)]
    mark = ranked(of(rows))[1]
    renumbered = Dataset(of(rows).features, 1 - of(rows).labels, 2, class_names=("b", "a"))
    assert ranked(renumbered)[1] == mark
    found = {mark, ranked(of([*rows, (1, 0)]))[1], ranked(of(rows), key_of(KEY, 1))[1]}
    found |= {ranked(of(rows, **more))[1] for more in ({"columns": ("x",)}, {"usable": np.array([True, True, False])})}
    found |= {order_of(KEY, of(rows), np.arange(3), "another schema").mark}
    assert len(found) == 6


def test_orders_of_different_marks_are_independent() -> None:
    """Of 200 records that two sets have in common; P(a fault is not seen, or one seen without any) < 1e-9."""
    rows = [(number, 0) for number in range(201)]
    one, two = ([row[0] for row in ranked(of(some))[0]] for some in (rows[:200], [*rows[:199], rows[200]]))
    common = [row for row in one if row in set(two)]
    places = [two.index(row) for row in common]
    assert abs(np.corrcoef(np.arange(len(common)), places)[0, 1]) < 0.45


def test_identical_records_are_on_both_sides_of_a_cut() -> None:
    rows = [(1, 0)] * 50 + [(2, 1)] * 50
    first = ranked(of(rows))[0][:50]
    assert 5 < sum(row[0] == 1 for row in first) < 45  # P(else) < 1e-15


@pytest.mark.parametrize("public", [False, True])
def test_an_order_is_a_permutation(public: bool) -> None:
    rows, data = np.array([4, 9, 2, 30]), of([(number % 3, 0) for number in range(31)])
    assert sorted(order_of(KEY, data, rows, public=public).rows) == sorted(rows)


@settings(max_examples=60, deadline=None)
@given(rows=cells, other=st.tuples(st.integers(0, 3), st.integers(0, 1)), count=st.integers(0, 30))
def test_under_a_public_key_a_part_changes_by_one_record(rows: Any, other: Any, count: int) -> None:
    """Without any coupling."""
    parts = []
    for some in (rows, [other, *rows[1:]]):
        first = order_of(KEY, of(some), np.arange(len(some)), public=True).rows[:count]
        parts.append([some[row] for row in first])
    left = list(parts[1])
    for row in parts[0]:
        if row in left:
            left.remove(row)
    assert len(left) <= 1


def test_persons_are_together_and_in_an_order_that_records_do_not_change() -> None:
    whose = np.repeat(np.arange(12), 3)
    rows = [(number % 4, number % 2) for number in range(36)]
    one = ranked(of(rows, persons=whose))[0]
    two = ranked(of([(3, 1), *rows[1:]], persons=whose))[0]
    persons = [[row[2] for row in found] for found in (one, two)]
    assert persons[0] == persons[1] and persons[0] != sorted(persons[0])
    assert [int(who) for who in persons[0][::3]] == [int(who) for who in persons[0][2::3]]


def test_each_silo_and_seed_has_a_key_of_its_own() -> None:
    keys = [OrderKeys(0), OrderKeys(1), OrderKeys(0, KEY), OrderKeys(0, KEY, bytes(32))]
    data, rows = of([(number, 0) for number in range(9)]), np.arange(9)
    found = [key.order(silo, data, rows).mark for key in keys for silo in (ALL_SILOS, 0, 1)]
    assert found[6] == found[9], "records are dealt to silos by the key that all have"
    assert len(set(found)) == 11
