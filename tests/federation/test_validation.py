"""What records that are set apart add to a score: how far one moves it, its noise, and what is made of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest, norm
from sklearn.metrics import roc_auc_score
from torch import Tensor

from dpfl_plugin.core.outcomes import CLASSES, Outcome
from dpfl_plugin.core.validation_scores import MEASURES, ValidationScore
from dpfl_plugin.data.persons import NO_RECORD
from dpfl_plugin.federation.validation import edges, outputs_of, summed
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.measures.answers import answers
from dpfl_plugin.measures.histogram import accuracy, auc
from dpfl_plugin.measures.tables import table
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
            summed(identity, Records(*found), CLASSES, ValidationScore(bins=bins), persons=most > 0)
            for found in ((x, y), (other_x, other_y))
        )
        furthest = max(furthest, float((one - other).norm()))
    assert furthest <= limit and (most == 5 or furthest == limit)


OUTCOMES: dict[str, tuple[Outcome, int, int]] = {  # outcome, classes or labels, outputs
    "classes": (CLASSES, 2, 1),
    "ordinal": (Outcome("ordinal"), 4, 3),
    "regression": (Outcome("regression", range=(-5.0, 15.0)), 0, 1),
    "counts": (Outcome("counts", range=(0.0, 50.0)), 0, 1),
    "multi_label": (Outcome("multi_label"), 3, 3),
    "survival": (Outcome("survival", range=(0.0, 9.0), edges=(1.0, 4.0, 9.0)), 0, 3),
}
SUMS = [(kind, measure) for kind, known in MEASURES.items() for measure in known if measure != "auc"]
NUMBERS = st.floats(width=32) | st.sampled_from([math.nan, math.inf, -math.inf, 3e38, -3e38, 0.0])


@st.composite
def records_of(draw: st.DrawFn, kind: str, persons: bool) -> Records:
    """Four records, or persons of up to three, and whatever a model says of them."""
    outcome, classes, outputs = OUTCOMES[kind]
    shape = (4, 3) if persons else (4,)

    def numbers(size: int, elements: st.SearchStrategy[float]) -> Tensor:
        count = math.prod(shape) * size
        return torch.tensor(draw(st.lists(elements, min_size=count, max_size=count))).view(*shape, size)

    if outcome.has_classes:
        labels = numbers(1, st.integers(0, classes - 1))[..., 0]
    elif kind == "multi_label":
        labels = numbers(classes, st.sampled_from([0.0, 1.0]))
    else:
        assert outcome.range is not None
        labels = numbers(1, st.floats(*outcome.range, width=32))
        second = {"counts": st.sampled_from([1.0, 1e-30, 5.0]), "survival": st.sampled_from([0.0, 1.0])}
        labels = torch.cat([labels, numbers(1, second[kind])], -1) if kind in second else labels[..., 0]
    if persons:
        labels[torch.arange(3) > torch.tensor(draw(st.lists(st.integers(0, 2), min_size=4, max_size=4)))[:, None]] = (
            math.nan if labels.is_floating_point() else NO_RECORD
        )
    return Records(numbers(outputs, NUMBERS), labels)


@pytest.mark.parametrize("persons", [False, True])
@pytest.mark.parametrize(("kind", "measure"), SUMS)
@given(data=st.data())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_whatever_a_model_says_a_record_moves_a_sum_by_one_at_most(
    kind: str, measure: str, persons: bool, data: st.DataObject
) -> None:
    """Replaced, or counted as zero: what `Scores.sensitivity` says, to the bit; and each adds a number in [0, 1]."""
    outcome, classes, _ = OUTCOMES[kind]
    bound = data.draw(st.none() | st.floats(1e-3, 1e3)) if measure != "accuracy" else None
    score = ValidationScore.of(outcome, classes, measure, bound)
    batch, other = (data.draw(records_of(kind, persons)) for _ in range(2))
    replaced = Records(*(torch.cat([a[:3], b[3:]]) for a, b in zip(_parts(batch), _parts(other), strict=True)))
    zeroed = Records(*_parts(batch), usable=torch.tensor([True, True, True, False]))
    whole, *others = (
        float(summed(identity, records, outcome, score, persons=persons)) for records in (batch, replaced, zeroed)
    )
    assert max(abs(whole - value) for value in others) <= Scores(SHARE, 1.0).sensitivity("replace_one")
    assert others[1] <= whole <= others[1] + 1 and 0 <= whole <= 4


def _parts(records: Records) -> tuple[Tensor, Tensor]:
    return records.features, records.labels


@pytest.mark.parametrize("kind", OUTCOMES)
def test_where_nothing_is_cut_a_score_is_the_measure_of_the_result(kind: str) -> None:
    """Those that `dpfl_plugin.measures` computes of the same outputs, which are tested against scikit-learn's."""
    outcome, classes, outputs = OUTCOMES[kind]
    rng, n = np.random.default_rng(0), 500
    z = rng.normal(size=(n, outputs)) * 0.3
    labels: dict[str, np.ndarray] = {
        "classes": rng.integers(0, 2, n),
        "ordinal": rng.integers(0, 4, n),
        "regression": rng.uniform(-5, 15, n).astype(np.float32),
        "counts": np.stack([rng.poisson(2, n), rng.uniform(0.5, 2, n)], axis=1).astype(np.float32),
        "multi_label": rng.integers(0, 2, (n, 3)).astype(np.float32),
        "survival": np.stack([rng.uniform(0, 9, n), rng.integers(0, 2, n)], axis=1).astype(np.float32),
    }
    z = np.sort(z, axis=1) if kind == "ordinal" else z
    reference = table(outcome, answers(outcome, z), labels[kind], curves=False)
    records = Records(torch.from_numpy(z), torch.from_numpy(labels[kind]))
    for measure in MEASURES[kind]:  # type: ignore[index]
        if measure == "auc":
            continue
        score = ValidationScore.of(outcome, classes, measure, None if measure == "accuracy" else 1000.0)
        found = score.of_share(float(summed(identity, records, outcome, score)) / n)
        assert found == pytest.approx(reference[measure], abs=1000 * 2.0**-20 if measure != "accuracy" else 0)


@pytest.mark.statistical
@pytest.mark.parametrize("bound", [1.0, 20.0])
@pytest.mark.parametrize("noise", [0.0, 0.02, 0.2])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.97])
def test_an_interval_covers_at_least_as_often_as_it_says(share: float, noise: float, bound: float) -> None:
    """Records add 0 or 1, which varies most; silos of 30 and 90 records, that weigh alike. Of 4,000 intervals of
    coverage .95 fewer than 3,730 cover but once in 1e6 (6 standard deviations of a count: 13.8 each, less 5)."""
    rng, runs = np.random.default_rng(4), 4000
    score = ValidationScore("mae", bound)
    silos = [rng.binomial(n, share, runs) / n for n in (30, 90)]
    found = np.mean(silos, axis=0) + noise * rng.normal(size=runs)
    limits = [score.interval(score.of_share(value), bound * noise, 0.5 / 30) for value in found]
    covered = sum(low <= score.of_share(share) <= high for low, high in limits)
    assert covered >= 3730


@pytest.mark.statistical
@pytest.mark.parametrize("kind", ["regression", "survival"])
def test_the_better_of_two_models_scores_better_as_often_as_the_noise_says(kind: str) -> None:
    """Phi(gap / (sqrt(2) std)), by which a plan says how far apart scores must be. Of 4,000 pairs the share is within 5
    standard deviations but once in 1.7e6."""
    outcome, classes, outputs = OUTCOMES[kind]
    rng, n, pairs = np.random.default_rng(5), 200, 4000
    x = rng.normal(size=n)
    survival = np.stack([np.minimum(rng.exponential(3 * np.exp(-x)), 9), rng.integers(0, 2, n)], axis=1)
    y = torch.from_numpy((5 + 3 * x if kind == "regression" else survival).astype(np.float32))
    good, poor = (torch.from_numpy(slope * x[:, None] + np.zeros(outputs)) for slope in (0.25, 0.18))
    score, scores = ValidationScore.of(outcome, classes), Scores(SHARE, 3.0)
    sums = [summed(identity, Records(features, y), outcome, score) for features in (good, poor)]
    noisy = [[float(scores.noisy(total, "replace_one", rng)) / n for _ in range(pairs)] for total in sums]
    better = np.mean([score.gain(*map(score.of_share, pair)) > 0 for pair in zip(*noisy, strict=True)])
    chance = norm.cdf(float(sums[0] - sums[1]) / (math.sqrt(2) * 3.0))
    assert 0.55 < chance < 0.999 and abs(better - chance) < 5 * math.sqrt(chance * (1 - chance) / pairs)


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
    found = summed(identity, Records(features, torch.from_numpy(y)), CLASSES, ValidationScore("auc", bins=bins))
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
