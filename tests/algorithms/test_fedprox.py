"""FedProx (Li et al. 2020, Alg. 2): closed forms on quadratics, and what its term costs in privacy: nothing."""

import math

import pytest
import torch

from dpfl_plugin.algorithms.fedavg import FedAvg
from dpfl_plugin.algorithms.fedprox import FedProx
from dpfl_plugin.errors import ConfigError
from tests.quadratics import Lab, rules, silo

TWO = [silo([1.0], [2.0]), silo([3.0], [-1.0])]


@pytest.mark.parametrize("unit", ["record", "silo"])
def test_without_its_term_it_is_fedavg_bit_for_bit(unit):
    prox = Lab(FedProx(local_steps=5, local_lr=0.1, mu=0.0, server_lr=0.7), TWO, rules(1.0, 0.5, unit=unit), [3.0])
    fedavg = Lab(FedAvg(local_steps=5, local_lr=0.1, server_lr=0.7), TWO, rules(1.0, 0.5, unit=unit), [3.0])
    for _ in range(5):
        prox.step()
        fedavg.step()
    assert torch.equal(prox.server["model"], fedavg.server["model"])


def test_local_steps_by_hand():
    """y_K - y* = (1 - eta (a + mu))^K (x - y*), y* = (a b + mu x) / (a + mu): the minimiser of f_i + mu/2 |y - x|^2."""
    eta, mu, K, x = 0.1, 2.0, 4, 1.0
    lab = Lab(FedProx(local_steps=K, local_lr=eta, mu=mu), TWO, rules(), [x])
    lab.step()
    ends = []
    for a, b in ((1.0, 2.0), (3.0, -1.0)):
        best = (a * b + mu * x) / (a + mu)
        ends.append(best + (1 - eta * (a + mu)) ** K * (x - best))
    torch.testing.assert_close(lab.uploads[0]["model"].flatten(), torch.tensor(ends, dtype=torch.float64) - x)


def test_the_fixed_point_in_closed_form():
    """x = sum w_i b_i / sum w_i, w_i = (1 - (1 - eta (a_i + mu))^K) a_i / (a_i + mu)."""
    eta, mu, K = 0.1, 2.0, 5
    lab = Lab(FedProx(local_steps=K, local_lr=eta, mu=mu), TWO, rules(), [5.0])
    for _ in range(50):
        lab.step()
    w = [(1 - (1 - eta * (a + mu)) ** K) * a / (a + mu) for a in (1.0, 3.0)]
    assert lab.server["model"].item() == pytest.approx((w[0] * 2.0 - w[1] * 1.0) / sum(w), abs=1e-9)


def test_a_stronger_pull_ends_nearer_the_optimum():
    """FedAvg's drift goes as mu grows: w_i -> K eta a_i."""
    distances = []
    for mu in (0.0, 2.0, 10.0):
        lab = Lab(FedProx(local_steps=10, local_lr=0.1, mu=mu), TWO, rules(), [5.0])
        for _ in range(40):
            lab.step()
        distances.append(float((lab.server["model"] - lab.optimum).abs()))
    assert distances[0] > 1.5 * distances[1] > 2 * distances[2] > 0


def test_its_term_is_neither_clipped_nor_noised_nor_charged():
    """With gradients clipped to almost nothing, the pull still has its full size; and no charge of its own."""
    lab = Lab(FedProx(local_steps=2, local_lr=0.1, mu=3.0), TWO, rules(0.0, 1e-3), [50.0])
    lab.step()
    first = -0.1 * 1e-3 * torch.tensor([1.0, 1.0], dtype=torch.float64)  # both gradients point up
    expected = first - 0.1 * (torch.tensor([1e-3, 1e-3], dtype=torch.float64) + 3.0 * first)
    torch.testing.assert_close(lab.uploads[0]["model"].flatten(), expected, rtol=1e-9, atol=0)
    assert {charge.count for charge in lab.ledger} == {2}


def test_at_silo_level_the_update_is_clipped_and_charged_once():
    lab = Lab(FedProx(local_steps=4, local_lr=0.1, mu=1.0), TWO, rules(0.0, 0.25, unit="silo"), [50.0])
    lab.step()
    assert lab.uploads[0]["model"].abs().flatten().tolist() == pytest.approx([0.25, 0.25])
    assert {(charge.count, charge.release.unit) for charge in lab.ledger} == {(1, "silo")}


def test_stacks_of_any_size_give_the_same_bits():
    ends = []
    for stack in (1, 2):
        lab = Lab(FedProx(local_steps=3, local_lr=0.1, mu=0.5), TWO, rules(1.0, 2.0), [3.0], stack=stack)
        for _ in range(3):
            lab.step()
        ends.append(lab.server["model"])
    assert torch.equal(*ends)


@pytest.mark.parametrize("mu", [-0.1, math.inf, math.nan])
def test_impossible_pulls_are_refused(mu):
    with pytest.raises(ConfigError, match=r"mu=.* must be finite and at least 0"):
        FedProx(local_steps=1, local_lr=0.1, mu=mu)
