"""The files of users' code that a configuration names (``module:``), so that no old result is shown for edited code."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dpfl_plugin import own_folders
from dpfl_plugin.config.schema import Config


def named_modules(config: Config) -> list[str]:
    """Modules whose code makes a result; trackers only look on."""
    values = config.model_dump(mode="python", exclude={"trackers"})
    paths = [*_module_keys(values), *([config.loss] if ":" in config.loss else ())]
    return sorted({path.partition(":")[0] for path in paths})


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


def _module_keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(path := value.get("module"), str):
            yield path
        for item in value.values():
            yield from _module_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _module_keys(item)
