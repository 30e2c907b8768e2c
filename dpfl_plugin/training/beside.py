"""What every silo releases beside the rounds of its algorithm: validation scores, and a model of its own at the end.

All of it is planned before the run and at every silo. Budgets and calibration reserve the whole plan from the first
round on, so that a run which spends its budget on rounds has what its last release costs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from dpfl_plugin.config.schema import Config
from dpfl_plugin.data.names import called
from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.calibration import least_noise
from dpfl_plugin.privacy.events import ChargeKind, SampledGaussian, Term
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.scores import Scores
from dpfl_plugin.privacy.views import Planned

Kind = Literal["score", "personalise"]
Share = tuple[float, float]
WHOLE: Final[Share] = (0.0, 1.0)
LAST: Final = 10**6  # the round of the last release where only a budget ends a run; none has as many
SHARED: Final = "a shared ledger knows of rounds only"
NOT_RUN: Final = "not-run"  # noise_id of what is charged and was not released


@dataclass(frozen=True, slots=True)
class Beside:
    """The plan of a run.

    Attributes:
        last: the round number of the models of the silos' own: T.
        scores: how scores are released; None for none. num_scores: how many each silo makes.
        local_steps: private gradients of a silo's own model; 0 for none.
    """

    last: int
    scores: Scores | None = None
    num_scores: int = 0
    local_steps: int = 0

    def __bool__(self) -> bool:
        return bool(self.scores or self.local_steps)

    @property
    def training(self) -> Share:
        """The part of each silo's records that gradients may read."""
        return WHOLE if self.scores is None else self.scores.training

    def guessed_kind(self, round: int, share: Share) -> ChargeKind:
        """What a charge was for, of a ledger of an earlier version, whose lines do not say it."""
        if self.scores is not None and share == self.scores.share:
            return "score"
        return "personalise" if self.local_steps and round >= self.last else "round"

    def planned(self, kind: Kind, rules: PrivacyRules, num_records: int) -> tuple[Planned, int]:
        """(one charge, how many of them) at a silo."""
        if kind == "score":
            assert self.scores is not None
            return Planned(self.scores.release(rules.neighbouring), 1, self.scores.share), self.num_scores
        levels = rules.noise_levels(self.last, self.local_steps)
        ((release, count),) = rules.pattern(num_records, self.training, levels)  # one: see check_beside
        return Planned(release, count, self.training), 1

    @property
    def kinds(self) -> tuple[Kind, ...]:
        kinds: tuple[Kind, ...] = ("score",) if self.scores else ()
        return (*kinds, "personalise") if self.local_steps else kinds


def beside(config: Config, accountant: Accountant) -> Beside:
    """What a configuration plans beside its rounds.

    The noise of scores is given, or the least with which all of them fit ``privacy.epsilon``: they read other records
    than the rounds do, so that the dearer of both counts, and not their sum.

    Raises:
        ConfigError: the noise that is given is too little for the budget.
    """
    early, own = config.early_stopping, config.personalise
    last = config.rounds if config.rounds is not None else LAST
    steps = own.local_steps if own is not None else 0
    if early is None:
        return Beside(last, local_steps=steps)
    num_scores = last // early.every
    noise, privacy = early.noise_multiplier, config.privacy
    if noise is None:
        # Without a budget, as in rehearsals of one, the noise does not matter.
        noise = 1.0 if privacy.epsilon is None else _least(accountant, num_scores, privacy.epsilon, privacy.delta)
    scores = Scores((1.0 - early.share, 1.0), noise)
    if early.noise_multiplier is not None and privacy.epsilon is not None:
        epsilon = accountant.epsilon([_term(noise, num_scores)], privacy.delta)
        if epsilon > privacy.epsilon:
            least = _least(accountant, num_scores, privacy.epsilon, privacy.delta)
            raise ConfigError(
                f"early_stopping.noise_multiplier={noise:g}: {num_scores} scores alone come to epsilon {epsilon:.4g}, "
                f"over privacy.epsilon={privacy.epsilon:g}. Use {least:g} or more, a larger early_stopping.every, or "
                "leave it out."
            )
    return Beside(last, scores, num_scores, steps)


def _term(noise: float, count: int) -> Term:
    # Gaussian noise on a whole count has one epsilon under either relation: its sensitivity is 1 under both.
    release = SampledGaussian(noise_multiplier=noise, sampler="full", rate=1.0, neighbouring="replace_one")
    return Term(release=release, count=1, rounds=count)


def _least(accountant: Accountant, count: int, epsilon: float, delta: float) -> float:
    return _solved(accountant, count, epsilon, delta)  # type: ignore[arg-type]  # ours are hashable


@functools.lru_cache(maxsize=1024)  # asked for with every account, of which calibration makes many
def _solved(accountant: Accountant, count: int, epsilon: float, delta: float) -> float:
    return least_noise(lambda noise: accountant.epsilon([_term(noise, count)], delta), epsilon)


def check_beside(config: Config, rules: PrivacyRules, num_records: Sequence[int], names: Mapping[int, str]) -> None:
    """Check that a run can do what it plans beside its rounds.

    Args:
        num_records: of each silo; names: of silos, where they have any.

    Raises:
        ConfigError: a silo has too few records to set some apart.
        UnsupportedError: it protects whole silos, or its noise changes.
    """
    if rules.varies:
        refuse_beside(config, "with privacy.schedule, what is released beside the rounds is not planned for")
    if config.privacy.unit == "silo":
        for key, given, why in (
            (
                "early_stopping",
                config.early_stopping,
                "a silo's score depends on all of its validation records at once, and a share of a silo is no part of "
                "it that would compose in parallel",
            ),
            (
                "personalise",
                config.personalise,
                "a silo's own model is trained on gradients, which are not private by themselves at this unit",
            ),
        ):
            if given is not None:
                raise UnsupportedError(f"{key} with privacy.unit='silo': {why}. Leave {key} out, or use unit: record.")
    for silo, count in enumerate(num_records):
        num_train = training_records(config, count)
        if not 0 < num_train <= count - (config.early_stopping is not None):
            assert config.early_stopping is not None
            raise ConfigError(
                f"{called(silo, names)}: early_stopping.share={config.early_stopping.share:g} of its {count} training "
                "records leaves none to train on, or none to score. Use another share, or larger silos."
            )


def training_records(config: Config, num_records: int) -> int:
    """How many of a silo's records gradients may read."""
    if config.early_stopping is None:
        return num_records
    return round((1.0 - config.early_stopping.share) * num_records)


def refuse_beside(config: Config, what: str) -> None:
    """Raise UnsupportedError if a run releases anything beside its rounds, which ``what`` knows nothing of."""
    for key in ("early_stopping", "personalise"):
        if getattr(config, key) is not None:
            raise UnsupportedError(f"{key}: {what}. Use --set {key}=null.")
