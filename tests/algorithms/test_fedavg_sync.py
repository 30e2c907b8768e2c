"""DP-FedAvg with noise at synchronisation: identities of Li, Wang, Wu 2025, and the sensitivity that is charged."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from dpfl_plugin.algorithms.fedavg import FedAvg
from dpfl_plugin.algorithms.fedavg_sync import FedAvgSync
from dpfl_plugin.errors import ConfigError
from tests.quadratics import Lab, released, rules, silo

THREE = [silo([1.0, 4.0], [1.0, -2.0]), silo([2.0, 1.0], [-3.0, 0.5]), silo([8.0, 2.0], [0.5, 4.0])]
START = [5.0, -5.0]
G = 0.8
ROOT = {"schedule": "inverse_sqrt", "local_lr": 0.3}
INVERSE = {"schedule": "inverse", "local_lr": 0.3}
CONVEX = {"schedule": "strongly_convex", "mu": 1.0, "alpha": 64.0}


def make(**options):
    return FedAvgSync(**{"local_steps": 5, "gradient_clip": G, **options})


def silo_level(sigma=0.0, clip_norm=G):
    return rules(sigma, clip_norm, unit="silo")


def test_without_clipping_and_with_equal_steps_it_is_fedavg():
    sync = Lab(make(gradient_clip=math.inf, local_lr=0.05), THREE, silo_level(clip_norm=math.inf), START)
    fedavg = Lab(FedAvg(local_steps=5, local_lr=0.05), THREE, silo_level(clip_norm=math.inf), START)
    for _ in range(10):
        sync.step()
        fedavg.step()
        torch.testing.assert_close(sync.server["model"], fedavg.server["model"])


@pytest.mark.parametrize(
    ("options", "eta"),
    [
        ({"local_lr": 0.3}, lambda t: 0.3),
        (ROOT, lambda t: 0.3 / math.sqrt(1 + t)),
        (INVERSE, lambda t: 0.3 / (1 + t)),
        (CONVEX, lambda t: 2 / (1.0 * (64.0 + t))),
    ],
)
def test_iteration_by_iteration(options, eta):
    """[L] Alg. 1 with its iterations t over all rounds: clipped steps, the mean every Q of them, noise on the last."""
    Q, sigma = 5, 0.5
    lab = Lab(make(**options), THREE, silo_level(sigma), START)
    a, b = torch.stack([records.features[0] for records in THREE]).chunk(2, dim=1)
    w = torch.tensor(START, dtype=torch.float64)
    for round in range(6):
        w_k, steps = w.repeat(3, 1), [eta(round * Q + q) for q in range(Q)]
        for step in steps:
            g = a * (w_k - b)
            w_k = w_k - step * g / (g.norm(dim=1, keepdim=True) / G).clamp(min=1)
        # Of the proven sensitivity, 2 G sum eta.
        moved = [(w - w_k[k]) / sum(steps) for k in range(3)]
        sent = [released(moved[k], sigma, 2 * G, round, k) for k in range(3)]
        w = w - sum(steps) * torch.stack(sent).mean(dim=0)
        lab.step()
        torch.testing.assert_close(lab.server["model"], w)


@pytest.mark.parametrize("options", [{"local_lr": 0.3}, ROOT, INVERSE, CONVEX])
def test_whatever_the_records_no_update_passes_the_bound(options):
    """||x - y|| <= G sum eta for silos as unlike as can be: the release clips nothing, and 2 G sum eta is proven."""
    wild = [silo([10.0**k, 1.0], [(-1.0) ** k * 10.0**k, 3.0]) for k in range(-3, 5)]
    clipped = Lab(make(**options), wild, silo_level(), START)
    free = Lab(make(**options), wild, silo_level(clip_norm=math.inf), START)
    for _ in range(3):
        clipped.step()
        free.step()
        norms = free.uploads[-1]["direction"].norm(dim=1)
        assert norms.max() <= G * (1 + 1e-12) and norms.max() > 0.9 * G
        torch.testing.assert_close(clipped.server["model"], free.server["model"])


def test_a_round_is_one_release_of_the_silo():
    lab = Lab(make(local_lr=0.1), THREE, silo_level(1.0), START)
    lab.step()
    assert {(c.count, c.release.unit, c.release.sampler, c.release.noise_multiplier) for c in lab.ledger} == {
        (1, "silo", "full", 1.0)
    }


def test_decreasing_steps_reach_the_optimum_where_equal_ones_do_not():
    """[L] Theorem 3 in the case without noise: F(w_t) - F* <= 2 kappa / (t + alpha) (A / mu + 2 L |w_0 - w*|^2)."""
    mu, L, Q = 1.0, 8.0, 4
    free = silo_level(clip_norm=math.inf)
    options = {"local_steps": Q, "gradient_clip": math.inf}
    lab = Lab(make(**options, schedule="strongly_convex", mu=mu, alpha=8 * L / mu), THREE, free, START)
    equal = Lab(make(**options, local_lr=2 / (8 * L)), THREE, free, START)
    a, b = torch.stack([records.features[0] for records in THREE]).chunk(2, dim=1)
    loss = lambda w: float((0.5 * a * (w - b).square()).sum(dim=1).mean())  # noqa: E731
    best, gamma = loss(lab.optimum), loss(lab.optimum)  # F_k* = 0: Gamma = F*
    largest = max(float((a * (torch.tensor(START) - b)).norm(dim=1).max()), 40.0)  # of the gradients on the way
    A = 8 * (Q - 1) ** 2 * largest**2 + 6 * L * gamma
    first = float((lab.server["model"] - lab.optimum).square().sum())
    for round in range(1, 61):
        lab.step()
        equal.step()
        bound = 2 * (L / mu) / (round * Q + 8 * L / mu) * (A / mu + 2 * L * first)
        assert loss(lab.server["model"]) - best <= bound
    assert (lab.server["model"] - lab.optimum).norm() < 0.3 * (equal.server["model"] - equal.optimum).norm()


@pytest.mark.parametrize("weights", [(1 / 3, 1 / 3, 1 / 3), (0.6, 0.3, 0.1)])
def test_sampling_without_replacement_is_unbiased(weights):
    """[L] Assumption 5: N/K sum_{k in S} p_k, in the mean over all S, is what all silos together would do."""
    everywhere, sums = None, torch.zeros(2, dtype=torch.float64)
    for chosen in [(0, 1, 2), *itertools.combinations(range(3), 2)]:
        lab = Lab(make(local_lr=0.1), THREE, silo_level(), START, silo_rate=len(chosen) / 3)
        lab.plan = planned(lab.plan, chosen, weights)
        lab.step()
        moved = lab.server["model"] - torch.tensor(START, dtype=torch.float64)
        if len(chosen) == 3:
            everywhere = moved
        else:
            sums += moved
    torch.testing.assert_close(sums / 3, everywhere)


@pytest.mark.parametrize("weights", [(1 / 3, 1 / 3, 1 / 3), (0.6, 0.3, 0.1)])
def test_sampling_with_replacement_is_unbiased(weights):
    """[L] Assumption 5: 1/K sum_{k in S}, in the mean over all K draws with probabilities p_k, is sum_k p_k."""
    K, mean = 2, torch.zeros(2, dtype=torch.float64)
    start = torch.tensor(START, dtype=torch.float64)
    for draws in itertools.product(range(3), repeat=K):
        lab = Lab(make(local_lr=0.1, silo_sampling="with_replacement"), THREE, silo_level(), START, silo_rate=2 / 3)
        chosen = tuple(sorted(set(draws)))
        often = tuple(draws.count(k) / K for k in chosen)
        plan = replace(lab.plan(chosen), weights=often, silo_share=sum(weights[k] for k in chosen))
        assert plan.participation == "sampled_with_replacement"
        lab.plan = lambda participants=None, plan=plan: plan
        lab.step()
        mean += math.prod(weights[k] for k in draws) * (lab.server["model"] - start)
    everybody = Lab(make(local_lr=0.1), THREE, silo_level(), START, weights=weights)
    everybody.step()
    torch.testing.assert_close(mean, everybody.server["model"] - start)


def planned(plan, chosen, weights):
    """As the planner would weight ``chosen`` where silos have the weights p_k."""
    share = sum(weights[k] for k in chosen)
    inside = tuple(weights[k] / share for k in chosen)
    return lambda participants=None: replace(plan(chosen), participants=chosen, weights=inside, silo_share=share)


def test_stacks_of_any_size_give_the_same_bits():
    ends = []
    for stack in (1, 2, 3):
        lab = Lab(make(**INVERSE), THREE, silo_level(1.0), START, stack=stack)
        for _ in range(4):
            lab.step()
        ends.append(lab.server["model"])
    assert torch.equal(ends[0], ends[1]) and torch.equal(ends[0], ends[2])


def test_a_gradient_that_is_not_finite_leaves_noise_alone():
    """So that a record cannot show itself by turning what its silo sends into NaN."""
    bad = [silo([math.inf, 1.0], [1.0, 1.0]), *THREE[1:]]
    lab = Lab(make(local_lr=0.1), bad, silo_level(), START)
    lab.step()
    assert lab.uploads[0]["direction"][0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local_lr": 0.1, "local_steps": 0}, "local_steps=0 must be at least 1"),
        ({"local_lr": 0.1, "gradient_clip": 0.0}, r"gradient_clip=0\.0 must be positive"),
        ({"local_lr": -0.1}, "local_lr=-0.1 must be positive"),
        ({}, "local_lr=None must be positive"),
        ({**INVERSE, "mu": 1.0}, "mu=1.0 must be left out with schedule: inverse"),
        ({**CONVEX, "local_lr": 0.1}, "local_lr=0.1 must be left out"),
        ({**CONVEX, "mu": -1.0}, "mu=-1.0 must be positive"),
        ({**CONVEX, "mu": None}, "mu=None must be positive"),
        ({**CONVEX, "alpha": 0.0}, "alpha=0.0 must be positive"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        make(**options)


def notes_of(record_rate, **options):
    setting = replace(Lab(make(local_lr=0.1), THREE, silo_level(), START).setting, record_rate=record_rate)
    algorithm = make(**options)
    return algorithm.notes(algorithm.init_server(torch.zeros(2), setting))


def test_the_papers_claim_is_beside_what_is_proven_and_their_gap_is_computed():
    """Q = 5, b = 10, n = 600: q = 1/12; 1 / (2 q) = 6, and 4 q = 1/3."""
    proven, claim = notes_of(10 / 600, local_lr=0.1)
    assert "2 G sum eta" in proven
    for part in ("Li, Wang, Wu 2025", "not proven", "q = Q b / n = 0.08333", "= 6;", "0.3333 times"):
        assert part in claim
    assert len(notes_of(None, local_lr=0.1)) == 1 and len(notes_of(0.2, local_lr=0.1)) == 1  # q unknown, or above 1/2


def test_notes_say_which_theorem_does_not_apply():
    """eta_0 > 2 eta_Q: of eta_0 / (1 + t) for every Q > 1, of eta_0 / sqrt(1 + t), the paper's own, for Q > 3."""
    (*_, note) = notes_of(None, schedule="inverse", local_lr=1.0)
    assert "Lemma 2 and Theorems 3 and 4" in note
    assert f"{4 * 5 / 6:.4g} G" in note and f"{2 * (1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5):.4g} G" in note
    assert len(notes_of(None, schedule="strongly_convex", mu=1.0, alpha=4.0)) == 2  # alpha < Q
    assert len(notes_of(None, schedule="strongly_convex", mu=1.0, alpha=5.0)) == 1
    assert len(notes_of(None, schedule="inverse", local_lr=1.0, local_steps=1)) == 1
    assert [len(notes_of(None, schedule="inverse_sqrt", local_lr=1.0, local_steps=Q)) for Q in (3, 4)] == [1, 2]


def test_without_some_silos_the_mean_is_unbiased_over_the_others():
    """Five silos of which half take part, then four: N/K is 5/2, then 4/2."""
    lab = Lab(make(local_lr=0.1), [*THREE, *THREE[:2]], silo_level(), START, silo_rate=0.5)
    server, _ = lab.algorithm.regroup(lab.server, {}, [0, 1, 3, 4], (0.25,) * 4)
    plan = replace(lab.plan([0, 3]), silo_share=0.5)
    mean_up = {"direction": torch.tensor([1.0, -2.0], dtype=torch.float64)}
    moved = lab.algorithm.aggregate(server, mean_up, plan)["model"] - server["model"]
    torch.testing.assert_close(moved, -0.1 * 5 * mean_up["direction"])
