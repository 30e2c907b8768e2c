"""What a configuration plans beside the rounds of its algorithm; see `dpfl_plugin.privacy.extra_releases`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Final

from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.outcome_counts import COUNTED, IN_PARTS, num_codes
from dpfl_plugin.core.outcomes import Outcome
from dpfl_plugin.core.rounding import digits
from dpfl_plugin.core.scaling import Measured
from dpfl_plugin.data.base import Inputs
from dpfl_plugin.data.names import called
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.calibration import least_noise
from dpfl_plugin.privacy.events import SampledGaussian, Term
from dpfl_plugin.privacy.extra_releases import ExtraPlan
from dpfl_plugin.privacy.scores import Scores
from dpfl_plugin.privacy.statistics import Statistics
from dpfl_plugin.runs.public_facts import names_its_classes

LAST: Final = 10**6  # the round of the last release where only a budget ends a run; none has as many


def extra_plan(config: Config, accountant: Accountant) -> ExtraPlan:
    """What a configuration plans beside its rounds.

    The noise of scores is given, or the least with which all of them fit ``privacy.epsilon``: they read other records
    than the rounds do, so that the dearer of both counts, and not their sum. That of statistics is given, or the least
    with which they alone fit their share of ``privacy.epsilon``; rounds have what they leave.

    Raises:
        ConfigError: the noise that is given is too little for the budget.
    """
    scoring, own = config.scoring, config.personalise
    last = config.rounds if config.rounds is not None else LAST
    steps, statistics = own.local_steps if own is not None else 0, _of_statistics(config, accountant)
    if scoring is None:
        return ExtraPlan(last, local_steps=steps, statistics=statistics)
    num_scores = scoring.number(last)
    noise, privacy = scoring.noise_multiplier, config.privacy
    if noise is None:
        # Without a budget, as in rehearsals of one, the noise does not matter.
        noise = 1.0 if privacy.epsilon is None else _least(accountant, num_scores, privacy.epsilon, privacy.delta)
    if scoring.noise_multiplier is not None:
        what = f"{num_scores} scores alone come"
        mend = f"Use {{:g}} or more, a larger {scoring.key}.every, or leave it out."
        _check_noise(f"{scoring.key}.noise_multiplier", noise, num_scores, config, accountant, what, mend)
    scores = Scores((1.0 - scoring.share, 1.0), noise, scoring.bins)
    return ExtraPlan(last, scores, num_scores, steps, statistics)


def _of_statistics(config: Config, accountant: Accountant) -> float | None:
    """Noise multiplier of each silo's statistics; None for none."""
    asked, privacy = config.private_statistics, config.privacy
    if asked is None:
        return None
    if asked.noise_multiplier is not None:
        what, mend = "the statistics alone come", "Use more than {:g}, or give epsilon_share in its place."
        key = "private_statistics.noise_multiplier"
        _check_noise(key, asked.noise_multiplier, 1, config, accountant, what, mend)
        return asked.noise_multiplier
    if privacy.epsilon is None:
        return 0.0 if privacy.noise_multiplier == 0 else 1.0  # as with scores
    return _least(accountant, 1, asked.epsilon_share * privacy.epsilon, privacy.delta)


def _check_noise(
    key: str, noise: float, count: int, config: Config, accountant: Accountant, what: str, mend: str
) -> None:
    """Raise ConfigError where so many releases with the noise that is given are over the budget by themselves."""
    budget, delta = config.privacy.epsilon, config.privacy.delta
    if budget is None:
        return
    epsilon = accountant.epsilon([_term(noise, count)], delta)
    if epsilon > budget:
        raise ConfigError(
            f"{key}={noise:g}: {what} to epsilon {digits(epsilon, 4)}, over privacy.epsilon={budget:g}. "
            + mend.format(_least(accountant, count, budget, delta))
        )


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


def statistics_of(config: Config, inputs: Inputs | None, outcome: Outcome, num_classes: int) -> tuple[Measured, ...]:
    """The columns whose statistics a run releases, and the label where it is counted.

    Args:
        inputs: what records are; None in a process that holds none.

    Raises:
        ConfigError: the schema asks for statistics and the configuration does not, or the other way round.
    """
    measured = () if inputs is None else inputs.measured
    balanced = config.class_weights == "balanced"
    if config.private_statistics is None:
        if balanced:
            raise ConfigError(
                "class_weights=balanced is made of the records: how many each class has is a noisy release, which is "
                "charged. Set private_statistics: {epsilon_share: 0.25}, or give class_weights as numbers."
            )
        for one in measured:
            key = "missing: most_frequent" if one.kind == "counts" else f"scale: {one.kind}"
            raise ConfigError(
                f"data.schema.columns.{one.name}.{key} is made of the records: its statistics have to be noisy "
                "releases, which are charged. Set private_statistics: {epsilon_share: 0.25}, or take that key out."
            )
        return ()
    if config.private_statistics.outcome and outcome.kind not in COUNTED:
        raise ConfigError(
            f"private_statistics.outcome: labels are {outcome.kind}, and only {', '.join(COUNTED)} are counted. Leave "
            "outcome out."
        )
    if balanced or config.private_statistics.outcome:
        named = inputs is not None and outcome.has_classes and names_its_classes(config)
        names = inputs.classes if inputs is not None and named else ()
        names = names or tuple(map(str, range(num_codes(outcome, num_classes))))
        return (*measured, Measured("label", "parts" if outcome.kind in IN_PARTS else "labels", 0, values=names))
    if inputs is not None and not measured:
        raise ConfigError(
            "private_statistics: no column asks for any. Give columns of data.schema scale: mean, scale: quantiles or "
            "missing: most_frequent, set private_statistics.outcome, or leave private_statistics out."
        )
    return measured


def statistics_planned(
    config: Config, inputs: Inputs | None, outcome: Outcome, num_classes: int, planned: ExtraPlan
) -> Statistics | None:
    """How a run releases statistics; None for none. Raises as `statistics_of`."""
    measured = statistics_of(config, inputs, outcome, num_classes)
    return Statistics(measured, planned.statistics, outcome) if measured and planned.statistics is not None else None


def check_extra_releases(config: Config, num_records: Sequence[int], names: Mapping[int, str]) -> None:
    """Check that every silo has records to set apart for what a run plans beside its rounds.

    Args:
        num_records: of each silo; names: of silos, where they have any.

    Raises:
        ConfigError: a silo has too few records to set some apart.
    """
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
