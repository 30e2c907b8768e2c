"""Persons stay together: in a silo, in training or tests, and as one row where they are protected."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfl_plugin.data import partition
from dpfl_plugin.data.base import Dataset, Federation, Integers
from dpfl_plugin.data.federation import FederationSpec, build_federation
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.data.files import csv
from dpfl_plugin.data.persons import NO_RECORD, numbers
from dpfl_plugin.errors import ConfigError, DataError, DpflError, UnsupportedError
from tests.data.coupling import coupled


def of(persons: Integers, labels: Integers | None = None, groups: Integers | None = None, **more: Any) -> Dataset:
    """A data set whose record i has the features (i, its person)."""
    x = np.stack([np.arange(len(persons)), persons], axis=1).astype(np.float32)
    y = np.arange(len(persons)) % 3 if labels is None else labels
    return Dataset(x, y, 3, groups, persons=persons, **more)


def build(data: Dataset, **changes: Any) -> Federation:
    def plugin(source: DataSource) -> Dataset:
        return data

    options: dict[str, Any] = {
        "dataset": plugin,
        "dataset_options": {},
        "partitioner": partition.iid,
        "partition_options": {},
        "num_silos": 3,
        "seed": 1,
    }
    return build_federation(FederationSpec(**(options | changes)))


def with_groups(data: Dataset) -> Dataset:
    return replace(data, groups=np.zeros(len(data.labels), np.int64))


some_persons = st.lists(st.integers(1, 6), min_size=20, max_size=40).flatmap(
    lambda counts: st.permutations([p for p, n in enumerate(counts) for _ in range(n)])
)
DEALERS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (partition.iid, {}),
    (partition.quantity_skew, {"alpha": 1.0, "min_records": 2}),
    (partition.dirichlet, {"alpha": 5.0, "min_records": 2}),
    (partition.similarity, {"gamma": 20}),
]


@settings(max_examples=25, deadline=None)
@given(persons=some_persons, dealer=st.sampled_from(DEALERS), fraction=st.sampled_from([0.1, 0.2, 0.5]))
def test_a_person_is_at_one_silo_in_one_part(persons: list[int], dealer: Any, fraction: float) -> None:
    """With every record that it has, whatever partition and split; and its number goes where its records go."""
    whose = np.array(persons, dtype=np.int64)
    fed = build(of(whose), partitioner=dealer[0], partition_options=dealer[1], test_fraction=fraction)
    places: dict[int, set[tuple[int, str]]] = {}
    records: list[int] = []
    for i, silo in fed.by_id().items():
        for part, x, mine in (("train", silo.train_x, silo.persons), ("test", silo.test_x, silo.test_persons)):
            assert mine is not None and x[:, 1].astype(int).tolist() == mine.tolist()
            records += x[:, 0].astype(int).tolist()
            for person in mine.tolist():
                places.setdefault(person, set()).add((i, part))
    assert all(len(found) == 1 for found in places.values())
    assert sorted(records) == list(range(len(whose)))


@settings(max_examples=25, deadline=None)
@given(persons=some_persons, most=st.integers(1, 7), data=st.data())
def test_a_row_depends_on_its_own_person_alone(persons: list[int], most: int, data: Any) -> None:
    """Somebody else in one person's place, with as many records as one likes, in a file in another order: every other
    row, and where it is, stays as it was. So neighbours differ in one row."""
    whose = np.array(persons, dtype=np.int64)
    changed = data.draw(st.sampled_from(sorted(set(persons))))
    somebody = data.draw(st.sampled_from([changed, -1, 10**6, max(persons) + 1]))
    count = data.draw(st.integers(0, 8))  # beside the first one, which is where it was
    first = int(np.argmax(whose == changed))
    kept = (whose != changed) | (np.arange(len(whose)) == first)
    one = of(whose)
    x, y, renamed = one.features.copy(), one.labels.copy(), whose.copy()
    x[first], y[first], renamed[first] = -1, 2, somebody
    new = np.concatenate([renamed[kept], np.full(count, somebody)])
    shuffled = np.random.default_rng(count).permutation(len(new))
    other = Dataset(
        np.concatenate([x[kept], np.full((count, 2), -1, np.float32)])[shuffled],
        np.concatenate([y[kept], np.full(count, 2)])[shuffled],
        3,
        persons=new[shuffled],
    )
    natural = {"partitioner": partition.natural, "num_silos": None, "max_records_per_person": most}
    both = coupled(*(partial(build, with_groups(which), **natural) for which in (one, other)))
    different = 0
    for a, b in zip(*(fed.silos for fed in both), strict=True):
        assert a.persons is not None and b.persons is not None
        assert np.where(a.persons == changed, somebody, a.persons).tolist() == b.persons.tolist()
        assert a.train_x.shape == b.train_x.shape == (len(a.persons), most, 2)
        for row, person in enumerate(a.persons.tolist()):
            same = np.array_equal(a.train_x[row], b.train_x[row]) and np.array_equal(a.train_y[row], b.train_y[row])
            assert same or person == changed
            different += not same
    assert different <= 1


def test_that_persons_decide_what_is_held_out_is_said_where_records_are_protected() -> None:
    told = [
        [caveat for caveat in build(data, **changes).caveats if "is what it says, not whose it is" in caveat]
        for data, changes in ((of(EACH_ALONE), {}), (of(EACH_ALONE), {"max_records_per_person": 2}), (NOBODY, {}))
    ]
    assert [len(found) for found in told] == [1, 0, 0]


def test_rows_hold_the_persons_records() -> None:
    """At most k of them; of more than k any are kept, not always the first of the file; padding has no label."""
    whose = np.repeat(np.arange(60), np.arange(60) % 5 + 1)
    (silo,) = build(of(whose), num_silos=1, max_records_per_person=3).silos
    assert silo.persons is not None and len(silo.persons) == 48
    first = 0
    for row, person in enumerate(silo.persons.tolist()):
        mine = np.flatnonzero(whose == person)
        real = silo.train_y[row] != NO_RECORD
        held = silo.train_x[row, real, 0].astype(int)
        assert real.sum() == min(3, len(mine)) and real[: real.sum()].all()
        assert set(held) <= set(mine) and len(set(held)) == len(held)
        assert silo.train_y[row, real].tolist() == (held % 3).tolist()
        assert (silo.train_x[row, ~real] == silo.train_x[row, 0]).all()
        first += len(mine) > 3 and set(held) == set(mine[:3])
    assert 0 < first < 15


def test_a_name_has_one_number_everywhere() -> None:
    found = numbers(["a", "b", "a", "7"])
    assert found.dtype == np.int64 and (found >= 0).all()
    assert found[0] == found[2] and len(set(found.tolist())) == 3 and numbers(["7"])[0] == found[3]


def test_a_whole_number_is_one_person_however_files_write_it() -> None:
    """As pandas writes a column in which a cell was missing, R 100000, numpy.savetxt any number; a spreadsheet drops
    zeros, and arrays pad words."""
    written: list[object] = [17, "17", "17.0", "0017", " 17 ", b"17", np.str_("17"), np.bytes_(b"17.00"), 17.0, "+17"]
    assert len(set(numbers([*written, "1.7e1", "1.700000000000000000e+01", "170e-1"]).tolist())) == 1
    assert len(set(numbers(["1e+05", 100000, "100000.0", "1E5"]).tolist())) == 1
    large = ["12345678901234567890", "12345678901234567891"]
    others = ["17", "18", "170", "-17", "17.5", "P17", "1.75e1", "1e999999", "e5", "", "17-0", *large]
    assert len(set(numbers(others).tolist())) == len(others)


@pytest.mark.parametrize("otherwise", ["{}.0", "{}e+00"])
def test_a_person_whom_two_files_write_otherwise_is_at_two_silos(tmp_path: Path, otherwise: str) -> None:
    for name, number in {"a": "{}", "b": otherwise}.items():
        lines = [f"{row}.{len(number)},{row % 2},{number.format(row // 2)}" for row in range(20)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["x,label,id", *lines]))
    source = DataSource(base=tmp_path)
    read = functools.partial(csv, source, files=["a.csv", "b.csv"], person_column="id")
    with pytest.raises(UnsupportedError, match="10 persons have records at more than one silo"):
        build(read(), **NATURAL, max_records_per_person=2)


GROUPS = np.arange(40) // 20
EACH_ALONE = np.arange(40) // 2
AT_BOTH = np.where(np.arange(40) == 39, 0, EACH_ALONE)
NATURAL: dict[str, Any] = {"partitioner": partition.natural, "num_silos": None}


def test_a_person_at_two_silos_is_refused_unless_said_so() -> None:
    data = of(AT_BOTH, groups=GROUPS)
    assert len(build(data, **NATURAL).silos) == 2  # where records are protected it may be
    with pytest.raises(UnsupportedError, match=r"one person has records at more than one silo.*shared_persons"):
        build(data, **NATURAL, max_records_per_person=2)
    fed = build(data, **NATURAL, max_records_per_person=2, shared_persons="per_silo", test_fraction=0.05)
    for silo in fed.silos:
        assert silo.persons is not None and silo.test_persons is not None
        assert 0 in silo.persons or 0 in silo.test_persons
    fed = build(of(EACH_ALONE, groups=GROUPS), **NATURAL, max_records_per_person=2)
    assert [len(silo.train_y) for silo in fed.silos] == [8, 8]


NOBODY = Dataset(np.ones((40, 2), np.float32), np.arange(40) % 3, 3)
REFUSED: dict[str, tuple[Dataset, dict[str, Any], type[DpflError], str]] = {
    "nobody": (NOBODY, {"max_records_per_person": 2}, ConfigError, "do not say whose records"),
    "none of a person": (of(EACH_ALONE), {"max_records_per_person": 0}, ConfigError, "max_records_per_person=0"),
    "limit": (of(EACH_ALONE), {"max_records_per_silo": 9}, UnsupportedError, "max_records_per_silo=9"),
    "other type": (of(EACH_ALONE.astype(np.int32)), {}, DataError, "persons must be int64"),
    "other length": (
        Dataset(NOBODY.features, NOBODY.labels, 3, persons=EACH_ALONE[1:]),
        {},
        DataError,
        "persons must be int64, one for each of 40",
    ),
    "one person": (of(np.zeros(40, np.int64)), {"num_silos": 1}, DataError, "persons leaves none"),
    "in both parts": (of(EACH_ALONE, test=of(EACH_ALONE[-4:])), {"test": "own"}, DataError, "2 persons are"),
    "unknown in tests": (of(EACH_ALONE, test=NOBODY), {"test": "own"}, DataError, "the test part does not"),
}


@pytest.mark.parametrize(("data", "changes", "error", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(data: Dataset, changes: dict[str, Any], error: type[DpflError], says: str) -> None:
    with pytest.raises(error, match=says):
        build(data, **changes)


def test_own_test_part_of_other_persons() -> None:
    fed = build(of(EACH_ALONE, test=of(EACH_ALONE + 100)), test="own")
    assert all(silo.test_persons is not None and silo.test_persons.min() >= 100 for silo in fed.silos)
