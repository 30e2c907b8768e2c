"""Runs of one file, or of a sweep, registered in their shared ledger before the first of them releases anything.

Together they are then one plan, whatever is seen of some before others begin: see `dpfl_plugin.privacy.registered`.
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
from dpfl_plugin.privacy.filters import Plan
from dpfl_plugin.privacy.registered import first_line
from dpfl_plugin.runs.build import build
from dpfl_plugin.runs.job import Job, check_limit, make_job, shared_facts, waiting, with_slots
from dpfl_plugin.runs.ledgers import Wait, locked_shared, now, open_shared
from dpfl_plugin.runs.locations import folder_of, key_of
from dpfl_plugin.runs.place import Place


def register_ahead(
    configs: Iterable[Config], base: Path, path: Path, place: Place, wait: Wait, say: Callable[[str], None]
) -> None:
    """Register the runs that have not begun, and were not registered, in the shared ledger ``path``.

    Raises:
        BudgetError: its limit does not afford all of them; nothing was registered.
        ConfigError, DataError, LedgerError: as `run_session`.
    """
    with locked_shared(path, wait) as shared:
        assert shared is not None
        new = [one for one in configs if not folder_of(one).ledger.exists() and waiting(shared, one) is None]
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
            parts = build(config, base, hold=functools.partial(place.hold, key=key_of(config, folder, path)))
            place.begin()  # all have one key
            job = with_slots(make_job(config, base, folder, parts, path, shared), shared)
            job = replace(job, reuses=())  # slots that earlier runs left are for runs that begin one by one
            protection.add((job.parts.rules.neighbouring, job.parts.rules.unit, _marked(job)))
            ahead = {"ahead": run_id(config), "seed": config.public_seed, "started": now()}
            lines.append({**shared_facts(job, shared), **ahead})
            for silo, planned in job.slots.items():
                slots[parts.data_sha256][silo] += planned
        if len(protection) > 1:
            raise ConfigError(
                f"ledger {path}: runs that share it protect against different things (privacy.unit, the "
                "relation that privacy.sampler implies), or, with unit: silo, are on different records: no single "
                "epsilon bounds them. Use a ledger for each."
            )
        plans = [Plan(records, of_silos) for records, of_silos in slots.items()]
        check_limit(shared, path, new[0], plans)
        privacy = new[0].privacy
        totals = functools.partial(first_line, plans[0], privacy.ledger_epsilon, privacy.delta)
        with open_shared(path, totals) as ledger:
            for line in lines:
                ledger.begin_run(line)
            ledger.sync()
    say(f"{len(new)} runs registered in {path}, before the first of them begins.")


def _marked(job: Job) -> str:
    """The records, where runs on others cannot be bounded together with it."""
    return job.parts.data_sha256 if job.parts.rules.unit == "silo" else ""
