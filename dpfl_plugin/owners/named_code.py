"""Code that settings name (``module:``), where somebody else wrote them: what may run, and from which folders."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Final

from dpfl_plugin.config.named_code import named_code
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import ConfigError, LimitError
from dpfl_plugin.given import names_object
from dpfl_plugin.registry import names_callable

NOT_WITHIN: Final = "not within this owner's limits"
"""All that others hear of a refusal by an owner's file: which key it is would tell of the file, or of other studies."""
KEY: Final = "code"


def check_code(config: Config, allowed: Collection[str], source: str) -> None:
    """Check that settings name no code but what the owner of this machine names, too, before any of it is imported.

    Objects that the program of this very process made are no code that travels: nothing is imported for them.

    Args:
        allowed: as ``package.module:callable``, to the letter. source: the file that lists it.

    Raises:
        LimitError: they do; its message names the keys.
    """
    other = {key: path for key, path in named_code(config).items() if path not in allowed and not names_object(path)}
    if other:
        named = ", ".join(f"{key} ({path})" for key, path in other.items())
        raise LimitError(
            f"{source}: the settings name code that {KEY}: does not list: {named}. It was not imported. Nothing was "
            "released. Install it on this machine as a plugin, and have the settings name that; or, if you trust it, "
            f"list it under {KEY}:.",
            NOT_WITHIN,
        )


def listed_code(value: object, source: str) -> frozenset[str]:
    """The callables that a file lists under `KEY`.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(value, list) or not all(isinstance(name, str) and names_callable(name) for name in value):
        raise ConfigError(f"{source}: {KEY}={value!r} must be a list of package.module:callable.")
    return frozenset(value)


def is_own(folder: Path) -> bool:
    """Whether nobody but this user, or root, can put a file into a folder. Above it others may rename things, but where
    the sticky bit keeps them from it, as in /tmp."""
    for place in (folder, *folder.resolve().parents):
        status = place.stat()
        open_to_all = bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
        sticky = place != folder and bool(status.st_mode & stat.S_ISVTX)
        if status.st_uid not in (0, os.getuid()) or (open_to_all and not sticky):
            return False
    return True
