"""A run before it begins: what its rounds will cost is known without any record, so its noise can be solved for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dpfl_plugin.algorithms.base import Algorithm, Setting, in_sums
from dpfl_plugin.config.incompatible import check_compatible
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.outcomes import OutcomeKind
from dpfl_plugin.data.base import Federation
from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.federation.planning import Planner
from dpfl_plugin.federation.rehearsal import rehearsal, rounds_ahead
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.calibration import least_noise, most
from dpfl_plugin.privacy.costs import MOST_ROUNDS, RoundCost
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.runs.accounting import make_account
from dpfl_plugin.runs.algorithm_setting import make_setting
from dpfl_plugin.runs.extra_plan import extra_plan, statistics_of
from dpfl_plugin.runs.first_round import check_first_round
from dpfl_plugin.runs.plugins import make_accountant, make_algorithm
from dpfl_plugin.runs.privacy_rules import privacy_rules
from dpfl_plugin.runs.records import check_records, dimension, federate
from dpfl_plugin.runs.signal import weak_signal

MOST_PLANNED = 10**5  # rounds, local steps
MANY_ROUNDS = 10**4  # planning them takes more than a second
CAP_OVER_MEAN = 1.2  # of a silo's rounds: a cap this far above the mean hardly changes who is drawn


def solving(config: Config) -> str:
    """What to say before noise is solved for, where that takes a while; or ""."""
    if config.privacy.noise_multiplier is not None or (config.rounds or 0) < MANY_ROUNDS:
        return ""
    return f"solving for the noise of {config.rounds:,} rounds ..."


@dataclass(frozen=True, slots=True)
class Forecast:
    """A run but for its records.

    Attributes:
        num_records: of each silo that noise is solved for.
        rules: how releases are made with a noise multiplier, if the configuration leaves that open.
        dimension: the model's parameters; 0 where they are not known. outcome: what labels are.
    """

    config: Config
    algorithm: Algorithm
    accountant: Accountant
    setting: Setting
    num_records: tuple[int, ...]
    rules: Callable[[Config, float], PrivacyRules]
    dimension: int = 0
    outcome: OutcomeKind = "classes"

    def weak_signal(self, noise_multiplier: float, costs: Mapping[int, RoundCost]) -> str:
        """Why such rounds are hardly worth their budget, or ""."""
        rules, steps = self.rules(self.config, noise_multiplier), sum(cost.num_releases for cost in costs.values())
        return weak_signal(rules, self.setting, self.num_records, self.dimension, steps, self.outcome)

    def changed(
        self, *, max_participations: int | None = None, rounds: int | None = None, **privacy: object
    ) -> Forecast:
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
        return make_account(
            self.config,
            rules=self.rules(self.config, noise_multiplier),
            accountant=second_opinion or self.accountant,
            budget_accountant=self.accountant,
            setting=self.setting,
            num_records=self._of_every_silo,
            ledger=Ledger(),
            costs=costs,
            in_sums=in_sums(self.algorithm),
        )

    @property
    def _of_every_silo(self) -> tuple[int, ...]:
        """As if all silos were of these sizes, also where noise is solved for some of them: any may be drawn."""
        missing = max(0, self.setting.num_silos - len(self.num_records))
        return self.num_records + self.num_records[:1] * missing

    def check(self) -> None:
        """Raise UnsupportedError where a run would, for what its rounds ask for."""
        check_first_round(self.config, self.algorithm, self.setting, self.rules(self.config, 1.0), torch.zeros(2))

    def unlimited(self) -> Forecast:
        """Without the budget, but with the noise of scores and statistics that is solved for it."""
        planned = extra_plan(self.config, self.accountant)
        scores, config = planned.scores, self.config.with_statistics_noise(planned.statistics)
        if scores is not None:
            config = config.with_score_noise(scores.noise_multiplier)
        return replace(self, config=config).changed(epsilon=None)

    @property
    def planner(self) -> Planner:
        num_silos = self.setting.num_silos
        equal = (1 / num_silos,) * num_silos
        training = extra_plan(self.config, self.accountant).training
        return Planner(self.algorithm, self.setting, equal, self.config.public_seed, training)

    def costs(self, limit: int, noise_multiplier: float = 1.0) -> Mapping[int, RoundCost]:
        """What up to ``limit`` rounds cost, without a budget that would end them before.

        Where the configuration leaves the noise to be solved for, with this noise multiplier.
        """
        account = self.changed(epsilon=None).account(noise_multiplier)
        for _ in rounds_ahead(account, self.planner, limit):
            pass
        return account.costs

    def all_rounds(self, noise_multiplier: float) -> PrivacyAccount:
        """An account of the rounds that a run would make, up to where a budget or a cap ends it."""
        limit = self.config.rounds or MOST_ROUNDS
        if self.config.rounds is not None:
            costs = self.costs(limit, noise_multiplier)
            account = self.account(noise_multiplier, costs)
            if account.affords_all(Counter(costs.values())):  # whoever is drawn: nothing but a cap ends it before
                return account
        account = self.account(noise_multiplier)
        for _ in rehearsal(account, self.planner, limit):
            pass
        return account

    def noise(self) -> float:
        """The least noise multiplier with which all rounds fit the budget, whoever is drawn; see `solved`."""
        return self.solved()[0]

    def solved(self) -> tuple[float, Counter[RoundCost]]:
        """(`noise`, what rounds cost with it, how many of each), by `least_noise`.

        In the server's view that is a silo which takes part in every round, or in ``max_participations`` of them.

        Raises:
            ConfigError: no noise does.
            UnsupportedError: the accountant does not know what will be released.
        """
        config = self.config
        assert config.rounds is not None
        assert config.privacy.epsilon is not None
        open_ended = self.changed(noise_multiplier=None)
        counted = Counter(open_ended.costs(config.rounds).values())

        def with_noise(noise: float) -> Counter[RoundCost]:
            rounds: Counter[RoundCost] = Counter()
            for cost, number in counted.items():
                rounds[cost.scaled(noise)] += number
            return rounds

        def epsilon(noise: float) -> float:
            return open_ended.account(noise).epsilon_of(with_noise(noise), config.privacy.budget_view)

        def fits(noise: float) -> bool:
            return open_ended.account(noise).affords_all(with_noise(noise))

        try:
            noise = least_noise(epsilon, config.privacy.epsilon, fits)
        except ConfigError as error:
            what = f"privacy.{error}" if str(error).startswith("epsilon=") else str(error)
            raise type(error)(what) from error
        return noise, with_noise(noise)

    def rounds(self) -> int:
        """The most rounds that fit the budget with the given noise, whoever is drawn; at most `MOST_PLANNED`."""
        rehearsed = self.changed(epsilon=None, rounds=MOST_PLANNED)
        account = rehearsed.account()
        steps = rounds_ahead(account, rehearsed.planner, MOST_PLANNED)

        def fits(rounds: int) -> bool:
            while len(account.costs) < rounds and next(steps, None) is not None:
                pass
            first = {round: cost for round, cost in account.costs.items() if round < rounds}
            return len(first) == rounds and self._fits(self.changed(rounds=rounds).account(costs=first))

        return most(_as_far_as_known(fits, account.rules), MOST_PLANNED)

    def local_steps(self, with_steps: Callable[[int], Algorithm]) -> int:
        """The most local steps with which all rounds fit the budget, whoever is drawn, up to `MOST_PLANNED`."""
        assert self.config.rounds is not None
        rounds = self.config.rounds

        def fits(steps: int) -> bool:
            there = replace(self, algorithm=with_steps(steps))
            return self._fits(there.account(costs=there.costs(rounds)))

        return most(_as_far_as_known(fits, self.account().rules), MOST_PLANNED)

    def max_participations(self) -> int:
        """The largest cap with which all rounds fit the budget; all of them if none is needed, 0 if none is enough."""
        assert self.config.rounds is not None
        uncapped = replace(self, config=self.config.model_copy(update={"max_participations": None}))
        costs = uncapped.costs(self.config.rounds)

        def fits(cap: int) -> bool:
            return self._fits(self.changed(max_participations=cap).account(costs=costs))

        return len(costs) if fits(len(costs)) else most(fits, len(costs) - 1)

    def capped(self, noise_multiplier: float) -> dict[str, float] | None:
        """A cap on how often each silo takes part, a fifth above the mean, and the noise that it takes.

        None where silos take part in every round, a cap is there already, or it takes no less than
        ``noise_multiplier``.
        """
        config, setting = self.config, self.setting
        if config.max_participations is not None or config.rounds is None or config.privacy.budget_view != "server":
            return None
        cap = math.ceil(CAP_OVER_MEAN * config.rounds * setting.num_participants / setting.num_silos)
        if cap >= config.rounds:
            return None
        capped = self.changed(max_participations=cap, noise_multiplier=None)
        try:
            check_compatible(capped.config, "forecast")
            noise = capped.noise()
        except (ConfigError, UnsupportedError):
            return None
        return {"max_participations": cap, "noise_multiplier": noise} if noise < noise_multiplier else None

    def _fits(self, account: PrivacyAccount) -> bool:
        privacy = self.config.privacy
        assert privacy.epsilon is not None
        return account.epsilon_ahead(privacy.budget_view) <= privacy.epsilon


def _as_far_as_known(fits: Callable[[int], bool], rules: PrivacyRules) -> Callable[[int], bool]:
    """Of a schedule's noise far ahead there may be no number, or no bound: then nothing fits."""

    def known(number: int) -> bool:
        try:
            return fits(number)
        except ConfigError:
            if number == 1 or not rules.varies:
                raise
            return False

    return known


def forecast(
    config: Config,
    base: Path,
    federation: Federation | None = None,
) -> Forecast:
    """What is known of a run before it begins; nothing of its records but their numbers is kept.

    Args:
        federation: the silos' records, where they are at hand.

    Raises:
        ConfigError, DataError: as `build`.
    """
    check_compatible(config, "forecast")
    algorithm, accountant, rules = make_algorithm(config), make_accountant(config), privacy_rules(config)
    federation = federate(config, base) if federation is None else federation
    num_records = tuple(len(silo.train_y) for silo in federation.silos)
    check_records(config, rules, num_records, federation.names)
    statistics_of(config, federation.inputs, federation.outcome, federation.num_classes)
    setting = make_setting(config, num_records, federation.names)
    parameters, outcome = dimension(config, federation), federation.outcome.kind
    return Forecast(config, algorithm, accountant, setting, num_records, privacy_rules, parameters, outcome)
