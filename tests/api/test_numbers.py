"""`dpfl.epsilon` and `dpfl.calibrate`: the numbers of `dpfl account` and `dpfl plan`, with the same checks."""

from __future__ import annotations

import math

import pytest

import dpfl_plugin as dpfl
from dpfl_plugin.errors import ConfigError, DpflError, UnsupportedError
from tests.cli.command import dpfl as command

MECHANISM = {"noise_multiplier": 8.0, "record_rate": 0.2, "steps": 300, "delta": 1e-5}
OPTIONS = ("--q", 0.2, "--steps", 300, "--delta", 1e-5)


def test_epsilon_is_what_dpfl_account_prints_and_says_how_it_was_computed():
    found = dpfl.epsilon(**MECHANISM)
    printed = command("account", "--mechanism", "gaussian-wor", "--sigma", 8, *OPTIONS, "--json").json
    assert float(found) == found.epsilon == printed["epsilon"]
    for part in ("epsilon ", "at delta 1e-05", "300 releases", "without replacement", "replace-one", "accountant PLD"):
        assert part in str(found)
    # exp of the epsilon itself: 1.6 or so, not 0.5
    assert f"at most {math.exp(found.epsilon):.2f}"[:-1] in str(found)


@pytest.mark.parametrize(
    ("sampler", "relation"), [("fixed", "replace_one"), ("poisson", "add_or_remove"), ("full", "replace_one")]
)
def test_a_sampler_decides_what_neighbours_are(sampler, relation):
    rate = {} if sampler == "full" else {"record_rate": 0.2}
    assert dpfl.epsilon(noise_multiplier=50, steps=10, delta=1e-5, sampler=sampler, **rate).neighbouring == relation


def test_the_noise_found_keeps_to_the_budget_and_is_what_dpfl_plan_finds():
    wanted = {key: MECHANISM[key] for key in ("record_rate", "steps", "delta")}
    found = dpfl.calibrate(epsilon=1.5, **wanted)
    printed = command("plan", "--mechanism", "gaussian-wor", "--epsilon", 1.5, *OPTIONS, "--json").json
    assert found.noise_multiplier == printed["noise_multiplier"]
    assert 1.4 < float(found.reached) <= 1.5
    assert float(dpfl.epsilon(noise_multiplier=0.999 * found.noise_multiplier, **wanted)) > 1.5


@pytest.mark.parametrize(
    ("noise", "says"),
    [
        (0, "without noise nothing is guaranteed"),
        (0.009, "noise_multiplier 0.009 is below 0.01: epsilon is too large to compute"),
    ],
)
def test_no_noise_and_little_noise_are_told_apart(noise, says):
    found = dpfl.epsilon(**MECHANISM | {"noise_multiplier": noise})
    assert math.isinf(float(found))
    assert "epsilon none" in str(found)
    assert says in str(found)
    assert says in command("account", "--mechanism", "gaussian-wor", "--sigma", noise, *OPTIONS).out


def test_more_steps_than_are_looked_for_are_no_answer():
    with pytest.raises(UnsupportedError, match=r"epsilon=3.0: cannot compute above 10,000,000 steps, .* epsilon 2\.5"):
        dpfl.max_steps(noise_multiplier=5000.0, epsilon=3.0, delta=1e-5)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"noise_multiplier": -1}, "noise_multiplier=-1 must be finite and at least 0"),
        ({"noise_multiplier": "60"}, "noise_multiplier='60' must be"),
        ({"record_rate": 1.5}, r"record_rate=1.5 must be in \(0, 1\]"),
        ({"record_rate": float("nan")}, "record_rate=nan must be"),
        ({"steps": 2.5}, "steps=2.5 must be a whole number"),
        ({"delta": 1.0}, "delta"),
        ({"delta": "1e-5"}, "delta='1e-5' must be"),
        ({"sampler": "shuffle"}, "sampler='shuffle' must be one of fixed, poisson, full"),
        ({"sampler": "with_replacement"}, "not proven at record level"),
        ({"sampler": "full"}, "record_rate=0.2 with sampler 'full'"),
        ({"q": 0.2}, r"q is not a known argument \(did you mean 'record_rate'\? It is the share of a silo's"),
        (
            {"sigma": 2},
            r"sigma is not a known argument \(did you mean 'noise_multiplier'\? It is|sigma .*Known: epsilon",
        ),
        ({"rounds": 2}, r"rounds is not a known argument\. Known: "),
        ({"accountant": "pdl"}, "there is no accountant 'pdl'.*did you mean 'pld'"),
    ],
)
def test_what_is_wrong_is_named(changes, says):
    with pytest.raises(ConfigError, match=says):
        dpfl.epsilon(**MECHANISM | changes)
    if "noise_multiplier" not in changes:
        given = {key: value for key, value in (MECHANISM | changes).items() if key != "noise_multiplier"}
        with pytest.raises(DpflError, match=says):
            dpfl.calibrate(epsilon=2.0, **given)


def test_the_package_lists_its_names_and_knows_no_others():
    for name in dpfl.__all__:
        assert name in dir(dpfl) and getattr(dpfl, name) is not None
    assert dir(dpfl) == sorted(dpfl.__all__) and len(dir(dpfl)) <= 45
    with pytest.raises(AttributeError, match=r"has no attribute 'epsylon'$"):
        _ = dpfl.epsylon
    with pytest.raises(AttributeError, match=r"it is dpfl\.algorithms\.Scaffold now"):
        _ = dpfl.Scaffold
