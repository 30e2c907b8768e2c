"""`dpfl.plugins`: which plugins are installed."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dpfl_plugin import registry, terminal
from dpfl_plugin.core.text import Printed
from dpfl_plugin.errors import ConfigError, PluginError, nearest

__all__ = ["Plugin", "Plugins", "plugins"]

WIDTH: Final = 160


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin that is installed.

    Attributes:
        name: as a configuration names it. summary: what it is, in a line; of a broken one "BROKEN:" and why.
        options: that a configuration may set, "name=default", or "name" where it has to.
        origin: the distribution that registers it.
    """

    name: str
    summary: str
    options: tuple[str, ...]
    origin: str


@dataclass(frozen=True, slots=True)
class Plugins(Printed):
    """The plugins that are installed.

    Attributes:
        groups: those of "algorithms", "engines", ..., by the group's name.
    """

    groups: Mapping[str, tuple[Plugin, ...]]

    def __iter__(self) -> Iterator[Plugin]:
        return itertools.chain.from_iterable(self.groups.values())

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {
            group: [
                {"name": item.name, "summary": item.summary, "options": item.options, "from": item.origin}
                for item in plugins
            ]
            for group, plugins in self.groups.items()
        }

    def __str__(self) -> str:
        return terminal.printed(self._show, WIDTH)

    __repr__ = __str__

    def _show(self, console: Console) -> None:
        for group, plugins in self.groups.items():
            table = Table(title=group, title_justify="left", box=None, pad_edge=False, title_style="bold")
            for column in ("name", "what it is", "options"):
                table.add_column(column, overflow="fold")
            for item in plugins:
                table.add_row(item.name, escape(item.summary), escape(", ".join(item.options)))
            console.print(table)
            console.print()


def plugins(group: str | None = None) -> Plugins:
    """The plugins that are installed, of this package and of others.

    Args:
        group: "algorithms", "engines", "datasets", ...; None: all.

    Raises:
        ConfigError: there is no such group.
    """
    if group is not None and group not in registry.GROUPS:
        known = ", ".join(registry.GROUPS)
        close = nearest(group, registry.GROUPS) if isinstance(group, str) else ""
        raise ConfigError(f"there is no group {group!r}{close}. Known: {known}.")
    groups = registry.GROUPS if group is None else [group]
    return Plugins({name: tuple(_described(name, item) for item in registry.names(name)) for name in groups})


def _described(group: str, name: str) -> Plugin:
    origin = registry.origin(group, name)
    try:
        plugin = registry.load(group, name)
        options = tuple(_option(one) for one in registry.options(plugin).values())
    except PluginError as error:  # the others are still worth listing
        return Plugin(name, f"BROKEN: {error}", (), origin)
    return Plugin(name, (inspect.getdoc(plugin) or "").split("\n")[0], options, origin)


def _option(parameter: inspect.Parameter) -> str:
    empty = parameter.default is inspect.Parameter.empty
    return parameter.name if empty else f"{parameter.name}={parameter.default!r}"
