"""torch, and what writes its tensors, imported when something of them is first used.

Torch takes a second of the processor and 180 MiB, and much of this package only hands its tensors on. So modules that
commands without any tensor need, such as `dpfl account` of a ledger, import it from here.
"""

from __future__ import annotations

import importlib
import types
from typing import TYPE_CHECKING, Any

__all__ = ["tensor_files", "torch"]


class _Late(types.ModuleType):
    """A module by its name: whatever is asked of it is asked of the module itself, which Python imports once."""

    _module: types.ModuleType | None = None  # kept: a draw of noise asks three times, and Python's answer takes 3 us

    def __getattr__(self, name: str) -> Any:
        if self._module is None:
            self._module = importlib.import_module(self.__name__)
        return getattr(self._module, name)


if TYPE_CHECKING:
    import torch as torch
    from safetensors import torch as tensor_files
else:
    torch = _Late("torch")
    tensor_files = _Late("safetensors.torch")
