"""`dpfl list`."""

from __future__ import annotations

import inspect
import json
import sys
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dpfl_plugin import registry
from dpfl_plugin.errors import ConfigError, PluginError


def list_group(group: str | None, *, as_json: bool) -> None:
    """Print the plugins of one group, or of all."""
    if group is not None and group not in registry.GROUPS:
        known = ", ".join(registry.GROUPS)
        raise ConfigError(f"there is no group {group!r}{registry.nearest(group, registry.GROUPS)}. Known: {known}.")
    groups = [group] if group else list(registry.GROUPS)
    found = {name: [_describe(name, plugin) for plugin in registry.names(name)] for name in groups}
    if as_json:
        print(json.dumps(found, indent=2))
        return
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    for name, plugins in found.items():
        table = Table(title=name, title_justify="left", box=None, pad_edge=False, title_style="bold")
        for column in ("name", "what it is", "options"):
            table.add_column(column, overflow="fold")
        for plugin in plugins:
            table.add_row(plugin["name"], escape(plugin["summary"]), escape(", ".join(plugin["options"])))
        console.print(table)
        console.print()


def _describe(group: str, name: str) -> dict[str, Any]:
    try:
        plugin = registry.load(group, name)
    except PluginError as error:  # the others are still worth listing
        return {"name": name, "summary": f"BROKEN: {error}", "options": [], "from": registry.origin(group, name)}
    summary = (inspect.getdoc(plugin) or "").split("\n")[0]
    options = [_option(option) for option in registry.options(plugin).values()]
    return {"name": name, "summary": summary, "options": options, "from": registry.origin(group, name)}


def _option(parameter: inspect.Parameter) -> str:
    empty = parameter.default is inspect.Parameter.empty
    return parameter.name if empty else f"{parameter.name}={parameter.default!r}"
