"""Features that took long to compute, in files beside the run: as private as the records that they were made of."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.data.base import Features
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.file_permissions import private_file, private_folder

FORMAT: Final = 1  # of files and keys


class FeatureCache:
    """A folder with one array for each array of records, found by a digest of both what is computed and the records.

    Files can be read by their owner only. They appear whole or not at all, and are
    read by mapping them into memory; one that is damaged is made anew. They stay until somebody removes them.

    Args:
        made_by: plain JSON values that decide what is computed.
    """

    def __init__(self, folder: Path, made_by: list[Any]) -> None:
        self._folder, self._made_by = folder, made_by

    def get(self, x: NDArray[Any], make: Callable[[], Features]) -> Features:
        """The features of records ``x`` [n, *shape]: from the folder, or from ``make``, and kept then.

        Raises:
            ConfigError: the folder cannot be written to.
        """
        key = self._key(x)
        array, facts = self._folder / f"{key}.npy", self._folder / f"{key}.json"
        features = _read(array, facts, len(x))
        if features is not None:
            return features
        made = make()
        try:
            private_folder(self._folder)
            with _replaced(array) as file:
                np.save(file, made, allow_pickle=False)
            with _replaced(facts) as file:  # the last: with it the array counts
                file.write(json.dumps({"sha256": _sha256(made), "shape": list(made.shape)}).encode())
        except OSError as error:
            raise ConfigError(
                f"cache={str(self._folder)!r}: features cannot be kept there ({error.strerror}). Name a folder that "
                "can be written to and has room for them, or leave cache out."
            ) from error
        return made

    def _key(self, x: NDArray[Any]) -> str:
        hasher = hashlib.sha256(json.dumps([FORMAT, self._made_by, list(x.shape), str(x.dtype)]).encode())
        hasher.update(np.ascontiguousarray(x).data)
        return hasher.hexdigest()


@contextmanager
def _replaced(path: Path) -> Iterator[BinaryIO]:
    """A new file in the place of ``path``, whole or not at all, for its owner only."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb", opener=private_file) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _read(array: Path, facts: Path, count: int) -> Features | None:
    """What is kept; None if it is not there, or not what was kept."""
    try:
        facts_there = json.loads(facts.read_bytes())
        # Copy on write: a later step may work in place, and the file stays as it is.
        features: Features = np.load(array, mmap_mode="c", allow_pickle=False)
        same = features.dtype == np.float32 and len(features) == count and list(features.shape) == facts_there["shape"]
        return features if same and _sha256(features) == facts_there["sha256"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _sha256(x: Features) -> str:
    return hashlib.sha256(np.ascontiguousarray(x).data).hexdigest()
