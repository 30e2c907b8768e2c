"""Bounds of Chang, Seif, Tandon 2022: corollaries against Theorem 3, and who has the least at equal budgets."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpfl_plugin.privacy.schedules import Geometric
from papers.chang_theory import (
    DriftControlProblem,
    Scheme,
    last_round,
    noise_variances,
    rounds_spent,
    same_budget_variance,
)

SMALL = DriftControlProblem(
    num_silos=6,
    participants=2,
    local_steps=5,
    server_lr=2.0,
    batch_size=4,
    gradient_variance=0.7,
    distance=1.5,
    control_error=0.3,
)
DECAY = {"variance": 8.0, "beta": 0.9, "threshold": 3}


def brackets(problem: DriftControlProblem, variances: np.ndarray) -> float:
    """The four terms of eq. 9, sum by sum, with every user's noise."""
    R, tau = variances.shape
    K, S, eta_g = problem.num_silos, problem.participants, problem.server_lr
    first = 16 / (tau * S * R) * sum(variances[r, t] for r in range(R) for _ in range(K) for t in range(tau))
    second = sum(
        (1 + 1 / (tau - 1)) ** i * K * variances[r, t - i - 1]
        for r in range(R)
        for t in range(1, tau + 1)
        for i in range(t)
    ) / (25 * eta_g**2 * S * tau**3 * R)
    batches = 15 / (tau * S * problem.batch_size) * (1 + tau / eta_g**2) * problem.gradient_variance
    return float(first + second + 11 * K * problem.control_error / (S * R) + batches)


@pytest.mark.parametrize("scheme", [0, 1, 2])
def test_equations_9_and_10(scheme: Scheme) -> None:
    """The step of eq. 9 minimises eq. 8, d^2 / (eta R) + eta (..), and eq. 10 is that minimum."""
    variances = noise_variances(scheme, 7, 5, **DECAY)
    inside = brackets(SMALL, variances)
    assert SMALL.without_noise(7) + SMALL.of_noise(variances) == pytest.approx(inside)
    eta = SMALL.effective_lr(variances)
    eq_8 = lambda step: SMALL.distance**2 / (step * 7) + step * inside  # noqa: E731
    assert SMALL.bound(variances) == pytest.approx(eq_8(eta))
    assert eq_8(eta) <= min(eq_8(0.9 * eta), eq_8(1.1 * eta))


def test_variances_are_equations_6_and_7() -> None:
    by_round, by_step = (noise_variances(scheme, 5, 5, **DECAY) for scheme in (1, 2))
    assert np.allclose(by_round, 8 * np.array([1, 1, 1, 0.9, 0.81])[:, np.newaxis])
    assert np.allclose(by_step[:3], 8) and np.allclose(by_step[3:].ravel(), 8 * 0.9 ** np.arange(10))


@pytest.mark.parametrize("scheme", [0, 1, 2])
@pytest.mark.parametrize("rounds", [1, 3, 4, 30])
@pytest.mark.parametrize("tau", [2, 5, 50])
def test_corollaries_bound_theorem_3(scheme: Scheme, rounds: int, tau: int) -> None:
    """Each is above eq. 10, since (1 + 1 / (tau - 1))^i <= e < 3, and within 1 % of it, as 16 outweighs the rest."""
    problem = replace(SMALL, local_steps=tau)
    exact = problem.bound(noise_variances(scheme, rounds, tau, **DECAY))
    simple = problem.corollary(scheme, rounds, **DECAY)
    assert exact <= simple <= 1.01 * exact


def test_corollaries_are_one_until_noise_decays_and_without_decay() -> None:
    """With R_th = R (12) and (13) are (11); with beta = 1 so is (12)."""
    one = SMALL.corollary(0, 9, variance=8.0)
    assert SMALL.corollary(1, 9, variance=8.0, beta=0.5, threshold=9) == pytest.approx(one)
    assert SMALL.corollary(2, 9, variance=8.0, beta=0.5, threshold=9) == pytest.approx(one)
    assert SMALL.corollary(1, 9, variance=8.0, beta=1.0, threshold=2) == pytest.approx(one)
    inside = 11 * 6 * 0.3 / (2 * 9) + 15 / 40 * (1 + 5 / 4) * 0.7 + 3 * (16 + 3 / (25 * 4 * 5)) * 8
    assert one == pytest.approx(2 * 1.5 * math.sqrt(inside / 9))


@pytest.mark.parametrize("scheme", [1, 2])
@pytest.mark.parametrize("beta", [0.3, 0.9, 0.998])
@pytest.mark.parametrize("rounds", [4, 20])
def test_constant_noise_of_the_same_budget_has_the_least_bound(scheme: Scheme, beta: float, rounds: int) -> None:
    """Of all noise with one sum of 1 / sigma^2 over as many steps, equal noise has the least sum of sigma^2."""
    decay = {"variance": 8.0, "beta": beta, "threshold": 3}
    same = same_budget_variance(scheme, rounds, 5, **decay)
    variances = noise_variances(scheme, rounds, 5, **decay)
    assert rounds * 5 / same == pytest.approx(float((1 / variances).sum()))
    spent = rounds_spent(rounds, scheme=scheme, beta=beta, threshold=3, local_steps=5)
    assert same == pytest.approx(8.0 * rounds / spent)  # the brackets of Theorems 1 and 2
    assert SMALL.corollary(0, rounds, variance=same) < SMALL.corollary(scheme, rounds, **decay)


def test_figure_3() -> None:
    """Its constants: decay lowers the bound at equal rounds, and is below scheme 0 at its last round, as published."""
    problem = DriftControlProblem(
        num_silos=40,
        participants=8,
        local_steps=200,
        server_lr=2.0,
        batch_size=500,
        gradient_variance=1.0,
        distance=1.0,
        control_error=1.0,
    )
    last = last_round(1, 0.998, 200, 200, 700), last_round(2, 0.99998, 200, 200, 700)
    ends = [
        problem.corollary(scheme, R, variance=8.0, beta=beta, threshold=200)
        for scheme, R, beta in zip((1, 2), last, (0.998, 0.99998), strict=True)
    ]
    assert problem.corollary(0, 200, variance=8.0) == pytest.approx(
        problem.corollary(2, 200, variance=8.0, threshold=200)
    )
    at_its_end = [problem.corollary(0, R, variance=8.0) for R in last]
    assert all(end < constant for end, constant in zip(ends, at_its_end, strict=True))


@pytest.mark.parametrize(("by", "scheme"), [("round", 1), ("step", 2)])
def test_what_rounds_spend_is_the_papers_sum(by: Any, scheme: Any) -> None:
    """Thms 1 and 2: the sum of 1 / sigma^2 over R rounds, in rounds of constant noise."""
    schedule = Geometric(beta=0.9, threshold=3, by=by)
    for R in (1, 3, 4, 9):
        spent = math.fsum(factor**-2 for round in range(R) for factor in schedule.factors(round, 5)) / 5
        paper = rounds_spent(R, scheme=scheme, beta=0.9, threshold=3, local_steps=5)
        assert spent == pytest.approx(paper, rel=1e-12)


# Chang, Seif, Tandon 2022, section IV: R_th = 200, tau = 50, the budget of 600 rounds of constant noise
CHANG: dict[str, Any] = {"threshold": 200, "local_steps": 50, "budget_rounds": 600}


@pytest.mark.parametrize(
    ("scheme", "beta", "last"),
    [
        (1, 0.998, 493),  # the printed beta; the paper prints 497
        (2, 0.99992, 438),  # the printed beta; the paper prints 428
        (1, 0.9981, 497),
        (2, 0.99991, 428),
        (0, 0.5, 600),
        (1, 1.0, 600),
        (2, 1.0, 600),
    ],
)
def test_last_rounds(scheme: Any, beta: float, last: int) -> None:
    assert last_round(scheme, beta, **CHANG) == last


def test_chang_budget_is_the_sum_over_steps() -> None:
    """Sum of sigma_0^2 / sigma^2 of Eqs. 6 and 7 over all steps of all rounds, per round of constant noise."""
    threshold, steps, beta = 3, 4, 0.93
    for rounds in (0, 1, 3, 4, 5, 9):
        sums = {1: 0.0, 2: 0.0}
        for r in range(1, rounds + 1):
            for t in range(1, steps + 1):
                decay = {1: r - threshold, 2: steps * (r - threshold - 1) + t - 1}
                for scheme in sums:
                    sums[scheme] += 1.0 if r <= threshold else beta ** -decay[scheme]
        for scheme, total in sums.items():
            spent = rounds_spent(
                rounds,
                scheme=scheme,  # type: ignore[arg-type]
                beta=beta,
                threshold=threshold,
                local_steps=steps,
            )
            assert spent == pytest.approx(total / steps, rel=1e-12)


def test_chang_at_the_ends() -> None:
    assert last_round(1, 0.9, 200, 50, 150.5) == 150
    assert last_round(1, 0.9, 200, 50, 200) == 200
    assert last_round(2, 0.01, 0, 10**6, 5.0) == 0  # a round that no number can hold
