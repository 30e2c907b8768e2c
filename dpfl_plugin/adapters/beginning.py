"""What a silo begins with: the configuration as it sees it, its own folder, its engine and its noise."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpfl_plugin.adapters.agreement import Agreement
from dpfl_plugin.adapters.kept import Decided, Hashed
from dpfl_plugin.adapters.state import STATE
from dpfl_plugin.config.schema import Config
from dpfl_plugin.data.base import Holding, Survey
from dpfl_plugin.errors import ConfigError, DataError, LedgerError
from dpfl_plugin.gradients.choice import PassedTrials
from dpfl_plugin.gradients.losses import LOSSES
from dpfl_plugin.owners.limits import Limits
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.ledger_file import is_begun
from dpfl_plugin.runs.build import Parts, build
from dpfl_plugin.runs.folder import RunFolder


def own(agreement: Agreement, *, seeded: bool, limits: Limits | None) -> Config:
    """As one silo sees it: it may be asked in every round, whatever the server says of draws; within limits by how many
    records its owner's file says that there are at least, and not by how many there are."""
    config = agreement.config
    privacy = config.privacy.model_copy(update={"randomness": "seeded" if seeded else "fresh"})
    dtype = str(agreement.dtype).removeprefix("torch.")
    runtime = config.runtime.model_copy(update={"dtype": dtype})
    made = config.model_copy(update={"silo_rate": 1.0, "privacy": privacy, "runtime": runtime})
    return made.with_least_records(None if limits is None else limits.min_records)


def parts_of(
    decided: Decided,
    found: Hashed,
    module: nn.Module,
    num_silos: int,
    id: int,
    noise_multiplier: float | None,
    passed: PassedTrials | None,
    limits: Limits | None,
) -> Parts:
    """Engine, noise and loss of one silo; ``noise_multiplier`` of its ledger, None to solve for it."""
    mine = found.records
    known = decided.config.least_records or len(mine.train_y)
    # Of the others nothing is known here, and nothing of them is needed: as if all were like this one.
    survey = Survey(
        num_classes=0,
        feature_shape=mine.train_x.shape[1:],
        caveats=(),
        num_records=(known,) * num_silos,
        num_test_records=(0,) * num_silos,
        digests=(found.digest,),
    )
    holding = Holding(survey, {id: mine}, digests={id: found.digest})
    hold = lambda config, base: holding  # noqa: E731
    parts = build(decided.config, Path(), noise_multiplier, hold=hold, module=module, loss=decided.loss, passed=passed)
    _check_labels(parts, id, limits)
    return parts


def _check_labels(parts: Parts, id: int, limits: Limits | None) -> None:
    """Check that labels are classes that the model tells apart by one of our losses.

    Elsewhere the data set says how many classes there are. By the logistic loss -1 or 2 would train something else.

    Raises:
        DataError: one is not. LimitError: it may be, by the owner's file, which within limits is all that is asked.
    """
    if parts.loss not in LOSSES.values():
        return
    records = parts.train[id]
    with torch.no_grad():
        outputs = parts.module(torch.zeros_like(records.features[:1]))
    num_outputs = 1 if outputs.dim() == 1 else int(outputs.shape[1])
    if limits is not None:
        limits.check_outputs(num_outputs)
        return
    classes = max(2, num_outputs)
    least, most = int(records.labels.min()), int(records.labels.max())
    if not 0 <= least <= most < classes:
        raise DataError(
            f"labels are from {least} to {most}: for this model and its loss they must be from 0 to {classes - 1}. "
            "Number the classes from 0, or give the model an output for each."
        )


def holds(path: Path, text: str) -> bool:
    """Whether a file has this text."""
    try:
        return path.read_text() == text
    except (OSError, ValueError):
        return False


def begun(files: RunFolder, id: int, run: str, sha256: str) -> Ledger | None:
    """The ledger in a folder, to go on with, which says how the silo began; None if there is none.

    Raises:
        ConfigError: it is of another silo or agreement; DataError: of other records.
        LedgerError: it is missing where it should be, or damaged.
    """
    if not is_begun(files.ledger):
        if (files.path / STATE).exists():
            raise LedgerError(
                f"{files.ledger} is missing, or has not one whole line, though {STATE} is beside it: restore it from a "
                "copy."
            )
        return None
    with contextlib.ExitStack() as stack:
        ledger = stack.enter_context(Ledger.open(files.ledger))
        _check(files, ledger.facts, id, run, sha256)
        stack.pop_all()
    return ledger


def _check(files: RunFolder, facts: Mapping[str, Any], id: int, run: str, sha256: str) -> None:
    for key, value, what in (("silo", id, "silo"), ("run", run, "agreement")):
        if facts.get(key) != value:
            raise ConfigError(
                f"{files.path} is the folder of {what} {facts.get(key)}, not of {value}. Use another folder: what was "
                "released there stays released."
            )
    if facts.get("records_sha256") != sha256:
        raise DataError(
            f"{files.path}: the records are not those that this silo began with. Restore them, or start over in "
            "another folder; loaders must not change records at random (augmentation)."
        )
