"""Differentially private federated learning with drift control.

The names below are the public Python interface (docs/python.md). Each is loaded when it is first used, so that
``import dpfl_plugin`` and ``dpfl --help`` stay fast: torch alone takes seconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dpfl_plugin.api.numbers import calibrate as calibrate
    from dpfl_plugin.api.numbers import epsilon as epsilon

__version__ = "0.1.0"

_PUBLIC: Final = {
    "calibrate": "dpfl_plugin.api.numbers",
    "epsilon": "dpfl_plugin.api.numbers",
}
"""Public name: the module that has it."""

__all__ = ["__version__", *sorted(_PUBLIC)]


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})


if not TYPE_CHECKING:  # a type checker shall know the names above, and no others

    def __getattr__(name: str) -> Any:
        if name not in _PUBLIC:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(_PUBLIC[name]), name)
        globals()[name] = found
        return found
