"""What the configuration says of single silos: weights in the mean, and privacy settings of their own.

A silo is named as the data name it, or by its number. Everything here is public: a weight or a budget of a silo's own
is in the configuration, or follows from it and the numbers of records.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from dpfl_plugin.config.privacy import SiloConfig
from dpfl_plugin.config.schema import Config
from dpfl_plugin.data.names import called
from dpfl_plugin.errors import ConfigError, UnsupportedError, nearest
from dpfl_plugin.privacy import samplers
from dpfl_plugin.privacy.rules import PrivacyRules

UNEQUAL: Final = 2  # times as many records as another silo


def ids_of(given: Iterable[str], num_silos: int, names: Mapping[int, str], key: str) -> dict[str, int]:
    """{name: id} of silos as a configuration names them under ``key``.

    Args:
        names: of silos, by id, where the data have any.

    Raises:
        ConfigError: there is no such silo, several are called so, or one is named twice.
    """
    often, by_name = Counter(names.values()), {name: silo for silo, name in names.items()}
    found: dict[str, int] = {}
    for name in given:
        if often[name] > 1:
            raise ConfigError(f"{key}.{name}: {often[name]} silos have this name. Use numbers, 0 to {num_silos - 1}.")
        number = int(name) if name.isdecimal() else num_silos
        silo = by_name.get(name, number)
        if not 0 <= silo < num_silos:
            known = f"The data call them {', '.join(names.values())}" if 0 < len(names) <= 20 else "They have no names"
            known = known if len(names) <= 20 else f"The data name {len(names)} of them"
            raise ConfigError(
                f"{key}.{name}: there is no such silo{nearest(name, list(by_name))}. {known} here; numbers, 0 to "
                f"{num_silos - 1}, are understood everywhere."
            )
        if silo in found.values():
            raise ConfigError(f"{key}.{name}: {called(silo, names)} is named twice. Name it once.")
        found[name] = silo
    return found


@dataclass(frozen=True, slots=True)
class OwnSettings:
    """The silos with privacy settings of their own.

    Attributes:
        of: by id. names: what the configuration calls them.
    """

    of: Mapping[int, SiloConfig]
    names: Mapping[int, str]

    def config(self, config: Config, silo: int) -> Config:
        """As if all silos were as this one is: by it the noise of the silo is solved for."""
        return uniform_config(config, self.of.get(silo))

    def epsilons(self) -> dict[int, float]:
        """Budgets that are silos' own, by id."""
        return {silo: one.epsilon for silo, one in self.of.items() if one.epsilon is not None}

    def facts(self, rules: PrivacyRules) -> dict[str, dict[str, float]]:
        """What a run's ledger says of these silos: all that its account needs of them."""
        return {
            str(silo): {**one.model_dump(exclude_none=True), "noise_multiplier": rules.of(silo).noise_multiplier}
            for silo, one in sorted(self.of.items())
        }


NO_OWN: Final = OwnSettings({}, {})


def in_facts(facts: Mapping[str, Any]) -> tuple[OwnSettings, dict[int, float]]:
    """(settings, noise multipliers) of silos as the facts of a ledger have them, see `OwnSettings.facts`."""
    of = {int(silo): SiloConfig(**one) for silo, one in facts.get("silos", {}).items()}
    noise = {
        silo: float(one["noise_multiplier"]) for silo, one in zip(of, facts.get("silos", {}).values(), strict=True)
    }
    return OwnSettings(of, {silo: str(silo) for silo in of}), noise


def own_settings(config: Config, num_silos: int, names: Mapping[int, str]) -> OwnSettings:
    """What ``silos`` says, by id.

    Raises:
        ConfigError: as `ids_of`.
    """
    ids = ids_of(config.silos, num_silos, names, "silos")
    return OwnSettings({ids[name]: one for name, one in config.silos.items()}, {ids[name]: name for name in ids})


def uniform_config(config: Config, own: SiloConfig | None) -> Config:
    """The configuration of a federation whose silos all have these settings."""
    values: dict[str, Any] = {} if own is None else own.model_dump(exclude_none=True)
    if "record_rate" in values or "batch_size" in values:
        values = {"record_rate": None, "batch_size": None, **values}
    privacy = config.privacy.model_copy(update=values)
    return config.model_copy(update={"silos": {}, "privacy": privacy})


def with_own(
    rules: PrivacyRules, config: Config, own: OwnSettings, noise: Mapping[int, float], num_records: Sequence[int] = ()
) -> PrivacyRules:
    """``rules``, with those of the silos that have settings of their own.

    Args:
        rules: of all others.
        noise: noise multiplier of each of those silos.
        num_records: of each silo; () not to look whether they can fill a batch.
    """
    if not own.of:
        return rules
    of: dict[int, PrivacyRules] = {}
    for silo in sorted(own.of):
        privacy = own.config(config, silo).privacy
        sampler = samplers.make(privacy.sampler, privacy.record_rate, privacy.batch_size)
        mechanism = replace(rules.mechanism, noise_multiplier=noise[silo])  # type: ignore[type-var]
        try:
            of[silo] = replace(rules, mechanism=mechanism, sampler=sampler, clip_norm=privacy.clip_norm, silos={})
            if num_records:
                sampler.divisor(num_records[silo])
        except ConfigError as error:
            raise type(error)(f"silos.{own.names[silo]}: {error}") from error
    return replace(rules, silos=of)


def noise_of(
    config: Config,
    own: OwnSettings,
    num_records: Sequence[int],
    solve: Callable[[Config, tuple[int, ...]], float],
) -> dict[int, float]:
    """The noise multiplier of each silo with settings of its own: given, or the least that affords all rounds.

    Args:
        solve: (configuration, numbers of records) -> noise multiplier of silos that are all so.

    Raises:
        ConfigError: no noise is enough for a budget.
    """
    found: dict[int, float] = {}
    known: dict[tuple[str, int], float] = {}
    for silo in sorted(own.of):
        single = own.config(config, silo)
        if single.privacy.noise_multiplier is not None:
            found[silo] = single.privacy.noise_multiplier
            continue
        key = single.privacy.model_dump_json(), num_records[silo]
        if key not in known:
            try:
                known[key] = solve(single, (num_records[silo],))
            except ConfigError as error:
                raise type(error)(f"silos.{own.names[silo]}: {error}") from error
        found[silo] = known[key]
    return found


def describe_silos(own: OwnSettings, rules: PrivacyRules, config: Config) -> list[str]:
    """A line on each silo with settings of its own, for who begins the run."""
    lines = []
    for silo, name in sorted(own.names.items()):
        mine, epsilon = rules.of(silo), own.config(config, silo).privacy.epsilon
        budget = "no budget" if epsilon is None else f"epsilon {epsilon:g}"
        lines.append(f"silo {name}: {budget}, noise_multiplier {mine.noise_multiplier:g}, clip_norm {mine.clip_norm:g}")
    return lines


def unequal(config: Config, num_records: Sequence[int]) -> list[str]:
    """That silos of very different sizes count alike, unless somebody chose that."""
    chosen, privacy = "silo_weights" in config.model_fields_set, config.privacy
    least, most = min(num_records), max(num_records)
    if most < UNEQUAL * least or chosen or privacy.sampler == "poisson" or privacy.unit == "silo":
        return []
    counted = "persons" if privacy.unit == "person" else "records"
    return [
        f"silos have {least} to {most} training {counted} and count alike: silo_weights=records weighs them by "
        f"their {counted}"
    ]


def others(own: OwnSettings, num_records: Sequence[int]) -> tuple[int, ...]:
    """Numbers of records of the silos without settings of their own; of all, if there are no such silos."""
    return tuple(count for silo, count in enumerate(num_records) if silo not in own.of) or tuple(num_records)


def weights_of(config: Config, num_records: Sequence[int], names: Mapping[int, str]) -> tuple[float, ...]:
    """Of each silo in the mean, adding up to 1; those ``by noise`` are equal before `weights_by_noise`.

    Raises:
        ConfigError: weights are given, and not for these silos.
    """
    num_silos, how = len(num_records), config.silo_weights
    if how == "records":
        return tuple(count / sum(num_records) for count in num_records)
    if isinstance(how, str):
        return (1 / num_silos,) * num_silos
    ids = ids_of(how, num_silos, names, "silo_weights")
    given = {ids[name]: weight for name, weight in how.items()}
    missing = [called(silo, names) for silo in range(num_silos) if silo not in given]
    if missing:
        some = ", ".join(missing[:8]) + ", ..." * (len(missing) > 8)
        raise ConfigError(
            f"silo_weights: no weight for {some}. Give one for every silo, or use equal, records or noise."
        )
    total = math.fsum(given.values())
    return tuple(given[silo] / total for silo in range(num_silos))


def weights_by_noise(rules: PrivacyRules, num_records: Sequence[int]) -> tuple[float, ...]:
    """Proportional to 1 / variance of the noise on a silo's mean gradient: of all weights that add up to 1 those with
    the least noise in the mean. Sampling and drift do not count.

    (Delta C_k sigma_k / b_k)^2 is that variance in each coordinate, with b_k records in a batch.

    Raises:
        UnsupportedError: nothing is known of the noise before the run.
    """
    if rules.clipping.adapts or rules.clipping.measures:
        raise UnsupportedError(
            "silo_weights='noise': this privacy.clip changes the clipping norm, and with it the noise, from step to "
            "step. Use clip: flat, or silo_weights: records."
        )
    precisions = []
    for silo, count in enumerate(num_records):
        own = rules.of(silo)
        std = own.clip_norm * own.noise_multiplier
        if own.unit != "silo":
            std *= own.sampler.sensitivity / own.sampler.divisor(count)
        precisions.append(std**-2)
    total = math.fsum(precisions)
    return tuple(one / total for one in precisions)
