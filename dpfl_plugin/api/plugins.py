"""Which plugins are installed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, overload

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dpfl_plugin import registry
from dpfl_plugin.api import fitting
from dpfl_plugin.core.text import Printed
from dpfl_plugin.errors import ConfigError, PluginError, nearest

__all__ = ["Plugin", "plugins"]

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


class OfGroup(Printed, list[Plugin]):
    """The plugins of a group; ``print`` shows what `dpfl list GROUP` does.

    Attributes:
        group: "algorithms", "engines", ...
    """

    def __init__(self, group: str, found: Sequence[Plugin]) -> None:
        super().__init__(found)
        self.group = group

    def __str__(self) -> str:
        return fitting.printed(lambda console: show(console, {self.group: self}), WIDTH)


class OfAllGroups(Printed, dict[str, OfGroup]):
    """All plugins, by group; ``print`` shows what `dpfl list` does."""

    def __str__(self) -> str:
        return fitting.printed(lambda console: show(console, self), WIDTH)


def show(console: Console, found: Mapping[str, Sequence[Plugin]]) -> None:
    """Print a table for each group."""
    for name, group in found.items():
        table = Table(title=name, title_justify="left", box=None, pad_edge=False, title_style="bold")
        for column in ("name", "what it is", "options"):
            table.add_column(column, overflow="fold")
        for plugin in group:
            table.add_row(plugin.name, escape(plugin.summary), escape(", ".join(plugin.options)))
        console.print(table)
        console.print()


@overload
def plugins(group: str) -> OfGroup: ...
@overload
def plugins(group: None = None) -> OfAllGroups: ...
def plugins(group: str | None = None) -> OfGroup | OfAllGroups:
    """The plugins that are installed, of this package and of others; as `dpfl list`.

    Args:
        group: "algorithms", "engines", "datasets", ...; None: all.

    Returns:
        those of the group, as a list; all by group, as a dict of lists.

    Raises:
        ConfigError: there is no such group.
    """
    found = plugins_of(group)
    return found if group is None else found[group]


def plugins_of(group: str | None) -> OfAllGroups:
    """As `plugins`, always by group."""
    if group is not None and group not in registry.GROUPS:
        known = ", ".join(registry.GROUPS)
        close = nearest(group, registry.GROUPS) if isinstance(group, str) else ""
        raise ConfigError(f"there is no group {group!r}{close}. Known: {known}.")
    groups = registry.GROUPS if group is None else [group]
    return OfAllGroups(
        (name, OfGroup(name, [_described(name, one) for one in registry.names(name)])) for name in groups
    )


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
