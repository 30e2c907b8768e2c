"""Checkpoints: a folder a round, written aside and renamed, so that there is always a whole one.

What is read back decides what is released next, under names that are charged already. So the facts hold a digest of all
tensors, and one of themselves: a checkpoint that is not to the bit what was written is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError

from dpfl_plugin.access import FILES, Access, make_folder, opener
from dpfl_plugin.core.requests import request_digest
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import DataError, Worded
from dpfl_plugin.late import tensor_files
from dpfl_plugin.runs.folder import naming, sync_folder, to_json

SCHEMA = 4
VECTORS: Final = ("server", "silos")
NO_VECTORS: Final = request_digest({}).hex()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state after ``rounds`` rounds; ``facts`` are plain JSON values."""

    rounds: int
    server: Vectors
    silos: Vectors
    facts: dict[str, Any]


def save(folder: Path, checkpoint: Checkpoint, access: Access = "owner") -> None:
    """Write a checkpoint, then delete the older ones; the caller has the run's folder to itself.

    Args:
        access: who may read it.
    """
    name, older = f"round-{checkpoint.rounds:08d}", [*_all(folder), *folder.glob(".tmp-*")]
    # A checkpoint of the same round gets another name: between deleting and renaming there would be none at all.
    again = 1 + max((int(path.suffix[1:] or 0) for path in older if path.stem == name), default=-1)
    final = folder / f"{name}.{again:03d}"
    temporary = folder / f".tmp-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    make_folder(temporary, access)
    digests: dict[str, str] = {}
    for name, vectors in zip(VECTORS, (checkpoint.server, checkpoint.silos), strict=True):
        path = temporary / f"{name}.safetensors"
        digests[name] = request_digest(vectors).hex()
        if not vectors:  # which the digest says: a file less to wait for
            continue
        with naming(path), _as_of_the_system():
            tensor_files.save_file({key: value.contiguous() for key, value in vectors.items()}, path)
            path.chmod(FILES[access])  # till then nobody enters its folder who may not
            _sync(path)
    write_facts(temporary / "facts.json", {"rounds": checkpoint.rounds, **checkpoint.facts, "digests": digests}, access)
    _sync(temporary / "facts.json")
    sync_folder(temporary)  # the names of its files, before it has a name by which it counts
    os.rename(temporary, final)
    sync_folder(folder)
    for path in older:
        shutil.rmtree(path, ignore_errors=True)


def write_facts(path: Path, facts: Mapping[str, Any], access: Access = "owner") -> None:
    """Write the facts of a checkpoint, with a digest of themselves."""
    plain = json.loads(to_json({"schema": SCHEMA, **facts}))
    with naming(path), open(path, "w", opener=opener(access)) as file:
        file.write(to_json({**plain, "digest": _digest(plain)}))


@contextlib.contextmanager
def _as_of_the_system() -> Iterator[None]:
    """A full disk as Python has it: safetensors, written in Rust, raises an error of its own."""
    try:
        yield
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def _digest(facts: Mapping[str, Any]) -> str:
    plain = {key: value for key, value in facts.items() if key != "digest"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def load(folder: Path) -> Checkpoint | None:
    """The newest checkpoint, or None if there is none.

    Raises:
        DataError: it is damaged, or not what was written; the message names the file.
    """
    facts = load_facts(folder)
    if facts is None:
        return None
    newest = _all(folder)[-1]
    try:
        server, silos = (
            {} if facts["digests"][name] == NO_VECTORS else tensor_files.load_file(newest / f"{name}.safetensors")
            for name in VECTORS
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise _unreadable(newest, error) from error
    for name, vectors in zip(VECTORS, (server, silos), strict=True):
        if facts["digests"][name] != request_digest(vectors).hex():
            raise _unreadable(newest, f"{name}.safetensors is not what was written")
    return Checkpoint(int(facts["rounds"]), server, silos, facts)


def load_facts(folder: Path) -> dict[str, Any] | None:
    """The facts of the newest checkpoint, without its vectors; raises as `load`."""
    found = _all(folder)
    if not found:
        return None
    try:
        facts: dict[str, Any] = json.loads((found[-1] / "facts.json").read_text())
    except (OSError, ValueError) as error:
        raise _unreadable(found[-1], error) from error
    if facts.get("schema") != SCHEMA:
        raise DataError(f"{found[-1]}: a checkpoint of schema {facts.get('schema')}; this version reads {SCHEMA}.")
    if facts.get("digest") != _digest(facts):
        raise _unreadable(found[-1], "facts.json is not what was written")
    return facts


def _unreadable(checkpoint: Path, error: Exception | str) -> DataError:
    return DataError(
        Worded(
            f"{checkpoint}: the checkpoint cannot be read: {error}. Restore it from a copy, or start over with another "
            "{out}. Keep the ledger next to it: what it holds stays spent."
        )
    )


def _all(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("round-*") if path.is_dir())


def _sync(path: Path) -> None:
    with naming(path), open(path, "rb+") as file:
        os.fsync(file.fileno())
