"""A run before it begins: what its rounds will cost is known without any record, so its noise can be solved for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from dpfl_plugin.algorithms.base import Algorithm, Setting
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.oracle import PrivacyRules
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.calibration import least_noise, most
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.prior import Prior
from dpfl_plugin.training.accounting import NO_PRIOR, PrivacyAccount, RoundCost, earlier_runs
from dpfl_plugin.training.planning import Planner, rehearse

MOST_PLANNED = 10**5  # rounds, local steps


def rehearsal(account: PrivacyAccount, planner: Planner, limit: int) -> Iterator[int]:
    """Plan, charge and begin round after round that a run would make; yields how many there are by then."""
    algorithm = planner.algorithm
    server = algorithm.init_server(torch.zeros(1), planner.setting)
    for round in range(limit):
        plan = planner.plan(server, round, account.eligible())
        if plan is None or not account.affords(round, plan):
            return
        account.begin_round(round, plan)
        account.append(account.charges(round, plan))
        yield round + 1
        up, _ = rehearse(algorithm, server, replace(plan, local_steps=1))  # made-up uploads: one step is as good as K
        server = algorithm.aggregate(server, {name: value[0] for name, value in up.items()}, plan)


@dataclass(frozen=True, slots=True)
class Prospect:
    """A run but for its records.

    Attributes:
        num_records: of each silo.
        rules: how releases are made with a noise multiplier, if the configuration leaves that open.
        prior: what earlier runs released; the budget is for all together.
    """

    config: Config
    algorithm: Algorithm
    accountant: Accountant
    setting: Setting
    num_records: tuple[int, ...]
    rules: Callable[[Config, float], PrivacyRules]
    prior: Prior = NO_PRIOR

    def changed(
        self, *, max_participations: int | None = None, rounds: int | None = None, **privacy: object
    ) -> Prospect:
        """With other values in the configuration; None leaves the cap or the rounds as they are."""
        values: dict[str, object] = {"privacy": self.config.privacy.model_copy(update=privacy)}
        if max_participations is not None:
            values["max_participations"] = max_participations
        if rounds is not None:
            values["rounds"] = rounds
        return replace(self, config=self.config.model_copy(update=values))

    def account(
        self,
        noise_multiplier: float = 1.0,
        costs: Mapping[int, RoundCost] | None = None,
        second_opinion: Accountant | None = None,
    ) -> PrivacyAccount:
        """An account of rounds that cost ``costs``, of which nobody has been charged; the budget stays the run's."""
        return PrivacyAccount(
            self.config,
            rules=self.rules(self.config, noise_multiplier),
            accountant=second_opinion or self.accountant,
            budget_accountant=self.accountant,
            setting=self.setting,
            num_records=self.num_records,
            ledger=Ledger(),
            prior=self.prior,
            costs=costs,
            stateless=not self.algorithm.init_silos(torch.zeros(1), 1),
        )

    @property
    def planner(self) -> Planner:
        num_silos = self.setting.num_silos
        return Planner(self.algorithm, self.setting, (1 / num_silos,) * num_silos, self.config.seed)

    def costs(self, limit: int) -> dict[int, RoundCost]:
        """What up to ``limit`` rounds cost, without a budget that would end them before; the noise does not matter."""
        account = self.changed(epsilon=None).account()
        for _ in rehearsal(account, self.planner, limit):
            pass
        return account.costs

    def noise(self) -> float:
        """The least noise multiplier with which all rounds fit the budget, whoever is drawn; see `least_noise`.

        In the server's view that is a silo which takes part in every round, or in ``max_participations`` of them.

        Raises:
            ConfigError: no noise does.
            UnsupportedError: the accountant does not know what will be released.
        """
        config = self.config
        assert config.rounds is not None
        assert config.privacy.epsilon is not None
        open_ended = self.changed(noise_multiplier=None)
        costs, account = self.costs(config.rounds), self.account()
        try:
            return least_noise(
                lambda noise: open_ended.account(noise, costs).epsilon_ahead(config.privacy.budget_view),
                config.privacy.epsilon,
                lambda noise: open_ended.account(noise, costs).affords_all(),
            )
        except ConfigError as error:
            what = f"privacy.{error}" if str(error).startswith("epsilon=") else str(error)
            held = f" The ledger holds {earlier_runs(self.prior)}, at epsilon {account.held():.4g}." * bool(
                self.prior.runs
            )
            raise type(error)(what + held) from error

    def rounds(self) -> int:
        """The most rounds that fit the budget with the given noise, whoever is drawn; at most `MOST_PLANNED`."""
        rehearsed = self.changed(epsilon=None, rounds=MOST_PLANNED)
        account = rehearsed.account()
        steps = rehearsal(account, rehearsed.planner, MOST_PLANNED)

        def fits(rounds: int) -> bool:
            while len(account.costs) < rounds and next(steps, None) is not None:
                pass
            first = {round: cost for round, cost in account.costs.items() if round < rounds}
            return len(first) == rounds and self._fits(self.changed(rounds=rounds).account(costs=first))

        return most(fits, MOST_PLANNED)

    def local_steps(self, with_steps: Callable[[int], Algorithm]) -> int:
        """The most local steps with which all rounds fit the budget, whoever is drawn, up to `MOST_PLANNED`."""
        assert self.config.rounds is not None
        rounds = self.config.rounds

        def fits(steps: int) -> bool:
            there = replace(self, algorithm=with_steps(steps))
            return self._fits(there.account(costs=there.costs(rounds)))

        return most(fits, MOST_PLANNED)

    def max_participations(self) -> int:
        """The largest cap with which all rounds fit the budget; all of them if none is needed, 0 if none is enough."""
        assert self.config.rounds is not None
        uncapped = replace(self, config=self.config.model_copy(update={"max_participations": None}))
        costs = uncapped.costs(self.config.rounds)

        def fits(cap: int) -> bool:
            return self._fits(self.changed(max_participations=cap).account(costs=costs))

        return len(costs) if fits(len(costs)) else most(fits, len(costs) - 1)

    def _fits(self, account: PrivacyAccount) -> bool:
        privacy = self.config.privacy
        assert privacy.epsilon is not None
        return account.epsilon_ahead(privacy.budget_view) <= privacy.epsilon
