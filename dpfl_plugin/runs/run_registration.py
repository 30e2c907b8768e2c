"""Runs of one file, or of a sweep, registered in their shared ledger before the first of them releases anything.

Together they are then one plan, whatever is seen of some before others begin: see `dpfl_plugin.privacy.shared_ledger`.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from dpfl_plugin.config.incompatible import check_compatible
from dpfl_plugin.config.load import run_id
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.privacy.composition import Planned
from dpfl_plugin.privacy.filters import RegisteredPlan
from dpfl_plugin.privacy.shared_ledger import first_line
from dpfl_plugin.runs.backend import Backend
from dpfl_plugin.runs.folder import folder_of
from dpfl_plugin.runs.ledgers import Wait, check_limit, locked_shared, now, open_shared
from dpfl_plugin.runs.prepare import PreparedRun, prepare, registered_run, with_slots
from dpfl_plugin.runs.record_marks import key_file


def register_ahead(
    configs: Iterable[Config], base: Path, path: Path, backend: Backend, wait: Wait, say: Callable[[str], None]
) -> None:
    """Register the runs that have not begun, and were not registered, in the shared ledger ``path``.

    Raises:
        BudgetError: its limit does not afford all of them; nothing was registered.
        ConfigError, DataError, LedgerError: as `run_config`.
    """
    with locked_shared(path, wait) as shared:
        assert shared is not None
        new = [one for one in configs if not folder_of(one).ledger.exists() and registered_run(shared, one) is None]
        if not new:
            return
        for config in new:
            check_compatible(config, "ledger")
        if len({(config.privacy.ledger_epsilon, config.privacy.delta) for config in new}) > 1:
            raise ConfigError(
                f"ledger {path}: privacy.ledger_epsilon and privacy.delta differ among runs that share it: a "
                "ledger has one limit, at one delta."
            )
        protection = set[tuple[str, str, str]]()
        lines, slots = [], defaultdict[str, defaultdict[int, list[Planned]]](lambda: defaultdict(list))
        for config in new:
            folder = folder_of(config)
            hold = functools.partial(backend.hold, key=key_file(config, folder, path))
            run = prepare(config, base, folder, hold=hold, ledger=path, shared=shared)
            backend.begin()  # all have one key
            run = replace(with_slots(run, shared), reuses=())  # left slots are for runs that begin one by one
            protection.add((run.parts.rules.neighbouring, run.parts.rules.unit, _marked(run)))
            ahead = {"ahead": run_id(config), "seed": config.public_seed, "started": now()}
            assert run.entry is not None
            lines.append({**run.entry.line(shared), **ahead})
            for silo, planned in run.slots.items():
                slots[run.parts.data_sha256][silo] += planned
        if len(protection) > 1:
            raise ConfigError(
                f"ledger {path}: runs that share it protect against different things (privacy.unit, the "
                "relation that privacy.sampler implies), or, with unit: silo, are on different records: no single "
                "epsilon bounds them. Use a ledger for each."
            )
        plans = [RegisteredPlan(records, of_silos) for records, of_silos in slots.items()]
        check_limit(shared, path, new[0], plans)
        privacy = new[0].privacy
        totals = functools.partial(first_line, plans[0], privacy.ledger_epsilon, privacy.delta)
        with open_shared(path, totals) as ledger:
            for line in lines:
                ledger.begin_run(line)
            ledger.sync()
    say(f"{len(new)} runs registered in {path}, before the first of them begins.")


def _marked(run: PreparedRun) -> str:
    """The records, where runs on others cannot be bounded together with it."""
    return run.parts.data_sha256 if run.parts.rules.unit == "silo" else ""
