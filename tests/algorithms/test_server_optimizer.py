"""Reddi et al. 2021, Alg. 2, by its own recursions."""

import pytest
import torch

from dpfl_plugin.algorithms.fedavg import FedAvg
from dpfl_plugin.algorithms.mb_sgd import MBSGD
from dpfl_plugin.algorithms.server_optimizer import ServerOptimizer
from dpfl_plugin.errors import ConfigError
from tests.quadratics import Lab, rules, silo

UPDATES = [torch.tensor([1.0, -2.0, 0.5]), torch.tensor([0.5, 1.0, -0.5]), torch.tensor([-1.0, 0.0, 2.0])]


def run(**options):
    optimizer = ServerOptimizer(**options)
    server = {"model": torch.zeros(3), **optimizer.init(torch.zeros(3))}
    for update in UPDATES:
        server = optimizer.step(server, update)
    return server


def test_sgd_adds_the_updates():
    torch.testing.assert_close(run(name="sgd", learning_rate=0.5)["model"], 0.5 * sum(UPDATES))


def test_momentum_without_momentum_is_sgd():
    expected = run(name="sgd", learning_rate=0.3)["model"]
    torch.testing.assert_close(run(name="momentum", learning_rate=0.3, beta_1=0.0)["model"], expected)


def test_momentum_is_torchs():
    model = torch.zeros(3, requires_grad=True)
    theirs = torch.optim.SGD([model], lr=0.3, momentum=0.9)
    for update in UPDATES:
        model.grad = -update
        theirs.step()
    torch.testing.assert_close(run(name="momentum", learning_rate=0.3, beta_1=0.9)["model"], model.detach())


@pytest.mark.parametrize("name", ["adam", "yogi", "adagrad"])
def test_second_moments(name):
    beta_1, beta_2, tau = 0.8, 0.7, 0.01
    m, v, x = torch.zeros(3), torch.full((3,), tau**2), torch.zeros(3)
    for update in UPDATES:
        m = beta_1 * m + (1 - beta_1) * update
        if name == "adagrad":
            v = v + update**2
        elif name == "adam":
            v = beta_2 * v + (1 - beta_2) * update**2
        else:
            v = v - (1 - beta_2) * update**2 * torch.sign(v - update**2)
        x = x + 0.1 * m / (torch.sqrt(v) + tau)
    server = run(name=name, learning_rate=0.1, beta_1=beta_1, beta_2=beta_2, tau=tau)
    torch.testing.assert_close(server["model"], x)
    torch.testing.assert_close(server["optimizer_v"], v)


def test_a_step_does_not_change_the_state_it_was_given():
    optimizer = ServerOptimizer(name="adam")
    server = {"model": torch.zeros(3), **optimizer.init(torch.zeros(3))}
    before = {name: value.clone() for name, value in server.items()}
    optimizer.step(server, UPDATES[0])
    assert all(torch.equal(before[name], server[name]) for name in server)


@pytest.mark.parametrize("options", [{"learning_rate": 0.0}, {"beta_1": 1.0}, {"beta_2": -0.1}, {"tau": 0.0}])
def test_out_of_range(options):
    with pytest.raises(ConfigError):
        ServerOptimizer(**options)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "yogi", "adagrad"])
def test_of_mb_sgd_it_is_that_of_fedavg_with_one_step(name):
    """FedAvg's update after one local step of size 1 is minus the gradient: the same noise, the same model."""
    two = [silo([1.0, 4.0], [2.0, 0.0]), silo([3.0, 2.0], [-1.0, 1.0])]
    others = {"server_optimizer": name, "beta_1": 0.7, "beta_2": 0.8, "tau": 0.1}
    sgd = Lab(MBSGD(lr=0.3, **others), two, rules(1.0, 2.0), [1.0, -1.0])
    fedavg = Lab(FedAvg(local_steps=1, local_lr=1.0, server_lr=0.3, **others), two, rules(1.0, 2.0), [1.0, -1.0])
    for _ in range(5):
        sgd.step()
        fedavg.step()
    torch.testing.assert_close(sgd.server["model"], fedavg.server["model"])
    assert [charge.release for charge in sgd.ledger] == [charge.release for charge in fedavg.ledger]


def test_of_mb_sgd_its_step_is_projected():
    lab = Lab(MBSGD(lr=0.5, diameter=1.0, server_optimizer="momentum"), [silo([1.0], [9.0])], rules(), [0.0])
    for _ in range(10):
        lab.step()
        assert abs(float(lab.server["model"])) <= 0.5 + 1e-12
