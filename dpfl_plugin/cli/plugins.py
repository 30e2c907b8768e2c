"""`dpfl list`."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from rich.console import Console

from dpfl_plugin.api.plugins import WIDTH, plugins_of, show
from dpfl_plugin.errors import ConfigError


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


def list_engines(group: str | None, path: Path, settings: list[str], *, as_json: bool) -> None:
    """Print which engines support a configuration's model, what they cost, and which one a run would use.

    Raises:
        UnsupportedError: none can be used; after what was found is printed. ConfigError, DataError: as `dpfl.engines`.
    """
    if group != "engines":
        raise ConfigError("--for CONFIG is for engines: dpfl list engines --for CONFIG.")
    from dpfl_plugin.api.engine_costs import ENGINES_WIDTH, engines
    from dpfl_plugin.api.experiment import Experiment

    found = engines(Experiment(path, tuple(settings)))
    if as_json:
        facts = {"batch_size": found.batch_size, "dimension": found.dimension, "participants": found.participants}
        print(json.dumps({**facts, "engines": [dataclasses.asdict(one) for one in found.engines]}, indent=2))
    else:
        found.show(Console(highlight=False, width=None if sys.stdout.isatty() else ENGINES_WIDTH))
    if found.refusal is not None:
        raise found.refusal
