"""The code that a configuration names, as ``package.module:callable``; nothing of it is imported here.

Whatever the key, `registry.load_object` imports nothing but what `registry.names_callable`. So every such text in a
configuration counts, under whichever key, also in the options of a plugin, and a key that is added later does, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dpfl_plugin.config.schema import Config
from dpfl_plugin.registry import names_callable


def named_code(config: Config) -> dict[str, str]:
    """{key: ``package.module:callable``} of all that a configuration may have imported, in its order."""
    return dict(_named(config.model_dump(mode="python"), ""))


def _named(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        if names_callable(value):
            yield key, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _named(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _named(item, f"{key}[{index}]")
