"""Noise schedules as the paper defines them, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dpfl_plugin.errors import ConfigError, PluginError
from dpfl_plugin.privacy.paper import chang_theorem
from dpfl_plugin.privacy.schedules import Constant, Geometric, checked_factors

BETA, TAU = 0.9, 5


def variance(by: str, r: int, t: int, threshold: int) -> float:
    """[C] Eqs. 6 and 7 in their own words: rounds and steps from 1, sigma_0 = 1."""
    if r <= threshold:
        return 1.0
    return float(BETA ** (r - threshold) if by == "round" else BETA ** (TAU * (r - threshold - 1) + t - 1))


@pytest.mark.parametrize("threshold", [0, 1, 4])
@pytest.mark.parametrize("by", ["round", "step"])
def test_variances_are_those_of_the_paper(by: Any, threshold: int) -> None:
    schedule = Geometric(beta=BETA, threshold=threshold, by=by)
    for r in range(1, 12):
        expected = [math.sqrt(variance(by, r, t, threshold)) for t in range(1, TAU + 1)]
        assert checked_factors(schedule, r - 1, TAU) == pytest.approx(expected, rel=1e-14)


def test_beta_one_and_a_threshold_never_reached_change_nothing() -> None:
    for round in range(6):
        for schedule in (Geometric(beta=1.0), Geometric(beta=1.0, by="step"), Geometric(beta=0.5, threshold=6)):
            assert tuple(schedule.factors(round, 3)) == tuple(Constant().factors(round, 3)) == (1.0, 1.0, 1.0)


def test_noise_may_grow() -> None:
    assert Geometric(beta=4.0).factors(0, 2) == (2.0, 2.0)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"beta": 0.0}, "beta=0.0 must be positive"),
        ({"beta": -1.0}, "beta=-1.0"),
        ({"beta": math.inf}, "beta=inf"),
        ({"beta": math.nan}, "beta=nan"),
        ({"beta": 0.9, "threshold": -1}, "threshold=-1 must be at least 0"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Geometric(**options)


@pytest.mark.parametrize("beta", [0.5, 2.0])
def test_noise_that_has_no_number_is_refused(beta: float) -> None:
    with pytest.raises(ConfigError, match="round 10000 by a number beyond"):
        Geometric(beta=beta).factors(9999, 1)


class Says:
    """A stranger's schedule that gives what it is told."""

    statement = "what it is told"

    def __init__(self, factors: Any) -> None:
        self._factors = factors

    def factors(self, round: int, num_releases: int) -> Any:
        return self._factors


@pytest.mark.parametrize(
    "factors",
    [(1.0,), (1.0, 1.0, 1.0), (1.0, 0.0), (1.0, -2.0), (1.0, math.inf), (1.0, math.nan), (1.0, "2"), (1, True)],
)
def test_a_schedule_that_gives_no_positive_numbers_is_refused(factors: Any) -> None:
    with pytest.raises(PluginError, match="round 3: it must give as many positive finite numbers"):
        checked_factors(Says(factors), 2, 2)


def test_numbers_of_any_kind_are_taken() -> None:
    assert checked_factors(Says([2, np.float32(0.5)]), 0, 2) == (2.0, 0.5)


THEOREM: dict[str, Any] = {
    "by": "round", "noise_multiplier": math.sqrt(8), "beta": 0.998, "threshold": 200, "local_steps": 50, "rounds": 420,
    "silo_rate": 0.2, "record_rate": 0.2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "Theorem 1 of Chang, Seif, Tandon 2022 has its conditions met"),
        ({"by": "step", "beta": 0.99996}, "Theorem 2 of Chang, Seif, Tandon 2022 has its conditions met"),
        ({"noise_multiplier": 2.0}, "sigma_0 = 2 is below sqrt(5)"),
        ({"silo_rate": 1.0}, "p q = 0.2 is above 0.1"),
        ({"beta": 1.1}, "beta = 1.1 is above 1"),
        ({"rounds": 434}, "has its conditions met"),  # 8 * 0.998^234 is 5.007
        ({"rounds": 435}, "the last variance, 4.998, is below 5"),
        ({"by": "step", "beta": 0.999}, "is below 5"),
    ],
)
def test_whether_the_papers_theorems_speak_of_a_run(changed: dict[str, Any], said: str) -> None:
    assert said in chang_theorem(**{**THEOREM, **changed})
