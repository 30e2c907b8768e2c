"""The files of users' code that a configuration names (``module:``), so that no old result is shown for edited code."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path

from dpfl_plugin import own_folders
from dpfl_plugin.config.named_code import named_code
from dpfl_plugin.config.schema import Config
from dpfl_plugin.registry import module_of


def named_modules(config: Config) -> list[str]:
    """Modules whose code makes a result; trackers only look on."""
    found = named_code(config).items()
    return sorted({module_of(path) for key, path in found if not key.startswith("trackers[")})


def file_digests(config: Config) -> dict[str, str]:
    """{module: sha256 of its file}, of the modules that have one; objects that a program gave have none."""
    found, names = {}, named_modules(config)
    if names:
        own_folders.search()
    for module in names:
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError, AttributeError):  # told when the plugin is loaded
            continue
        if spec is not None and spec.origin is not None and Path(spec.origin).is_file():
            found[module] = hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()
    return found


def changed(now: Mapping[str, str], then: Mapping[str, str]) -> list[str]:
    """The modules whose file is another one; a file that is gone cannot be compared."""
    return [module for module, digest in sorted(then.items()) if now.get(module, digest) != digest]
