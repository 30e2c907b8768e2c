"""FedDyn: the contract of every algorithm, and what its paper says of it."""

import torch
from dpfl_feddyn import FedDyn

from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.testing import AlgorithmContract

OPTIONS = {"local_steps": 3, "local_lr": 0.1, "alpha": 0.5}


class TestContract(AlgorithmContract):
    algorithm = {"name": "feddyn", **OPTIONS}


def test_h_is_the_mean_of_all_g():
    """The server's h = 1/m sum_i g_i (the proof of Theorem 1 rests on it), whoever takes part."""
    for changes in ({}, {"silo_rate": 0.5}):
        steps = TestContract().run(changes, {"runtime": {"dtype": "float64"}})
        for server, silos in zip(steps.servers, steps.states, strict=True):
            torch.testing.assert_close(server["h"], silos["g"].mean(dim=0))
            assert server["h"].norm() > 1e-3


def test_the_model_is_the_mean_of_the_silos_models_less_h_over_alpha():
    steps = TestContract().run({"runtime": {"dtype": "float64"}})
    for round in range(1, len(steps.servers)):
        x, after = steps.servers[round - 1]["model"], steps.servers[round]
        ends = [x + call.up["update"][0] for call in steps.calls if call.round == round]
        torch.testing.assert_close(after["model"], torch.stack(ends).mean(dim=0) - after["h"] / OPTIONS["alpha"])


class Quadratics:
    """An oracle of silos with the losses a_i/2 (y - b_i)^2, without noise."""

    a, b = torch.tensor([[1.0], [4.0]]), torch.tensor([[2.0], [-1.0]])
    num_silos = 2

    def gradient(self, y):
        return self.a * (y - self.b)

    def release(self, update):
        return update


def ends(alpha):
    """The model after 200 rounds of 50 steps, in which silos that only average drift to minima of their own."""
    feddyn, oracle = FedDyn(local_steps=50, local_lr=0.1, alpha=alpha), Quadratics()
    plan = RoundPlan(local_steps=50, local_lr=0.1, num_gradients=50)
    server, silos = feddyn.init_server(torch.zeros(1), None), feddyn.init_silos(torch.zeros(1), 2)
    for _ in range(200):
        up, silos = feddyn.local_update(feddyn.download(server), silos, oracle, plan)
        server = feddyn.aggregate(server, {"update": up["update"].mean(dim=0)}, plan)
    return server["model"]


def test_it_ends_at_the_minimum_of_the_mean_loss_where_averaging_does_not():
    a, b = Quadratics.a, Quadratics.b
    for alpha in (0.5, 2.0):
        torch.testing.assert_close(ends(alpha), (a * b).sum(dim=0) / a.sum(dim=0))
    assert abs(b.mean() - (a * b).sum() / a.sum()) > 0.5, "the mean of the silos' minima is another point"
