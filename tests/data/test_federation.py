"""The whole pipeline: every record is used once, nothing leaks from test to training, errors name the silo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfl_plugin.data import partition
from dpfl_plugin.data.base import Dataset, Federation
from dpfl_plugin.data.federation import FederationSpec, build_federation
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.data.files import csv
from dpfl_plugin.data.synthetic import synthetic
from dpfl_plugin.errors import ConfigError, DataError, PluginError


def numbered(n: int, test: int = 0, groups: bool = False) -> Callable[..., Dataset]:
    """A data set whose record i has the features (i, 1), and whose test records count from 10^6."""

    def make(count: int, first: int) -> dict[str, Any]:
        x = np.stack([np.arange(first, first + count), np.ones(count)], axis=1).astype(np.float32)
        return {
            "features": x,
            "labels": np.arange(count) % 3,
            "num_classes": 3,
            "groups": np.arange(count) % 7 if groups else None,
        }

    def plugin(source: DataSource) -> Dataset:
        return Dataset(**make(n, 0), test=Dataset(**make(test, 10**6)) if test else None, caveats=("made up",))

    return plugin


def build(dataset: Callable[..., Any], **changes: Any) -> Federation:
    options: dict[str, Any] = {
        "dataset": dataset,
        "dataset_options": {},
        "partitioner": partition.iid,
        "partition_options": {},
        "num_silos": 4,
        "seed": 1,
    }
    return build_federation(FederationSpec(**(options | changes)))


def ids(x: np.ndarray) -> list[int]:
    return [int(i) for i in x[:, 0]]


@settings(max_examples=40, deadline=None)
@given(n=st.integers(40, 300), M=st.integers(1, 10), fraction=st.sampled_from([0.1, 0.2, 0.25, 0.3, 0.5]))
def test_every_record_is_in_one_silo_in_one_part(n: int, M: int, fraction: float) -> None:
    fed = build(numbered(n), num_silos=M, test_fraction=fraction)
    assert sorted(i for silo in fed.silos for i in ids(silo.train_x) + ids(silo.test_x)) == list(range(n))
    for silo in fed.silos:
        assert silo.train_y.tolist() == [i % 3 for i in ids(silo.train_x)]
        assert silo.test_y.tolist() == [i % 3 for i in ids(silo.test_x)]
        size = len(silo.train_x) + len(silo.test_x)
        assert len(silo.test_x) * 100 >= round(100 * fraction) * size > (len(silo.test_x) - 1) * 100


def test_split_sizes_are_exact_decimals() -> None:
    """0.07 * 100 is 7.000000000000001 in binary; and 80 % of 2168 records are the paper's 1734 (Gao et al.)."""
    assert len(build(numbered(100), num_silos=1, test_fraction=0.07).silos[0].test_x) == 7
    assert len(build(numbered(2168), num_silos=1).silos[0].train_x) == 1734


def test_same_seed_same_federation_other_seed_another() -> None:
    one, again, other = (build(numbered(100), seed=seed) for seed in (1, 1, 2))
    assert all(ids(a.train_x) == ids(b.train_x) for a, b in zip(one.silos, again.silos, strict=True))
    assert any(sorted(ids(a.test_x)) != sorted(ids(b.test_x)) for a, b in zip(one.silos, other.silos, strict=True))


def quarters(y: Any, num_silos: Any, rng: Any, groups: Any = None) -> list[np.ndarray]:
    return np.split(np.arange(400), 4)


def test_silos_of_equal_size_are_not_split_alike() -> None:
    fed = build(numbered(400), partitioner=quarters)
    assert len({tuple(sorted(i % 100 for i in ids(silo.test_x))) for silo in fed.silos}) == 4


def test_own_test_part_is_dealt_out_once_each() -> None:
    fed = build(numbered(100, test=31), test="own")
    assert sorted(i for silo in fed.silos for i in ids(silo.train_x)) == list(range(100))
    assert sorted(i for silo in fed.silos for i in ids(silo.test_x)) == list(range(10**6, 10**6 + 31))
    sizes = [len(silo.test_x) for silo in fed.silos]
    assert max(sizes) - min(sizes) <= 1


def test_own_test_part_follows_natural_silos() -> None:
    options = {"partitioner": partition.natural, "test": "own"}
    fed = build(numbered(100, test=31, groups=True), num_silos=None, **options)
    assert len(fed.silos) == 7
    chosen = build(numbered(100, test=31, groups=True), num_silos=3, **options)
    for silo in (*fed.silos, *chosen.silos):
        (group,) = {i % 7 for i in ids(silo.train_x)}
        assert sorted(ids(silo.test_x)) == [10**6 + i for i in range(31) if i % 7 == group]


def test_limit_keeps_that_many_records_at_random() -> None:
    fed = build(numbered(400), max_records_per_silo=30)
    assert [(len(s.train_x), len(s.test_x)) for s in fed.silos] == [(24, 6)] * 4
    kept = build(numbered(400), num_silos=1, max_records_per_silo=50).silos[0]
    assert max(ids(kept.train_x)) > 200  # P(all of 40 in the first half) < 1e-12
    own = build(numbered(400, test=40), max_records_per_silo=30, test="own")
    assert [(len(s.train_x), len(s.test_x)) for s in own.silos] == [(30, 10)] * 4


def test_synthetic_data_through_the_whole_pipeline() -> None:
    fed = build(
        synthetic,
        dataset_options={"alpha": 1.0, "beta": 1.0, "records_per_silo": 50},
        partitioner=partition.natural,
        num_silos=5,
        preprocess=["standardise", "unit_norm"],
    )
    assert fed.name == "synthetic"
    assert fed.feature_shape == (40,)
    assert fed.num_classes == 10
    assert [(len(s.train_x), len(s.test_x)) for s in fed.silos] == [(40, 10)] * 5
    assert all(np.allclose(np.linalg.norm(s.test_x, axis=1), 1, atol=1e-6) for s in fed.silos)
    assert len(fed.caveats) == 1
    assert fed.silos[0].train_x.dtype == np.float32


def test_arrays_in_fortran_order_are_preprocessed_too() -> None:
    def fortran(source: DataSource) -> Dataset:
        x = np.asfortranarray(np.random.default_rng(0).normal(size=(60, 2, 3)).astype(np.float32))
        return Dataset(x, np.arange(60) % 2, 2)

    fed = build(fortran, preprocess=["unit_norm"])
    assert all(np.allclose(np.linalg.norm(s.train_x.reshape(len(s.train_x), -1), axis=1), 1) for s in fed.silos)


def test_caveats_of_data_and_steps_are_kept() -> None:
    fed = build(numbered(100), preprocess=["standardise"])
    assert fed.caveats[0] == "made up"
    assert fed.caveats[1].startswith("standardise:")


def one_record_in_silo_2(y: Any, num_silos: Any, rng: Any, groups: Any = None) -> list[np.ndarray]:
    return [np.arange(10), np.arange(10, 20), np.array([20]), np.arange(21, 40)]


def empty_silo(y: Any, num_silos: Any, rng: Any, groups: Any = None) -> list[np.ndarray]:
    return [np.arange(10), np.array([], dtype=np.int64), np.arange(10, 20), np.arange(20, 30)]


def record_used_twice(y: Any, num_silos: Any, rng: Any, groups: Any = None) -> list[np.ndarray]:
    return [np.arange(10), np.arange(5, 15), np.arange(20, 30), np.arange(30, 40)]


def wrong_number(y: Any, num_silos: Any, rng: Any, groups: Any = None) -> list[np.ndarray]:
    return [np.arange(10)]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"partitioner": one_record_in_silo_2}, DataError, "silo 2 has 1 record;.*fewer silos, a larger alpha"),
        ({"partitioner": empty_silo}, DataError, "silo 1 has 0 records"),
        ({"partitioner": record_used_twice}, PluginError, "used a record twice"),
        ({"partitioner": wrong_number}, PluginError, "made 1 silos where 4"),
        ({"test_fraction": 0.99}, DataError, "silo 0: test_fraction=0.99 of its 10 records leaves none"),
        ({"test_fraction": 1.0}, ConfigError, r"data\.test_fraction=1\.0"),
        ({"test": "own"}, ConfigError, "no test part of its own. Use test: split"),
        ({"test": "both"}, ConfigError, r"data\.test='both'"),
        ({"max_records_per_silo": 1}, ConfigError, r"data\.max_records_per_silo=1"),
        ({"num_silos": None}, ConfigError, r"^data\.num_silos is missing.*there are\. Set it\.$"),
        ({"num_silos": 41}, ConfigError, r"^data\.num_silos=41"),
        ({"dataset_options": {"alpha": 1}}, ConfigError, r"^data\.dataset\.alpha is not a known option"),
        ({"partition_options": {"alpha": 1}}, ConfigError, r"^data\.partition\.alpha is not a known option"),
        (
            {"partitioner": partition.dirichlet, "partition_options": {"alpha": -1}},
            ConfigError,
            r"^data\.partition\.alpha",
        ),
        ({"partitioner": partition.natural}, ConfigError, r"^data\.partition\.name='natural'"),
    ],
)
def test_errors_say_where_and_what_to_do(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build(numbered(40), **changes)


def test_a_silo_without_records_in_the_own_test_part_is_named() -> None:
    with pytest.raises(DataError, match="silo 3 has no record in the data set's own test part"):
        build(numbered(100, test=3), test="own")


def test_a_plugin_must_return_a_sound_dataset() -> None:
    with pytest.raises(PluginError, match=r"not a dpfl_plugin\.data\.base\.Dataset"):
        build(lambda source: 3)
    with pytest.raises(DataError, match="label of row 1 is 5"):
        build(lambda source: Dataset(np.ones((2, 1), np.float32), np.array([0, 5]), 2))


def test_natural_silos_are_called_by_their_names(tmp_path: Path) -> None:
    for name, count in {"a": 5, "b": 1, "c": 6, "d": 7}.items():
        (tmp_path / f"{name}.csv").write_text("u,label\n" + "".join(f"{i},{i % 2}\n" for i in range(count)))
    options: dict[str, Any] = {"partitioner": partition.natural, "base": tmp_path, "num_silos": None}

    def read(**changes: Any) -> Federation:
        return build(csv, dataset_options={"files": "*.csv", "classes": [0, 1]}, **(options | changes))

    with pytest.raises(DataError, match=r"silo 1 \(b\) has 1 record;.*leave it out, as data.partition"):
        read()
    found = read(partition_options={"min_records": 2})
    assert "3 of the 4 silos of the data are used" in found.caveats, "which are is not to be published"
    assert "3 of the 4 silos of the data are used: a, c, d" in found.notes and found.names == {0: "a", 1: "c", 2: "d"}
    two = read(partition_options={"min_records": 2}, num_silos=2)
    (said,) = (note for note in two.notes if "silos of the data" in note)
    names = said.partition(": ")[2].split(", ")
    sizes = {"a": 5, "c": 6, "d": 7}
    used = [len(silo.train_y) + len(silo.test_y) for silo in two.silos]
    assert [name in names for name in sizes] == [size in used for size in sizes.values()]
