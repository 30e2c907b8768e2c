"""What a platform does not have is refused by name where the agreement is made: at the server and at every silo."""

import pytest
import torch
from torch import nn

from dpfl_plugin.adapters import Server, agree
from dpfl_plugin.adapters.settings import ELSEWHERE
from dpfl_plugin.errors import ConfigError, DataError, UnsupportedError
from tests.adapters.federation import NOISY, SCAFFOLD, SimulatedSilo, block

STEPS = {"local_steps": 2, "local_lr": 0.1}
VALUES = {
    "data": {"dataset": "digits"},
    "model": "softmax",
    "evaluation": {"every": 1},
    "checkpoint": {"every": 1},
    "out": "runs",
}
REFUSED = {
    **{key: ({key: VALUES[key]}, f"{key} has no meaning here: ") for key in ELSEWHERE},
    "weights of records": ({"silo_weights": "records"}, "must not weigh its upload"),
    "weights of noise": ({"silo_weights": "noise"}, "must not weigh its upload"),
    "mr_mtl": ({"algorithm": {**STEPS, "name": "mr_mtl", "mean_weight": 0.5}}, "'mr_mtl': each silo keeps a model of"),
    "local": ({"algorithm": {**STEPS, "name": "local"}}, "'local': each silo keeps a model of its own"),
    "silo level": ({"privacy": {"unit": "silo", "noise_multiplier": 1.0, "clip_norm": 0.1}}, "releasing it as it is"),
    **{
        f"loss {name}": ({"loss": name}, f"loss='{name}' is for an outcome of {kind}: labels on a platform are classes")
        for name, kind in (("squared", "regression"), ("huber", "regression"), ("hazards", "survival"))
    },
    "no such loss": ({"loss": "crossentropy"}, "is unknown"),
    "no such engine": ({"engine": "densest"}, "no engine 'densest'"),
    "no such clipping": ({"privacy": {**NOISY, "clip": "flattest"}}, "no clipping 'flattest'"),
    "an option of a schedule": ({"privacy": {**NOISY, "schedule": {"name": "geometric", "b": 1}}}, r"schedule\.b"),
    **{
        f"runtime {key}": ({"runtime": {key: value}}, f"runtime.{key} has no meaning here")
        for key, value in (("threads", 2), ("silo_timeout", 5.0), ("dtype", "float32"), ("kind", "mpi"))
    },
}


@pytest.mark.parametrize(("changes", "why"), REFUSED.values(), ids=REFUSED)
def test_what_a_platform_does_not_have_is_refused_before_anybody_is_asked(changes, why):
    with pytest.raises(ConfigError, match=why):
        agree(block(**changes), num_silos=2, model=nn.Linear(4, 3))


def test_what_a_silo_computes_with_is_its_own_matter():
    runtime = {"device": "cpu", "precision": "bf16", "memory_budget": "1GB"}
    runs = {agree(block(**more), num_silos=2, model=linear(3)).run for more in ({}, {"runtime": runtime})}
    assert len(runs) == 1, "the server and silos agree on the run all the same"


def linear(outputs):
    return nn.Linear(4, outputs)


@pytest.mark.parametrize(("outputs", "labels"), [(1, [-1, 1]), (1, [0, 2]), (3, [0, 3]), (3, [-100, 1])])
def test_labels_that_are_none_of_the_models_classes_are_refused_before_a_charge(tmp_path, outputs, labels):
    """Labels of -1 and 1 had a loss of their own by `logistic`, and trained something else in silence."""
    model, y = linear(outputs), torch.tensor(labels * 10)
    agreement = agree(block(), num_silos=1, model=model)
    with pytest.raises(DataError, match=f"labels are from {labels[0]} to {labels[1]}: .* must be from 0 to "):
        SimulatedSilo(agreement, 0, model, (torch.randn(20, 4), y), tmp_path)
    assert not (tmp_path / "ledger.jsonl").exists()


def test_an_algorithm_of_ones_own_whose_silos_keep_models_is_refused(monkeypatch):
    from dpfl_plugin.algorithms.scaffold import Scaffold

    monkeypatch.setattr(Scaffold, "own_model", "control", raising=False)
    with pytest.raises(UnsupportedError, match="keeps a model of its own"):
        agree(block(algorithm=SCAFFOLD), num_silos=1, model=linear(3))


def test_the_mean_of_the_global_models_is_what_a_server_has(tmp_path):
    """`average`: silos are sent the last model, and the project is given the mean."""
    model = linear(3)
    averaged = {"name": "fedavg", **STEPS, "average": "uniform"}
    agreement = agree(block(algorithm=averaged, privacy={"noise_multiplier": 0}), num_silos=1, model=model)
    records, sent = (torch.randn(20, 4), torch.arange(20) % 3), []
    with Server(agreement, model) as server, SimulatedSilo(agreement, 0, model, records, tmp_path) as silo:
        while (message := server.begin()) is not None:
            sent.append(message.vectors["model"])
            server.receive(0, silo.answer(message))
            server.end()
    last = server._vectors["iterate"]
    torch.testing.assert_close(server.model, torch.stack([*sent[1:], last]).mean(0))
    assert not torch.equal(server.model, last)
