"""Single silos: what the configuration calls them, their weights, and budgets, batches and clipping of their own."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfl_plugin.algorithms.fedavg import FedAvg
from dpfl_plugin.config.load import _digest, _excluded, run_id
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import ConfigError, LedgerError
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.budget import Budget
from dpfl_plugin.privacy.calibration import most
from dpfl_plugin.privacy.composition import Planned, Spending
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.extra_releases import ExtraPlan
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import FixedSize, Sampler
from dpfl_plugin.privacy.schedules import Geometric
from dpfl_plugin.privacy.spec import BudgetSpec
from dpfl_plugin.runs.silo_settings import (
    ids_of,
    in_facts,
    noise_of,
    own_settings,
    uniform_config,
    weights_by_noise,
    weights_of,
    with_own,
)
from tests.quadratics import Lab, silo

NAMES = {0: "mercy", 1: "north", 2: "va"}
RECORDS = (200, 100, 40)
DELTA = 1e-4


def configured(**changes: Any) -> Config:
    values: dict[str, Any] = {
        "algorithm": {"name": "fedavg"},
        "rounds": 4,
        "privacy": {"epsilon": 2.0, "delta": DELTA, "record_rate": 0.25},
    }
    return Config(**{**values, **changes})


def ruled(sigma: float = 4.0, clip_norm: float = 1.0, rate: float = 0.25, **others: Any) -> PrivacyRules:
    values: dict[str, Any] = {"unit": "record", "neighbouring": "replace_one", "sampler": FixedSize(rate)}
    return PrivacyRules(**{**values, "clip_norm": clip_norm, "mechanism": Gaussian(sigma), **others})


# Names


@pytest.mark.parametrize(
    ("names", "ids"),
    [(["va", "mercy"], [2, 0]), (["2", "0"], [2, 0]), (["va", "1"], [2, 1]), ([], [])],
)
def test_a_silo_is_named_as_the_data_name_it_or_by_its_number(names: list[str], ids: list[int]) -> None:
    assert list(ids_of(names, 3, NAMES, "silos").values()) == ids


def test_a_name_that_is_a_number_is_the_name() -> None:
    assert ids_of(["1"], 3, {0: "1", 1: "7", 2: "9"}, "silos") == {"1": 0}


@pytest.mark.parametrize(
    ("names", "known", "message"),
    [
        (["vaa"], NAMES, r"silos\.vaa: there is no such silo.*va.*0 to 2"),
        (["3"], NAMES, r"silos\.3: there is no such silo"),
        (["-1"], {}, r"silos\.-1: there is no such silo.*They have no names"),
        (["va", "2"], NAMES, r"silos\.2: silo 2 \(va\) is named twice"),
        (["st"], {0: "st", 1: "st"}, r"silos\.st: 2 silos have this name"),
    ],
)
def test_what_names_no_one_silo_is_refused(names: list[str], known: dict[int, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ids_of(names, 3, known, "silos")


# What the configuration may say


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"silos": {"va": {}}}, "needs settings of its own"),
        ({"silos": {"va": {"record_rate": 0.1, "batch_size": 3}}}, "say the same thing"),
        ({"silos": {"va": {"epsilon": 0}}}, "greater than 0"),
        ({"silos": {"va": {"noise_multiplier": 0}}}, "greater than 0"),
        ({"silos": {"va": {"delta": 1e-6}}}, "[Ee]xtra|not permitted"),
        ({"privacy": {"noise_multiplier": 3.0}}, "privacy.epsilon is missing"),
    ],
)
def test_settings_that_say_nothing_or_too_much_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        configured(**{"silos": {"va": {"epsilon": 0.5}}, **changes})


def test_without_silos_a_run_has_the_name_that_it_always_had() -> None:
    config = configured()
    values = config.model_dump(mode="json", exclude={**_excluded(config), "silos": True})
    values["runtime"]["noise"] = "host"  # a key of earlier versions
    assert run_id(config) == _digest(values)
    assert run_id(configured(silos={"1": {"clip_norm": 2.0}})) != run_id(config)
    assert run_id(configured(silos={1: {"clip_norm": 2.0}})) == run_id(configured(silos={"1": {"clip_norm": 2.0}}))


# Weights


@pytest.mark.parametrize(
    ("how", "weights"),
    [
        ("equal", (1 / 3, 1 / 3, 1 / 3)),
        ("records", (200 / 340, 100 / 340, 40 / 340)),
        ({"va": 1, "mercy": 2, "1": 5}, (0.25, 0.625, 0.125)),
    ],
)
def test_weights_of_silos(how: Any, weights: tuple[float, ...]) -> None:
    found = weights_of(configured(silo_weights=how), RECORDS, NAMES)
    assert found == pytest.approx(weights) and math.fsum(found) == pytest.approx(1, abs=1e-15)


def test_a_silo_without_a_given_weight_is_named() -> None:
    with pytest.raises(ConfigError, match=r"silo_weights: no weight for silo 1 \(north\), silo 2 \(va\)"):
        weights_of(configured(silo_weights={"mercy": 1}), RECORDS, NAMES)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(4, 500), st.floats(0.5, 50), st.floats(0.1, 10)), min_size=2, max_size=5))
def test_weights_by_noise_leave_the_least_noise_in_the_mean(silos: list[tuple[int, float, float]]) -> None:
    """No other weights that add up to 1 leave less: the variance is convex, and flat there in every direction."""
    rules = ruled()
    rules = replace(rules, silos={k: ruled(sigma, C) for k, (_, sigma, C) in enumerate(silos)})
    counts = [n for n, _, _ in silos]
    weights = weights_by_noise(rules, counts)
    assert math.fsum(weights) == pytest.approx(1)
    variances = [(2 * C * sigma / FixedSize(0.25).divisor(n)) ** 2 for n, sigma, C in silos]
    slopes = [2 * w * v for w, v in zip(weights, variances, strict=True)]
    assert slopes == pytest.approx([slopes[0]] * len(slopes))


def test_a_schedule_changes_the_noise_of_all_silos_alike() -> None:
    assert weights_by_noise(ruled(schedule=Geometric(beta=0.9)), (10, 10)) == (0.5, 0.5)


# How releases are made


@pytest.mark.parametrize("stack", [1, 3])
def test_each_silo_releases_what_it_would_where_all_had_its_settings(stack: int) -> None:
    """To the bit; and is charged for that."""
    silos = [silo([1.0, 2.0], [2.0, float(k)], copies=8) for k in range(3)]
    common, own = ruled(1.5, 0.5, 0.25), {1: ruled(6.0, 0.5, 0.25), 2: ruled(3.0, 2.0, 0.5)}
    algorithm = FedAvg(local_steps=3, local_lr=0.1)
    mixed = Lab(algorithm, silos, replace(common, silos=own), [9.0, -4.0], stack=stack)
    mixed.step()
    for k, rules in enumerate([common, own[1], own[2]]):
        alone = Lab(algorithm, silos, rules, [9.0, -4.0], stack=stack)
        alone.step()
        assert torch.equal(mixed.uploads[0]["model"][k], alone.uploads[0]["model"][k])
        assert [c for c in mixed.ledger if c.silo == k] == [c for c in alone.ledger if c.silo == k]
    found = {(c.silo, c.release.noise_multiplier, c.release.rate) for c in mixed.ledger}
    assert found == {(0, 1.5, 0.25), (1, 6.0, 0.25), (2, 3.0, 0.5)}


def test_settings_of_a_silo_replace_those_of_all() -> None:
    config = configured(silos={"va": {"batch_size": 7, "clip_norm": 3.0}, "mercy": {"epsilon": 0.5}})
    own = own_settings(config, 3, NAMES)
    assert own.epsilons() == {0: 0.5} and own.names == {2: "va", 0: "mercy"}
    single = uniform_config(config, own.of[2])
    assert (single.privacy.batch_size, single.privacy.record_rate, single.privacy.clip_norm) == (7, None, 3.0)
    assert (single.silos, single.privacy.epsilon) == ({}, 2.0)
    rules = with_own(ruled(4.0), config, own, {0: 9.0, 2: 5.0})
    assert [rules.of(k).noise_multiplier for k in range(3)] == [9.0, 4.0, 5.0]
    assert [rules.of(k).sampler.divisor(100) for k in range(3)] == [25, 25, 7]
    assert [rules.of(k).clip_norm for k in range(3)] == [1.0, 1.0, 3.0]
    facts = own.facts(rules)
    again, noise = in_facts({"silos": facts})
    assert noise == {0: 9.0, 2: 5.0} and again.epsilons() == own.epsilons() and in_facts({})[1] == {}


def test_noise_is_solved_for_each_kind_of_silo_once() -> None:
    config = configured(
        silos={"0": {"epsilon": 0.5}, "1": {"epsilon": 0.5}, "2": {"noise_multiplier": 3.0}, "3": {"epsilon": 0.5}}
    )
    asked: list[tuple[float | None, tuple[int, ...]]] = []

    def solve(single: Config, counts: tuple[int, ...]) -> float:
        asked.append((single.privacy.epsilon, counts))
        return float(counts[0])

    found = noise_of(config, own_settings(config, 4, {}), (200, 100, 40, 200), solve)
    assert found == {0: 200.0, 1: 100.0, 2: 3.0, 3: 200.0}
    assert asked == [(0.5, (200,)), (0.5, (100,))]


# Budgets and accounts


def booked(own: dict[int, PrivacyRules], epsilons: dict[int, float], ledger: Ledger, **others: Any) -> PrivacyAccount:
    rules = ruled(4.0, silos=own)
    spec = BudgetSpec(
        epsilon=3.0,
        delta=DELTA,
        num_records=RECORDS,
        num_silos=3,
        num_participants=3,
        epsilons=epsilons,
        weights=(1 / 3,) * 3,
        **others,
    )
    return PrivacyAccount(
        spec, rules=rules, accountant=PLD(), extra_plan=ExtraPlan(10**6), draw=lambda *_: range(3), ledger=ledger
    )


class Everyone:
    """A plan of a round of all silos."""

    num_gradients, most_gradients, participation = 2, None, "all"
    share, participants = (0.0, 1.0), (0, 1, 2)


def rounds(of: PrivacyAccount) -> int:
    made = 0
    while of.affords(made, Everyone()):
        of.begin_round(made, Everyone())
        of.append(of.charges(made, Everyone(), "run.0"))
        made += 1
    return made


def alone(sigma: float, rounds: int, rate: Sampler | None = None) -> float:
    release = ruled(sigma).release((rate or FixedSize(0.25)).rate(200))
    return PLD().epsilon(Spending().compositions(0, [Planned(release, 2 * rounds)])[0], DELTA)


def test_a_run_ends_where_the_first_silo_has_spent_its_own_budget() -> None:
    """And each silo's epsilon is that of its own releases, by the accountant alone."""
    made = rounds(one := booked({1: ruled(2.0)}, {2: 1.0}, Ledger()))
    limits = (4.0, 3.0), (2.0, 3.0), (4.0, 1.0)
    fit = [most(lambda n, z=sigma, e=epsilon: alone(z, n) <= e, 500) for sigma, epsilon in limits]
    assert made == min(fit) and len(set(fit)) == 3
    assert [row["epsilon"] for row in one.per_silo()] == pytest.approx([alone(s, made) for s in (4.0, 2.0, 4.0)])
    assert [row["budget"] for row in one.per_silo()] == [3.0, 3.0, 1.0]
    views = one.views()
    assert views["server"]["worst_silo"] == 1 and "outsider" not in views
    claimed = [views["server"]["epsilon"], views["server"]["worst_case_epsilon"], views["third_party"]["epsilon"]]
    assert claimed == pytest.approx([alone(2.0, made)] * 3)


def test_a_larger_budget_of_ones_own_is_no_ceiling_for_others() -> None:
    assert rounds(booked({}, {2: 1.0}, Ledger())) == rounds(booked({}, {2: 1.0, 0: 50.0}, Ledger()))
    assert rounds(booked({}, {0: 50.0}, Ledger())) == rounds(booked({}, {}, Ledger()))


def test_what_was_begun_is_known_from_the_ledger_with_each_silos_own_noise() -> None:
    """Of a run that was killed: views and the next decision are those of the run that went on."""
    ledger = Ledger()
    one = booked({1: ruled(2.0)}, {2: 1.0}, ledger)
    for made in range(3):
        one.begin_round(made, Everyone())
        one.append(one.charges(made, Everyone(), "run.0"))
    again = booked({1: ruled(2.0)}, {2: 1.0}, ledger)
    assert again.views() == one.views() and again.per_silo() == one.per_silo()
    assert all(again.affords(3, Everyone()) == one.affords(3, Everyone()) for _ in range(2))


def test_a_ledger_of_other_noise_than_the_silos_own_is_refused() -> None:
    ledger = Ledger()
    booked({1: ruled(2.0)}, {}, ledger).append(booked({}, {}, Ledger()).charges(0, Everyone()))
    with pytest.raises(LedgerError, match="silo 1 was charged a release with noise_multiplier 4"):
        booked({1: ruled(2.0)}, {}, ledger)


def test_releases_with_less_noise_than_a_silos_own_do_not_pass() -> None:
    """What a silo says that it released is checked against its own plan, not the others'."""
    one = booked({1: ruled(8.0)}, {}, Ledger())
    one.begin_round(0, Everyone())
    wrong = [replace(c, release=replace(c.release, noise_multiplier=4.0)) for c in one.charges(0, Everyone())]
    with pytest.raises(Exception, match="silo 1 made 2 releases of noise_multiplier 4"):
        one.append(wrong)
    assert not list(one.ledger)


def test_budgets_are_asked_silo_by_silo() -> None:
    release = ruled(4.0).release(0.25)
    budget = Budget(3.0, DELTA, PLD(), {1: 1.0, 2: 1.0, 3: 9.0})
    assert budget.of(1) is budget.of(2) and budget.of(0) is budget and budget.largest == 9.0
    assert Counter(len(silos) for _, silos in budget.shared_by(range(4))) == {1: 2, 2: 1}
    planned = [Planned(release, 24)]
    assert 1.0 < alone(4.0, 12) < 3.0
    assert budget.allows(Spending(), {0: planned, 3: planned})
    assert not budget.allows(Spending(), {0: planned, 2: planned})
    spent = Spending([Charge(round=0, silo=2, release=release, count=24, share=(0.0, 1.0), noise_id="x")])
    assert not budget.allows(spent, {2: []})
