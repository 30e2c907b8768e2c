"""What is wrong with a run by its configuration alone, as it is told before the first run of a sweep begins.

Plugins are made with their options, steps of preprocessing and schemas of tables are read. Users' own modules are left
to the runs, each of which loads them as they are when it begins, and records to whom they belong.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from dpfl_plugin.config.schema import Config
from dpfl_plugin.data.outcome_option import parse
from dpfl_plugin.data.preprocess import check_steps
from dpfl_plugin.data.schema import TableSchema
from dpfl_plugin.runs.backbone import MORE_STEPS
from dpfl_plugin.runs.plugins import make_accountant, make_algorithm
from dpfl_plugin.runs.rules import privacy_rules, refuse_seeded
from dpfl_plugin.runs.setting import steps_of


class Foresight:
    """Checks the configurations of a sweep, what they have in common once.

    Args:
        shared: whether its runs share a ledger.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._seen: set[str] = set()
        self._shared = shared

    def check(self, config: Config) -> None:
        """
        Raises:
            ConfigError: a value is one that no run can have; the message names the key.
            PluginError: a plugin cannot be made.
        """
        privacy = config.privacy
        if self._shared:
            refuse_seeded(config)
        if config.algorithm.name is not None:
            self._once("algorithm", config.algorithm.model_dump(mode="json"), lambda: make_algorithm(config))
        if privacy.accountant.name is not None:
            self._once("accountant", privacy.accountant.model_dump(mode="json"), lambda: make_accountant(config))
        if None not in (privacy.mechanism.name, privacy.clip.name, privacy.schedule.name):
            facts = [privacy.model_dump(mode="json"), config.rounds is None, config.l2]
            self._once("privacy", facts, lambda: privacy_rules(config))
        steps, options = steps_of(config), config.data.dataset.options
        self._once("preprocess", steps, lambda: check_steps(steps, MORE_STEPS))
        if config.data.dataset.name == "table":
            self._once("schema", options.get("schema"), lambda: TableSchema.parse(options.get("schema")))
        elif config.data.dataset.name in ("csv", "npz"):
            given = [options.get("outcome"), options.get("classes")]
            self._once("outcome", given, lambda: parse(*given))

    def _once(self, what: str, facts: Any, look: Callable[[], object]) -> None:
        key = what + json.dumps(facts, default=str, sort_keys=True)
        if key not in self._seen:
            look()
            self._seen.add(key)
