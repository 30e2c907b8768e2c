"""What a run's folder holds already: whether the run is shown or resumed, and what it began with."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from dpfl_plugin import given
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import ConfigError, DataError
from dpfl_plugin.models.fixed import BUILT_ANEW, fixed_digest
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.runs import checkpoint as checkpoints
from dpfl_plugin.runs.backend import Backend
from dpfl_plugin.runs.build import Parts
from dpfl_plugin.runs.environment import check_shown
from dpfl_plugin.runs.folder import RunFolder, folder_of
from dpfl_plugin.runs.hooks import Reporter
from dpfl_plugin.runs.ledgers import Wait, check_ledger, check_shared, locked_shared
from dpfl_plugin.runs.privacy_rules import cycle_facts
from dpfl_plugin.runs.record_marks import key_file
from dpfl_plugin.runs.silo_settings import in_facts

MOST_NAMED = 3
UNFINISHED = (
    "not finished beside it, and of another configuration (config.yaml there): {}. Give that file to go on there. What "
    "was released there adds to what this run releases."
)


def check_finished(
    config: Config,
    base: Path,
    folder: RunFolder,
    reporter: Reporter,
    backend: Backend,
    ledger: Path | None,
    wait: Wait,
) -> None:
    """Note that a finished run is shown, and refuse it if its ledger, records or code are not those that it left.

    Raises:
        LedgerError: a ledger is damaged, or is another one. DataError, ConfigError: the records or the code are others.
    """
    if ledger is not None:
        with locked_shared(ledger, wait) as shared:
            check_shared(folder, ledger, shared)
    check_ledger(folder)
    for note in check_shown(folder, config):
        reporter.note(note)
    key = key_file(config, folder, ledger)
    facts = checkpoints.load_facts(folder.checkpoint)
    try:
        current = backend.hold(config, base, key).survey.data_sha256
    except (DataError, given.MissingError) as error:
        reporter.note(f"the records that it names now cannot be compared with those of this finished run: {error}")
        return
    if facts is not None and facts["data_sha256"] != current:
        raise DataError(
            f"{folder.path} holds the result of this configuration on other records than it names now, or the "
            f"silos' key ({key}), by which they are recognised, is a different one. Use another out for the "
            "new ones."
        )
    reporter.note(f"finished before, not run again: {folder.path}")


def check_beginning(
    folder: RunFolder, resume: bool, alone: bool, note: Callable[[str], None], label: str | None = None
) -> None:
    """Check whether the run may begin, or be resumed, in its folder; note where there is nothing to resume.

    Args:
        alone: whether it is a run by itself, and not a candidate of a tuning.
        label: of the variant that it is.

    Raises:
        ConfigError: it may not: see `refuse_unfinished`; or a tuning decides about it, whose statement resuming by
            itself would undo.
    """
    if alone and (tuning := folder.tuning()) is not None:
        raise ConfigError(
            f"{folder.path} is a candidate of the tuning in {tuning}, whose scores decide which of them go on: begin "
            "again with the dpfl tune command that began it, or dpfl.tune. A run by itself needs another out."
        )
    if alone and "tuning" in begun_facts(folder):
        raise ConfigError(
            f"{folder.path} is a copy of a candidate of a tuning, which is not gone on with by itself: the tuning "
            "states that nothing but scores is looked at before it is decided which candidate goes on, and of no "
            "other after. Go on with the tuning, where it is. A run by itself needs another out, and is charged anew."
        )
    refuse_unfinished(folder, resume)
    if resume and alone and not (folder.ledger.exists() or folder.checkpoint.exists()):
        note(f"{folder.path}: nothing to go on from: the run begins.")
        others = _unfinished_beside(folder) if label is None else []
        if others:
            note(f"warning: {UNFINISHED.format(', '.join(others[:MOST_NAMED]) + ' ...' * (len(others) > MOST_NAMED))}")


def _unfinished_beside(folder: RunFolder) -> list[str]:
    """Other runs of this name, by themselves and no variants, that released something and did not end for good."""
    unfinished = []
    for path in sorted(folder.path.parent.iterdir()) if folder.path.parent.is_dir() else ():
        other = RunFolder(path)
        if path == folder.path or not other.ledger.exists():
            continue
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if json.loads(other.environment.read_text())["label"] is not None:
                continue
            status = json.loads(other.result.read_text())["status"] if other.result.exists() else "begun"
            if status not in ("done", "budget_exhausted"):
                unfinished.append(str(path))
    return unfinished


def refuse_unfinished(folder: RunFolder, resume: bool) -> None:
    """Raise ConfigError if an unfinished run is in the folder, and is not to be resumed."""
    if folder.result.exists() and not resume:
        last = json.loads(folder.result.read_text())
        if last["status"] == "failed":
            raise ConfigError(
                f"{folder.path} holds a run of this configuration that failed: {last['reason']}. Change the "
                "configuration, or use resume to try again from its last good state."
            )
    if not resume and (folder.ledger.exists() or folder.checkpoint.exists()):
        raise ConfigError(
            f"{folder.path} holds an unfinished run of this configuration. Use resume to continue it, "
            "or another out to start over (what was released so far stays released)."
        )


def check_same(folder: RunFolder, parts: Parts, key: Path) -> None:
    """Raise DataError or ConfigError unless records, correlated noise and frozen layers are those of the beginning."""
    facts = checkpoints.load_facts(folder.checkpoint)
    if facts is not None and facts["data_sha256"] != parts.data_sha256:
        raise DataError(
            f"{folder.path}: the records are not those that this run began with, or the silos' key ({key}), by "
            "which they are recognised, is a different one, as it is where an owner's limits were set or removed "
            "since. Restore the data files, or the key, or start over with another out."
        )
    if facts is not None and facts.get("cycle") != cycle_facts(parts.rules).get("cycle"):
        raise ConfigError(
            f"{folder.path}: noise would be correlated in another way (privacy.sampler: cyclic) than this run "
            "began with: this version, or this machine, computes other coefficients. Go on where it began, or "
            "start over with another out."
        )
    if facts is not None and facts.get("fixed", fixed_digest(parts.module)) != fixed_digest(parts.module):
        raise ConfigError(
            f"{folder.path}: the model's frozen layers or buffers are not those that this run began with. "
            f"{BUILT_ANEW} Or start over with another out."
        )


def with_begun_seed(config: Config, folder: RunFolder) -> Config:
    """The configuration with the public seed that the run in the folder drew when it began, unless it names one."""
    facts = checkpoints.load_facts(folder.checkpoint)
    return config if facts is None else config.with_public_seed(int(facts["seed"]))


def begun_seed(configs: Iterable[Config]) -> int | None:
    """The public seed that the first of these runs drew when it began; None if none of them has begun."""
    begun = (checkpoints.load_facts(folder_of(config).checkpoint) for config in configs)
    return next((int(facts["seed"]) for facts in begun if facts is not None), None)


def begun_noise(config: Config, folder: RunFolder) -> float | None:
    """The noise multiplier that an unfinished run solved for; None if there is none."""
    if config.privacy.noise_multiplier is not None:
        return None
    known = begun_facts(folder).get("noise_multiplier")
    return None if known is None else float(known)


def begun_silo_noise(config: Config, folder: RunFolder) -> Mapping[int, float] | None:
    """As `begun_noise`, of silos with settings of their own."""
    facts = begun_facts(folder) if config.silos else {}
    return in_facts(facts)[1] if "silos" in facts else None


def begun_facts(folder: RunFolder) -> Mapping[str, Any]:
    """The facts that the ledger of an unfinished run holds; {} if nothing was charged to it."""
    if not folder.ledger.exists():
        return {}
    with folder.ledger.open("rb") as file:
        if not file.readline().endswith(b"\n"):  # nothing was charged: see `open_ledgers`
            return {}
    return Ledger.open(folder.ledger, append=False).facts
