"""Which plugins are installed."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from dpfl_plugin import registry
from dpfl_plugin.errors import ConfigError, PluginError, nearest

__all__ = ["Plugin", "plugins"]


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


def plugins(group: str | None = None) -> list[Plugin] | dict[str, list[Plugin]]:
    """The plugins that are installed, of this package and of others; as `dpfl list`.

    Args:
        group: "algorithms", "engines", "datasets", ...; None: all.

    Returns:
        those of the group; by group for all.

    Raises:
        ConfigError: there is no such group.
    """
    found = plugins_of(group)
    return found if group is None else found[group]


def plugins_of(group: str | None) -> dict[str, list[Plugin]]:
    """As `plugins`, always by group."""
    if group is not None and group not in registry.GROUPS:
        known = ", ".join(registry.GROUPS)
        close = nearest(group, registry.GROUPS) if isinstance(group, str) else ""
        raise ConfigError(f"there is no group {group!r}{close}. Known: {known}.")
    groups = registry.GROUPS if group is None else [group]
    return {name: [_described(name, plugin) for plugin in registry.names(name)] for name in groups}


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
