"""The share of the records that a batch should have, by the noise that a budget puts on a mean gradient."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from dpfl_plugin.errors import ConfigError
from dpfl_plugin.runs.forecast import Forecast
from dpfl_plugin.runs.setting import check_records

RATES: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0)
"""What is tried: 1/s is a whole number, as fedsgd takes it."""
NEAR: Final = 1.1
"""A batch is large enough if the noise on its mean is at most so many times what it is with all records."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A record rate within the budget.

    Attributes:
        noise_multiplier: the least with which all rounds fit.
        noise: its standard deviation in each coordinate of a silo's mean gradient, of the smallest silo.
        ahead: the run with both.
    """

    rate: float
    noise_multiplier: float
    noise: float
    ahead: Forecast


def rates(ahead: Forecast) -> list[Rate]:
    """What a run costs in noise at each of `RATES` that leaves a record to every batch, ascending.

    Raises:
        ConfigError: there is no rate to choose.
    """
    privacy = ahead.config.privacy
    if privacy.sampler not in ("fixed", "poisson") or privacy.unit == "silo":
        why = "whole silos are protected" if privacy.unit == "silo" else f"sampler: {privacy.sampler} has none"
        raise ConfigError(f"privacy.record_rate: {why}, so that solve=rate has nothing to find. Use solve=sigma.")
    smallest = ahead.setting.num_records or min(ahead.num_records)
    found: list[Rate] = []
    for rate in RATES:
        try:
            there = _with_rate(ahead, rate)
        except ConfigError:  # a batch without a record
            continue
        noise_multiplier = there.noise()
        rules = there.rules(there.config, noise_multiplier)
        divisor = rules.sampler.divisor(smallest)
        noise = rules.sampler.sensitivity * rules.clip_norm * noise_multiplier / divisor
        found.append(Rate(rate, noise_multiplier, noise, there.changed(noise_multiplier=noise_multiplier)))
    return found


def enough(found: list[Rate]) -> Rate:
    """The smallest rate whose noise is `NEAR` the least: larger batches cost computing, and gain next to nothing."""
    least = min(one.noise for one in found)
    return next(one for one in found if one.noise <= NEAR * least)


def _with_rate(ahead: Forecast, rate: float) -> Forecast:
    """With batches of a share ``rate``, and noise to be solved for. Raises ConfigError if some batch has no record."""
    there = ahead.changed(record_rate=rate, batch_size=None, noise_multiplier=None)
    check_records(there.config, there.rules(there.config, 1.0), there.num_records, {})
    return replace(there, setting=replace(there.setting, record_rate=rate, batch_size=None))
