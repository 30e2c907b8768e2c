"""What the other side hears of an error at a silo: its kind and its place, and no text that may quote records."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import torch

import dpfl_plugin
from dpfl_plugin import errors
from dpfl_plugin.errors import (
    DpflError,
    LimitError,
    MemoryShortError,
    MessageError,
    NoFileError,
    RecordKindError,
    UnplannedError,
)
from dpfl_plugin.runs.plugins import plugin_frame

FAILED: Final = "it failed, and its own log says why"
_Told = LimitError | MemoryShortError | NoFileError | RecordKindError
_ERRORS: Final = errors.__file__
_PACKAGE: Final = str(Path(dpfl_plugin.__file__).parent) + os.sep
# What stands between two functions of this package without a word of its own: contextlib, torch.no_grad.
_PYTHON: Final = (sysconfig.get_path("stdlib") + os.sep, "<frozen ")
_TORCH: Final = str(Path(torch.__file__).parent) + os.sep
_INSTALLED: Final = ("site-packages", "dist-packages")


def public_text(error: BaseException, *, limited: bool = False) -> str | None:
    """What an error says to rank 0, where no record can have a part in it; None where one may.

    A message that rank 0 itself sent, and an algorithm that asks for more than it planned, are told in full; of an
    owner's refusal, a lack of memory, a missing file and a kind of records, what is public. Whatever else came up may
    quote records, though it is this package's own: a file without a header has a record in its place, and a plugin's
    check by `errors.require` the value that it refused.

    Args:
        limited: whether owners have set limits: then it tells nothing that may depend on records, missing files and
            kinds of records included.
    """
    asked = type(error) is UnplannedError and _is_ours(error)
    sent = type(error) is MessageError and _is_ours(error) and not _through_others(error)
    if asked or sent:
        return str(error)
    return owners_words(error) if limited else _words(error, MemoryShortError, NoFileError, RecordKindError, LimitError)


def owners_words(error: BaseException) -> str | None:
    """What is public of an owner's refusal; None of others.

    Also of one that this package raised for others' code: a loader does not speak for the owner.
    """
    return _words(error, LimitError)


def words_for_server(error: BaseException) -> str:
    """What a server hears of an error at a silo: the same of all that is no owner's refusal."""
    return owners_words(error) or FAILED


def _words(
    error: BaseException, *kinds: type[LimitError | MemoryShortError | NoFileError | RecordKindError]
) -> str | None:
    known = [one for one in _chain(error) if isinstance(one, DpflError)]
    if not isinstance(error, kinds) or not _raised_here(error) or any(map(_through_others, known)):
        return None
    return error.public


def kind_and_place(error: BaseException, plugins: Sequence[object]) -> str:
    """ "ValueError in plugin package.module:name (file.py, line 3)", or in the file where it was raised first.

    Args:
        plugins: see `plugins.plugin_frame`.
    """
    first = list(_chain(error))[-1]
    name, found = name_of(error), plugin_frame(first, plugins)
    if found is not None:
        return f"{name} in plugin {found.name} ({_shown(found.file)}, line {found.line})"
    frame = _last_frame(first, besides=_ERRORS) or _last_frame(error)
    return name if frame is None else f"{name} ({_shown(frame.filename)}, line {frame.lineno})"


def name_of(error: BaseException) -> str:
    """The name of its class, or of the nearest that a module has: code can make classes by names that it has read."""
    return next(kind.__name__ for kind in type(error).__mro__ if _in_module(kind) is kind)


def kind_of(error: BaseException) -> str | None:
    """Which of the errors of this package it is; None for none."""
    kinds = type(error).__mro__
    return next((kind.__name__ for kind in kinds if getattr(errors, kind.__name__, None) is kind), None)


def _in_module(kind: type) -> object:
    found: object = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = _held(found, part)
    return found


def _held(by: object, name: str) -> object:
    """What it has by this name already: a lazy module would import something now, and may fail."""
    return getattr(by, "__dict__", {}).get(name)


def _shown(file: str) -> str:
    """A file's name; none where code was made as it ran, as its maker calls it what it likes."""
    if file.startswith(_PACKAGE):
        return "dpfl_plugin" + os.sep + file.removeprefix(_PACKAGE)
    known = any(_held(module, "__file__") == file for module in tuple(sys.modules.values()))
    return Path(file).name if known else "code without a file"


def text_of(error: BaseException) -> str:
    """Its text, as far as it has one: that of others' errors is made by their code, which may fail, too."""
    try:
        return str(error)
    except Exception as failed:  # a stranger's code may fail in any way
        return f"{type(error).__name__}, whose text cannot be had: its __str__ raised {type(failed).__name__}"


def _is_ours(error: BaseException) -> bool:
    """Whether this package raised it, and for nothing that other code did."""
    return all(map(_raised_here, _chain(error)))


def _raised_here(error: BaseException) -> bool:
    frame = _last_frame(error)
    return frame is not None and frame.filename.startswith(_PACKAGE)


def _through_others(error: BaseException) -> bool:
    """Whether it came up in others' code that this package had called, or in what that code called."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = [file.startswith(_PACKAGE) for file in files]
    called = files[ours.index(True) :] if True in ours else []
    return not all(file.startswith(_PACKAGE) or _is_between(file) for file in called)


def _is_between(file: str) -> bool:
    installed = any(word in file for word in _INSTALLED)
    return file.startswith(_TORCH) or (file.startswith(_PYTHON) and not installed)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """It, and what it was raised for, the first one last."""
    seen = set[int]()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _last_frame(error: BaseException, besides: str = "") -> traceback.FrameSummary | None:
    """``besides``: a file that others have raise for them."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != besides]
    return frames[-1] if frames else None
