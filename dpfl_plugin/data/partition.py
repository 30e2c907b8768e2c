"""How records are dealt out to silos.

A partitioner is given the labels y [n], the number of silos M (None: as many as the method has), a generator and
the natural silo of each record; it returns the row indices of each silo. No record is used twice. A record may be
left out only where the docstring says so.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.core.exact import floor_share
from dpfl_plugin.errors import ConfigError, require

Integers = NDArray[np.int64]
MAX_DRAWS = 1000


def iid(y: Integers, num_silos: int | None, rng: np.random.Generator, groups: Integers | None = None) -> list[Integers]:
    """Deal all records out at random; sizes differ by one at most."""
    M = _count(num_silos, len(y))
    return _cut(rng.permutation(len(y)), _even_sizes(len(y), M))


def similarity(
    y: Integers, num_silos: int | None, rng: np.random.Generator, groups: Integers | None = None, *, gamma: float
) -> list[Integers]:
    """gamma % of each silo at random, the rest sorted by label and cut into M pieces; uses all records.

    Karimireddy et al. 2020, arXiv:1910.06378v4, Sec. 7; Noble et al. 2022, arXiv:2111.09278v3, Sec. 5. Silo sizes
    differ by one at most. gamma=100 is i.i.d., gamma=0 is sort-and-partition.
    """
    require(0 <= gamma <= 100, "gamma", gamma, "be a percentage, from 0 to 100")
    M = _count(num_silos, len(y))
    shuffled = rng.permutation(len(y))
    num_random = floor_share(gamma, len(y)) // 100
    rest = shuffled[num_random:]
    by_label = rest[np.argsort(y[rest], kind="stable")]
    random_sizes = _even_sizes(num_random, M)
    random = _cut(shuffled[:num_random], random_sizes)
    sorted_ = _cut(by_label, _even_sizes(len(y), M) - random_sizes)
    return [np.concatenate(parts) for parts in zip(random, sorted_, strict=True)]


def dirichlet(
    y: Integers,
    num_silos: int | None,
    rng: np.random.Generator,
    groups: Integers | None = None,
    *,
    alpha: float,
    min_records: int = 10,
) -> list[Integers]:
    """Share each class out in proportions drawn from Dir_M(alpha), until every silo has ``min_records``.

    Q. Li et al. 2022, "Federated Learning on Non-IID Data Silos", arXiv:2102.02079v4, Sec. 4.1. Small alpha: few
    classes a silo; large alpha: i.i.d. Uses all records.

    Raises:
        ConfigError: 1000 draws gave no silo sizes of at least ``min_records``.
    """
    M = _check_skew(alpha, min_records, num_silos, len(y))
    classes = [rng.permutation(np.flatnonzero(y == label)) for label in np.unique(y)]
    for _ in range(MAX_DRAWS):
        sizes = np.stack([_shares(len(rows), rng.dirichlet(np.full(M, alpha))) for rows in classes])  # [classes, M]
        if sizes.sum(axis=0).min() >= min_records:
            pieces = [_cut(rows, size) for rows, size in zip(classes, sizes, strict=True)]
            return [np.concatenate(parts) for parts in zip(*pieces, strict=True)]
    raise _too_skewed(alpha, min_records, M)


def quantity_skew(
    y: Integers,
    num_silos: int | None,
    rng: np.random.Generator,
    groups: Integers | None = None,
    *,
    alpha: float,
    min_records: int = 10,
) -> list[Integers]:
    """Silo sizes in proportions drawn from Dir_M(alpha), records at random; uses all records.

    Q. Li et al. 2022, arXiv:2102.02079v4, Sec. 4.3.

    Raises:
        ConfigError: 1000 draws gave no silo sizes of at least ``min_records``.
    """
    M = _check_skew(alpha, min_records, num_silos, len(y))
    for _ in range(MAX_DRAWS):
        sizes = _shares(len(y), rng.dirichlet(np.full(M, alpha)))
        if sizes.min() >= min_records:
            return _cut(rng.permutation(len(y)), sizes)
    raise _too_skewed(alpha, min_records, M)


def labels_per_silo(
    y: Integers, num_silos: int | None, rng: np.random.Generator, groups: Integers | None = None, *, labels: int
) -> list[Integers]:
    """Each silo holds exactly ``labels`` classes, drawn at random; uses all records.

    Each class is held by equally many silos (up to one) and shared out evenly among them.

    Raises:
        ConfigError: there are fewer places than classes, or a class has fewer records than silos that hold it.
    """
    M = _count(num_silos, len(y))
    present = np.unique(y)
    K = len(present)
    require(1 <= labels <= K, "labels", labels, f"be from 1 to {K}, the number of classes")
    require(M * labels >= K, "labels", labels, f"be {-(-K // M)} or more, so that {M} silos hold all {K} classes")
    held = np.zeros((M, K), dtype=bool)
    for i in range(M):
        least_held = np.lexsort((rng.random(K), held.sum(axis=0)))  # ties at random
        held[i, least_held[:labels]] = True
    silos: list[list[Integers]] = [[] for _ in range(M)]
    for k, label in enumerate(present):
        rows, holders = rng.permutation(np.flatnonzero(y == label)), np.flatnonzero(held[:, k])
        if len(rows) < len(holders):
            raise ConfigError(
                f"labels={labels}: class {label} has {len(rows)} records for the {len(holders)} silos that hold it. "
                "Use fewer silos or fewer labels a silo."
            )
        for holder, piece in zip(holders, _cut(rows, _even_sizes(len(rows), len(holders))), strict=True):
            silos[holder].append(piece)
    return [np.concatenate(pieces) for pieces in silos]


def odd_even_pairs(
    y: Integers,
    num_silos: int | None,
    rng: np.random.Generator,
    groups: Integers | None = None,
    *,
    balanced: bool = True,
) -> list[Integers]:
    """Each silo holds one odd and one even label, every pair once: 25 silos for ten digits.

    Gao et al. 2024, "Private Heterogeneous Federated Learning Without a Trusted Server Revisited", Sec. 4.
    ``balanced``: every silo gets equally many records of both labels, and what a class has beyond that is left out;
    on the MNIST training part that is 2 * 1,084 records a silo, of which 80 % are the paper's n = 1,734.
    Otherwise all records are used.
    """
    present = np.unique(y)
    odd, even = present[present % 2 == 1], present[present % 2 == 0]
    pairs = [(a, b) for a in odd for b in even]
    require(
        num_silos in (None, len(pairs)) and len(pairs) > 0,
        "num_silos",
        num_silos,
        f"be {len(pairs)}: {len(odd)} odd times {len(even)} even labels",
    )
    share = min(int(np.count_nonzero(y == label)) // len(even if label % 2 else odd) for label in present)
    pieces: dict[int, list[Integers]] = {}
    for label in present:
        rows, num_pieces = rng.permutation(np.flatnonzero(y == label)), len(even if label % 2 else odd)
        sizes = np.full(num_pieces, share) if balanced else _even_sizes(len(rows), num_pieces)
        pieces[int(label)] = _cut(rows, sizes)
    return [np.concatenate([pieces[a].pop(), pieces[b].pop()]) for a, b in pairs]


def natural(
    y: Integers,
    num_silos: int | None,
    rng: np.random.Generator,
    groups: Integers | None = None,
    *,
    min_records: int = 1,
) -> list[Integers]:
    """The data set's own silos (writers, files, sites), in their own order.

    Left out are silos with fewer than ``min_records`` records; and where ``num_silos`` is smaller than what remains,
    that many silos are kept, drawn at random.

    Raises:
        ConfigError: the data set has no natural silos, or fewer than ``num_silos``.
    """
    if groups is None:
        raise ConfigError(
            "name='natural': this data set does not say which silo a record belongs to. Use iid or dirichlet."
        )
    names, counts = np.unique(groups, return_counts=True)
    kept = names[counts >= min_records]
    if not len(kept) or (num_silos or 1) > len(kept):
        raise ConfigError(
            f"num_silos={num_silos}: the data set has {len(kept)} natural silos with at least {min_records} records. "
            "Ask for fewer silos, or lower min_records."
        )
    if num_silos is not None and num_silos < len(kept):
        kept = np.sort(rng.choice(kept, _count(num_silos, len(y)), replace=False))
    order = np.argsort(groups, kind="stable")
    starts, ends = np.searchsorted(groups[order], kept), np.searchsorted(groups[order], kept, side="right")
    return [order[start:end] for start, end in zip(starts, ends, strict=True)]


def _count(num_silos: int | None, n: int) -> int:
    if num_silos is None:
        raise ConfigError("num_silos is missing: this partition does not itself say how many silos there are.")
    require(1 <= num_silos <= n, "num_silos", num_silos, f"be from 1 to {n}, the number of records")
    return num_silos


def _check_skew(alpha: float, min_records: int, num_silos: int | None, n: int) -> int:
    M = _count(num_silos, n)
    require(0 < alpha < np.inf, "alpha", alpha, "be positive and finite")
    require(
        0 <= min_records * M <= n, "min_records", min_records, f"be from 0 to {n // M}, for {n} records in {M} silos"
    )
    return M


def _too_skewed(alpha: float, min_records: int, M: int) -> ConfigError:
    return ConfigError(
        f"alpha={alpha}: none of {MAX_DRAWS} draws gave each of {M} silos {min_records} records. "
        "Use a larger alpha, fewer silos or a smaller min_records."
    )


def _even_sizes(n: int, parts: int) -> Integers:
    return n // parts + (np.arange(parts) < n % parts).astype(np.int64)


def _shares(n: int, proportions: NDArray[np.float64]) -> Integers:
    """Sizes that sum to n, each within one of ``n * proportions``."""
    ends = np.floor(np.cumsum(proportions) * n + 0.5).astype(np.int64)  # the last is n: the sum is 1 up to rounding
    return np.diff(ends, prepend=0)


def _cut(rows: Integers, sizes: Iterable[int] | Integers) -> list[Integers]:
    ends = np.cumsum(np.asarray(sizes))
    return [rows[end - size : end] for end, size in zip(ends, np.asarray(sizes), strict=True)]
