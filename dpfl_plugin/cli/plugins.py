"""`dpfl list`."""

from __future__ import annotations

import json
import sys

from rich.console import Console

from dpfl_plugin.api.plugins import WIDTH, plugins_of, show


def list_group(group: str | None, *, as_json: bool) -> None:
    """Print the plugins of one group, or of all."""
    found = plugins_of(group)
    if as_json:
        plain = {
            name: [{"name": p.name, "summary": p.summary, "options": p.options, "from": p.origin} for p in plugins]
            for name, plugins in found.items()
        }
        print(json.dumps(plain, indent=2))
        return
    show(Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH), found)
