"""Gradient inversion: exact where the mathematics says so, nothing under noise, refused elsewhere."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from scipy.stats import beta
from torch import nn

from dpfl_plugin.attacks import demonstration
from dpfl_plugin.attacks.inversion import batches, first_layer, guessed, nearest, reconstructions, tells_more
from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.runs.build import build
from tests.attacks.simulated import HERE, config

SETTINGS: dict[str, dict[str, Any]] = {
    "softmax, scaffold": {},
    "softmax, option I, l2": {"algorithm": {"option": "I"}, "l2": 0.1},
    "mlp, fedavg": {"model": {"name": "mlp", "hidden": [20]}, "algorithm": {"name": "fedavg"}},
    "logistic, poisson": {
        "model": "logistic",
        "data": {"preprocess": ["unit_norm", "parity"]},
        "privacy": {"sampler": "poisson"},
    },
}


@pytest.mark.statistical
@pytest.mark.parametrize("change", SETTINGS.values(), ids=SETTINGS)
def test_one_record_is_recovered_without_noise_and_not_with_it(change: dict[str, Any]) -> None:
    """With noise, a row is a random direction in 63 dimensions; the best of 8 messages' at most 40 rows each correlates
    above 0.85 with probability below 1e-6, as the last line checks."""
    quiet, noisy = demonstration.inversion(config(change), HERE, 0)
    assert noisy is not None and len(quiet.single) == len(noisy.single) == 8
    for one in quiet.single:
        assert float(one.errors[0]) < 1e-3 and float(one.correlations[0]) > 0.999
    assert max(float(one.correlations[0]) for one in noisy.single) < 0.85
    assert 8 * 40 * beta(31, 31).sf((1 + 0.85) / 2) < 1e-6  # (1 + r) / 2 of a uniform direction


def test_a_batch_gives_the_means_of_its_classes() -> None:
    """Softmax that starts at 0, no clipping in effect: a class's row minus an absent class's, over the biases'."""
    wanted = config({"privacy": {"clip_norm": 100.0}, "data": {"partition": {"name": "labels_per_silo", "labels": 4}}})
    parts = build(wanted, HERE)
    quiet, _ = demonstration.inversion(wanted, HERE, 0)
    (batch,) = batches(parts.num_records[0], wanted.public_seed, [1] * 8 + [8])[8:]
    features, labels = parts.train[0].features[batch].double(), parts.train[0].labels[batch]
    means = torch.stack([features[labels == label].mean(dim=0) for label in labels.unique()])
    assert quiet.batch is not None
    _, correlations = nearest(means, quiet.batch.found)
    assert float(correlations.min()) > 0.9999
    assert quiet.batch.correlations.mean() > quiet.batch.control


def test_a_unit_that_one_record_activates_gives_it_away() -> None:
    x = torch.tensor([[1.0, 0.0, 0.2], [0.0, 1.0, 0.5]])
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0]]))
        model[0].bias.zero_()
    nn.functional.cross_entropy(model(x), torch.tensor([0, 1])).backward()
    gradient = {name: p.grad for name, p in model.named_parameters()}
    found = reconstructions(first_layer(model), gradient)
    torch.testing.assert_close(found, x.double())


def test_units_without_a_gradient_are_left_out() -> None:
    layer = first_layer(nn.Sequential(nn.Flatten(), nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    found = reconstructions(layer, {"1.weight": torch.zeros(4, 3), "1.bias": torch.zeros(4)})
    assert found.shape == (0, 3)
    closest, correlations = nearest(torch.ones(2, 3, dtype=torch.float64), found)
    assert not closest.any() and not correlations.any()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_what_guesses_reach_is_the_mean_over_all_draws(count: int) -> None:
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    originals, others = x[:2], x[2:]
    draws = itertools.product(range(len(others)), repeat=count)
    slow = torch.stack([nearest(originals, others[list(draw)])[1] for draw in draws]).mean(dim=0)
    torch.testing.assert_close(guessed(originals, others, count), slow)
    assert guessed(originals, others[:0], count).isnan().all()


def test_an_attack_tells_more_than_a_guess_only_beyond_chance() -> None:
    guesses = torch.tensor([0.5, 0.6, 0.4, 0.5])
    assert tells_more(torch.ones(4), guesses) and not tells_more(guesses, guesses)
    assert not tells_more(guesses + torch.tensor([0.3, -0.2, 0.1, -0.1]), guesses)
    assert not tells_more(-guesses, guesses)


@pytest.mark.statistical
def test_records_of_few_numbers_are_guessed_as_well_as_read_under_noise() -> None:
    """The noisy correlations are large, and say nothing; without noise the record itself is read."""
    change = {"data": {"preprocess": [{"name": "pca", "dims": 3}]}, "privacy": {"noise_multiplier": 50.0}}
    quiet, noisy = demonstration.inversion(config(change), HERE, 0)
    assert noisy is not None and noisy.num_features == 3
    value, more = noisy.against_guesses["batch of 1"]
    assert value > 0.6 and not more and quiet.against_guesses["batch of 1"][1]


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2, 2)),
        nn.Sequential(nn.Flatten(), nn.Linear(3, 2, bias=False)),
        nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(3, 2)),
        nn.LSTM(3, 2),
    ],
    ids=["convolution", "no bias", "activation first", "no sequence of layers"],
)
def test_other_models_are_refused(model: nn.Module) -> None:
    with pytest.raises(UnsupportedError, match="softmax, logistic and mlp"):
        first_layer(model)


def test_batches_share_no_record_and_may_run_out() -> None:
    found = batches(100, 0, [1, 1, 8])
    assert [len(batch) for batch in found] == [1, 1, 8]
    assert len(torch.cat(found).unique()) == 10
    assert [len(batch) for batch in batches(4, 0, [1, 1, 8])] == [1, 1, 2]
    assert [len(batch) for batch in batches(2, 0, [1, 1, 8])] == [1, 1]


def test_the_silo_has_to_exist() -> None:
    with pytest.raises(ConfigError, match="silo=9 must be one of"):
        demonstration.inversion(config(), HERE, 9)
