"""Whether finished runs of a sweep are of the code that there is now: with other code, the rest is another sweep."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from dpfl_plugin import own_folders
from dpfl_plugin.config.sweep import Row, config_of
from dpfl_plugin.errors import ConfigError, DataError, PluginError
from dpfl_plugin.runs.checkpoint import load_facts
from dpfl_plugin.sweeps.manifest import Sweep


def check_finished(sweep: Sweep, rows: Sequence[Row]) -> None:
    """Check that runs that ended, and will not be run again, had the users' code that there is now.

    Raises:
        ConfigError: one had not.
    """
    found = {json.dumps(facts["code"], sort_keys=True): (row, facts) for row in rows if (facts := _facts(sweep, row))}
    if not found:
        return
    # In a process of its own: users' modules are loaded there, and each run is to load them as they are when it begins.
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        said = pool.submit(_look, sweep, list(found.values())).result()
    if said:
        raise ConfigError(f"{sweep.runs}: finished runs of this sweep were made with different code. {said[0]}")


def _facts(sweep: Sweep, row: Row) -> dict[str, Any] | None:
    """Of a finished run's checkpoint, if users' code was in it."""
    try:
        facts = load_facts(sweep.folder_of(row).checkpoint) or {}
        return facts if facts["code"]["files"] else None
    except (DataError, KeyError, TypeError):  # of an earlier version, or nothing is left of it
        return None


def _look(sweep: Sweep, rows: Sequence[tuple[Row, dict[str, Any]]]) -> list[str]:
    from dpfl_plugin.runs.naming import check_shown  # imports torch

    own_folders.look_in(sweep.source.parent)
    said = []
    for row, facts in rows:
        try:
            check_shown(sweep.folder_of(row), config_of(sweep.base, row, sweep.runs), facts, "")
        except PluginError:  # gone, so that no run can mix with it
            continue
        except ConfigError as error:
            said.append(error.as_options)
    return said
