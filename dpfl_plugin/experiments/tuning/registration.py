"""A tuning in the ledger of its project, which states what all private runs on the same records come to.

A tuning charges what its candidates release to a ledger of its own. In that of the project it is one run, whose slots
are its whole plan, registered before the first release. What a crash makes it release again is registered there before
it is released. Its unused slots serve no other run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from dpfl_plugin.config.load import run_id
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.privacy.composition import Planned
from dpfl_plugin.privacy.ledger_file import is_begun
from dpfl_plugin.privacy.shared_ledger import Registration, runs_in
from dpfl_plugin.runs.backend import Backend
from dpfl_plugin.runs.ledgers import LedgerEntry, Wait, ledger_of, locked_shared, open_shared, read_shared
from dpfl_plugin.runs.privacy_rules import privacy_rules
from dpfl_plugin.runs.record_marks import MarkKey, shared_key_file
from dpfl_plugin.runs.start_notes import shared_total


@contextlib.contextmanager
def registered(
    config: Config,
    base: Path,
    name: str,
    slots: Mapping[int, tuple[Planned, ...]],
    own: Path,
    backend: Callable[[Config], Backend],
    wait: Wait,
) -> Iterator[Registration | None]:
    """Register a tuning in the ledger that its configuration names, which no other run has meanwhile; None if none.

    Args:
        config: of a candidate. name: by which the ledger knows the tuning. own: the tuning's own ledger.

    Raises:
        ConfigError, BudgetError, LedgerError: as `run_config`, of a run with a shared ledger.
    """
    path = ledger_of(config, base)
    if path is None:
        yield None
        return
    with locked_shared(path, wait) as before:
        assert before is not None
        key = _share_key(path, own)
        if any(run.name == name for run in runs_in(before)):
            opened = open_shared(path)
        elif is_begun(own):
            raise ConfigError(
                f"privacy.ledger={config.privacy.ledger!r}: this tuning began without it, so what it released is "
                "not in that ledger. Leave privacy.ledger out, or start over with another out."
            )
        else:
            survey = backend(config).hold(config, base, key).survey
            facts = {"name": config.name, "id": run_id(config), "tuning": True}
            entry = LedgerEntry(path, name, facts, config, survey)
            entry.check_noise(before, privacy_rules(config, config.privacy.noise_multiplier or 0.0).release(1.0))
            opened = entry.afforded(before, slots, reuse=False).begin()
        with opened as ledger:
            registration = Registration(ledger, name)
            if is_begun(own):
                registration.deduct(read_shared(own).tally)
            if text := shared_total(ledger, config.privacy.delta):
                wait.say(text)
            yield registration


def _share_key(path: Path, own: Path) -> Path:
    """Have the tuning cut its records by the key of the project's ledger, so that both know the same records."""
    key = MarkKey.at(shared_key_file(own))
    if not key.kept and not is_begun(own):
        shared = MarkKey.at(shared_key_file(path))
        shared.keep()
        MarkKey(key.path, shared.value, kept=False).keep()
    return key.path
