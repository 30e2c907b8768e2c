"""What an algorithm may not touch while it runs: files, sockets, processes, other objects' memory.

CPython tells audit hooks of these (PEP 578). A hook cannot be taken away again, so there is one, which does nothing
unless a `guarded` block is being executed by the same thread.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import sys
import threading
from collections.abc import Iterator
from typing import Any

_FORBIDDEN = {
    "open": "opens the file {0!r}",
    "socket.connect": "opens a network connection",
    "socket.bind": "opens a network connection",
    "subprocess.Popen": "starts the process {0!r}",
    "os.system": "starts the process {0!r}",
    "gc.get_objects": "looks through all objects of the process (gc.get_objects)",
    "gc.get_referrers": "looks for who holds an object (gc.get_referrers)",
}
_CODE = tuple(importlib.machinery.all_suffixes())  # an import in a function is no secret


class Trespass(Exception):
    """A guarded block did what it may not; the message says what, as the end of a sentence."""


class _State(threading.local):
    active: bool = False
    seen: str = ""


_state = _State()


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _state.active or event not in _FORBIDDEN:
        return
    if event == "open" and str(arguments[0]).endswith(_CODE):
        return
    _state.seen = _FORBIDDEN[event].format(*arguments)
    raise Trespass(_state.seen)


@functools.cache
def _install() -> None:
    sys.addaudithook(_hook)


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Raise Trespass if the block touches what it may not, even if it swallows the exception that it gets for it."""
    _install()
    before = _state.active
    _state.active, _state.seen = True, ""
    try:
        yield
    finally:
        _state.active = before
    if _state.seen:
        raise Trespass(_state.seen)


@contextlib.contextmanager
def unguarded() -> Iterator[None]:
    """Inside of a `guarded` block: the framework's own work."""
    before = _state.active
    _state.active = False
    try:
        yield
    finally:
        _state.active = before
