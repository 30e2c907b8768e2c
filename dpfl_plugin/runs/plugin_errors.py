"""What goes wrong in plugins of other packages: told by their name and place, with the traceback in the run's log."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterable
from typing import Any, NamedTuple

from dpfl_plugin.errors import DpflError

OURS = ("dpfl_plugin", "torch")  # where an exception comes from a bug of ours, or from what a plugin called


class Through(NamedTuple):
    """The plugin whose code an exception came through, and where: package.module:name, file, line."""

    name: str
    file: str
    line: int | None


def through(error: BaseException, plugins: Iterable[object]) -> Through | None:
    """None for no stranger's code.

    Args:
        plugins: functions, or instances of classes.
    """
    files: dict[str | None, list[Any]] = {}
    for plugin in plugins:
        named = plugin if inspect.isfunction(plugin) else type(plugin)
        module = inspect.getmodule(named)
        if module is not None and module.__name__.partition(".")[0] not in OURS:
            files.setdefault(getattr(module, "__file__", None), []).append(named)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in files:
            of_file = files[frame.filename]
            named = next((one for one in of_file if one.__name__ == frame.name), of_file[0])
            return Through(f"{named.__module__}:{named.__qualname__}", frame.filename, frame.lineno)
    return None


def place(error: Exception, plugins: Iterable[object]) -> str | None:
    """The plugin whose code an exception came through, with the line, and what was raised; None for no stranger's.

    Args:
        plugins: see `through`.
    """
    found = None if isinstance(error, DpflError) else through(error, plugins)
    if found is None:
        return None
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    return f"plugin {found.name} ({found.file}, line {found.line}) raised {what}"


def trace(error: Exception) -> str:
    """The traceback, for a run's log."""
    return "".join(traceback.format_exception(error))
