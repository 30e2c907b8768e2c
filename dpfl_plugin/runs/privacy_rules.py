"""How the releases of a run are made, by its configuration; and what a user should know of the promise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.views import Augmentation
from dpfl_plugin.errors import ConfigError, PluginError
from dpfl_plugin.privacy import samplers
from dpfl_plugin.privacy.clipping import Adaptive, Clipping
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import Cyclic
from dpfl_plugin.privacy.schedules import Geometric, Schedule
from dpfl_plugin.runs.plugins import build_plugin

VAST_EPSILON = 20.0


def weak_claims(config: Config, rules: PrivacyRules, num_records: Sequence[int]) -> list[str]:
    """Warnings of a budget that promises little: an epsilon beyond use, or a delta that lets records be published."""
    return [*_vast_epsilon(config.privacy.epsilon), *_large_delta(config, rules, num_records)]


def _vast_epsilon(epsilon: float | None) -> list[str]:
    if epsilon is None or epsilon <= VAST_EPSILON:
        return []
    return [
        f"privacy.epsilon={epsilon:g} promises next to nothing: what is seen may be e^epsilon times likelier with a "
        f"record than without it, and e^{VAST_EPSILON:g} is half a billion. Use a much smaller epsilon."
    ]


def _large_delta(config: Config, rules: PrivacyRules, num_records: Sequence[int]) -> list[str]:
    """Where delta alone would let a record at random be published of some silo, the largest first, or a silo."""
    units = len(num_records) if config.privacy.unit == "silo" else max(num_records)
    if rules.noise_multiplier == 0 or config.privacy.delta < 1 / units:
        return []
    what = "the silos" if config.privacy.unit == "silo" else f"the {config.privacy.unit}s of the largest silo"
    return [
        f"privacy.delta={config.privacy.delta:g} is not below 1/{units}, one over {what}: publishing one of them at "
        f"random would satisfy such a guarantee. Use a much smaller delta, as {small_delta(units):g}."
    ]


def small_delta(units: int) -> float:
    """A power of ten of at most a tenth of one over the number of records, persons or silos."""
    return float(f"1e-{math.ceil(math.log10(10 * units)):d}")


def no_guarantee(rules: PrivacyRules) -> list[str]:
    return [f"no privacy guarantee holds: {rules.clipping.statement}."] if rules.clipping.measures else []


def privacy_rules(config: Config, noise_multiplier: float = 1.0) -> PrivacyRules:
    """How releases are made; ``noise_multiplier`` is used where the configuration leaves it to be solved for."""
    privacy = config.privacy
    noise = noise_multiplier if privacy.noise_multiplier is None else privacy.noise_multiplier
    sampler = samplers.make(
        privacy.sampler, privacy.record_rate, privacy.batch_size, privacy.bands, config.least_records
    )
    default = "replace_one" if privacy.unit == "silo" else sampler.neighbouring
    return PrivacyRules(
        unit=privacy.unit,
        neighbouring=privacy.neighbouring or default,
        clip_norm=privacy.clip_norm,
        clipping=make_clipping(config),
        mechanism=build_plugin("mechanisms", privacy.mechanism, noise, where="privacy.mechanism"),
        sampler=sampler,
        schedule=_schedule(config),
        l2=config.l2,
        fresh=config.fresh,
        augmentation=views_of(config),
    )


def views_of(config: Config) -> Augmentation | None:
    """How the views of a record differ, where it has any."""
    return None if config.augmentation is None else Augmentation(**config.augmentation.model_dump())


def make_clipping(config: Config) -> Clipping:
    clipping = build_plugin("clippings", config.privacy.clip, where="privacy.clip")
    if not isinstance(clipping, Clipping):
        raise PluginError(
            f"privacy.clip: {type(clipping).__name__} must derive from Clipping in dpfl_plugin/privacy/clipping.py."
        )
    if isinstance(clipping, Adaptive) and clipping.bit_noise_multiplier and config.privacy.noise_multiplier is None:
        raise ConfigError(
            "privacy.clip.bit_noise_multiplier needs privacy.noise_multiplier, which it has to exceed: give both, or "
            "leave out both."
        )
    if clipping.measures and config.privacy.epsilon is not None:
        raise ConfigError(
            f"privacy.epsilon={config.privacy.epsilon:g} cannot be kept: {clipping.statement}, so no epsilon holds. "
            "Leave epsilon out, or use clip: adaptive, which does the like with noised counts."
        )
    return clipping


def _schedule(config: Config) -> Schedule:
    schedule: Schedule = build_plugin("schedules", config.privacy.schedule, where="privacy.schedule")
    if isinstance(schedule, Geometric) and schedule.beta > 1 and config.rounds is None:
        raise ConfigError(
            f"rounds is missing: with privacy.schedule.beta={schedule.beta!r} noise grows, and a budget may last for "
            "ever. Give rounds."
        )
    return schedule


def cycle_facts(rules: PrivacyRules) -> dict[str, Any]:
    """What is to be said of batches in a cycle, and of noise that is correlated over them; {} where there is none."""
    if not isinstance(rules.sampler, Cyclic):
        return {}
    found = rules.sampler.correlation
    return {
        "cycle": {
            "batches": rules.sampler.batches,
            "bands": found.bands,
            "coefficients": list(found.coefficients),
            "norm": found.norm,
        }
    }


def usual_batch(rules: PrivacyRules, num_records: Sequence[int]) -> int:
    """Records in a batch of the silo in the middle; expected ones, where their number is drawn."""
    return max(1, round(rules.sampler.divisor(sorted(num_records)[len(num_records) // 2])))


def check_batch(rules: PrivacyRules, silo: str, count: int) -> None:
    try:
        rules.sampler.divisor(count)
    except ConfigError as error:
        raise ConfigError(f"{silo}: {error}") from error
