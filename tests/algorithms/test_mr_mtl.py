"""MR-MTL (Liu et al. 2022) and training alone: closed forms on quadratics, limits, charges, and who goes on."""

import math

import pytest
import torch

from dpfl_plugin.algorithms.base import Regrouping
from dpfl_plugin.algorithms.fedavg import FedAvg
from dpfl_plugin.algorithms.mr_mtl import MRMTL, Local
from dpfl_plugin.errors import ConfigError, UnsupportedError
from tests.quadratics import Lab, rules, silo

A, B = (1.0, 3.0, 0.5), (2.0, -1.0, 5.0)
THREE = [silo([a], [b]) for a, b in zip(A, B, strict=True)]


def own(lab: Lab) -> list[float]:
    return lab.host.states["own"].flatten().tolist()


@pytest.mark.parametrize(("pull", "weights"), [(0.0, (0.2, 0.5, 0.3)), (0.7, None), (4.0, (0.2, 0.5, 0.3))])
def test_it_ends_where_the_sum_is_least(pull, weights):
    """w_k = (a_k b_k + lambda w) / (a_k + lambda), w = sum p_k w_k: where no gradient of [P]'s objective is left."""
    lab = Lab(MRMTL(local_steps=3, local_lr=0.2, mean_weight=pull), THREE, rules(), [4.0], weights=weights)
    for _ in range(80):
        lab.step()
    p = weights or (1 / 3, 1 / 3, 1 / 3)
    inside = [q / (a + pull) for q, a in zip(p, A, strict=True)]
    mean = sum(s * a * b for s, a, b in zip(inside, A, B, strict=True)) / (1 - pull * sum(inside))
    assert lab.server["model"].item() == pytest.approx(mean, abs=1e-6)
    assert own(lab) == pytest.approx([(a * b + pull * mean) / (a + pull) for a, b in zip(A, B, strict=True)], abs=1e-6)


def test_a_round_by_hand():
    """Every step goes by the mean of the round before, from where the silo's own model is."""
    eta, pull, K = 0.1, 2.0, 3
    lab = Lab(MRMTL(local_steps=K, local_lr=eta, mean_weight=pull), THREE, rules(), [1.0])
    w, mean = [1.0, 1.0, 1.0], 1.0
    for _ in range(2):
        for k, (a, b) in enumerate(zip(A, B, strict=True)):
            for _ in range(K):
                w[k] -= eta * (a * (w[k] - b) + pull * (w[k] - mean))
        mean = sum(w) / 3
        lab.step()
        assert own(lab) == pytest.approx(w, rel=1e-12)
        assert lab.server["model"].item() == pytest.approx(mean, rel=1e-12)


def test_without_a_pull_it_is_training_alone_bit_for_bit():
    free = Lab(MRMTL(local_steps=3, local_lr=0.1, mean_weight=0.0), THREE, rules(1.0, 0.5), [3.0])
    alone = Lab(Local(local_steps=3, local_lr=0.1), THREE, rules(1.0, 0.5), [3.0])
    single = Lab(FedAvg(local_steps=3, local_lr=0.1), THREE[:1], rules(1.0, 0.5), [3.0])
    for _ in range(4):
        free.step()
        alone.step()
        single.step()
    assert torch.equal(free.host.states["own"], alone.host.states["own"])
    # The first silo's model is that of a federation of it alone: no other silo's data are in it.
    first = alone.host.states["own"][0]
    assert own(alone)[0] != own(alone)[1]
    torch.testing.assert_close(Lab(Local(local_steps=3, local_lr=0.1), THREE[:1], rules(), [3.0]).plan().local_lr, 0.1)
    assert first.shape == single.server["model"].shape


def test_nobody_elses_records_move_a_model_that_is_trained_alone():
    ends = []
    for other in (-1.0, 70.0):
        lab = Lab(Local(local_steps=3, local_lr=0.1), [THREE[0], silo([3.0], [other])], rules(), [3.0])
        for _ in range(4):
            lab.step()
        ends.append(own(lab))
    assert ends[0][0] == ends[1][0] and ends[0][1] != ends[1][1]


def test_the_most_pull_leaves_the_last_gradient_from_the_mean():
    """With lambda eta = 1 a step ends at w - eta g: one step a round is then FedSGD with eta for every silo's gradient
    at its own model."""
    lab = Lab(MRMTL(local_steps=1, local_lr=0.1, mean_weight=10.0), THREE, rules(), [1.0])
    lab.step()
    before, mean = own(lab), lab.server["model"].item()
    lab.step()
    assert own(lab) == pytest.approx([mean - 0.1 * a * (w - b) for w, a, b in zip(before, A, B, strict=True)], rel=1e-9)


def test_the_mean_stays_that_of_all_models_whoever_takes_part():
    weights = (0.2, 0.5, 0.3)
    lab = Lab(MRMTL(local_steps=2, local_lr=0.1, mean_weight=1.0), THREE, rules(), [3.0], weights=weights)
    for participants in ((0,), (1, 2), (0, 2), (2,)):
        before = own(lab)
        lab.step(participants)
        assert lab.server["model"].item() == pytest.approx(
            sum(p * w for p, w in zip(weights, own(lab), strict=True)), rel=1e-12
        )
        assert all(own(lab)[k] == before[k] for k in range(3) if k not in participants)


def test_its_pull_is_neither_clipped_nor_noised_nor_charged():
    lab = Lab(MRMTL(local_steps=2, local_lr=0.1, mean_weight=3.0), THREE[:2], rules(0.0, 1e-3), [50.0])
    lab.host.states["own"][0] = 0.0
    lab.step()
    assert lab.uploads[0]["model"][0].item() > 10  # the way to the mean, in full
    assert {charge.count for charge in lab.ledger} == {2}


def test_what_is_sent_is_a_function_of_what_is_charged():
    """Without noise and with gradients clipped to nothing, nothing of the records is left in any message."""
    ends = []
    for b in (2.0, -30.0):
        lab = Lab(Local(local_steps=2, local_lr=0.1), [silo([0.0], [b]), THREE[1]], rules(0.0, 0.25), [50.0])
        for _ in range(3):
            lab.step()
        ends.append(torch.stack([up["model"] for up in lab.uploads])[:, 0])
    assert torch.equal(*ends)


def test_silos_that_go_on_have_a_mean_of_their_own():
    lab = Lab(MRMTL(local_steps=2, local_lr=0.1, mean_weight=1.0), THREE, rules(), [3.0])
    lab.step()
    assert isinstance(lab.algorithm, Regrouping)
    left = {name: value[[0, 2]] for name, value in lab.host.states.items()}
    server, states = lab.algorithm.regroup(lab.server, left, [0, 2], [0.25, 0.75])
    assert server["model"].item() == pytest.approx(0.25 * own(lab)[0] + 0.75 * own(lab)[2], rel=1e-12)
    assert torch.equal(states["own"], left["own"])


def test_at_silo_level_it_is_refused():
    lab = Lab(MRMTL(local_steps=2, local_lr=0.1, mean_weight=1.0), THREE, rules(1.0, 0.5, unit="silo"), [3.0])
    with pytest.raises(UnsupportedError, match="sends 'model' without releasing it"):
        lab.step()


def test_stacks_of_any_size_give_the_same_bits():
    ends = []
    for stack in (1, 3):
        lab = Lab(MRMTL(local_steps=3, local_lr=0.1, mean_weight=0.5), THREE, rules(1.0, 2.0), [3.0], stack=stack)
        for _ in range(3):
            lab.step()
        ends.append((lab.server["model"], lab.host.states["own"]))
    assert torch.equal(ends[0][0], ends[1][0]) and torch.equal(ends[0][1], ends[1][1])


@pytest.mark.parametrize("pull", [-0.1, math.inf, math.nan])
def test_impossible_pulls_are_refused(pull):
    with pytest.raises(ConfigError, match=r"mean_weight=.* must be finite and at least 0"):
        MRMTL(local_steps=1, local_lr=0.1, mean_weight=pull)


def test_a_pull_beyond_the_mean_is_refused():
    with pytest.raises(ConfigError, match=r"beyond the mean. Use a mean_weight of at most 10"):
        Lab(MRMTL(local_steps=1, local_lr=0.1, mean_weight=10.1), THREE, rules(), [3.0]).step()
