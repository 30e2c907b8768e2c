"""A run before it begins: rounds that need no server state are counted without one, and come to the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from dpfl_plugin.algorithms.base import Algorithm, Setting
from dpfl_plugin.algorithms.fedavg import FedAvg
from dpfl_plugin.algorithms.scaffnew import ScaffNew
from dpfl_plugin.algorithms.scaffold import Scaffold, ScaffoldWarm
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.federation.rehearsal import Unread, rehearsal, rounds_ahead
from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.runs.forecast import Forecast, solving
from dpfl_plugin.runs.privacy_rules import privacy_rules

ROUNDS = 12


@dataclass(frozen=True, kw_only=True)
class Late(FedAvg):
    """Looks at the server's state from the third round on, and takes as many steps as rounds were aggregated."""

    def init_server(self, model: Any, setting: Setting) -> Any:
        return {**super().init_server(model, setting), "done": model.new_zeros(1)}

    def round_plan(self, server: Any, round: int, setting: Setting, rng: Any) -> Any:
        plan = super().round_plan(server, round, setting, rng)
        steps = int(server["done"]) + 1 if round > 2 else 1
        return replace(plan, num_gradients=steps, most_gradients=ROUNDS)

    def aggregate(self, server: Any, mean_up: Any, plan: Any) -> Any:
        return {**super().aggregate(server, mean_up, plan), "done": server["done"] + 1}


ALGORITHMS: dict[str, Algorithm] = {
    "fedavg": FedAvg(local_steps=3, local_lr=0.1),
    "option I": Scaffold(local_steps=3, local_lr=0.1, option="I"),
    "warm-up": ScaffoldWarm(local_steps=3, local_lr=0.1, option="I"),
    "random steps": ScaffNew(p=0.3, local_lr=0.1),
    "late": Late(local_steps=3, local_lr=0.1),
}


def ahead(algorithm: Algorithm, drawn: int = 2, **privacy: Any) -> Forecast:
    values = {"clip_norm": 1, "noise_multiplier": 4.0, "record_rate": 0.5, **privacy}
    config = Config(algorithm={"name": "fedavg"}, privacy=values, rounds=ROUNDS)
    setting = Setting(num_silos=4, num_participants=drawn, silo_rate=drawn / 4, record_rate=0.5, rounds=ROUNDS)
    return Forecast(config, algorithm, PLD(), setting, (20, 20, 30, 40), privacy_rules)


@pytest.mark.parametrize("drawn", [2, 4])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_rounds_cost_what_a_rehearsal_of_them_says(name: str, drawn: int) -> None:
    forecast = ahead(ALGORITHMS[name], drawn)
    if (name, drawn) == ("random steps", 2):
        with pytest.raises(ConfigError, match=r"silo_rate=0\.5 must be 1"):
            forecast.costs(ROUNDS)
        return
    counted, rehearsed = forecast.account(), forecast.account()
    assert list(rounds_ahead(counted, forecast.planner, ROUNDS)) == list(range(1, ROUNDS + 1))
    assert list(rehearsal(rehearsed, forecast.planner, ROUNDS)) == list(range(1, ROUNDS + 1))
    assert counted.costs == rehearsed.costs
    if name == "late":
        assert [cost.num_releases for cost in counted.costs.values()] == [1, 1, 1, *range(4, ROUNDS + 1)]


def test_rounds_that_will_not_be_made_are_those_of_the_silos_that_are_left() -> None:
    forecast = ahead(ALGORITHMS["fedavg"], 2)
    account = forecast.account()
    rounds = list(rehearsal(account, forecast.planner, ROUNDS, first=3, noise_id="not-run", lost={0, 1, 2}))
    assert rounds == list(range(4, ROUNDS + 1)) and {charge.silo for charge in account.ledger} == {3}


def test_no_state_is_worked_out_where_no_plan_looks_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("nobody needs this")

    monkeypatch.setattr(FedAvg, "aggregate", refuse)
    assert len(ahead(ALGORITHMS["fedavg"]).costs(ROUNDS)) == ROUNDS
    with pytest.raises(AssertionError, match="nobody needs this"):
        ahead(ALGORITHMS["late"]).costs(ROUNDS)


LOOKS: dict[str, Callable[[Any], object]] = {
    "item": lambda state: state["model"],
    "get": lambda state: state.get("model"),
    "in": lambda state: "model" in state,
    "copy": copy.copy,
    "dict": dict,
    "unpacked": lambda state: {**state},
    "bool": bool,
    "list": list,
    "values": lambda state: state.values(),
    "merged": lambda state: state | {},
    "equal": lambda state: state == {},
    "words": str,
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_whoever_looks_at_a_state_that_is_not_there_is_found_out(look: Callable[[Any], object]) -> None:
    state = Unread()
    with pytest.raises(LookupError):
        look(state)
    assert state.looked_at


def test_who_solves_for_many_rounds_says_so() -> None:
    config = ahead(ALGORITHMS["fedavg"], noise_multiplier=None, epsilon=1.0).config
    assert not solving(config)
    assert solving(config.model_copy(update={"rounds": 10**6})) == "solving for the noise of 1,000,000 rounds ..."
    assert not solving(ahead(ALGORITHMS["fedavg"]).config.model_copy(update={"rounds": 10**6}))
