"""What lies in memory where tensors and arrays are: more than the values that they show, where they are views."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Memory:
    """One look at it: each piece is read once, however many tensors are views of it."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, int, int], int] = {}

    def of(self, value: Tensor) -> list[Any]:
        """How a tensor lies in its memory, and a checksum of all of that, also of what it does not show; plain values.

        Of what has none that could be read (sparse, quantised, without data), how often it was written to.
        """
        written = [0 if value.is_inference() else value._version, str(value.dtype), list(value.shape)]
        if value.layout != torch.strided or value.is_quantized or value.is_meta:
            return written
        lies = [list(value.stride()), value.storage_offset(), value.is_conj(), value.is_neg()]
        return [*written, *lies, *self._storage(value)]

    def of_array(self, value: np.ndarray[Any, Any] | np.void) -> list[Any]:
        """The same of an array, up to who owns its memory: another array, a tensor, or whatever else has bytes."""
        owner: Any = value
        while (base := getattr(owner, "base", None)) is not None:
            owner = base
        owner = owner.obj if isinstance(owner, memoryview) else owner
        lies = [list(value.strides), value.ctypes.data] if isinstance(value, np.ndarray) else []
        if isinstance(owner, Tensor):
            return [*lies, *self.of(owner)]
        try:
            whole = owner.tobytes() if isinstance(owner, np.ndarray) else memoryview(owner).cast("B")
        except (TypeError, ValueError):  # it shows no bytes
            return lies
        return [*lies, len(whole), zlib.crc32(whole)]

    def _storage(self, value: Tensor) -> list[int]:
        storage = value.untyped_storage()
        room = storage.nbytes()
        key = str(value.device), storage.data_ptr(), room
        if key not in self._sums:
            whole = torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage)
            self._sums[key] = zlib.crc32(whole.cpu().numpy().data) if room else 0
        return [room, self._sums[key]]


def beside(value: Tensor) -> dict[str, object]:
    """What code may keep beside a tensor's values: attributes, also of what it is a view of and of its storage, its
    gradient, and hooks."""
    plain = value.layout == torch.strided and not (value.is_quantized or value.is_meta)
    found = {
        "attributes": vars(value) if hasattr(value, "__dict__") else {},
        "gradient": value.grad if value.is_leaf else None,  # of others, torch warns
        "base": value._base,
        "storage": vars(value.untyped_storage()) if plain else {},
        "hooks": value._backward_hooks,
        "hooks of its gradient": getattr(value, "_post_accumulate_grad_hooks", None),
    }
    return {name: one for name, one in found.items() if isinstance(one, Tensor) or one}
