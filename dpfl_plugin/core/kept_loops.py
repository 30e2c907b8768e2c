"""Loops that numba compiled and keeps on disk, bound to all the sources that they were compiled from."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any


def bind(function: Callable[..., Any], *modules: ModuleType) -> None:
    """Have what numba keeps of ``function`` used only as long as ``modules`` have the source that they have now.

    numba compiles functions and constants of other files into a loop, and takes the loop from its cache until the
    loop's own file changes: a mended constant would never reach those who ran the old one. The files of the cache are
    called by the function's qualified name, which gets a digest of the sources here.

    Raises:
        OSError: there is no source of a module.
    """
    sources = hashlib.sha256()
    for module in modules:
        sources.update(hashlib.sha256(inspect.getsource(module).encode()).digest())
    function.__qualname__ += f"_{sources.hexdigest()[:16]}"
