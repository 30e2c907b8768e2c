"""Whether the files of a finished run are still those that it wrote, before its result is shown again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from dpfl_plugin.errors import DataError, Worded
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.runs.ledgers import read_whole


def model_file_sha256(folder: RunFolder) -> str:
    """Digest of `model.safetensors`, for `result.json`."""
    return hashlib.sha256(folder.model.read_bytes()).hexdigest()


def check_kept(folder: RunFolder, result: Mapping[str, Any]) -> None:
    """Check the ledger and the model beside a result.

    Raises:
        LedgerError: the ledger is missing or damaged, or lacks what the statement knows of.
        DataError: `model.safetensors` is not what the run wrote; a file that was removed is not missed.
    """
    if folder.ledger.exists() or folder.statement.exists():
        read_whole(folder)
    wrote = result.get("model_file_sha256")  # of an earlier version there is none
    if wrote is not None and folder.model.exists() and model_file_sha256(folder) != wrote:
        raise DataError(
            Worded(
                f"{folder.model} is not what this finished run wrote: it was damaged or replaced. Restore it from a "
                "copy, or run the configuration again with another {out}; the ledger stays as it is: what was released "
                "is spent."
            )
        )
