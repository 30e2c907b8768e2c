"""ScaffNew: identities of its paper ([S] Alg. 2, Theorem 1) and of Mishchenko et al. 2022."""

import math

import pytest
import torch

from dpfl_plugin.algorithms.fedavg import FedAvg
from dpfl_plugin.algorithms.scaffnew import ScaffNew
from dpfl_plugin.core.streams import stream
from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.oracle import Draw, PrivateOracle
from tests.quadratics import Lab, released, rules, silo

THREE = [silo([1.0, 4.0], [1.0, -2.0]), silo([2.0, 1.0], [-3.0, 0.5]), silo([8.0, 2.0], [0.5, 4.0])]
START = [5.0, -5.0]
MU, L = 1.0, 8.0  # of every silo's loss


def shifts(lab):
    """h_i (m, d) as it will be when the next broadcast has arrived."""
    states, algorithm = lab.host.states, lab.algorithm
    scale = algorithm.probability / algorithm.local_lr
    return states["control"] + scale * (lab.server["mean_update"] - states["update"])


def test_heterogeneous_silos_reach_the_optimum_where_fedavg_does_not():
    scaffnew = Lab(ScaffNew(local_lr=1 / L, p=0.2), THREE, rules(), START)
    fedavg = Lab(FedAvg(local_lr=1 / L, local_steps=5), THREE, rules(), START)
    for _ in range(90):
        scaffnew.step()
    for _ in range(30):  # after which it has come to rest
        fedavg.step()
    assert (scaffnew.server["model"] - scaffnew.optimum).norm() < 1e-9
    assert (fedavg.server["model"] - fedavg.optimum).norm() > 0.1
    a, b = torch.stack([records.features[0] for records in THREE]).chunk(2, dim=1)  # [S] Theorem 1: h_i -> grad f_i(x*)
    torch.testing.assert_close(shifts(scaffnew), a * (scaffnew.optimum - b), atol=1e-8, rtol=0)


def test_a_fixed_number_of_local_steps_reaches_it_too():
    lab = Lab(ScaffNew(local_lr=1 / L, local_steps=5), THREE, rules(), START)
    for _ in range(90):
        lab.step()
    assert (lab.server["model"] - lab.optimum).norm() < 1e-9


def test_always_communicating_is_gradient_descent():
    """p = 1: the shifts cancel in the mean, since they add up to 0."""
    lab = Lab(ScaffNew(local_lr=0.1, p=1.0), THREE, rules(), START)
    descent = Lab(FedAvg(local_lr=0.1, local_steps=1), THREE, rules(), START)
    for _ in range(20):
        lab.step()
        descent.step()
        torch.testing.assert_close(lab.server["model"], descent.server["model"])
    assert shifts(lab).abs().max() > 0.1


def test_without_shifts_it_is_fedavg():
    """In the first round, before any broadcast could settle them, all h_i are 0."""
    lab = Lab(ScaffNew(local_lr=0.1, p=0.3), THREE, rules(1.0, 2.0), START)
    K = lab.plan().local_steps
    assert K > 1
    fedavg = Lab(FedAvg(local_lr=0.1, local_steps=K), THREE, rules(1.0, 2.0), START)
    lab.step()
    fedavg.step()
    assert torch.equal(lab.server["model"], fedavg.server["model"])


def test_iteration_by_iteration():
    """[S] Alg. 2 with its own coins: x_i, x and h_i of every iteration, not of rounds."""
    p, eta, C = 0.4, 0.1, 0.7
    lab = Lab(ScaffNew(local_lr=eta, p=p), THREE, rules(0.0, C, unit="silo"), START)
    a, b = torch.stack([records.features[0] for records in THREE]).chunk(2, dim=1)
    x = torch.tensor(START, dtype=torch.float64)
    x_i, h = x.repeat(3, 1), torch.zeros(3, 2, dtype=torch.float64)
    for round in range(12):
        K = int(stream(lab.seed, "plan", round).geometric(p))
        for coin in [False] * (K - 1) + [True]:
            x_hat = x_i - eta * (a * (x_i - b) - h)  # l. 6
            if not coin:
                x_i = x_hat  # l. 11
                continue
            norms = (x_hat - x).norm(dim=1, keepdim=True)
            delta = (x_hat - x) * (C / norms).clamp(max=1)  # l. 7
            x = x + delta.mean(dim=0)  # l. 8
            x_i, h = x.repeat(3, 1), h + p / eta * (delta.mean(dim=0) - delta)  # l. 9
        lab.step()
        torch.testing.assert_close(lab.server["model"], x)
        torch.testing.assert_close(shifts(lab), h)


@pytest.mark.parametrize("unit", ["record", "silo"])
@pytest.mark.parametrize("sigma", [0.0, 1.0])
def test_the_shifts_add_up_to_nothing(unit, sigma):
    lab = Lab(ScaffNew(local_lr=0.1, p=0.4), THREE, rules(sigma, 2.0, unit=unit), START)
    for _ in range(15):
        lab.step()
        h = lab.host.states["control"]
        assert h.sum(dim=0).abs().max() <= 1e-12 * max(1.0, float(h.abs().max()))
    assert h.abs().max() > 0.1


def test_the_linear_rate_of_the_theorem():
    """[S] Theorem 1 without noise: psi_t / max(1 - mu eta, 1 - p^2)^t is a supermartingale, so that its mean at the
    first communication after 12 iterations is at most psi_0. The coins are those of 12 fixed seeds."""
    p, eta = math.sqrt(MU / L), 1 / L
    a, b = torch.stack([records.features[0] for records in THREE]).chunk(2, dim=1)
    found = []
    for seed in range(12):
        lab = Lab(ScaffNew(local_lr=eta, p=p), THREE, rules(), START, seed=seed)
        best, done = a * (lab.optimum - b), 0
        initial = 3 * (lab.server["model"] - lab.optimum).square().sum() + (eta / p) ** 2 * best.square().sum()
        while done < 12:
            done += lab.plan().local_steps
            lab.step()
        distance = 3 * (lab.server["model"] - lab.optimum).square().sum()
        psi = distance + (eta / p) ** 2 * (shifts(lab) - best).square().sum()
        found.append(float(psi / initial) / max(1 - MU * eta, 1 - p**2) ** done)
    assert sum(found) / len(found) <= 1


def test_the_number_of_local_steps_is_geometric_public_and_the_budgets():
    """P(K = k) = p (1 - p)^(k - 1); no record, state or run has a part in it."""
    algorithm, p = ScaffNew(local_lr=0.1, p=0.25), 0.25
    setting = Lab(algorithm, THREE, rules(), START).setting
    plans = [algorithm.round_plan({}, t, setting, stream(7, "plan", t)) for t in range(4000)]
    assert all(plan.num_gradients == plan.local_steps and plan.participation == "all" for plan in plans)
    steps = [plan.local_steps for plan in plans]
    # The seed is fixed: what follows does not depend on chance.
    for k in (1, 2, 5):
        assert sum(k == K for K in steps) / len(steps) == pytest.approx(p * (1 - p) ** (k - 1), abs=0.02)
    assert sum(steps) / len(steps) == pytest.approx(1 / p, rel=0.05)


@pytest.mark.parametrize("unit", ["record", "silo"])
def test_stacks_of_any_size_give_the_same_bits(unit):
    ends = []
    for stack in (1, 2, 3):
        lab = Lab(ScaffNew(local_lr=0.1, p=0.4), THREE, rules(1.0, 2.0, unit=unit), START, stack=stack)
        for _ in range(5):
            lab.step()
        ends.append({**lab.server, **lab.host.states})
    for end in ends[1:]:
        assert all(torch.equal(ends[0][name], end[name]) for name in end)


def test_at_record_level_every_gradient_is_charged():
    lab = Lab(ScaffNew(local_lr=0.1, p=0.3), THREE, rules(1.0, 2.0), START)
    planned = {}
    for t in range(6):
        planned[t] = lab.plan().local_steps
        lab.step()
    assert len(set(planned.values())) > 1
    assert {(charge.round, charge.count) for charge in lab.ledger} == set(planned.items())


def test_at_silo_level_the_upload_is_the_release_and_nothing_else():
    """clip(x_i - x, C) + N(0, (2 C sigma)^2), charged once, whatever the number of local steps. [S] Alg. 2, l. 7."""
    C, sigma = 0.25, 0.5
    lab = Lab(ScaffNew(local_lr=0.1, p=0.3), THREE, rules(sigma, C, unit="silo"), START)
    silent = Lab(ScaffNew(local_lr=0.1, p=0.3), THREE, rules(0.0, C, unit="silo"), START)
    lab.step()
    silent.step()
    ((name, sent),) = lab.uploads[0].items()
    assert torch.equal(sent, lab.host.states["update"])
    for i in range(3):
        assert silent.uploads[0][name][i].norm() == pytest.approx(C)
        exact = silent.uploads[0][name][i]
        torch.testing.assert_close(sent[i], released(exact, sigma, 2 * C, 0, i))
    assert {(charge.count, charge.release.unit, charge.release.sampler) for charge in lab.ledger} == {
        (1, "silo", "full")
    }


class Leaks(ScaffNew):
    """Sends its shift as well, which no noise covers."""

    def local_update(self, down, silos, oracle, plan):
        up, new = super().local_update(down, silos, oracle, plan)
        return {**up, "control": silos["control"] + 1.0}, new


def test_sending_more_than_the_release_is_refused():
    lab = Lab(Leaks(local_lr=0.1, p=0.3), THREE, rules(1.0, 1.0, unit="silo"), START)
    with pytest.raises(UnsupportedError, match="'control'"):
        lab.step()


def test_what_one_silo_sends_in_the_second_round_depends_on_the_others_through_the_mean_only():
    lab = Lab(ScaffNew(local_lr=0.1, p=0.3), THREE, rules(1.0, 2.0), START)
    lab.step()
    own = {name: value[1:2].clone() for name, value in lab.host.states.items()}
    down, plan = lab.algorithm.download(lab.server), lab.plan()
    lab.step()
    oracle = PrivateOracle(lab.rules, lab.host._engine, [THREE[1]], [1], Draw(0, 1), max_gradients=plan.num_gradients)
    up, _ = lab.algorithm.local_update(down, own, oracle, plan)
    assert torch.equal(up["update"][0], lab.uploads[1]["update"][1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"p": 0.0}, r"p=0\.0 must be in \(0, 1\]"),
        ({"p": 1.5}, r"p=1\.5 must be in \(0, 1\]"),
        ({"p": -0.1}, r"must be in \(0, 1\]"),
        ({"p": math.nan}, r"must be in \(0, 1\]"),
        ({}, "exactly one"),
        ({"p": 0.5, "local_steps": 2}, "exactly one"),
        ({"local_steps": 0}, "at least 1"),
        ({"p": 0.5, "local_lr": 0.0}, "local_lr"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        ScaffNew(**{"local_lr": 0.1, **options})


def test_notes_say_which_theorem_does_not_apply():
    (random,) = ScaffNew(local_lr=0.1, p=0.3).notes({})
    (fixed,) = ScaffNew(local_lr=0.1, local_steps=3).notes({})
    assert "Theorem 1" in random and "with a fixed one it does not apply" not in random
    assert "Theorem 1" in fixed and "with a fixed one it does not apply" in fixed
