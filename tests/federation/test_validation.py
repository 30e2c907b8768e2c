"""What is counted on records that are set apart: how far a record moves it, its noise, and what is made of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm
from sklearn.metrics import roc_auc_score
from torch import Tensor

from dpfl_plugin.core.outcomes import CLASSES
from dpfl_plugin.data.persons import NO_RECORD
from dpfl_plugin.federation.validation import counted, edges, outputs_of
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.measures.histogram import accuracy, auc
from dpfl_plugin.privacy.scores import Scores

ALPHA = 1e-6  # false alarm, for this seed
SHARE = (0.5, 1.0)


def identity(features: Tensor) -> Tensor:
    """The model: features are its outputs."""
    return features


def rows(count: int, most: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """(outputs, labels) of persons with 1 to ``most`` records, some right at edges; of records where that is 0."""
    shape = (count, most) if most else (count,)
    scores = np.concatenate([rng.normal(0, 3, 50), edges(6).numpy(), [math.inf, math.nan, -math.inf]])
    features = torch.from_numpy(rng.choice(scores, (*shape, 1)))
    labels = torch.from_numpy(rng.integers(0, 2, shape))
    if most:
        labels[torch.arange(most) > torch.from_numpy(rng.integers(0, most, (count, 1)))] = NO_RECORD
    return features, labels


@pytest.mark.parametrize("bins", [0, 6])
@pytest.mark.parametrize("most", [0, 1, 5])
@pytest.mark.parametrize("neighbouring", ["replace_one", "add_or_remove"])
def test_one_record_moves_counts_by_the_sensitivity_at_most(bins: int, most: int, neighbouring: Any) -> None:
    """And by all of it somewhere, where persons have one record: no more noise is added than has to be."""
    rng = np.random.default_rng(0)
    limit, furthest = Scores(SHARE, 1.0, bins).sensitivity(neighbouring), 0.0
    for _ in range(60):
        x, y = rows(4, most, rng)
        if neighbouring == "replace_one":
            other_x, other_y = (torch.cat([a[:3], b]) for a, b in zip((x, y), rows(1, most, rng), strict=True))
        else:
            other_x, other_y = x[:3], y[:3]
        one, other = (
            counted(identity, Records(*found), CLASSES, bins=bins, persons=most > 0)
            for found in ((x, y), (other_x, other_y))
        )
        furthest = max(furthest, float((one - other).norm()))
    assert furthest <= limit and (most == 5 or furthest == limit)


@pytest.mark.statistical
@pytest.mark.parametrize(("neighbouring", "moves"), [("replace_one", math.sqrt(2)), ("add_or_remove", 1.0)])
def test_the_noise_of_a_histogram_is_independent_and_as_charged(neighbouring: Any, moves: float) -> None:
    scores, rng = Scores(SHARE, 3.0, 2), np.random.default_rng(1)
    counts = torch.tensor([5.0, 0.0, 1.0, 9.0], dtype=torch.float64)
    noise = torch.stack([scores.noisy(counts, neighbouring, rng) - counts for _ in range(10_000)]).numpy()
    assert scores.release(neighbouring).noise_multiplier == 3.0
    for cell in noise.T:
        assert kstest(cell, norm(scale=3.0 * moves).cdf).pvalue > ALPHA
    assert kstest(noise.ravel(), norm(scale=3.0 * moves * 1.1).cdf).pvalue < ALPHA  # would notice 10 %
    # A correlation of independent normals is within 6 / sqrt(n) but once in 5e8.
    assert abs(np.corrcoef(noise.T) - np.eye(4)).max() < 6 / math.sqrt(len(noise))


@pytest.mark.parametrize("bins", [2, 10, 50])
@pytest.mark.parametrize("outputs", [1, 2])
def test_without_noise_it_is_scikit_learns_up_to_ties(bins: int, outputs: int) -> None:
    """Of scores within a bin nothing is known: pairs of theirs count half, and may be out by that."""
    rng = np.random.default_rng(2)
    y = np.arange(300) % 3 % 2  # unequal classes
    z = rng.normal(1.5 * y - 0.7, 1.0)
    z[:4] = 0.0  # right where the prediction changes
    base = rng.normal(size=300)
    features = torch.from_numpy(z[:, None] if outputs == 1 else np.stack([base, base + z], axis=1))
    features[:4] = 0.0
    found = counted(identity, Records(features, torch.from_numpy(y)), CLASSES, bins=bins)
    assert found.sum() == 300
    shares = (found / 300).tolist()
    binned = np.ceil(bins / (1 + np.exp(-z)))
    said = auc(shares, 0.0)
    assert said.value == pytest.approx(roc_auc_score(y, binned)) and said.noise_std == 0
    first, second = np.split(np.array(shares), 2)
    tied = float(first @ second) / (first.sum() * second.sum())
    assert abs(said.value - roc_auc_score(y, z)) <= tied / 2
    assert accuracy(shares) == pytest.approx(np.mean((z > 0) == y))


@pytest.mark.statistical
def test_the_error_that_is_stated_is_that_of_the_noise() -> None:
    """The mean over draws is the AUC without noise, and their standard deviation what each draw says: what is beyond
    first order is below a tenth here. A mean of 2,000 is within 6 standard errors but once in 5e8."""
    rng = np.random.default_rng(3)
    exact = np.concatenate([np.arange(10, 0, -1), np.arange(10)]) / 100
    std = 0.012
    found = [auc((exact + std * rng.normal(size=20)).tolist(), std) for _ in range(2000)]
    values, stated = (np.array([getattr(one, key) for one in found], dtype=float) for key in ("value", "noise_std"))
    true = auc(exact.tolist(), 0.0).value
    assert true is not None
    assert abs(values.mean() - true) < 6 * values.std() / math.sqrt(2000) < true - 0.7  # 0.7: half way to chance
    assert np.median(stated) == pytest.approx(values.std(), rel=0.1)


def test_where_noise_leaves_nothing_of_a_class_nothing_is_said() -> None:
    """Five records of a class under noise of sqrt(10) * 2 in their number."""
    histogram = [*[0.0] * 9, 5.0, *[20.0] * 10]
    assert auc(histogram, 2.0).value is None and auc(histogram, 0.5).value is not None
    assert auc([1.0, 0.0, 0.0, 0.0], 0.0).value is None  # as scikit-learn has none of one class


@pytest.mark.parametrize(("size", "count", "at_once"), [(4, 9000, 8192), (3072, 200, 85), (2**16, 40, 16)])
def test_all_records_are_answered_in_order_and_large_ones_few_at_a_time(size: int, count: int, at_once: int) -> None:
    features, labels, seen = torch.rand(count, size), torch.arange(count), []

    def model(chunk: Tensor) -> Tensor:
        seen.append(len(chunk))
        return chunk[:, :1]

    found = list(outputs_of(model, Records(features, labels)))
    assert torch.equal(torch.cat([outputs for outputs, _ in found]), features[:, :1])
    assert torch.equal(torch.cat([of_chunk for _, of_chunk in found]), labels)
    assert max(seen) == at_once and sum(seen) == count
