"""Partitions are partitions, and have the skew that they promise."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfl_plugin.data import partition
from dpfl_plugin.errors import ConfigError

Partitioner = Callable[..., list[np.ndarray]]
COMPLETE: dict[str, Partitioner] = {
    "iid": partition.iid,
    "similarity 0": partial(partition.similarity, gamma=0),
    "similarity 10": partial(partition.similarity, gamma=10),
    "similarity 33.3": partial(partition.similarity, gamma=33.3),
    "similarity 100": partial(partition.similarity, gamma=100),
    "dirichlet 0.5": partial(partition.dirichlet, alpha=0.5, min_records=0),
    "dirichlet 100": partial(partition.dirichlet, alpha=100.0, min_records=1),
    "labels_per_silo": partial(partition.labels_per_silo, labels=4),
    "quantity_skew": partial(partition.quantity_skew, alpha=0.5, min_records=0),
}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def labels(n: int, classes: int = 10) -> np.ndarray:
    return rng(99).integers(0, classes, size=n)


def histogram(y: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.bincount(y[rows], minlength=10)


@pytest.mark.parametrize("name", COMPLETE)
@settings(max_examples=20, deadline=None)
@given(n=st.integers(200, 900), M=st.integers(3, 12), seed=st.integers(0, 2**32))
def test_every_record_is_in_exactly_one_silo(name: str, n: int, M: int, seed: int) -> None:
    y = labels(n)
    silos = COMPLETE[name](y, M, rng(seed))
    assert len(silos) == M
    assert np.array_equal(np.sort(np.concatenate(silos)), np.arange(n))
    again = COMPLETE[name](y, M, rng(seed))
    assert all(np.array_equal(a, b) for a, b in zip(silos, again, strict=True))


@pytest.mark.parametrize("name", COMPLETE)
def test_another_seed_gives_another_partition(name: str) -> None:
    y = labels(500)
    one, other = (COMPLETE[name](y, 5, rng(seed)) for seed in (1, 2))
    assert not np.array_equal(np.concatenate(one), np.concatenate(other))


@pytest.mark.parametrize("name", ["iid", "similarity 0", "similarity 10", "similarity 33.3", "similarity 100"])
@given(n=st.integers(20, 300), M=st.integers(1, 20))
@settings(max_examples=20, deadline=None)
def test_equal_shares_differ_by_one_record_at_most(name: str, n: int, M: int) -> None:
    sizes = [len(silo) for silo in COMPLETE[name](labels(n), M, rng())]
    assert max(sizes) - min(sizes) <= 1


def test_similarity_zero_sorts_by_label() -> None:
    y = labels(1000)
    silos = partition.similarity(y, 8, rng(), gamma=0)
    assert np.array_equal(y[np.concatenate(silos)], np.sort(y))


def test_similarity_gamma_percent_of_each_silo_is_random_and_the_rest_sorted() -> None:
    y = np.repeat(np.arange(10), 100)
    for silo in partition.similarity(y, 10, rng(), gamma=30):
        assert (np.diff(y[silo[30:]]) >= 0).all()
        assert len(silo) == 100
        assert len(np.unique(y[silo[30:]])) <= 3  # 70 consecutive of the sorted rest, about 70 a class
        assert len(np.unique(y[silo[:30]])) >= 5  # P(4 or fewer of 10 classes in 30 draws) < 210 * 0.4^30 < 1e-9


def test_dirichlet_alpha_sets_the_skew() -> None:
    y = np.repeat(np.arange(10), 500)

    def spread(alpha: float) -> float:
        silos = partition.dirichlet(y, 10, rng(3), alpha=alpha, min_records=2)
        shares = np.array([histogram(y, silo) for silo in silos]) / 500  # [silo, class], each class sums to 1
        return float(shares.var())

    # A share is Beta(alpha, 9 alpha): variance 0.09 / (10 alpha + 1).
    for alpha in (0.5, 5.0, 1000.0):
        assert spread(alpha) == pytest.approx(0.09 / (10 * alpha + 1), rel=0.5, abs=1e-5)


def test_dirichlet_keeps_the_minimum_or_says_what_to_change() -> None:
    y = labels(400)
    assert min(map(len, partition.dirichlet(y, 10, rng(), alpha=0.3, min_records=15))) >= 15
    with pytest.raises(ConfigError, match=r"alpha=0\.01.*larger alpha, fewer silos or a smaller min_records"):
        partition.dirichlet(y, 40, rng(), alpha=0.01, min_records=10)
    with pytest.raises(ConfigError, match="min_records=50"):
        partition.dirichlet(y, 40, rng(), alpha=1.0, min_records=50)


def test_quantity_skew_varies_sizes_and_not_labels() -> None:
    y = labels(20_000)
    silos = partition.quantity_skew(y, 5, rng(1), alpha=1.0, min_records=200)
    sizes = sorted(map(len, silos))
    assert sizes[-1] > 2 * sizes[0]
    for silo in silos:
        share = histogram(y, silo) / len(silo)
        assert np.abs(share - 0.1).max() < 6 * np.sqrt(0.09 / len(silo))  # 50 cells of 6 sigma: < 1e-6


@given(M=st.integers(1, 30), c=st.integers(1, 10), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_labels_per_silo_gives_exactly_that_many_and_uses_classes_evenly(M: int, c: int, seed: int) -> None:
    y = labels(2000)
    if M * c < 10:
        with pytest.raises(ConfigError, match=r"^labels="):
            partition.labels_per_silo(y, M, rng(seed), labels=c)
        return
    held = np.array([histogram(y, silo) > 0 for silo in partition.labels_per_silo(y, M, rng(seed), labels=c)])
    assert (held.sum(axis=1) == c).all()
    assert np.ptp(held.sum(axis=0)) <= 1


def test_labels_per_silo_refuses_a_class_too_small_to_share() -> None:
    y = np.array([0] * 50 + [1])
    with pytest.raises(ConfigError, match="class 1 has 1 records for the 5 silos"):
        partition.labels_per_silo(y, 5, rng(), labels=2)


def test_odd_even_pairs_is_the_setting_of_the_paper() -> None:
    """[G] Sec. 4: 25 silos; with MNIST's training part, 80 % of a silo are n = 1734 records."""
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    y = np.repeat(np.arange(10), counts)
    silos = partition.odd_even_pairs(y, None, rng())
    pairs = {tuple(np.unique(y[silo])) for silo in silos}
    assert len(silos) == len(pairs) == 25
    assert all(a % 2 != b % 2 for a, b in pairs)
    assert {len(silo) for silo in silos} == {2168}
    assert 2168 * 8 // 10 == 1734
    assert all(np.ptp(histogram(y, silo)[list(pair)]) == 0 for silo in silos for pair in [np.unique(y[silo])])
    used = np.concatenate(silos)
    assert len(np.unique(used)) == len(used)
    assert len(np.concatenate(partition.odd_even_pairs(y, 25, rng(), balanced=False))) == len(y)
    with pytest.raises(ConfigError, match=r"^num_silos=24 must be 25"):
        partition.odd_even_pairs(y, 24, rng())


def test_natural_silos_are_the_groups() -> None:
    groups = np.array([7, 3, 7, 3, 9, 7])
    y = np.zeros(6, dtype=np.int64)
    assert [silo.tolist() for silo in partition.natural(y, None, rng(), groups)] == [[1, 3], [0, 2, 5], [4]]
    assert [silo.tolist() for silo in partition.natural(y, None, rng(), groups, min_records=2)] == [[1, 3], [0, 2, 5]]
    chosen = partition.natural(y, 2, rng(), groups)
    assert len(chosen) == 2
    assert all(len(np.unique(groups[silo])) == 1 for silo in chosen)
    draws = {tuple(groups[silo[0]] for silo in partition.natural(y, 1, rng(seed), groups)) for seed in range(60)}
    assert draws == {(3,), (7,), (9,)}
    with pytest.raises(ConfigError, match="num_silos=4: the data set has 3 natural silos"):
        partition.natural(y, 4, rng(), groups)
    with pytest.raises(ConfigError, match="does not say which silo"):
        partition.natural(y, 2, rng(), None)


@pytest.mark.parametrize("name", COMPLETE)
@pytest.mark.parametrize(("M", "message"), [(None, "num_silos is missing"), (0, "num_silos=0"), (51, "num_silos=51")])
def test_impossible_numbers_of_silos_are_refused(name: str, M: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        COMPLETE[name](labels(50), M, rng())
