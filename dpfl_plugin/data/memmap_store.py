"""Where records lie: in memory, or in files that are mapped into it, for data sets that are larger than memory."""

from __future__ import annotations

import math
import mmap
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dpfl_plugin.errors import ConfigError

ARENA: Final = 2**28  # bytes of a file: few mappings, however many silos
ALIGNED: Final = 64


class Scratch:
    """Gives out arrays.

    A mapped file has no name: it is unlinked before anything is written to it, so that no record stays on the disk when
    the process ends, however it ends. The system writes pages out, and takes them from memory, as it needs to.

    Args:
        folder: of the files, on a disk and not in memory; None: no files.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._arena: mmap.mmap | None = None
        self._used = 0

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An array to be written to.

        Raises:
            ConfigError: the folder cannot be written to.
        """
        if self._folder is None:
            return np.empty(shape, dtype)
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if self._arena is None or self._used + size > len(self._arena):
            self._arena, self._used = self._file(max(ARENA, size)), 0
        array: NDArray[Any] = np.ndarray(shape, dtype, buffer=self._arena, offset=self._used)
        self._used += -(-size // ALIGNED) * ALIGNED
        return array

    def rows(self, source: NDArray[Any], index: NDArray[np.int64]) -> NDArray[Any]:
        """A copy of some rows of ``source``, in C order."""
        if self._folder is None:
            return np.ascontiguousarray(source[index])
        array = self.empty((len(index), *source.shape[1:]), source.dtype)
        np.take(source, index, axis=0, out=array, mode="clip")  # "raise" would copy twice; the index is our own
        return array

    def _file(self, size: int) -> mmap.mmap:
        try:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                file.truncate(size)
                return mmap.mmap(file.fileno(), size)
        except OSError as error:
            if self._folder is not None and not self._folder.is_dir():
                raise ConfigError(
                    f"data.memory_map={str(self._folder)!r}: there is no such folder. Make it, on a disk with room for "
                    "all records twice, or leave memory_map out."
                ) from error
            raise ConfigError(
                f"data.memory_map={str(self._folder)!r}: no file of {size} bytes can be mapped there "
                f"({error.strerror}). Name a folder on a disk with room for all records twice, or leave it out."
            ) from error
