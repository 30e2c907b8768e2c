"""Convolution smoothing and Nesterov smoothing: Gao et al. 2024, Alg. 6, 7 and App. E."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dpfl_plugin.algorithms import isrl_theory as theory
from dpfl_plugin.algorithms.accelerated import AcceleratedMBSGD
from dpfl_plugin.algorithms.base import Algorithm, Setting
from dpfl_plugin.algorithms.isrl import Facts
from dpfl_plugin.algorithms.localized import LocalizedMBSGD
from dpfl_plugin.algorithms.smoothed import ConvolutionMBSGD, LocalizedConvolution, LocalizedNesterov
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.federation.planning import Planner
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.losses import hinge
from dpfl_plugin.gradients.vmap import Vmap
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import Poisson
from dpfl_plugin.runtimes.in_process import InProcess
from tests.quadratics import Lab, rules, silo

PUBLIC = {"L": 1.0, "D": 10.0, "n": 1734, "M": 25, "d": 51, "epsilon": 1.5, "delta": 1e-6}


def facts(**known: Any) -> Facts:
    base = {"num_silos": 25, "num_participants": 25, "silo_rate": 1.0, "record_rate": None, "num_records": 1734}
    setting = Setting(**{**base, "rounds": 100, "clip_norm": 1.0, "epsilon": 1.5, "delta": 1e-6, **known})
    return Facts.of(setting, 51)


def test_schedules_are_the_theorems() -> None:
    known = facts()
    without_L = {name: value for name, value in PUBLIC.items() if name != "L"}
    s, beta = theory.smoothing_radius(**without_L), theory.envelope_smoothness(**PUBLIC)
    convolution, nesterov = LocalizedConvolution(diameter=10.0), LocalizedNesterov(diameter=10.0)
    assert convolution.strength(known) == s and nesterov.strength(known) == beta
    for algorithm, smooth in ((convolution, 51**0.5 / s), (nesterov, beta)):
        for stage in algorithm.stages(known):
            assert stage.pull == pytest.approx(theory.regularisation(**PUBLIC) * 8 ** (stage.phase - 1))
            assert stage.rate == pytest.approx(2 * (smooth + stage.pull))
    (stage,) = ConvolutionMBSGD(smoothing_radius=0.5, strong_convexity=0.1).stages(known)
    assert stage.rate == pytest.approx(2 * 51**0.5 / 0.5) and stage.modulus == 0.1


def plan_of(algorithm: Algorithm, **known: Any) -> Any:
    base = {"num_silos": 4, "num_participants": 4, "silo_rate": 1.0, "record_rate": None, "num_records": 100}
    setting = Setting(**{**base, "rounds": 20, "clip_norm": 1.0, **known})
    return algorithm.round_plan(algorithm.init_server(torch.zeros(3), setting), 0, setting, None)  # type: ignore[arg-type]


def test_plans_say_what_is_smoothed_and_by_how_much() -> None:
    assert plan_of(ConvolutionMBSGD(smoothing_radius=0.5)).smoothing == ("convolution", 0.5)
    given = {"phases": 2, "regularisation": 1.0}
    assert plan_of(LocalizedConvolution(smoothing_radius=0.25, **given)).smoothing == ("convolution", 0.25)
    assert plan_of(LocalizedNesterov(envelope=3.0, **given)).smoothing == ("moreau", 3.0)
    assert plan_of(LocalizedMBSGD(lr=1.0, **given)).smoothing is None


def test_a_tiny_radius_is_no_smoothing() -> None:
    silos = [silo([1.0, 4.0], [2.0, 0.0], copies=4), silo([3.0, 2.0], [-1.0, 1.0], copies=4)]
    smooth = Lab(ConvolutionMBSGD(smoothing_radius=1e-9, v=8.0), silos, rules(1.0, 2.0), [1.0, -1.0])
    plain = Lab(AcceleratedMBSGD(smoothness=4.0), silos, rules(1.0, 2.0), [1.0, -1.0])
    for _ in range(5):
        smooth.step()
        plain.step()
    torch.testing.assert_close(smooth.server["model"], plain.server["model"], atol=1e-6, rtol=0)


def test_smoothing_a_quadratic_changes_no_mean_gradient() -> None:
    """E_v grad f(y + v) = grad f(y) for quadratics: with many records it converges to the same point."""
    silos = [silo([1.0, 2.0], [2.0, 0.0], copies=500)]
    lab = Lab(ConvolutionMBSGD(smoothing_radius=0.5, v=4.0), silos, rules(), [1.0, -1.0])
    for _ in range(60):
        lab.step()
    torch.testing.assert_close(lab.server["model"], lab.optimum, atol=0.05, rtol=0)
    assert not torch.equal(lab.server["model"], lab.optimum)


class HingeLab:
    """Two silos of hinge losses of a linear score, with everything an end-to-end run has."""

    def __init__(self, algorithm: Algorithm, given: PrivacyRules, rounds: int, stack: int = 1) -> None:
        generator = torch.Generator().manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(3, 1)).double()
        train = {}
        for i in range(2):
            x = torch.randn(64, 3, generator=generator, dtype=torch.float64)
            train[i] = Records(x, (x[:, 0] + 0.1 * x[:, 1] > 0).long())
        self.algorithm = algorithm
        setting = Setting(
            num_silos=2,
            num_participants=2,
            silo_rate=1.0,
            record_rate=None,
            num_records=64,
            rounds=rounds,
            clip_norm=3.0,
        )
        self.host = SiloGroup(
            model=model,
            loss=hinge,
            algorithm=algorithm,
            rules=given,
            engine=Vmap(model, hinge, 2**20),
            train=train,
            test=train,
            states={},
        )
        self.ledger = Ledger()
        runtime = InProcess(self.host, self.ledger, stack_size=stack)
        planner = Planner(algorithm, setting, (0.5, 0.5), 0)
        self.server = algorithm.init_server(torch.zeros(4, dtype=torch.float64), setting)
        for round in range(rounds):
            plan = planner.plan(self.server, round)
            mean_up = runtime.run_round(algorithm.download(self.server), plan, Draw(0, round))
            self.server = algorithm.aggregate(self.server, mean_up, plan)
            runtime.commit()

    def loss(self) -> float:
        metrics = self.host.evaluate(self.server["model"], dissimilarity=False)
        return sum(m.train_loss for m in metrics.values()) / 2


SMOOTHED = {
    "Alg. 7": ConvolutionMBSGD(smoothing_radius=0.3, v=6.0),
    "Alg. 6": LocalizedConvolution(smoothing_radius=0.3, phases=2, regularisation=0.05),
    "App. E": LocalizedNesterov(envelope=5.0, phases=2, regularisation=0.05),
}


@pytest.mark.parametrize("algorithm", SMOOTHED.values(), ids=SMOOTHED)
def test_the_hinge_loss_falls(algorithm: Algorithm) -> None:
    """From 1 at the start, without noise."""
    assert HingeLab(algorithm, rules(0.0, 3.0), rounds=60).loss() < 0.35


@pytest.mark.parametrize("algorithm", SMOOTHED.values(), ids=SMOOTHED)
def test_poisson_batches_and_stacks_of_any_size_give_the_same_bits(algorithm: Algorithm) -> None:
    one, two = (HingeLab(algorithm, rules(1.0, 3.0, Poisson(0.5)), rounds=6, stack=stack) for stack in (1, 2))
    assert all(torch.equal(one.server[name], two.server[name]) for name in one.server)
    assert {charge.release.neighbouring for charge in one.ledger} == {"add_or_remove"}


def test_remarks() -> None:
    (remark,) = LocalizedConvolution(diameter=10.0, smoothing_radius=0.3).remarks(facts())
    assert "Theorem D.5" in remark and "smoothing_radius 0.3, where it has" in remark
    (remark,) = LocalizedNesterov(diameter=10.0, envelope=2.0).remarks(facts())
    assert "Theorem E.2" in remark and "envelope 2, where it has" in remark and "all of R^d" in remark


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="smoothing_radius"):
        ConvolutionMBSGD(smoothing_radius=0.0)
    with pytest.raises(ConfigError, match="envelope"):
        LocalizedNesterov(envelope=-1.0)
    with pytest.raises(ConfigError, match="smoothing_radius is missing"):
        plan_of(LocalizedConvolution(phases=2, regularisation=1.0))
    with pytest.raises(ConfigError, match="envelope is missing"):
        plan_of(LocalizedNesterov(phases=2, regularisation=1.0))
