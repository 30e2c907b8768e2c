"""Folders where modules that users name (``module: mine:Alg``) are looked for: the working folder, the configuration's.

They come after everything installed, and not before such a module is named: what lies in a folder where somebody
happens to work, a ``yaml.py`` or a distribution's metadata, is not run because of its name.
"""

from __future__ import annotations

import os
import sys

_folders: list[str] = []
_added: list[str] = []


def look_in(folder: str | os.PathLike[str]) -> None:
    """Have modules that users name looked for in ``folder``, too."""
    path = os.path.realpath(folder)
    if path not in _folders:
        _folders.append(path)


def search() -> None:
    """Let modules be imported from the folders; before the import of one that a user has named."""
    for path in _folders:
        if path not in sys.path:
            sys.path.append(path)
            _added.append(path)


def installed() -> list[str]:
    """Where plugins may be installed: the search path without the folders."""
    return [path for path in sys.path if path not in _added]


def leave_out_working_folder() -> None:
    """Undo that ``python -m`` looks in the working folder before all others; python -P never does."""
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]
