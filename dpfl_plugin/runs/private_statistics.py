"""Private statistics of columns in a run: how they come about, and what came of them."""

from __future__ import annotations

from typing import Any

from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.scaling import Scaling
from dpfl_plugin.federation.first_round import FirstRound
from dpfl_plugin.federation.progress import Progress
from dpfl_plugin.federation.scaled_records import scaling_of
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.runs.build import Parts
from dpfl_plugin.runs.extra_releases import statistics_planned, training_records
from dpfl_plugin.runs.prepare import PreparedRun, planner_of


def first_round_of(prepared: PreparedRun, account: PrivacyAccount) -> FirstRound | None:
    """What is released before the first round, and what silos do with it; None for nothing."""
    config, parts = prepared.config, prepared.parts
    if parts.beside.statistics is None:
        return None
    read = tuple(training_records(config, count) for count in parts.num_records)
    return FirstRound(planner_of(config, parts, prepared.coins), account, read)


def scaling_found(config: Config, parts: Parts, progress: Progress) -> Scaling | None:
    """How records were scaled; None where they were not."""
    statistics = statistics_planned(config, parts.inputs, parts.beside)
    if statistics is None or progress.statistics is None:
        return None
    return scaling_of(statistics, progress.statistics, parts.rules.neighbouring)


def in_result(config: Config, parts: Parts, progress: Progress) -> dict[str, Any]:
    """What `result.json` holds of it, all of it releases or made of them; nothing where nothing was asked for."""
    scaling = scaling_found(config, parts, progress)
    if scaling is None:
        return {}
    found = {"noise_multiplier": parts.beside.statistics, "columns": scaling.told(), "scaling": scaling.plain()}
    return {"private_statistics": found}
