"""A folder that holds a run of this configuration already: whether it may be shown, or gone on with."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

from dpfl_plugin import given
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import ConfigError, DataError
from dpfl_plugin.models.fixed import BUILT_ANEW, fixed_digest
from dpfl_plugin.runs import checkpoint as checkpoints
from dpfl_plugin.runs.backend import Backend
from dpfl_plugin.runs.build import Parts
from dpfl_plugin.runs.environment import check_shown
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.runs.hooks import Reporter
from dpfl_plugin.runs.prepare import begun_facts
from dpfl_plugin.runs.rules import cycle_facts

MOST_NAMED = 3
UNFINISHED = (
    "not finished beside it, and of another configuration (config.yaml there): {}. Give that file to go on there. What "
    "was released there adds to what this run releases."
)


def check_finished(
    config: Config, base: Path, folder: RunFolder, reporter: Reporter, backend: Backend, key: Path
) -> None:
    """Say that a finished run is shown, and refuse to if the records or the code are others by now.

    Raises:
        DataError, ConfigError: they are.
    """
    facts = checkpoints.load_facts(folder.checkpoint)
    for note in check_shown(folder, config):
        reporter.note(note)
    try:
        now = backend.hold(config, base, key).survey.data_sha256
    except (DataError, given.MissingError) as error:
        reporter.note(f"the records that it names now cannot be compared with those of this finished run: {error}")
        return
    if facts is not None and facts["data_sha256"] != now:
        raise DataError(
            f"{folder.path} holds the result of this configuration on other records than it names now, or the "
            f"silos' key ({key}), by which they are recognised, is a different one. Use another out for the "
            "new ones."
        )
    reporter.note(f"finished before, not run again: {folder.path}")


def check_beginning(
    folder: RunFolder, resume: bool, alone: bool, note: Callable[[str], None], label: str | None = None
) -> None:
    """As `refuse_unfinished`; ``note`` is told where there is nothing to resume, as of a run by itself.

    Args:
        alone: whether it is to go on as a run by itself, and not as a candidate of a tuning.
        label: of the variant that it is.

    Raises:
        ConfigError: a tuning decides about it: going on by itself would undo what the tuning states.
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
    found = []
    for path in sorted(folder.path.parent.iterdir()) if folder.path.parent.is_dir() else ():
        other = RunFolder(path)
        if path == folder.path or not other.ledger.exists():
            continue
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if json.loads(other.environment.read_text())["label"] is not None:
                continue
            status = json.loads(other.result.read_text())["status"] if other.result.exists() else "begun"
            if status not in ("done", "budget_exhausted"):
                found.append(str(path))
    return found


def refuse_unfinished(folder: RunFolder, resume: bool) -> None:
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


def check_marks(folder: RunFolder, parts: Parts, key: Path) -> None:
    """Raise DataError unless the records are those that the run began with."""
    found = checkpoints.load_facts(folder.checkpoint)
    if found is not None and found["data_sha256"] != parts.data_sha256:
        raise DataError(
            f"{folder.path}: the records are not those that this run began with, or the silos' key ({key}), by "
            "which they are recognised, is a different one, as it is where an owner's limits were set or removed "
            "since. Restore the data files, or the key, or start over with another out."
        )
    if found is not None and found.get("cycle") != cycle_facts(parts.rules).get("cycle"):
        raise ConfigError(
            f"{folder.path}: noise would be correlated in another way (privacy.sampler: cyclic) than this run "
            "began with: this version, or this machine, computes other coefficients. Go on where it began, or "
            "start over with another out."
        )
    if found is not None and found.get("fixed", fixed_digest(parts.module)) != fixed_digest(parts.module):
        raise ConfigError(
            f"{folder.path}: the model's frozen layers or buffers are not those that this run began with. "
            f"{BUILT_ANEW} Or start over with another out."
        )
