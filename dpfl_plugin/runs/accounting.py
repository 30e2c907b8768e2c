"""The account of a run, by its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dpfl_plugin.algorithms.base import Setting
from dpfl_plugin.config.schema import Config
from dpfl_plugin.federation.planning import drawn_silos
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.costs import RoundCost
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.participation import Plan
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.spec import BudgetSpec
from dpfl_plugin.runs.extra_releases import beside


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

    def draw(round: int, plan: Plan, eligible: Sequence[int] | None) -> Sequence[int]:
        return drawn_silos(config.public_seed, round, plan, setting, eligible, coins)

    return PrivacyAccount(
        spec_of(config, setting, num_records, in_sums=in_sums, epsilons=_epsilons(config, epsilons)),
        rules=rules,
        accountant=accountant,
        beside=beside(config, budget_accountant or accountant),
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
