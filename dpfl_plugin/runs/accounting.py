"""The account of a run, by its configuration; and what its rounds cost, as checkpoints keep it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dpfl_plugin.algorithms.base import Setting
from dpfl_plugin.config.schema import Config
from dpfl_plugin.federation.participant_sampling import drawn_silos
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.costs import RoundCost
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.participation import CERTAIN, Participation, PlannedRound
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.spec import BudgetSpec
from dpfl_plugin.runs.extra_plan import extra_plan


def make_account(
    config: Config,
    *,
    rules: PrivacyRules,
    accountant: Accountant,
    setting: Setting,
    num_records: Sequence[int],
    ledger: Ledger,
    shared: Ledger | None = None,
    costs: Mapping[int, RoundCost] | None = None,
    pending: Callable[[Charge], bool] = lambda charge: False,
    budget_accountant: Accountant | None = None,
    in_sums: bool = False,
    lost: bool = False,
    coins: str = "",
    stating: bool = False,
    epsilons: Mapping[int, float] | None = None,
) -> PrivacyAccount:
    """The account of a run, by its configuration.

    Args:
        num_records: of each silo.
        in_sums, epsilons: as in `BudgetSpec`; coins: as in `Planner`; all others as `PrivacyAccount` takes them.

    Raises:
        ConfigError: the noise of scores that is given is too little for the budget.
    """
    assert len(rules.silos) == len(config.silos), "every silo's own noise counts"

    def draw(round: int, plan: PlannedRound, eligible: Sequence[int] | None) -> Sequence[int]:
        return drawn_silos(config.public_seed, round, plan, setting, eligible, coins)

    return PrivacyAccount(
        spec_of(config, setting, num_records, in_sums=in_sums, epsilons=_epsilons(config, epsilons)),
        rules=rules,
        accountant=accountant,
        extra_plan=extra_plan(config, budget_accountant or accountant),
        draw=draw,
        ledger=ledger,
        shared=shared,
        costs=costs,
        pending=pending,
        budget_accountant=budget_accountant,
        lost=lost,
        stating=stating,
    )


def _epsilons(config: Config, epsilons: Mapping[int, float] | None) -> Mapping[int, float]:
    assert len(epsilons or {}) == sum(own.epsilon is not None for own in config.silos.values())
    return epsilons or {}


def spec_of(
    config: Config,
    setting: Setting,
    num_records: Sequence[int],
    *,
    in_sums: bool = False,
    epsilons: Mapping[int, float] | None = None,
) -> BudgetSpec:
    """What a configuration lets a run of this federation spend."""
    return BudgetSpec(
        epsilon=config.privacy.epsilon,
        delta=config.privacy.delta,
        view=config.privacy.budget_view,
        rounds=config.rounds,
        max_participations=config.max_participations,
        num_records=tuple(num_records),
        num_silos=setting.num_silos,
        num_participants=setting.num_participants,
        weights=setting.weights,
        equal_weights=config.silo_weights == "equal",
        in_sums=in_sums,
        epsilons=epsilons or {},
    )


def in_runs(costs: Mapping[int, RoundCost]) -> list[list[Any]]:
    """[first round, last round, what each of them cost], so that a checkpoint does not grow with every round."""
    runs: list[tuple[int, int, RoundCost]] = []
    for round, cost in sorted(costs.items()):
        if runs and runs[-1][1] == round - 1 and runs[-1][2] == cost:
            runs[-1] = (runs[-1][0], round, cost)
        else:
            runs.append((round, round, cost))
    return [[first, last, *asdict(cost).values()] for first, last, cost in runs]


def read_costs(facts: dict[str, Any] | None, setting: Setting) -> dict[int, RoundCost]:
    """What the rounds that a checkpoint knows cost, from its facts."""
    found: dict[int, RoundCost] = {}
    for first, last, levels, share, participation, most in (facts or {"costs": ()})["costs"]:
        cost = RoundCost(
            tuple((float(noise), int(count)) for noise, count in levels),
            (float(share[0]), float(share[1])),
            _read_participation(participation, setting),
            most,
        )
        for round in range(int(first), int(last) + 1):
            found[round] = cost
    return found


def _read_participation(found: Any, setting: Setting) -> Participation:
    """As a checkpoint has it; those of earlier versions hold a probability only, of which S/M told the law."""
    if isinstance(found, dict):
        return Participation(found["law"], float(found["probability"]))
    probability, share = float(found), setting.num_participants / setting.num_silos
    if probability in (1, share):
        return CERTAIN if probability == 1 else Participation("without_replacement", share)
    # They moved a probability with replacement by one bit where it would have been S/M.
    moved = probability == math.nextafter(share, 1)
    return Participation("with_replacement", share if moved else probability)
