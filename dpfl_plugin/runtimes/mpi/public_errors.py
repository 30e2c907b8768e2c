"""What rank 0 hears of an error at a silo rank: its kind and its place, and no text that may quote records."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import dpfl_plugin
from dpfl_plugin.errors import DataError, DpflError, LimitError, MemoryShortError, NoFileError
from dpfl_plugin.runs import plugin_errors

_PACKAGE = str(Path(dpfl_plugin.__file__).parent) + os.sep


def public_text(error: BaseException) -> str | None:
    """What an error says to rank 0, where no record can have a part in it; None where one may.

    An owner's refusal, and a lack of memory, have words for others. What this package raises tells of the
    configuration, of messages and of what is public of data; unless it is about what is in a data file, or quotes what
    other code raised.
    """
    if isinstance(error, LimitError | MemoryShortError):
        return error.public
    return str(error) if all(map(_quotes_nothing, _chain(error))) else None


def kind_and_place(error: BaseException, plugins: Sequence[object]) -> str:
    """ "ValueError in plugin package.module:name (file.py, line 3)", or in the file where it was raised first.

    Args:
        plugins: see `plugin_errors.through`.
    """
    first = list(_chain(error))[-1]
    found = plugin_errors.through(first, plugins)
    if found is not None:
        return f"{type(error).__name__} in plugin {found.name} ({Path(found.file).name}, line {found.line})"
    frame = _last_frame(first) or _last_frame(error)
    if frame is None:
        return type(error).__name__
    ours = frame.filename.startswith(_PACKAGE)
    file = "dpfl_plugin" + os.sep + frame.filename.removeprefix(_PACKAGE) if ours else Path(frame.filename).name
    return f"{type(error).__name__} ({file}, line {frame.lineno})"


def _quotes_nothing(error: BaseException) -> bool:
    frame = _last_frame(error)
    ours = frame is not None and frame.filename.startswith(_PACKAGE)
    of_contents = isinstance(error, DataError) and not isinstance(error, NoFileError)
    return ours and isinstance(error, DpflError) and not of_contents


def _chain(error: BaseException) -> Iterator[BaseException]:
    """It, and what it was raised for, the first one last."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        yield current
        current = current.__cause__ or current.__context__


def _last_frame(error: BaseException) -> traceback.FrameSummary | None:
    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1] if frames else None
