import pytest
import torch

from dpfl_plugin.algorithms.base import Setting
from dpfl_plugin.algorithms.fedavg import FedAvg, FedSGD
from dpfl_plugin.errors import ConfigError
from tests.quadratics import Lab, released, rules, silo

TWO = [silo([1.0], [2.0]), silo([3.0], [-1.0])]


def test_local_gradient_descent_by_hand():
    """[N] Alg. 2 on quadratics: y_K - b = (1 - eta a)^K (x - b)."""
    lab = Lab(FedAvg(local_steps=4, local_lr=0.1, server_lr=0.5), TWO, rules(), [1.0])
    lab.step()
    ends = [b + (1 - 0.1 * a) ** 4 * (1.0 - b) for a, b in ((1.0, 2.0), (3.0, -1.0))]
    torch.testing.assert_close(lab.uploads[0]["model"].flatten(), torch.tensor(ends, dtype=torch.float64) - 1.0)
    assert lab.server["model"].item() == pytest.approx(1.0 + 0.5 * (sum(ends) / 2 - 1.0))


def test_one_step_of_equal_silos_is_gradient_descent():
    lab = Lab(FedAvg(local_steps=1, local_lr=0.1), TWO, rules(), [1.0])
    for _ in range(200):
        lab.step()
    torch.testing.assert_close(lab.server["model"], lab.optimum)


def _plan(algorithm, record_rate):
    setting = Setting(num_silos=2, num_participants=2, silo_rate=1.0, record_rate=record_rate)
    return algorithm.round_plan({}, 0, setting, None)


@pytest.mark.parametrize(("rate", "steps"), [(0.2, 5), (0.1, 10), (0.5, 2), (1.0, 1)])
def test_fedsgd_of_the_epoch_form_takes_one_pass(rate, steps):
    plan = _plan(FedSGD(local_lr=0.1), rate)
    assert plan.local_steps == plan.num_gradients == steps


def test_fedsgd_of_the_single_form_takes_one_step():
    assert _plan(FedSGD(local_lr=0.1, form="single"), 0.3).local_steps == 1


def test_fedsgd_refuses_what_it_cannot_do():
    with pytest.raises(ConfigError, match="not a whole number"):
        _plan(FedSGD(local_lr=0.1), 0.3)
    with pytest.raises(ConfigError, match="record_rate"):
        _plan(FedSGD(local_lr=0.1), None)
    with pytest.raises(ConfigError, match="Leave it out"):
        FedSGD(local_lr=0.1, local_steps=3)


def test_at_silo_level_the_update_is_clipped_and_charged_once():
    lab = Lab(FedAvg(local_steps=4, local_lr=0.1), TWO, rules(1.0, 0.25, unit="silo"), [50.0])
    silent = Lab(FedAvg(local_steps=4, local_lr=0.1), TWO, rules(0.0, 0.25, unit="silo"), [50.0])
    lab.step()
    silent.step()
    assert silent.uploads[0]["model"].abs().flatten().tolist() == pytest.approx([0.25, 0.25])
    assert not torch.equal(lab.uploads[0]["model"], silent.uploads[0]["model"])
    assert {(charge.count, charge.release.unit) for charge in lab.ledger} == {(1, "silo")}


@pytest.mark.parametrize(("neighbouring", "sensitivity"), [("replace_one", 2.0), ("add_or_remove", 1.0)])
def test_at_silo_level_it_is_client_level_dp_fedavg(neighbouring, sensitivity):
    """ "Balancing Privacy and Performance", Alg. 1: tau SGD steps, clip(x_tau - x, C) + N(0, sigma^2 I), x += mean.

    sigma is noise_multiplier times the sensitivity: 2 C where a client is replaced, as in the paper's neighbours.
    """
    tau, eta, C, multiplier = 3, 0.2, 0.25, 0.5
    lab = Lab(
        FedAvg(local_steps=tau, local_lr=eta), TWO, rules(multiplier, C, unit="silo", neighbouring=neighbouring), [9.0]
    )
    x = torch.tensor([9.0], dtype=torch.float64)
    for t in range(4):
        deltas = []
        for i, (a, b) in enumerate(((1.0, 2.0), (3.0, -1.0))):
            y = x
            for _ in range(tau):
                y = y - eta * a * (y - b)  # l. 6-7
            clipped = (y - x) * min(1.0, C / float((y - x).norm()))  # l. 8
            deltas.append(released(clipped, multiplier, sensitivity * C, t, i))  # l. 9
        lab.step()
        torch.testing.assert_close(lab.uploads[t]["model"], torch.stack(deltas))
        x = x + torch.stack(deltas).mean(dim=0)  # l. 11
        torch.testing.assert_close(lab.server["model"], x)
    assert {(c.count, c.release.unit, c.release.sampler, c.release.neighbouring) for c in lab.ledger} == {
        (1, "silo", "full", neighbouring)
    }
