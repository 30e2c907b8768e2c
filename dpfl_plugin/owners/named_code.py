"""Code that a configuration names (``module:``), and folders that an owner of records may have it found in."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from dpfl_plugin.config.schema import Config


def names_code(config: Config) -> bool:
    """Whether a plugin of it is a module's, rather than a registered one."""
    return _has_module(config.model_dump(mode="python"))


def is_own(folder: Path) -> bool:
    """Whether nobody but this user, or root, can put a file into a folder. Above it others may rename things, but where
    the sticky bit keeps them from it, as in /tmp."""
    for place in (folder, *folder.resolve().parents):
        found = place.stat()
        open_to_all = bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
        sticky = place != folder and bool(found.st_mode & stat.S_ISVTX)
        if found.st_uid not in (0, os.getuid()) or (open_to_all and not sticky):
            return False
    return True


def _has_module(value: Any) -> bool:
    if isinstance(value, dict):
        return isinstance(value.get("module"), str) or any(map(_has_module, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_module, value))
