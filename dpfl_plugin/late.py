"""torch, what writes its tensors and dp_accounting, imported when something of them is first used.

Torch takes a second of the processor and 180 MiB, and much of this package only hands its tensors on. So modules that
commands without any tensor need, such as `dpfl account` of a ledger, import it from here.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

__all__ = ["dp_accounting", "tensor_files", "torch"]


class _Late(types.ModuleType):
    """A module by its name: whatever is asked of it is asked of the module itself, which Python imports once."""

    _module: types.ModuleType | None = None  # kept: a draw of noise asks three times, and Python's answer takes 3 us

    def __getattr__(self, name: str) -> Any:
        if self._module is None:
            self._module = self._imported()
        return getattr(self._module, name)

    def _imported(self) -> types.ModuleType:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return importlib.import_module(self.__name__)


class _Accounting(_Late):
    """dp_accounting, without scipy.signal and scipy.stats: most of the time that it takes to import, and of all that
    is asked of it here nothing needs more of them than the logarithm of the normal distribution function."""

    def _imported(self) -> types.ModuleType:
        from scipy import special

        left_out = [_Late(name) for name in ("scipy.signal", "scipy.stats") if name not in sys.modules]
        for module in left_out:
            if module.__name__ == "scipy.stats":
                module.norm = types.SimpleNamespace(logcdf=special.log_ndtr)  # type: ignore[attr-defined]
            sys.modules[module.__name__] = module
        try:
            return super()._imported()
        finally:  # for all others they are what they are
            for module in left_out:
                if sys.modules.get(module.__name__) is module:
                    del sys.modules[module.__name__]


if TYPE_CHECKING:
    import dp_accounting as dp_accounting
    import torch as torch
    from safetensors import torch as tensor_files
else:
    dp_accounting = _Accounting("dp_accounting")
    torch = _Late("torch")
    tensor_files = _Late("safetensors.torch")
