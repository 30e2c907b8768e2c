"""MB-SGD and the noisy subgradient method: identities of Gao et al. 2024, Alg. 3 and sec. 4."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dpfl_plugin.algorithms.accelerated import MultistageMBSGD
from dpfl_plugin.algorithms.base import Setting
from dpfl_plugin.algorithms.fedavg import FedAvg
from dpfl_plugin.algorithms.isrl import ConstraintSet, Facts
from dpfl_plugin.algorithms.mb_sgd import MBSGD, NoisySubgradient
from dpfl_plugin.core.balls import Ball
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.vmap import Vmap
from dpfl_plugin.privacy.samplers import FixedSize
from tests.quadratics import Lab, rules, silo

TWO = [silo([1.0, 4.0], [2.0, 0.0]), silo([3.0, 2.0], [-1.0, 1.0])]


def gradient(w: Tensor) -> Tensor:
    """Of the mean loss of TWO."""
    parts = [records.features[0].chunk(2) for records in TWO]
    return torch.stack([a * (w - b) for a, b in parts]).mean(dim=0)


def test_without_noise_full_batches_are_gradient_descent() -> None:
    lab, w = Lab(MBSGD(lr=0.1), TWO, rules(), [1.0, -1.0]), torch.tensor([1.0, -1.0], dtype=torch.float64)
    for _ in range(50):
        w = w - 0.1 * gradient(w)
        lab.step()
        torch.testing.assert_close(lab.server["model"], w)


def test_with_noise_it_is_fedavg_with_one_local_step_bit_by_bit_in_the_uploads() -> None:
    """The same batches, noise and clipping: dy = -eta_l g."""
    sgd = Lab(MBSGD(lr=0.5), TWO, rules(1.0, 2.0), [1.0, -1.0])
    fedavg = Lab(FedAvg(local_steps=1, local_lr=0.5), TWO, rules(1.0, 2.0), [1.0, -1.0])
    for _ in range(5):
        sgd.step()
        fedavg.step()
    torch.testing.assert_close(sgd.server["model"], fedavg.server["model"])


def test_the_projection_keeps_the_model_in_the_ball() -> None:
    """Constrained to a ball of diameter D around the start, it ends at the constrained minimiser."""
    lab = Lab(MBSGD(lr=0.1, diameter=1.0), TWO, rules(), [3.0, 3.0])
    for _ in range(120):
        lab.step()
        assert float((lab.server["model"] - 3.0).norm()) <= 0.5 + 1e-12
    w = lab.server["model"]
    inward = 3.0 - w  # first-order condition: the negative gradient points straight out of the ball
    assert float(torch.dot(gradient(w), inward) / (gradient(w).norm() * inward.norm())) == pytest.approx(1.0)


@pytest.mark.parametrize(("average", "weight"), [("last", None), ("uniform", lambda r: 1.0), ("linear", lambda r: r)])
def test_what_is_returned(average: str, weight) -> None:  # type: ignore[no-untyped-def]
    """Alg. 3, l. 10: 2 / (R (R + 1)) sum_{r=1}^R r w_r."""
    lab = Lab(MBSGD(lr=0.1, average=average), TWO, rules(1.0, 2.0), [1.0, -1.0])  # type: ignore[arg-type]
    iterates = []
    for r in range(1, 8):
        lab.step()
        iterates.append(lab.server["w"])
        weights = (
            [1.0 if k == r else 0.0 for k in range(1, r + 1)] if weight is None else list(map(weight, range(1, r + 1)))
        )
        expected = sum(c * w for c, w in zip(weights, iterates, strict=True)) / sum(weights)
        torch.testing.assert_close(lab.server["model"], expected)


def test_step_sizes_of_alg_4() -> None:
    """gamma_r = 2 / (mu (r + 1)), r from 0: the first step from w_0 is 2 / mu, the second 1 / mu."""
    lab = Lab(NoisySubgradient(strong_convexity=2.0), TWO, rules(), [1.0, -1.0])
    w = torch.tensor([1.0, -1.0], dtype=torch.float64)
    for r in range(4):
        w = w - 2 / (2.0 * (r + 1)) * gradient(w)
        lab.step()
        torch.testing.assert_close(lab.server["w"], w)


def test_lemma_g2_on_a_loss_with_a_kink() -> None:
    """F(average) - min F <= 2 B^2 / (mu (R + 1)) for F = |w| + w^2 / 2, whose subgradients are at most B."""
    w = 4.0
    solver = NoisySubgradient(strong_convexity=1.0).solver
    stage = NoisySubgradient(strong_convexity=1.0).stages(_facts())[0]
    state = solver.start(torch.tensor([w], dtype=torch.float64))
    sets = _everywhere()
    largest = 0.0
    for r in range(1, 2001):
        at = solver.query(state, stage, r)
        g = torch.sign(at) + at
        largest = max(largest, float(g.norm()))
        state = solver.step(state, g, stage, r, sets)
        average = float(state["model"])
        assert abs(average) + average**2 / 2 <= 2 * largest**2 / (r + 1)
    assert abs(average) < 0.02


def _facts() -> Facts:
    return Facts.of(Setting(num_silos=1, num_participants=1, silo_rate=1.0, record_rate=None), 1)


def _everywhere() -> ConstraintSet:
    nowhere = Ball(torch.zeros(1, dtype=torch.float64), math.inf)
    return ConstraintSet(nowhere, nowhere)


# One pass


class Spy(Vmap):
    """Notes the labels of every batch: here each record's label is its number."""

    batches: list[list[int]]

    def clipped_sum(self, y, batch, clip_norm, out):  # type: ignore[no-untyped-def]
        self.batches.append(batch.labels.tolist())
        return super().clipped_sum(y, batch, clip_norm, out)


def numbered(count: int) -> Records:
    features = torch.ones(count, 4, dtype=torch.float64)
    return Records(features, torch.arange(count))


def spied(lab: Lab) -> list[list[int]]:
    """What each gradient of the lab will have read."""
    lab.host._engine.__class__ = Spy
    lab.host._engine.batches = []  # type: ignore[attr-defined]
    return lab.host._engine.batches  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize(("records", "rounds"), [(12, 4), (13, 4), (30, 7), (10, 10)])
def test_one_pass_reads_each_record_exactly_once(records: int, rounds: int) -> None:
    known = {"rounds": rounds, "num_records": records}
    lab = Lab(MBSGD(lr=0.1, passes="one"), [numbered(records)] * 2, rules(), [1.0, 1.0], known=known)
    read = spied(lab)
    for _ in range(rounds):
        lab.step()
    for batches in (read[::2], read[1::2]):
        numbers = [number for batch in batches for number in batch]
        assert numbers == list(range(records)), "intervals of the order that the records have"
    assert {len(batch) for batch in read} <= {records // rounds, math.ceil(records / rounds)}


def test_one_pass_goes_on_from_stage_to_stage() -> None:
    algorithm = MultistageMBSGD(passes="one", smoothness=1.0, strong_convexity=0.1, stage_rounds=(2, 3), lipschitz=1.0)
    lab = Lab(algorithm, [numbered(20)], rules(), [1.0, 1.0], known={"rounds": 5, "num_records": 20})
    read = spied(lab)
    for _ in range(5):
        lab.step()
    assert sorted(number for batch in read for number in batch) == list(range(20))


def test_many_passes_read_everything_every_time() -> None:
    lab = Lab(MBSGD(lr=0.1), [numbered(6)], rules(), [1.0, 1.0])
    read = spied(lab)
    for _ in range(3):
        lab.step()
    assert read == [list(range(6))] * 3


# Refusals


def plan(algorithm, **known):  # type: ignore[no-untyped-def]
    setting = Setting(**{"num_silos": 4, "num_participants": 4, "silo_rate": 1.0, "record_rate": None, **known})
    return algorithm.init_server(torch.zeros(2), setting)


def test_what_cannot_be_is_refused() -> None:
    for bad in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="lr"):
            MBSGD(lr=bad)
    with pytest.raises(ConfigError, match="diameter"):
        MBSGD(lr=1.0, diameter=0.0)
    with pytest.raises(ConfigError, match="exactly one"):
        NoisySubgradient()
    with pytest.raises(ConfigError, match="exactly one"):
        NoisySubgradient(lr=1.0, strong_convexity=1.0)
    with pytest.raises(ConfigError, match="rounds is missing"):
        plan(MBSGD(lr=1.0, passes="one"))
    with pytest.raises(ConfigError, match=r"leave a record to every round.*may read 0"):
        plan(MBSGD(lr=1.0, passes="one"), rounds=11, num_records=10)
    with pytest.raises(ConfigError, match=r"record_rate.*floor\(0.2 \* 2\) is 0"):
        plan(MBSGD(lr=1.0, passes="one"), rounds=5, num_records=10, record_rate=0.2)
    with pytest.raises(ConfigError, match="batch_size"):
        plan(MBSGD(lr=1.0, passes="one"), rounds=5, num_records=10, batch_size=3)
    plan(MBSGD(lr=1.0, passes="one"), rounds=10, num_records=10)


def test_the_subgradient_method_says_where_its_lemma_does_not_apply() -> None:
    server = plan(NoisySubgradient(lr=1.0))
    assert any("Lemma G.2" in note for note in NoisySubgradient(lr=1.0).notes(server))
    assert NoisySubgradient(strong_convexity=1.0).notes(plan(NoisySubgradient(strong_convexity=1.0))) == []


@pytest.mark.parametrize("algorithm", [MBSGD(lr=0.1, average="linear"), NoisySubgradient(strong_convexity=3.0)])
def test_stacks_of_any_size_give_the_same_bits(algorithm) -> None:  # type: ignore[no-untyped-def]
    silos = [silo([1.0, 2.0], [float(i), 1.0], copies=6) for i in range(5)]
    ends = []
    for stack in (1, 2, 5):
        lab = Lab(algorithm, silos, rules(1.0, 2.0, FixedSize(0.5)), [1.0, -1.0], stack=stack)
        for chosen in ([0, 1, 2, 3, 4], [1, 3, 4]):
            lab.step(chosen)
        ends.append(lab.server)
    assert all(torch.equal(ends[0][name], end[name]) for end in ends[1:] for name in end)
