"""The schedules of Gao et al. 2024 at numbers for which they can be worked out by hand."""

from __future__ import annotations

import math

import pytest

from dpfl_plugin.algorithms import isrl_theory as theory

DELTA = math.exp(-4)  # ln(1/delta) = 4
PUBLIC = {"L": 2.0, "D": 8.0, "n": 16, "M": 25, "d": 9, "delta": DELTA}


@pytest.mark.parametrize(("n", "phases"), [(1, 0), (2, 1), (3, 1), (4, 2), (1023, 9), (1024, 10), (1734, 10)])
def test_phases_are_floors_of_logarithms(n: int, phases: int) -> None:
    assert theory.num_phases(n) == phases


def test_the_exponent_is_3_until_silos_outnumber_the_fourth_power_of_records() -> None:
    """max(log_n(M) / 2 + 1, 3): n = 2, M = 2^6 gives 4."""
    assert theory.exponent(1734, 25) == 3
    assert theory.exponent(2, 64) == pytest.approx(4)
    assert theory.exponent(10, 10**4) == pytest.approx(3)


def test_regularisation() -> None:
    """sqrt(d ln(1/delta)) = 6. At epsilon = 1: max{4, 6} 2 / (8 * 16 * 5); at epsilon = 3: max{4, 2}."""
    assert theory.regularisation(**PUBLIC, epsilon=1.0) == pytest.approx(2 / 640 * 6)
    assert theory.regularisation(**PUBLIC, epsilon=3.0) == pytest.approx(2 / 640 * 4)


def test_step_size() -> None:
    """D sqrt(M) / L = 20; min{1/4, epsilon/6}."""
    assert theory.step_size(**PUBLIC, epsilon=1.0) == pytest.approx(20 / 6)
    assert theory.step_size(**PUBLIC, epsilon=3.0) == pytest.approx(20 / 4)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_regularisation_times_step_size_is_one_over_n(epsilon: float) -> None:
    """Theorems C.1 and G.1 are one schedule: lambda = 1 / (eta n)."""
    product = theory.regularisation(**PUBLIC, epsilon=epsilon) * theory.step_size(**PUBLIC, epsilon=epsilon)
    assert product == pytest.approx(1 / PUBLIC["n"])


def smooth(**changes: float) -> int:
    # ln(gap lambda M epsilon^2 n^2 / (L^2 d)) = ln(e^3); sqrt((beta + lambda) / lambda) = 4
    values = {"beta": 15.0, "lambda_i": 1.0, "gap": math.exp(3), "L": 2.0, "n_i": 6, "N": 25, "M": 25, "K_i": 6}
    return theory.smooth_rounds(**{**values, "d": 225, "epsilon": 1.0, "delta": DELTA, **changes})  # type: ignore[arg-type]


def test_rounds_of_smooth_phases() -> None:
    assert smooth() == 12
    # M K < N n: max with epsilon^2 n^2 / (K d ln(1/delta)) = 36 * 900 / (2 * 225 * 4) = 18 at epsilon = 30
    gap = math.exp(3) / 900
    assert smooth(epsilon=30.0, gap=gap) == 12
    assert smooth(epsilon=30.0, gap=gap, K_i=2) == 18
    assert smooth(epsilon=30.0, gap=gap, N=26) == 12  # 36 * 900 / (6 * 900) = 6, less than 12
    assert smooth(gap=1e-9) == 1  # the logarithm is negative: one round at least


def test_rounds_of_convolved_phases_have_no_indicator() -> None:
    """Theorem D.5: full batches of all silos, too, take epsilon^2 n^2 / (K d ln(1/delta)) = 36 * 6400 / (900 K)."""
    many, gap = 80.0, math.exp(3) / 6400
    assert smooth(epsilon=many, gap=gap) == 12
    assert smooth(epsilon=many, gap=gap, always_sampled=True) == 43
    assert smooth(epsilon=many, gap=gap, K_i=2, always_sampled=True) == smooth(epsilon=many, gap=gap, K_i=2) == 128


def test_rounds_of_nonsmooth_phases() -> None:
    """min(M n, M epsilon^2 n^2 / d) + 1."""
    assert theory.nonsmooth_rounds(n_i=10, M=3, d=4, epsilon=1.0) == 31
    assert theory.nonsmooth_rounds(n_i=10, M=3, d=100, epsilon=1.0) == 4
    assert theory.nonsmooth_rounds(n_i=10, M=3, d=7, epsilon=0.1) == 2


def test_least_batch() -> None:
    """epsilon n / (4 sqrt(2 R ln(2/delta))): with ln(2/delta) = 8 and R = 4 the root is 8."""
    delta = 2 * math.exp(-8)
    assert theory.least_batch(n_i=64, R_i=4, epsilon=1.0, delta=delta) == pytest.approx(2)
    assert theory.least_batch(n_i=6, R_i=4, epsilon=1.0, delta=delta) == 1


def test_noise() -> None:
    """sigma^2 = 256 L^2 R ln(2.5 R / delta) ln(2 / delta) / (n^2 epsilon^2)."""
    delta = 2 * math.exp(-9)
    sigma = theory.noise_std(L=0.5, n_i=12, R_i=4, epsilon=2.0, delta=delta)
    assert sigma**2 == pytest.approx(256 * 0.25 * 4 * (math.log(5) + 9) * 9 / (144 * 4))


def test_smoothing() -> None:
    """s = D / sqrt(M) (1/4 + 6 / (16 epsilon)); beta = L sqrt(M) / D min{4, 16 epsilon / 6}."""
    without_L = {name: value for name, value in PUBLIC.items() if name != "L"}
    assert theory.smoothing_radius(**without_L, epsilon=1.5) == pytest.approx(8 / 5 * (1 / 4 + 1 / 4))
    assert theory.convolved_smoothness(L=2.0, d=9, radius=0.5) == pytest.approx(12)
    assert theory.envelope_smoothness(**PUBLIC, epsilon=3.0) == pytest.approx(2 * 5 / 8 * 4)
    assert theory.envelope_smoothness(**PUBLIC, epsilon=0.75) == pytest.approx(2 * 5 / 8 * 2)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_the_envelopes_error_is_that_of_the_theorem(epsilon: float) -> None:
    """Lemma E.1 (2): L^2 / (2 beta) is at most L D / sqrt(M) (1 / sqrt(n) + sqrt(d ln(1/delta)) / (epsilon n))."""
    beta = theory.envelope_smoothness(**PUBLIC, epsilon=epsilon)
    without_L = {name: value for name, value in PUBLIC.items() if name != "L"}
    assert PUBLIC["L"] ** 2 / (2 * beta) <= PUBLIC["L"] * theory.smoothing_radius(**without_L, epsilon=epsilon)


def test_the_risk() -> None:
    """L D / sqrt(M) (1/4 + 6 / (16 epsilon)) = 2 * 8 / 5 (1/4 + 1/4)."""
    assert theory.excess_risk(**PUBLIC, epsilon=1.5) == pytest.approx(16 / 5 / 2)


def test_stages() -> None:
    """R^(k): 4 sqrt(2 * 8 / 1) = 16; 128 L^2 / (3 mu Delta) 2^(k+1) = 4 * 2^(k+1) with L^2 = 3 / 32, Delta = 1."""
    given = {"beta": 8.0, "mu": 1.0, "L": math.sqrt(3 / 32), "gap": 1.0}
    assert [theory.stage_rounds(k, **given) for k in (1, 2, 3)] == [16, 32, 64]
    assert theory.stage_rounds(1, **{**given, "L": 1e-9}) == 16
    # v_k: sqrt(1 * 360 / (3 * 1 * 1 * 2 * 3)) with R = 1, and 2^(k-1) times that squared
    scale = {"beta": 0.1, "mu": 1.0, "variance": 360.0, "gap": 1.0, "R": 1}
    assert theory.stage_scale(1, **scale) == pytest.approx(math.sqrt(20))
    assert theory.stage_scale(3, **scale) == pytest.approx(math.sqrt(80))
    assert theory.stage_scale(1, **{**scale, "beta": 8.0}) == 16
