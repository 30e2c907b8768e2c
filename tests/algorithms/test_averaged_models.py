"""`average`: the mean of the global models is returned, and nothing else of a run changes."""

import pytest
import torch

from dpfl_plugin.algorithms.fedavg import FedAvg
from dpfl_plugin.algorithms.fedprox import FedProx
from dpfl_plugin.algorithms.scaffold import Scaffold, ScaffoldWarm
from dpfl_plugin.errors import ConfigError
from tests.quadratics import Lab, rules, silo

TWO = [silo([1.0], [2.0]), silo([3.0], [-1.0])]
STEPS = {"local_steps": 3, "local_lr": 0.1}
KINDS = {
    "fedavg": (FedAvg, {}),
    "momentum": (FedAvg, {"server_optimizer": "momentum"}),
    "fedprox": (FedProx, {"mu": 0.5}),
    "scaffold": (Scaffold, {}),
    "scaffold, adam": (Scaffold, {"server_optimizer": "adam", "server_lr": 0.1}),
    "warm": (ScaffoldWarm, {"warm_rounds": 1}),
}
WEIGHTS = {"uniform": lambda r: 1.0, "linear": float}


@pytest.mark.parametrize("average", WEIGHTS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_of_the_models_that_the_same_noisy_run_goes_through(kind, average):
    make, options = KINDS[kind]
    plain = Lab(make(**STEPS, **options), TWO, rules(1.0, 0.5), [3.0])
    averaged = Lab(make(**STEPS, **options, average=average), TWO, rules(1.0, 0.5), [3.0])
    models = []
    for round in range(5):
        plain.step()
        averaged.step()
        for name, upload in plain.uploads[-1].items():  # the same is released
            assert torch.equal(averaged.uploads[-1][name], upload)
        if kind == "warm" and round == 0:  # the model stays, and does not count
            assert torch.equal(averaged.server["model"], plain.server["model"])
            continue
        models.append(plain.server["model"].clone())
        weights = [WEIGHTS[average](r) for r in range(1, len(models) + 1)]
        mean = sum(weight * model for weight, model in zip(weights, models, strict=True)) / sum(weights)
        torch.testing.assert_close(averaged.server["model"], mean)
    assert not torch.equal(averaged.server["model"], plain.server["model"])
    assert [charge.release for charge in averaged.ledger] == [charge.release for charge in plain.ledger]


def test_an_average_that_there_is_not_is_refused():
    with pytest.raises(ConfigError, match="average='first' must be one of last, uniform, linear"):
        FedAvg(**STEPS, average="first")
