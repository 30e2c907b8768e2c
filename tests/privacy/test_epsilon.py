"""`dpfl.epsilon` and `dpfl.calibrate`, and their commands."""

from __future__ import annotations

import math
from typing import Any

import pytest

import dpfl_plugin as dpfl
from dpfl_plugin.errors import ConfigError, UnsupportedError
from tests.cli.command import dpfl as command
from tests.cli.command import one_message

MECHANISM: dict[str, Any] = {"noise_multiplier": 60, "record_rate": 0.2, "steps": 20_000, "delta": 2.5e-6}


def options(**arguments: Any) -> list[str]:
    return [word for name, value in arguments.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def test_an_independent_value() -> None:
    """The public DP-SCAFFOLD reference has 13.4 here."""
    result = dpfl.epsilon(**MECHANISM)
    assert float(result) == pytest.approx(2.030, abs=5e-4)
    for part in ("epsilon 2.0300", "at delta 2.5e-06", "20000 steps", "without replacement", "replace-one", "PLD"):
        assert part in str(result)
    assert f"at most {math.exp(result.epsilon):.1f}" in str(result)  # exp of the epsilon itself, not of its half
    assert float(dpfl.epsilon(**MECHANISM, accountant="rdp")) > result.epsilon


@pytest.mark.parametrize(
    ("sampler", "relation"), [("fixed", "replace_one"), ("poisson", "add_or_remove"), ("full", "replace_one")]
)
def test_a_sampler_decides_what_neighbours_are(sampler: str, relation: str) -> None:
    rate = {} if sampler == "full" else {"record_rate": 0.2}
    assert dpfl.epsilon(noise_multiplier=50, steps=10, delta=1e-5, sampler=sampler, **rate).neighbouring == relation


def test_steps_without_sampling_add_up_as_one_gaussian() -> None:
    many = dpfl.epsilon(noise_multiplier=60, steps=20_000, delta=2.5e-6)
    single = dpfl.epsilon(noise_multiplier=60 / 20_000**0.5, steps=1, delta=2.5e-6)
    assert many.epsilon == pytest.approx(single.epsilon, rel=1e-9) and many.epsilon > 10
    assert dpfl.epsilon(**MECHANISM | {"steps": 0}).epsilon == 0


@pytest.mark.parametrize(
    ("noise", "reason"),
    [
        (0, "without noise nothing is guaranteed"),
        (0.009, "noise_multiplier 0.009 is below 0.01: epsilon is too large to compute"),
    ],
)
def test_no_noise_is_no_guarantee(noise: float, reason: str) -> None:
    result = dpfl.epsilon(**MECHANISM | {"noise_multiplier": noise})
    assert math.isinf(float(result)) and "epsilon none" in str(result) and reason in str(result)
    assert command("epsilon", *options(**MECHANISM | {"noise_multiplier": noise}), "--json").json["epsilon"] is None


def test_the_answer_fits_the_budget_and_more_does_not() -> None:
    budget: dict[str, Any] = {"epsilon": 2, "delta": 2.5e-6, "record_rate": 0.2}
    noise = dpfl.calibrate(**budget, steps=20_000)
    assert 1.998 < noise.epsilon <= 2 and noise.noise_multiplier == pytest.approx(60.8, abs=0.1)
    assert float(dpfl.epsilon(**MECHANISM | {"noise_multiplier": 0.999 * noise.noise_multiplier})) > 2
    steps = dpfl.calibrate(**budget, noise_multiplier=60)
    assert 1.998 < steps.epsilon <= 2 < float(dpfl.epsilon(**MECHANISM | {"steps": steps.steps + 1}))
    rdp = dpfl.calibrate(**budget, steps=20_000, accountant="rdp")
    assert rdp.noise_multiplier > 1.8 * noise.noise_multiplier
    assert dpfl.calibrate(**budget, noise_multiplier=0.1).steps == 0
    with pytest.raises(UnsupportedError, match=r"epsilon=3.0: cannot compute above 10,000,000 steps, .* epsilon 2\.5"):
        dpfl.calibrate(noise_multiplier=5000.0, epsilon=3.0, delta=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise_multiplier": -1.0}, r"noise_multiplier=-1.0 must be finite and at least 0"),
        ({"noise_multiplier": math.nan}, "noise_multiplier=nan must be"),
        ({"noise_multiplier": math.inf}, "noise_multiplier=inf must be"),
        ({"record_rate": 0.0}, "record_rate=0.0 must be"),
        ({"record_rate": 1.5}, r"record_rate=1.5 must be in \(0, 1\]"),
        ({"record_rate": math.nan}, "record_rate=nan must be"),
        ({"steps": -1}, "steps=-1 must be a whole number"),
        ({"steps": 2.5}, "steps=2.5 must be a whole number"),
        ({"delta": 0.0}, "delta=0.0"),
        ({"delta": 1.0}, "delta=1.0"),
        ({"delta": math.nan}, "delta=nan"),
        ({"sampler": "shuffle"}, "sampler='shuffle' must be one of fixed, poisson, full"),
        ({"sampler": "with_replacement"}, "not proven at record level"),
        ({"sampler": "full"}, "record_rate=0.2 with sampler 'full'"),
        ({"accountant": "pdl"}, "there is no accountant 'pdl'.*did you mean 'pld'"),
    ],
)
def test_a_wrong_argument_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dpfl.epsilon(**MECHANISM | changes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either steps, to solve for noise_multiplier, or"),
        ({"steps": 5, "noise_multiplier": 3.0}, "either steps, to solve for noise_multiplier, or"),
        ({"steps": 0}, "steps=0 must be at least 1"),
        ({"steps": 5, "epsilon": 0.0}, "epsilon=0.0 must be positive"),
        ({"steps": 5, "epsilon": math.inf}, "epsilon=inf must be"),
        ({"steps": 5, "delta": 1.0}, "delta=1.0"),
        ({"steps": 20_000, "epsilon": 1e-7}, "epsilon=1e-07 is out of reach"),
    ],
)
def test_a_wrong_budget_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dpfl.calibrate(**{"epsilon": 2.0, "delta": 2.5e-6, "record_rate": 0.2, **arguments})


def test_a_command_takes_the_words_of_its_function() -> None:
    assert command("epsilon", *options(**MECHANISM), "--json").json == dpfl.epsilon(**MECHANISM).to_dict()
    budget: dict[str, Any] = {"epsilon": 2, "delta": 1e-5, "steps": 10, "sampler": "poisson", "record_rate": 0.5}
    assert command("calibrate", *options(**budget)).out == f"{dpfl.calibrate(**budget)}\n"
    one_message(command("epsilon", *options(**MECHANISM | {"record_rate": 2})), "record_rate=2.0 must be in")
    missing = command("epsilon", *options(noise_multiplier=1, steps=1))
    assert missing.code == 2 and "--delta" in missing.err
