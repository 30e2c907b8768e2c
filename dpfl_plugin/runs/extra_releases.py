"""What a configuration plans beside the rounds of its algorithm; see `dpfl_plugin.privacy.extra_releases`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Final

from dpfl_plugin.config.schema import Config
from dpfl_plugin.data.names import called
from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.calibration import least_noise
from dpfl_plugin.privacy.events import SampledGaussian, Term
from dpfl_plugin.privacy.extra_releases import Beside
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.scores import Scores

LAST: Final = 10**6  # the round of the last release where only a budget ends a run; none has as many
SHARED: Final = "a shared ledger knows of rounds only"


def beside(config: Config, accountant: Accountant) -> Beside:
    """What a configuration plans beside its rounds.

    The noise of scores is given, or the least with which all of them fit ``privacy.epsilon``: they read other records
    than the rounds do, so that the dearer of both counts, and not their sum.

    Raises:
        ConfigError: the noise that is given is too little for the budget.
    """
    scoring, own = config.scoring, config.personalise
    last = config.rounds if config.rounds is not None else LAST
    steps = own.local_steps if own is not None else 0
    if scoring is None:
        return Beside(last, local_steps=steps)
    assert scoring.every is not None
    num_scores = last // scoring.every
    noise, privacy = scoring.noise_multiplier, config.privacy
    if noise is None:
        # Without a budget, as in rehearsals of one, the noise does not matter.
        noise = 1.0 if privacy.epsilon is None else _least(accountant, num_scores, privacy.epsilon, privacy.delta)
    scores = Scores((1.0 - scoring.share, 1.0), noise, scoring.bins)
    if scoring.noise_multiplier is not None and privacy.epsilon is not None:
        epsilon = accountant.epsilon([_term(noise, num_scores)], privacy.delta)
        if epsilon > privacy.epsilon:
            least = _least(accountant, num_scores, privacy.epsilon, privacy.delta)
            raise ConfigError(
                f"{scoring.key}.noise_multiplier={noise:g}: {num_scores} scores alone come to epsilon {epsilon:.4g}, "
                f"over privacy.epsilon={privacy.epsilon:g}. Use {least:g} or more, a larger {scoring.key}.every, "
                "or leave it out."
            )
    return Beside(last, scores, num_scores, steps)


def _term(noise: float, count: int) -> Term:
    # Gaussian noise on all of a silo's validation records has one epsilon under either relation: it is in units of the
    # sensitivity, which is that of the relation.
    release = SampledGaussian(noise_multiplier=noise, sampler="full", rate=1.0, neighbouring="replace_one")
    return Term(release=release, count=1, rounds=count)


def _least(accountant: Accountant, count: int, epsilon: float, delta: float) -> float:
    return _solved(accountant, count, epsilon, delta)  # type: ignore[arg-type]  # ours are hashable


@functools.lru_cache(maxsize=1024)  # asked for with every account, of which calibration makes many
def _solved(accountant: Accountant, count: int, epsilon: float, delta: float) -> float:
    return least_noise(lambda noise: accountant.epsilon([_term(noise, count)], delta), epsilon)


def check_extra_releases(
    config: Config, rules: PrivacyRules, num_records: Sequence[int], names: Mapping[int, str]
) -> None:
    """Check that a run can do what it plans beside its rounds.

    Args:
        num_records: of each silo; names: of silos, where they have any.

    Raises:
        ConfigError: a silo has too few records to set some apart.
        UnsupportedError: it protects whole silos, or its noise changes.
    """
    if rules.varies:
        refuse_extra_releases(config, "with privacy.schedule, what is released beside the rounds is not planned for")
    if config.privacy.unit == "silo":
        for key, given, why in (
            (
                "early_stopping",
                config.early_stopping,
                "a silo's score depends on all of its validation records at once, and a share of a silo is no part of "
                "it that would compose in parallel",
            ),
            (
                "private_evaluation",
                config.private_evaluation,
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
        if not 0 < num_train <= count - (config.scoring is not None):
            assert config.scoring is not None
            raise ConfigError(
                f"{called(silo, names)}: {config.scoring.key}.share={config.scoring.share:g} of its {count} training "
                "records leaves none to train on, or none to score. Use another share, or larger silos."
            )


def training_records(config: Config, num_records: int) -> int:
    """How many of a silo's records gradients may read."""
    if config.scoring is None:
        return num_records
    return round((1.0 - config.scoring.share) * num_records)


def refuse_extra_releases(config: Config, what: str) -> None:
    """Raise UnsupportedError if a run releases anything beside its rounds, which ``what`` knows nothing of."""
    for key in ("early_stopping", "private_evaluation", "personalise"):
        if getattr(config, key) is not None:
            raise UnsupportedError(f"{key}: {what}. Use --set {key}=null.")
