"""What rank 0 hears of an error at a silo rank: its kind and its place, and no text that may quote records."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import dpfl_plugin
from dpfl_plugin import errors
from dpfl_plugin.errors import LimitError, MemoryShortError, MessageError, NoFileError, TrainingError
from dpfl_plugin.runs import plugin_errors

_ERRORS = errors.__file__
_PACKAGE = str(Path(dpfl_plugin.__file__).parent) + os.sep


def public_text(error: BaseException) -> str | None:
    """What an error says to rank 0, where no record can have a part in it; None where one may.

    An owner's refusal, a lack of memory and a missing file have words for others. A message that rank 0 itself sent,
    and an algorithm that asks for more than it planned, are told in full. Whatever else came up may quote records,
    though it is this package's own: a file without a header has a record in its place, and a plugin's check by
    `errors.require` the value that it refused.
    """
    if isinstance(error, LimitError | MemoryShortError | NoFileError) and _raised_here(error):
        return error.public
    return str(error) if type(error) in (MessageError, TrainingError) and _is_ours(error) else None


def kind_and_place(error: BaseException, plugins: Sequence[object]) -> str:
    """ "ValueError in plugin package.module:name (file.py, line 3)", or in the file where it was raised first.

    Args:
        plugins: see `plugin_errors.through`.
    """
    first = list(_chain(error))[-1]
    found = plugin_errors.through(first, plugins)
    if found is not None:
        return f"{type(error).__name__} in plugin {found.name} ({Path(found.file).name}, line {found.line})"
    frame = _last_frame(first, besides=_ERRORS) or _last_frame(error)
    if frame is None:
        return type(error).__name__
    ours = frame.filename.startswith(_PACKAGE)
    file = "dpfl_plugin" + os.sep + frame.filename.removeprefix(_PACKAGE) if ours else Path(frame.filename).name
    return f"{type(error).__name__} ({file}, line {frame.lineno})"


def _is_ours(error: BaseException) -> bool:
    """Whether this package raised it, and for nothing that other code did."""
    return all(map(_raised_here, _chain(error)))


def _raised_here(error: BaseException) -> bool:
    frame = _last_frame(error)
    return frame is not None and frame.filename.startswith(_PACKAGE)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """It, and what it was raised for, the first one last."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        yield current
        current = current.__cause__ or current.__context__


def _last_frame(error: BaseException, besides: str = "") -> traceback.FrameSummary | None:
    """``besides``: a file that others have raise for them."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != besides]
    return frames[-1] if frames else None
