"""What lies in memory where tensors and arrays are: more than the values that they show, where they are views."""

from __future__ import annotations

import array
import zlib
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

_BUFFERS: Final = (bytearray, array.array)


class Memory:
    """One look at it: each piece is read once, however many tensors are views of it."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, int, int], int] = {}

    def of(self, value: Tensor) -> list[Any]:
        """How a tensor lies in its memory, and a checksum of all of that, also of what it does not show; plain values.

        Of what has none that could be read (sparse, quantised, without data), how often it was written to.
        """
        written = 0 if value.is_inference() else value._version
        if value.layout != torch.strided or value.is_quantized or value.is_meta:
            return [written]
        lies = [str(value.dtype), list(value.shape), list(value.stride()), value.storage_offset()]
        return [written, *lies, value.is_conj(), value.is_neg(), *self._storage(value)]

    def marks(self, value: Tensor) -> list[Any]:
        """What is kept beside a tensor's values: a gradient."""
        grad = value.grad if value.is_leaf else None  # of others, torch warns
        return [] if grad is None else self.of(grad)

    def of_array(self, value: np.ndarray[Any, Any]) -> list[Any]:
        """The same of an array, up to who owns its memory: another array, a tensor, or bytes."""
        owner: Any = value
        while (base := getattr(owner, "base", None)) is not None:
            owner = base
        owner = owner.obj if isinstance(owner, memoryview) else owner
        lies = [list(value.strides), value.ctypes.data]
        if isinstance(owner, Tensor):
            return [*lies, *self.of(owner)]
        if isinstance(owner, np.ndarray) and not owner.dtype.hasobject:
            return [*lies, owner.nbytes, zlib.crc32(owner.tobytes())]
        return [*lies, len(owner), zlib.crc32(owner)] if isinstance(owner, _BUFFERS) else lies

    def _storage(self, value: Tensor) -> list[int]:
        storage = value.untyped_storage()
        room = storage.nbytes()
        key = str(value.device), storage.data_ptr(), room
        if key not in self._sums:
            whole = torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage)
            self._sums[key] = zlib.crc32(whole.cpu().numpy().data) if room else 0
        return [room, self._sums[key]]
