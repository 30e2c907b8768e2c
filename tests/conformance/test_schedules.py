"""Noise schedules by every way to the server: each release has the noise that the ledger has of it."""

import dataclasses
import functools

import numpy as np
import pytest

from dpfl_plugin import registry
from dpfl_plugin.privacy.events import SampledGaussian
from tests.conformance.cases import (
    SCHEDULE_OPTIONS,
    Case,
    Transcript,
    cases,
    claimed_sensitivity,
    run,
    zero_records,
)
from tests.conformance.checks import assert_normal

pytestmark = pytest.mark.statistical
F, SILOS, STEPS, ROUNDS, SIGMA = 100, 5, 4, 5, 2.5
EVERY = pytest.mark.parametrize("case", [case for case in cases() if case.engine == cases()[0].engine], ids=str)
SCHEDULES = pytest.mark.parametrize("name", registry.names("schedules"))


@functools.cache
def released(case: Case, name: str) -> Transcript:
    schedule = registry.load("schedules", name)(**SCHEDULE_OPTIONS.get(name, {}))
    rules = dataclasses.replace(case.rules(SIGMA), schedule=schedule)
    return run(case, [zero_records(F)] * SILOS, sigma=SIGMA, steps=STEPS, rounds=ROUNDS, rules=rules)


def in_order(made: Transcript, round: int, silo: int) -> list[SampledGaussian]:
    """The releases of a silo as the ledger has them."""
    mine = [charge for charge in made.charges if (charge.round, charge.silo) == (round, silo)]
    return [charge.release for charge in mine for _ in range(charge.count)]


@SCHEDULES
@EVERY
def test_noise_of_every_release_is_what_its_charge_says(case: Case, name: str) -> None:
    """30,000 draws in units of what is claimed; false alarm below 1e-7. Then 1,500 of each release: 20 % would show."""
    made = released(case, name)
    units = np.empty_like(made.values)
    for round, step, silo in np.ndindex(*made.values.shape[:3]):
        release = in_order(made, round, silo)[step]
        units[round, step, silo] = made.values[round, step, silo] / (
            claimed_sensitivity(release) * release.noise_multiplier
        )
    assert_normal(units, 1.0)
    for round, step in np.ndindex(*units.shape[:2]):
        # 5.5 standard deviations of a sample standard deviation of 1,500
        assert units[round, step].std() == pytest.approx(1.0, abs=5.5 / np.sqrt(2 * units[round, step].size))


@EVERY
def test_a_geometric_schedule_by_step_gives_every_release_noise_of_its_own(case: Case) -> None:
    made = released(case, "geometric")
    rounds, steps = made.values.shape[:2]
    noise = [release.noise_multiplier for round in range(rounds) for release in in_order(made, round, 0)]
    assert len(set(noise)) == rounds * steps and noise == sorted(noise, reverse=True) and noise[0] == SIGMA
