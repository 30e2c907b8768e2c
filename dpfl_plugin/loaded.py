"""Which source files the modules of this process were really loaded from: digests taken as they are read.

A file may be changed between an import and any later look at it, and Python may load bytecode that is older than its
source. So modules that are neither of Python nor of an installed distribution are compiled from the very bytes that are
digested, by a finder that stands before Python's own. The script that Python was started with is read before: its file
is compiled once more, which has to give the code that is running. What else was imported before this module is known
by its file, if that has not changed since the process began; else it is in doubt.
"""

from __future__ import annotations

import functools
import hashlib
import os
import site
import sys
import sysconfig
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, FrameType, ModuleType
from typing import Final, Literal

Origin = Literal["python", "installed", "user"]
CLOCKS_APART: Final = 0.05  # seconds between a file system's clock and the process'


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a module, as it was loaded."""

    path: str
    data: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


class InDoubtError(Exception):
    """What a module was loaded from cannot be told; the message says why."""


_loaded: dict[str, Source] = {}
_asked: dict[str, set[str]] = {}  # by module, what was loaded while its code was running
_times = [0]


def asked_for_by(module: str) -> list[str]:
    """The users' modules that were loaded while code of a user's ``module`` was running: by an import, or otherwise."""
    return sorted(_asked.get(module, ()))


def times() -> int:
    """How often a user's module was loaded, or loaded anew, by this process."""
    return _times[0]


class _Recording(SourceFileLoader):
    """Compiles the bytes that it digests; bytecode on disk is left alone."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        data = self.get_data(path)
        code: CodeType = self.source_to_code(data, path)
        _loaded[fullname] = Source(path, data)
        _note_who_asks(fullname)
        _times[0] += 1
        return code


def _note_who_asks(fullname: str) -> None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        asking = frame.f_globals.get("__name__")
        if isinstance(asking, str) and asking in _loaded and asking != fullname:
            _asked.setdefault(asking, set()).add(fullname)
        frame = frame.f_back


class _Finder:
    """Python's own finder of files, with `_Recording` as the loader of users' modules."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None or type(spec.loader) is not SourceFileLoader:
            return spec
        if origin_of(spec.origin) == "user":
            spec.loader = _Recording(name, spec.origin)
        return spec


def watch() -> None:
    """Have users' modules recorded from now on. Finders of others keep their place before ours."""
    if _Finder not in sys.meta_path:
        found: list[object] = list(sys.meta_path)
        place = found.index(PathFinder) if PathFinder in found else len(found)
        sys.meta_path.insert(place, _Finder)


@functools.cache
def origin_of(path: str) -> Origin:
    """Whose a file is: Python's, an installed distribution's, or a user's; that of an editable install is a user's."""
    real = os.path.realpath(path)
    if real.startswith(_installed()):
        return "installed"
    return "python" if real.startswith(_python()) else "user"


@functools.cache
def _installed() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = [paths["purelib"], paths["platlib"], *site.getsitepackages(), site.getusersitepackages()]
    # Of a distribution that Debian's Python has, or of a base that a virtual environment was made to see.
    folders += [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    return tuple({os.path.join(os.path.realpath(folder), "") for folder in folders})


@functools.cache
def _python() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({os.path.join(os.path.realpath(paths[name]), "") for name in ("stdlib", "platstdlib")})


def source_of(module: ModuleType) -> Source:
    """What a module was loaded from.

    Raises:
        InDoubtError: it cannot be told.
    """
    name, path = module.__name__, getattr(module, "__file__", None)
    spec_name = getattr(getattr(module, "__spec__", None), "name", name)  # of a module that is run as __main__
    known = _loaded.get(spec_name)
    if path is None:
        raise InDoubtError(f"module {name} has no file: it was made in a notebook, or by a program")
    if known is not None and known.path == path:
        return known
    if _SCRIPT is not None and name == "__main__" and _SCRIPT.path == path:
        return _loaded.setdefault(spec_name, _SCRIPT)
    if not path.endswith(".py"):
        raise InDoubtError(f"module {name} ({path}) has no Python source")
    try:
        changed = os.stat(path).st_ctime
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise InDoubtError(f"the source of module {name} ({path}) cannot be read: {error.strerror}") from error
    if changed_since_beginning([changed]):
        raise InDoubtError(
            f"module {name} ({path}) was imported before dpfl_plugin, or by other means than import, and its file "
            "changed since this process began"
        )
    return _loaded.setdefault(spec_name, Source(path, data))


def changed_since_beginning(times: Iterable[float]) -> bool:
    """Whether a file with one of these times of change (st_ctime) may have changed since this process began."""
    return BEGAN is None or any(time > BEGAN - CLOCKS_APART for time in times)


def _process_began() -> float | None:
    """When this process began, in seconds since 1970; None where the system does not say."""
    try:
        with open("/proc/self/stat") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        up = time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.time() - (up - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def _script() -> Source | None:
    """The source of the script that imports this module, directly or not; None where it is not certainly that."""
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    if main is None or not isinstance(path, str) or not path.endswith(".py") or origin_of(path) != "user":
        return None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_globals is not vars(main) or frame.f_code.co_name != "<module>"):
        frame = frame.f_back
    if frame is None:
        return None
    try:
        with open(path, "rb") as file:
            data = file.read()
        same = compile(data, path, "exec", dont_inherit=True) == frame.f_code
    except (OSError, SyntaxError, ValueError):
        return None
    return Source(path, data) if same else None


_SCRIPT: Final = _script()
BEGAN: Final = _process_began()  # here, since a forked process begins later than what it inherits was imported
watch()
