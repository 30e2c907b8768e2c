"""torch, what writes its tensors, and pandas, imported when something of them is first used.

Torch takes a second of the processor and 180 MiB, and much of this package only hands its tensors on. So modules that
commands without any tensor need, such as `dpfl account` of a ledger, import it from here.
"""

from __future__ import annotations

import importlib
import types
from typing import TYPE_CHECKING, Any

from dpfl_plugin.errors import ConfigError

__all__ = ["pandas_for", "tensor_files", "torch"]


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


def pandas_for(name: str, plain: str) -> types.ModuleType:
    """pandas, for the attribute ``name``; ``plain`` has the same without it.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise ConfigError(f"{name} needs pandas: pip install pandas. The same as plain values: {plain}.") from error
    found: types.ModuleType = pandas
    return found
