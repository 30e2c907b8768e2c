"""Checkpoints: one file, replaced as a whole after a round.

What is read back decides what is released next, and what of it is charged already. So a checkpoint has digests of its
facts and of its tensors: one that is not to the bit what was written is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError

from dpfl_plugin.core.requests import request_digest
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import DataError
from dpfl_plugin.file_permissions import private_folder
from dpfl_plugin.late import tensor_files
from dpfl_plugin.runs.folder import to_json, write_atomic

SCHEMA: Final = 5
FILE: Final = "state.safetensors"
START_OVER: Final = "Start over with another out. Keep the ledger next to it: what it holds stays spent."
SERVER, SILOS = "server.", "silos."  # how names of tensors begin


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state after ``rounds`` rounds; ``facts`` are plain JSON values."""

    rounds: int
    server: Vectors
    silos: Vectors
    facts: dict[str, Any]


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint in place of the one before; the caller has the run's folder to itself."""
    vectors = {SERVER + name: value.contiguous() for name, value in checkpoint.server.items()}
    vectors |= {SILOS + name: value.contiguous() for name, value in checkpoint.silos.items()}
    facts = {**checkpoint.facts, "schema": SCHEMA, "rounds": checkpoint.rounds, "tensors": _digest(vectors)}
    text = to_json(facts, None)
    private_folder(folder)
    for path in folder.glob(f".{FILE}.tmp-*"):  # of a process that was killed
        path.unlink()
    write_atomic(folder / FILE, tensor_files.save(vectors, {"facts": text, "sha256": _sha256(text)}))


def load(folder: Path) -> Checkpoint | None:
    """The checkpoint, or None if there is none.

    Raises:
        DataError: it is damaged, or not what was written; the message names the file.
    """
    facts = load_facts(folder)
    if facts is None:
        return None
    path = folder / FILE
    try:
        vectors = tensor_files.load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise _unreadable(path, error) from error
    if facts["tensors"] != _digest(vectors):
        raise _unreadable(path, "its tensors are not what was written")
    server, silos = (
        {name.removeprefix(kind): value for name, value in vectors.items() if name.startswith(kind)}
        for kind in (SERVER, SILOS)
    )
    return Checkpoint(int(facts["rounds"]), server, silos, facts)


def load_facts(folder: Path) -> dict[str, Any] | None:
    """The facts of the checkpoint, without its tensors; raises as `load`."""
    path = folder / FILE
    if not path.exists():
        if any(folder.glob("round-*")):
            raise DataError(f"{folder}: a checkpoint of an earlier version. {START_OVER}")
        return None
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))["__metadata__"]
        text, written = header["facts"], header["sha256"]
    except (OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError) as error:
        raise _unreadable(path, error) from error
    if _sha256(text) != written:
        raise _unreadable(path, "its facts are not what was written")
    facts: dict[str, Any] = json.loads(text)
    if facts["schema"] != SCHEMA:
        raise DataError(f"{path}: a checkpoint of schema {facts['schema']}; this version reads {SCHEMA}.")
    return facts


def saved_rounds(folder: Path) -> int:
    """Rounds of the checkpoint; 0 if there is none that can be read."""
    with contextlib.suppress(DataError):
        return int((load_facts(folder) or {"rounds": 0})["rounds"])
    return 0


def _unreadable(path: Path, error: Exception | str) -> DataError:
    return DataError(f"{path}: the checkpoint cannot be read: {error}. Restore it from a copy. {START_OVER}")


def _digest(vectors: Vectors) -> str:
    return request_digest(vectors).hex()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
