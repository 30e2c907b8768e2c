"""Identities of Noble et al., Alg. 1, and of Karimireddy et al. 2020."""

import math

import pytest
import torch

from dpfl_plugin.algorithms.fedavg import FedAvg
from dpfl_plugin.algorithms.scaffold import Scaffold, ScaffoldWarm
from dpfl_plugin.core.streams import stream
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.federation.planning import Planner
from dpfl_plugin.oracle import Draw, PrivateOracle
from dpfl_plugin.privacy.samplers import FixedSize
from tests.quadratics import Lab, rules, silo

THREE = [silo([1.0, 4.0], [1.0, -2.0]), silo([2.0, 1.0], [-3.0, 0.5]), silo([8.0, 2.0], [0.5, 4.0])]
START = [5.0, -5.0]


def private(sigma=1.0):
    return rules(sigma, 2.0)


def test_three_quadratics_scaffold_reaches_the_optimum_where_fedavg_does_not():
    scaffold = Lab(Scaffold(local_steps=10, local_lr=0.05), THREE, rules(), START, stack=3)
    fedavg = Lab(FedAvg(local_steps=10, local_lr=0.05), THREE, rules(), START, stack=3)
    for _ in range(40):  # SCAFFOLD is there after 28; FedAvg has long come to rest elsewhere
        scaffold.step()
        fedavg.step()
    assert (scaffold.server["model"] - scaffold.optimum).norm() < 1e-9
    assert (fedavg.server["model"] - fedavg.optimum).norm() > 0.1


def test_the_correction_has_the_papers_sign():
    """With the sign reversed, y -= eta (g + c_i - c) doubles the drift, and these quadratics diverge from x*."""
    lab = Lab(Scaffold(local_steps=5, local_lr=0.05), THREE, rules(), START)
    for i in range(3):
        lab.host.states["control"][i] = torch.tensor([float(i), -float(i)])
    lab.server["control"] = torch.tensor([0.25, 0.5], dtype=torch.float64)
    y = x = lab.server["model"]
    a, b = THREE[2].features[0].chunk(2)
    for _ in range(5):
        y = y - 0.05 * (a * (y - b) - torch.tensor([2.0, -2.0]) + torch.tensor([0.25, 0.5]))
    lab.step()
    torch.testing.assert_close(lab.uploads[0]["model"][2], y - x)


def test_one_local_step_makes_the_control_variate_the_private_gradient():
    """[N] sec. 3.3 with K = 1: c_i' = H(x)."""
    lab = Lab(Scaffold(local_steps=1, local_lr=0.1), THREE, private(), START)
    for _ in range(3):
        x, t = lab.server["model"], lab.round
        lab.step()
        for i in range(3):
            asked = PrivateOracle(lab.rules, lab.host._engine, [THREE[i]], [i], Draw(0, t), max_gradients=1)
            torch.testing.assert_close(lab.host.states["control"][i], asked.gradient(x.unsqueeze(0))[0])


def test_the_control_variate_is_the_mean_of_the_rounds_private_gradients():
    lab = Lab(Scaffold(local_steps=4, local_lr=0.1), THREE, private(), START)
    seen = _recorded_gradients(lab)
    for _ in range(3):
        seen.clear()
        lab.step()
        for i in range(3):
            torch.testing.assert_close(lab.host.states["control"][i], torch.stack(seen[i]).mean(dim=0))


def _recorded_gradients(lab):
    """{silo: the gradients its oracle gave}, while an algorithm runs one silo at a time."""
    seen: dict[int, list[torch.Tensor]] = {}
    original = PrivateOracle.gradient

    def gradient(oracle, y):
        result = original(oracle, y)
        seen.setdefault(oracle._ids[0], []).append(result[0].clone())
        return result

    lab.host._algorithm = _with_oracle(lab.algorithm, gradient)
    return seen


def _with_oracle(algorithm, gradient):
    class Spied:
        def local_update(self, down, silos, oracle, plan):
            class Spy:
                num_silos = oracle.num_silos
                release = staticmethod(oracle.release)

                def gradient(self, y):
                    return gradient(oracle, y)

            return algorithm.local_update(down, silos, Spy(), plan)

    return Spied()


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("sigma", [0.0, 1.0])
def test_full_participation_keeps_c_the_mean_of_the_c_i(option, sigma):
    lab = Lab(Scaffold(local_steps=3, local_lr=0.05, option=option), THREE, private(sigma), START)
    for _ in range(20):
        lab.step()
        torch.testing.assert_close(lab.server["control"], lab.host.states["control"].mean(dim=0))


def test_partial_participation_keeps_it_too():
    """c += S/M mean(dc): what the absent silos keep is still counted."""
    lab = Lab(Scaffold(local_steps=3, local_lr=0.05), THREE, private(), START)
    for chosen in ([0], [1, 2], [0, 2], [2], [0, 1, 2]):
        lab.step(chosen)
        torch.testing.assert_close(lab.server["control"], lab.host.states["control"].mean(dim=0))


def test_option_one_takes_the_gradient_at_the_global_model_and_pays_for_it():
    lab = Lab(Scaffold(local_steps=3, local_lr=0.05, option="I"), THREE, rules(0.0, 2.0), START)
    x = lab.server["model"]
    lab.step()
    asked = PrivateOracle(lab.rules, lab.host._engine, [THREE[1]], [1], Draw(0, 0), max_gradients=1)
    torch.testing.assert_close(lab.host.states["control"][1], asked.gradient(x.unsqueeze(0))[0])
    assert {charge.count for charge in lab.ledger} == {4}


def test_without_controls_it_is_fedavg():
    """[N] sec. 3.3: in the first round all control variates are 0."""
    scaffold = Lab(Scaffold(local_steps=6, local_lr=0.05), THREE, private(), START)
    fedavg = Lab(FedAvg(local_steps=6, local_lr=0.05), THREE, private(), START)
    scaffold.step()
    fedavg.step()
    torch.testing.assert_close(scaffold.server["model"], fedavg.server["model"])


@pytest.mark.parametrize("algorithm", [Scaffold, ScaffoldWarm])
def test_stacks_of_any_size_give_the_same_bits(algorithm):
    ends = []
    for stack in (1, 2, 3):
        lab = Lab(algorithm(local_steps=4, local_lr=0.05), THREE, private(), START, stack=stack)
        for chosen in ([0, 1, 2], [1, 2], [0, 2]):
            lab.step(chosen)
        ends.append((lab.server, lab.host.states))
    for server, states in ends[1:]:
        assert all(torch.equal(ends[0][0][name], server[name]) for name in server)
        assert torch.equal(ends[0][1]["control"], states["control"])


def test_server_momentum_leaves_the_controls_alone():
    plain = Lab(Scaffold(local_steps=3, local_lr=0.05), THREE, rules(), START)
    heavy = Lab(Scaffold(local_steps=3, local_lr=0.05, server_optimizer="momentum"), THREE, rules(), START)
    plain.step()
    heavy.step()
    torch.testing.assert_close(plain.server["control"], heavy.server["control"])


# Server optimisers, drawn silos of unequal sizes and weights, all at once

FIVE = [
    silo([1.0, 4.0], [1.0, -2.0], copies=2),
    silo([2.0, 1.0], [-3.0, 0.5], copies=7),
    silo([3.0, 2.0], [0.5, 4.0], copies=1),
    silo([1.5, 1.5], [6.0, 0.0], copies=12),
    silo([2.5, 3.0], [-1.0, -1.0], copies=4),
]
BY_RECORDS = tuple(len(records) / 26 for records in FIVE)
SERVERS = {
    "sgd": {"server_lr": 0.7},
    "momentum": {"server_lr": 0.3, "beta_1": 0.6},
    "adam": {"server_lr": 0.3, "beta_1": 0.5, "tau": 1.0},
    "yogi": {"server_lr": 0.3, "beta_1": 0.5, "tau": 1.0},
    "adagrad": {"server_lr": 2.0, "beta_1": 0.0, "tau": 1.0},
}
ALL_AT_ONCE = [
    (Scaffold, "II", "sgd", None),
    (Scaffold, "II", "adagrad", BY_RECORDS),
    (Scaffold, "I", "momentum", BY_RECORDS),
    (ScaffoldWarm, "II", "adam", BY_RECORDS),
    (ScaffoldWarm, "I", "yogi", None),
]


def _drawn_lab(algorithm, option, name, weights, private_rules, seed=0):
    made = algorithm(local_steps=3, local_lr=0.1, option=option, server_optimizer=name, **SERVERS[name])
    lab = Lab(made, FIVE, private_rules, START, silo_rate=0.4, seed=seed, weights=weights)
    planner = Planner(made, lab.setting, weights or (0.2,) * 5, seed)
    return lab, lambda: planner.plan(lab.server, lab.round).participants


@pytest.mark.parametrize(("algorithm", "option", "name", "weights"), ALL_AT_ONCE)
def test_c_is_the_weighted_mean_of_the_c_i_after_every_round(algorithm, option, name, weights):
    lab, draw = _drawn_lab(algorithm, option, name, weights, private())
    of_all = torch.tensor(weights or (0.2,) * 5, dtype=torch.float64)
    for _ in range(12):
        lab.step(draw())
        torch.testing.assert_close(lab.server["control"], of_all @ lab.host.states["control"])
    assert lab.host.states["control"].abs().max() > 0.1


@pytest.mark.parametrize(("algorithm", "option", "name", "weights"), ALL_AT_ONCE)
def test_drawn_silos_reach_the_exact_optimum_of_the_weighted_loss(algorithm, option, name, weights):
    lab, draw = _drawn_lab(algorithm, option, name, weights, rules())
    for _ in range(900):
        lab.step(draw())
        if (lab.server["model"] - lab.optimum).norm() < 1e-7:
            break
    assert (lab.server["model"] - lab.optimum).norm() < 1e-6
    a, b = torch.stack([records.features[0] for records in FIVE]).chunk(2, dim=1)
    torch.testing.assert_close(lab.host.states["control"], a * (lab.optimum - b), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("algorithm", "option", "name", "weights"), ALL_AT_ONCE)
def test_at_the_optimum_nothing_moves(algorithm, option, name, weights):
    """x* with c_i = grad f_i(x*) and an optimiser at rest is a fixed point, whoever is drawn."""
    lab, draw = _drawn_lab(algorithm, option, name, weights, rules())
    a, b = torch.stack([records.features[0] for records in FIVE]).chunk(2, dim=1)
    lab.server["model"], lab.host.states["control"] = lab.optimum, a * (lab.optimum - b)
    for _ in range(10):
        lab.step(draw())
    torch.testing.assert_close(lab.server["model"], lab.optimum)
    torch.testing.assert_close(lab.server["control"], torch.zeros(2, dtype=torch.float64), atol=1e-12, rtol=0)


def test_the_server_optimiser_rests_while_the_controls_warm_up():
    lab, draw = _drawn_lab(ScaffoldWarm, "II", "adam", None, private())
    while lab.plan().phase == "warm-up":
        before = lab.server
        lab.step(draw())
        assert all(torch.equal(lab.server[key], before[key]) for key in ("model", "optimizer_m", "optimizer_v"))
    lab.step(draw())
    assert lab.server["optimizer_m"].abs().max() > 0


# Warm-up


def test_warm_up_sets_controls_to_mean_gradients_at_x0_and_leaves_the_model():
    lab = Lab(ScaffoldWarm(local_steps=4, local_lr=0.05), THREE, private(), START)
    seen = _recorded_gradients(lab)
    x = lab.server["model"].clone()
    assert lab.plan().phase == "warm-up"
    lab.step()
    assert torch.equal(lab.server["model"], x)
    for i in range(3):
        torch.testing.assert_close(lab.host.states["control"][i], torch.stack(seen[i]).mean(dim=0))
    torch.testing.assert_close(lab.server["control"], lab.host.states["control"].mean(dim=0))
    assert lab.plan().phase == "train"
    assert lab.algorithm.notes(lab.server) == []


def test_warm_up_is_charged_like_any_round():
    lab = Lab(ScaffoldWarm(local_steps=4, local_lr=0.05), THREE, private(), START)
    lab.step()
    assert [(charge.silo, charge.count) for charge in lab.ledger] == [(0, 4), (1, 4), (2, 4)]


def test_warm_up_ends_when_all_were_picked_or_at_its_limit_and_says_who_was_missed():
    lab = Lab(ScaffoldWarm(local_steps=2, local_lr=0.05), THREE, rules(), START, silo_rate=2 / 3)
    limit = math.ceil(4 / (2 / 3))
    for t in range(limit):
        assert lab.plan([0, 1]).phase == "warm-up", t
        lab.step([0, 1])
    assert lab.plan([0, 1]).phase == "train"
    assert "1 silos were not picked" in lab.algorithm.notes(lab.server)[0]
    assert lab.algorithm.notes(lab.server)[0].endswith("begin with: 2.")
    early = Lab(ScaffoldWarm(local_steps=2, local_lr=0.05), THREE, rules(), START, silo_rate=2 / 3)
    early.step([0, 1])
    early.step([1, 2])
    assert early.plan([0, 1]).phase == "train"


@pytest.mark.parametrize(("option", "most"), [("I", 4), ("II", 3)])
def test_a_warm_up_says_what_its_longest_round_is(option, most):
    """When it ends, the draws decide; a third party's epsilon has to hold for all of them."""
    made = ScaffoldWarm(local_steps=3, local_lr=0.1, option=option)
    lab = Lab(made, FIVE, rules(), START, silo_rate=0.4)
    lengths = []
    for chosen in ([0, 1], [2, 3], [3, 4], [0, 1]):
        plan = lab.plan(chosen)
        assert plan.most_gradients == most
        lengths.append(plan.num_gradients)
        lab.step(chosen)
    assert lengths == [3, 3, 3, most]


def test_after_the_warm_up_all_silos_take_the_same_first_step():
    """Without noise g_i(x^0) - c_i + c = c for every silo: the drift is gone before training starts."""
    lab = Lab(ScaffoldWarm(local_steps=1, local_lr=0.05), THREE, rules(), START)
    lab.step()
    lab.step()
    first, *others = lab.uploads[1]["model"]
    torch.testing.assert_close(first, -0.05 * lab.server["control"])
    for other in others:
        torch.testing.assert_close(other, first)


@pytest.mark.parametrize(
    "options",
    [
        {"local_steps": 0, "local_lr": 0.1},
        {"local_steps": 1, "local_lr": 0.0},
        {"local_steps": 1, "local_lr": math.inf},
        {"local_steps": 1},
        {"local_steps": 1, "local_lr": 0.1, "eta_0": 0.1},
        {"local_steps": 1, "local_lr": 0.1, "server_lr": -1.0},
    ],
)
def test_impossible_options_are_refused(options):
    with pytest.raises(ConfigError):
        Scaffold(**options)


def test_local_lr_by_the_papers_scaling():
    """[N] sec. 5: eta_l = eta_0 / (s K)."""
    lab = Lab(Scaffold(local_steps=10, eta_0=0.1), THREE, rules(), START)
    from dataclasses import replace

    plan = lab.algorithm.round_plan(lab.server, 0, replace(lab.setting, record_rate=0.2), stream(0, "plan"))
    assert plan.local_lr == pytest.approx(0.1 / (0.2 * 10))
    with pytest.raises(ConfigError, match="record_rate"):
        lab.plan()


def test_a_fixed_size_batch_of_all_records_is_the_full_batch():
    fixed = Lab(Scaffold(local_steps=3, local_lr=0.05), THREE, rules(sampler=FixedSize(1.0)), START)
    full = Lab(Scaffold(local_steps=3, local_lr=0.05), THREE, rules(), START)
    fixed.step()
    full.step()
    torch.testing.assert_close(fixed.server["model"], full.server["model"])
