"""Folders where modules that users name (``module: mine:Alg``) are looked for: the working folder, the configuration's.

They come after everything installed, and not before such a module is named: what lies in a folder where somebody
happens to work, a ``yaml.py`` or a distribution's metadata, is not run because of its name.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

_working: list[str] = []
_folders: list[str] = []  # of configurations, the newest first
_added: list[str] = []


def look_in(folder: str | os.PathLike[str]) -> None:
    """Have modules that users name looked for in ``folder``, too, and there before in folders of earlier calls."""
    path = os.path.realpath(folder)
    if path in _folders:
        _folders.remove(path)
    _folders.insert(0, path)


def look_in_working_folder() -> None:
    """Have modules that users name looked for in the working folder, before all other folders of this kind."""
    _working[:] = [os.path.realpath(os.getcwd())]


def search() -> None:
    """Let modules be imported from the folders; before the import of one that a user has named."""
    wanted = dict.fromkeys([*_working, *_folders])
    sys.path[:] = [path for path in sys.path if path not in _added]
    _added[:] = [path for path in wanted if path not in sys.path]
    sys.path.extend(_added)


def another(name: str) -> tuple[str, str] | None:
    """(the file that was imported, the one that would be imported now) under a module's name, if they differ.

    Python imports a name once in a process. Where two configurations, in folders of their own, name modules alike, the
    second would silently have the first one's.
    """
    top = name.partition(".")[0]
    spec = getattr(sys.modules.get(top), "__spec__", None)
    found = PathFinder.find_spec(top, sys.path)
    if spec is None or found is None or not spec.origin or not found.origin:
        return None
    same = os.path.realpath(spec.origin) == os.path.realpath(found.origin)
    return None if same else (spec.origin, found.origin)


def installed() -> list[str]:
    """Where plugins may be installed: the search path without the folders."""
    return [path for path in sys.path if path not in _added]


def leave_out_working_folder() -> None:
    """Undo that ``python -m`` looks in the working folder before all others; python -P never does."""
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]
