"""What an algorithm may know of a run, by its configuration and how many records silos hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dpfl_plugin.algorithms.base import Setting
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.exact import floor_share
from dpfl_plugin.errors import require
from dpfl_plugin.runs.extra_plan import training_records
from dpfl_plugin.runs.privacy_rules import make_clipping
from dpfl_plugin.runs.silo_settings import weights_of


def make_setting(config: Config, num_records: Sequence[int], names: Mapping[int, str] | None = None) -> Setting:
    """What an algorithm may know of a run; ``num_records`` of each silo, ``names`` of those that have one."""
    privacy, num_silos = config.privacy, len(num_records)
    participants = floor_share(config.silo_rate, num_silos)
    require(
        participants >= 1,
        "silo_rate",
        config.silo_rate,
        f"give at least one of {num_silos} silos: floor({config.silo_rate} * {num_silos}) is 0",
        f"Use at least {1 / num_silos:.4g}.",
    )
    clipping = make_clipping(config)
    changes = clipping.adapts or clipping.measures
    return Setting(
        num_silos=num_silos,
        num_participants=participants,
        silo_rate=config.silo_rate,
        record_rate=1.0 if privacy.sampler == "full" else privacy.record_rate,
        batch_size=privacy.batch_size,
        num_records=training_records(config, min(num_records)),
        rounds=config.rounds,
        clip_norm=privacy.clip_norm if math.isfinite(privacy.clip_norm) and not changes else None,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        weights=weights_of(config, num_records, names or {}),
    )
