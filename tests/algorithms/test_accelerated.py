"""AC-SA: Gao et al. 2024, Alg. 2 and 5, on quadratics without noise, where its theorems can be seen."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dpfl_plugin.algorithms.accelerated import ACSA, AcceleratedMBSGD, MultistageMBSGD
from dpfl_plugin.algorithms.base import Setting
from dpfl_plugin.algorithms.isrl import ConstraintSet, Facts, OneGradient, Stage
from dpfl_plugin.algorithms.mb_sgd import MBSGD
from dpfl_plugin.core.balls import Ball
from dpfl_plugin.errors import ConfigError
from tests.quadratics import Lab, rules, silo


def spectrum(kappa: float, d: int = 12) -> tuple[list[float], list[float]]:
    """Curvatures from 1/kappa to 1, minimiser 0."""
    return [kappa ** -(j / (d - 1)) for j in range(d)], [0.0] * d


def gap(lab: Lab) -> float:
    """F(model) - min F of one silo whose minimiser is 0."""
    a, b = lab.silos[0].features[0].chunk(2)
    return float(0.5 * (a * (lab.server["model"] - b) ** 2).sum())


def test_the_first_rounds_by_hand() -> None:
    """Alg. 2 with mu = 1, v = 2, w_0 = 1 on w^2: alpha_1 = 1, eta_1 = 4; alpha_2 = 2/3, eta_2 = 4/3; gradient 2 w."""
    solver, stage = ACSA(), Stage(phase=1, rounds=9, modulus=1.0, rate=2.0)
    nowhere = Ball(torch.zeros(1, dtype=torch.float64), math.inf)
    sets = ConstraintSet(nowhere, nowhere)
    state = solver.start(torch.ones(1, dtype=torch.float64))
    assert float(solver.query(state, stage, 1)) == pytest.approx(1.0)
    state = solver.step(state, torch.tensor([2.0], dtype=torch.float64), stage, 1, sets)
    w_1 = (1 * 1 * 1 + 4 * 1 - 1 * 2) / 5  # (alpha mu w_md + ((1 - alpha) mu + eta) w_0 - alpha g) / (mu + eta)
    assert float(state["w"]) == float(state["model"]) == pytest.approx(w_1)
    w_ag = w_1 + 0.3  # apart, to tell the two sequences
    state["model"] = state["model"] + 0.3
    scale = 4 / 3 + (1 - 4 / 9)
    w_md = (1 / 3) * (1 + 4 / 3) / scale * w_ag + (2 / 3) * (1 / 3 + 4 / 3) / scale * w_1
    assert float(solver.query(state, stage, 2)) == pytest.approx(w_md)
    state = solver.step(state, torch.tensor([2 * w_md], dtype=torch.float64), stage, 2, sets)
    w_2 = (2 / 3 * w_md + (1 / 3 + 4 / 3) * w_1 - 2 / 3 * 2 * w_md) / (7 / 3)
    assert float(state["w"]) == pytest.approx(w_2)
    assert float(state["model"]) == pytest.approx(2 / 3 * w_2 + 1 / 3 * w_ag)


@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_line_9_is_the_minimiser_over_the_ball(mu: float) -> None:
    """Its objective grows along every direction that stays in W."""
    generator = torch.Generator().manual_seed(0)
    w_ag, w, g, center = (torch.randn(3, generator=generator, dtype=torch.float64) for _ in range(4))
    stage, ball = Stage(phase=1, rounds=9, modulus=mu, rate=1.0), Ball(center, 0.4)
    sets = ConstraintSet(Ball(center, math.inf), ball)
    state = {"model": w_ag, "w": w}
    r, alpha, eta = 3, 2 / 4, 4 / 12
    w_md = ACSA().query(state, stage, r)

    def objective(x: torch.Tensor) -> float:
        near = alpha * (torch.dot(g, x) + mu / 2 * (w_md - x).square().sum())
        return float(near + ((1 - alpha) * mu / 2 + eta / 2) * (w - x).square().sum())

    best = ACSA().step(state, g, stage, r, sets)["w"]
    assert float((best - center).norm()) == pytest.approx(0.4), "the bound has to matter"
    for _ in range(200):
        other = torch.randn(3, generator=generator, dtype=torch.float64)
        other = center + other * 0.4 * torch.rand((), generator=generator, dtype=torch.float64) / other.norm()
        assert objective(best) <= objective(other) + 1e-12


@pytest.mark.parametrize("kappa", [10.0, 1000.0])
def test_the_rate_of_merely_convex_losses(kappa: float) -> None:
    """Ghadimi and Lan 2012, Prop. 9 without noise: F(w_R^ag) - min F <= 2 v ||w_0 - w*||^2 / (R (R + 1))."""
    a, b = spectrum(kappa)
    lab = Lab(AcceleratedMBSGD(smoothness=1.0), [silo(a, b)], rules(), [1.0] * len(a))
    for R in range(1, 100):
        lab.step()
        assert gap(lab) <= 2 * 2.0 * len(a) / (R * (R + 1))


def rounds_to(algorithm: OneGradient, kappa: float, factor: float, most: int | None = None) -> int:
    a, b = spectrum(kappa)
    start = [curvature**-0.5 for curvature in a]  # each direction has the same part of the gap
    lab = Lab(algorithm, [silo(a, b)], rules(), start, known={"rounds": most})
    goal = factor * gap(lab)
    while gap(lab) > goal:
        lab.step()
    return lab.round


def slope(kappas: list[float], rounds: list[int]) -> float:
    return float(np.polyfit(np.log(kappas), np.log(rounds), 1)[0])


@pytest.mark.slow
def test_the_accelerated_rate() -> None:
    """Rounds to a gap 1e-4 times as large grow as sqrt(kappa) in stages, and as kappa by plain gradient descent."""
    kappas = [16.0, 48.0, 144.0]
    plain = [rounds_to(MBSGD(lr=1.0), kappa, 1e-4) for kappa in kappas]
    staged = []
    for kappa in kappas:
        length = math.ceil(4 * math.sqrt(2 * kappa))  # Alg. 5, l. 2, without the term of the noise
        algorithm = MultistageMBSGD(
            smoothness=1.0, strong_convexity=1 / kappa, stage_rounds=(length,) * 20, lipschitz=1.0
        )
        staged.append(rounds_to(algorithm, kappa, 1e-4, most=20 * length))
    assert 0.85 < slope(kappas, plain) < 1.15, plain
    assert 0.35 < slope(kappas, staged) < 0.65, staged
    assert staged[-1] < plain[-1]


def test_each_stage_halves_the_gap() -> None:
    """Ghadimi and Lan 2013, Prop. 7: F(q_k) - min F <= Delta 2^-k after the R^(k) rounds of Alg. 5."""
    kappa = 50.0
    a, b = spectrum(kappa)
    length = math.ceil(4 * math.sqrt(2 * kappa))
    algorithm = MultistageMBSGD(
        smoothness=1.0, strong_convexity=1 / kappa, stage_rounds=(length,) * 5, lipschitz=1.0, gap=10.0
    )
    lab = Lab(algorithm, [silo(a, b)], rules(), [1.0] * len(a), known={"rounds": 5 * length})
    start = gap(lab)
    for k in range(1, 6):
        for _ in range(length):
            lab.step()
        assert gap(lab) <= start * 2.0**-k
        assert torch.equal(lab.server["w"], lab.server["model"]), "the next stage starts from what this one returned"


def test_stages_are_those_of_alg_5() -> None:
    """R^(k) of l. 2 as long as they fit, the rest to the last; v_k of l. 3."""
    # 4 sqrt(2 * 8) = 16; 128 L^2 / (3 mu gap) 2^(k+1) = 4, 8, 16, 32, ... times 2^... : 16, 32, 64
    given = {"smoothness": 8.0, "strong_convexity": 1.0, "lipschitz": math.sqrt(3 / 32), "gap": 1.0}
    algorithm = MultistageMBSGD(**given, variance=1e6)
    facts = _facts(100)
    stages = algorithm.stages(facts)
    assert [stage.rounds for stage in stages] == [16, 84]
    v = [math.sqrt(1e6 * 2 ** (k - 1) / (3 * R * (R + 1) * (R + 2))) for k, R in ((1, 16), (2, 84))]
    assert [stage.rate for stage in stages] == pytest.approx([max(16.0, value) for value in v])
    assert list(algorithm.remarks(facts)) == []
    short = MultistageMBSGD(**given)
    assert [stage.rounds for stage in short.stages(_facts(10))] == [10]
    assert "stage 1 of Alg. 5 takes 16 rounds (l. 2) and has 10" in next(iter(short.remarks(_facts(10))))


def _facts(rounds: int) -> Facts:
    setting = Setting(num_silos=2, num_participants=2, silo_rate=1.0, record_rate=None, rounds=rounds)
    return Facts.of(setting, 3)


def test_stacks_of_any_size_give_the_same_bits() -> None:
    silos = [silo([1.0, 0.5], [float(i), 1.0]) for i in range(5)]
    ends = []
    for stack in (1, 2, 5):
        lab = Lab(AcceleratedMBSGD(smoothness=1.0, diameter=3.0), silos, rules(1.0, 2.0), [1.0, -1.0], stack=stack)
        for chosen in ([0, 1, 2, 3, 4], [1, 3, 4], [0, 2]):
            lab.step(chosen)
        ends.append(lab.server)
    assert all(torch.equal(ends[0][name], end[name]) for end in ends[1:] for name in end)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="smoothness"):
        AcceleratedMBSGD(smoothness=0.0)
    with pytest.raises(ConfigError, match=r"strong_convexity=2.0 must be in \[0, smoothness=1.0\]"):
        AcceleratedMBSGD(smoothness=1.0, strong_convexity=2.0)
    with pytest.raises(ConfigError, match="stage_rounds"):
        MultistageMBSGD(smoothness=1.0, strong_convexity=0.1, stage_rounds=(3, 0))
    with pytest.raises(ConfigError, match="must add up to the 5 rounds"):
        MultistageMBSGD(smoothness=1.0, strong_convexity=0.1, stage_rounds=(3,), lipschitz=1.0).stages(_facts(5))
    with pytest.raises(ConfigError, match="Give lipschitz"):
        MultistageMBSGD(smoothness=1.0, strong_convexity=0.1).stages(_facts(5))
    with pytest.raises(ConfigError, match="rounds is missing"):
        MultistageMBSGD(smoothness=1.0, strong_convexity=0.1, lipschitz=1.0).stages(_facts(0))


def test_a_scale_below_the_theorems_is_remarked() -> None:
    facts = _facts(5)
    assert "below 2 beta = 2" in next(iter(AcceleratedMBSGD(smoothness=1.0, v=0.5).remarks(facts)))
    assert list(AcceleratedMBSGD(smoothness=1.0, v=5.0).remarks(facts)) == []
