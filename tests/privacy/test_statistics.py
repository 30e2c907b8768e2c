"""Private statistics of columns: what a record adds is bounded, and what is made of the sums is what it is called."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

from dpfl_plugin.core.grid import SUM_SLACK, Grid
from dpfl_plugin.core.scaling import BINS, FARTHEST, NORMAL, Measured, Scaling, contributions
from dpfl_plugin.core.streams import stream
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.federation.scaled_records import noisy_sums
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.events import SampledGaussian
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import FullBatch
from dpfl_plugin.privacy.statistics import Statistics

MEASURED = (
    Measured("age", "mean", 0, low=0.0, high=100.0),
    Measured("lab", "mean", 1, missing=2),
    Measured("mass", "quantiles", 3, missing=4, low=0.0, high=200.0),
    Measured("sex", "counts", 5, 1, values=("f", "m")),
    Measured("town", "counts", 6, 3, values=("a", "b", "c")),
)
WIDTH = 9
STATISTICS = Statistics(MEASURED, 0.0)
OF_RECORDS = 1


@pytest.mark.parametrize(("neighbouring", "squares"), [("replace_one", 2 * 4 + 3 * 2), ("add_or_remove", 5)])
def test_a_sum_is_charged_as_one_release_of_all_records_with_the_sensitivity_of_what_is_measured(neighbouring, squares):
    statistics = Statistics(MEASURED, 3.0)
    assert statistics.sensitivity(neighbouring) == pytest.approx(math.sqrt(squares))
    assert statistics.release(neighbouring, "person") == SampledGaussian(
        noise_multiplier=3.0, sampler="full", rate=1.0, neighbouring=neighbouring, unit="person"
    )


def anything(rng: np.random.Generator, count: int) -> torch.Tensor:
    """Features as no encoder writes them, and as it does: the bound holds for both."""
    x = rng.normal(0, 2, (count, WIDTH))
    x[: count // 2] = rng.uniform(-1, 1, (count // 2, WIDTH))
    x[rng.random(x.shape) < 0.1] = rng.choice([math.nan, math.inf, -math.inf, 1e30, 0.0, 1.0, -1.0])
    return torch.from_numpy(x).float()


def encoded(rng: np.random.Generator, count: int) -> torch.Tensor:
    """Features as the encoder writes them."""
    x = np.zeros((count, WIDTH))
    x[:, 0], x[:, 1], x[:, 3] = rng.uniform(-0.5, 0.9, count), rng.normal(0, 0.2, count), rng.normal(-0.3, 0.1, count)
    x[:, 2], x[:, 4] = rng.random(count) < 0.3, rng.random(count) < 0.2
    x[:, 1], x[:, 3] = np.where(x[:, 2], 0, np.clip(x[:, 1], -1, 1)), np.where(x[:, 4], 0, np.clip(x[:, 3], -1, 1))
    x[:, 5] = rng.choice([0, 1, 0.5], count, p=[0.3, 0.5, 0.2])
    towns = np.vstack([np.eye(3), np.zeros(3)])
    x[:, 6:] = towns[rng.choice(4, count, p=[0.2, 0.2, 0.4, 0.2])]
    return torch.from_numpy(x).float()


def exact(features: torch.Tensor, real: torch.Tensor | None = None) -> torch.Tensor:
    """The sum without noise."""
    real = torch.ones(len(features), OF_RECORDS) if real is None else real
    return STATISTICS.noisy(features, real, "replace_one", np.random.default_rng())


@pytest.mark.slow
def test_what_a_record_adds_is_within_the_bounds_of_each_column_and_reaches_them() -> None:
    rows = contributions(anything(stream(0, "trial"), 4000), MEASURED)
    assert torch.isfinite(rows).all()
    first = 0
    for one in MEASURED:
        part = rows[:, first : first + one.size]
        first += one.size
        assert part.norm(dim=1).max() <= 1 + 1e-12, one.name
        diameter = 2.0 if one.kind == "mean" else math.sqrt(2)
        assert torch.cdist(part, part, compute_mode="donot_use_mm_for_euclid_dist").max() <= diameter + 1e-9, one.name
    ends = torch.zeros(2, WIDTH)
    ends[:, 0] = torch.tensor([-1.0, 1.0])  # the ends of a range are 2 apart: no smaller noise would do
    there, back = contributions(ends, MEASURED[:1])
    assert float((there - back).norm()) == 2.0 == Statistics(MEASURED[:1], 1.0).sensitivity("replace_one")
    assert float(there.norm()) == 1.0 == Statistics(MEASURED[:1], 1.0).sensitivity("add_or_remove")


@pytest.mark.parametrize("persons", [False, True])
def test_neighbours_sums_are_as_far_apart_as_the_sensitivity_at_most(persons: bool) -> None:
    rng = stream(1, "trial")
    features, others = anything(rng, 60), anything(rng, 60)
    real = torch.ones(60, OF_RECORDS)
    if persons:
        features, others = features.view(20, 3, WIDTH), others.view(20, 3, WIDTH)
        real = (torch.arange(3) < torch.from_numpy(rng.integers(1, 4, (20, 1)))).float()
    whole, slack, farthest = exact(features, real), 1 + SUM_SLACK, 0.0
    for place in range(len(features)):
        changed, without = features.clone(), [other for other in range(len(features)) if other != place]
        changed[place] = others[place]
        moved = float((exact(changed, real) - whole).norm())
        assert moved <= STATISTICS.sensitivity("replace_one") * slack
        assert float((exact(features[without], real[without]) - whole).norm()) <= math.sqrt(len(MEASURED)) * slack
        farthest = max(farthest, moved)
    assert farthest > 1.5, "the records do not differ: nothing was tried"


@pytest.mark.parametrize(("neighbouring", "limit"), [("replace_one", math.sqrt(2)), ("add_or_remove", 1.0)])
def test_a_record_moves_the_counts_of_classes_by_their_sensitivity(neighbouring, limit) -> None:
    statistics = Statistics((Measured("label", "labels", 0, values=("no", "yes", "?")),), 0.0)
    assert statistics.sensitivity(neighbouring) == limit and statistics.counts_labels
    rng, labels = stream(3, "trial"), torch.tensor([0, 0, 2, 1])

    def counts(classes: torch.Tensor) -> torch.Tensor:
        return statistics.noisy(
            torch.zeros(len(classes), 2, 2), torch.ones(len(classes), 1), neighbouring, rng, classes
        )

    assert counts(labels).tolist() == [2, 1, 1]
    others = [labels[:3]] if neighbouring == "add_or_remove" else [torch.tensor([0, 0, 2, k]) for k in range(3)]
    assert max(float((counts(labels) - counts(other)).norm()) for other in others) == pytest.approx(limit)
    persons = torch.tensor([[1, 2, -1], [0, -1, -1]])
    found = statistics.noisy(torch.zeros(2, 3, 4), (persons >= 0).float(), neighbouring, rng, persons)
    assert found.tolist() == [1, 0.5, 0.5]


def test_balanced_weights_are_inverse_counts_and_lengthen_no_gradient() -> None:
    """Of counts that noise makes negative, or nothing of, the noise's standard deviation is what is known."""
    label = Measured("label", "labels", 0, values=("no", "yes"))
    for counts, noise, expected in (([90.0, 10.0], 1.0, [1 / 9, 1.0]), ([90.0, -4.0], 3.0, [1 / 30, 1.0])):
        scaling = Scaling.by((MEASURED[0], label), torch.tensor([0.0, 0.0, *counts]), 100, noise)
        assert scaling.measured == MEASURED[:1] and list(scaling.class_weights.values()) == pytest.approx(expected)
        assert Scaling.of(json.loads(json.dumps(scaling.plain()))) == scaling
        assert scaling.statistics()["class_shares"] == scaling.class_shares and sum(scaling.class_shares.values()) == 1


def test_a_person_counts_as_the_mean_of_its_records() -> None:
    features = encoded(stream(2, "trial"), 6)
    real = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    rows = contributions(features, MEASURED).view(2, 3, -1)
    expected = rows[0, :2].mean(dim=0) + rows[1, 0]
    torch.testing.assert_close(exact(features.view(2, 3, WIDTH), real), expected, rtol=0, atol=1e-8)


NAN = math.nan
LABELS = {
    "classes": torch.tensor([[1, 0, -1], [0, -1, -1]]),
    "regression": torch.tensor([[-3.0, 5.0, NAN], [-7.0, NAN, NAN]]),  # a person whose every label is below 0
    "counts": torch.tensor([[[2.0, 0.5], [0.0, 1.0], [NAN, NAN]], [[1.0, 3.0], [NAN, NAN], [NAN, NAN]]]),
    "multi_label": torch.tensor([[[0.0] * 4, [1.0] * 4, [NAN] * 4], [[0.0] * 4, [NAN] * 4, [NAN] * 4]]),
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_records_of_persons_count_whatever_their_labels_say(labels: torch.Tensor) -> None:
    """A person without a record would add NaN, which no noise covers."""
    features = encoded(stream(2, "trial"), 6)
    rows = contributions(features, MEASURED).view(2, 3, -1)
    rules = PrivacyRules(
        unit="person", neighbouring="replace_one", clip_norm=1.0, mechanism=Gaussian(0.0), sampler=FullBatch()
    )
    silos = {0: Records(features.view(2, 3, WIDTH), labels)}
    (found,) = noisy_sums(STATISTICS, silos, [0], (0.0, 1.0), rules, Draw(0, 0))
    torch.testing.assert_close(found, rows[0, :2].mean(dim=0) + rows[1, 0], rtol=0, atol=1e-8)


def test_without_noise_statistics_are_those_of_all_records() -> None:
    features = encoded(stream(3, "trial"), 5000)
    x = features.double().numpy()
    scaling = STATISTICS.scaling(exact(features[:2000]) + exact(features[2000:]), 5000, 2, "replace_one")
    told, lab, mass = scaling.statistics(), x[x[:, 2] == 0, 1], x[x[:, 4] == 0, 3]
    assert told["age"]["mean"] == pytest.approx(50 * (x[:, 0].mean() + 1), abs=1e-6)
    assert told["age"]["std"] == pytest.approx(50 * x[:, 0].std(), rel=1e-6)
    assert (told["lab"]["mean"], told["lab"]["std"]) == pytest.approx((lab.mean(), lab.std()), abs=1e-6)
    low, median, high = np.quantile(mass, [0.25, 0.5, 0.75])
    assert told["mass"]["median"] == pytest.approx(100 * (median + 1), abs=100 * 2 / BINS)
    assert told["mass"]["interquartile_range"] == pytest.approx(100 * (high - low), abs=100 * 2 / BINS)
    assert told["sex"] == {"most_frequent": "m"} and told["town"] == {"most_frequent": "c"}
    again = Scaling.of(json.loads(json.dumps(scaling.plain())))
    assert again == scaling
    y = again(features).double().numpy()
    assert (y[:, 0].mean(), y[:, 0].std()) == pytest.approx((0, 1), abs=1e-5)
    assert (y[x[:, 2] == 0, 1].mean(), y[x[:, 2] == 0, 1].std()) == pytest.approx((0, 1), abs=1e-5)
    assert not y[x[:, 2] == 1, 1].any() and not y[x[:, 4] == 1, 3].any(), "what is missing is the centre"
    assert np.quantile(y[x[:, 4] == 0, 3], 0.5) == pytest.approx(0, abs=0.2)
    assert (y[x[:, 5] == 0.5, 5] == 1).all() and set(np.unique(y[:, 5])) == {0, 1}
    towns = x[:, 6:].sum(axis=1) == 0
    assert (y[towns, 6:] == [0, 0, 1]).all() and (y[~towns, 6:] == x[~towns, 6:]).all()
    assert np.array_equal(x[:, [2, 4]], y[:, [2, 4]])


def test_the_noise_is_what_is_charged_in_proportion_to_the_sensitivity() -> None:
    """False alarm: 1e-6. 2560 numbers tell noise that is 20 % off."""
    alpha, many = 1e-6, tuple(Measured(f"c{i}", "quantiles", 0) for i in range(80))
    statistics, features = Statistics(many, 3.0), torch.zeros(10, 1)
    noise_free = Statistics(many, 0.0).noisy(features, torch.ones(10, 1), "replace_one", stream(0, "statistics"))
    noisy = statistics.noisy(features, torch.ones(10, 1), "replace_one", stream(4, "statistics"))
    assert statistics.sensitivity("replace_one") == math.sqrt(160)
    std = 3.0 * Grid.of(math.sqrt(160), statistics.size).sensitivity
    noise = (noisy - noise_free).numpy()
    assert kstest(noise, norm(scale=std).cdf).pvalue > alpha
    assert kstest(noise, norm(scale=1.2 * std).cdf).pvalue < alpha
    assert statistics.release("replace_one").noise_multiplier == 3.0


@pytest.mark.parametrize("seed", range(3))
def test_whatever_the_noise_is_a_scaling_is_finite_and_public_bounds_hold(seed: int) -> None:
    rng = stream(seed, "trial")
    for noise in (0.0, 1.0, 1e6):
        sums = torch.from_numpy(rng.normal(0, noise, STATISTICS.size))
        scaling = Scaling.by(MEASURED, sums, 50, noise)
        y = scaling(encoded(rng, 50))
        assert torch.isfinite(y).all() and float(y.abs().max()) <= FARTHEST
        for one, centre, scale in zip(MEASURED, scaling.centres, scaling.scales, strict=True):
            assert one.kind == "counts" or (abs(centre) <= 1 and 1e-3 <= scale <= 1)


def test_a_scale_is_no_smaller_than_what_noise_makes_of_one() -> None:
    """A constant column has a variance of noise alone: without a floor its scale would be that of nothing."""
    sums = torch.tensor([0.0, -100.0 - 30.0], dtype=torch.float64)
    scaling = Scaling.by(MEASURED[:1], sums, 100, 20.0)
    assert scaling.scales == (math.sqrt(20 / 100),)
    assert pytest.approx(2 * norm.ppf(0.75), abs=1e-3) == NORMAL


def test_more_records_than_the_integers_hold_are_refused() -> None:
    few = torch.zeros(1, 1).expand(2**31, 1)
    with pytest.raises(UnsupportedError, match="Split the silo"):
        Statistics(MEASURED[:1], 1.0).noisy(few, few, "replace_one", np.random.default_rng())
