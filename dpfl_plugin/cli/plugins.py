"""`dpfl list`."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dpfl_plugin.api.plugins import plugins_of
from dpfl_plugin.errors import ConfigError

if TYPE_CHECKING:
    from dpfl_plugin.api.engine_costs import EngineCost, EngineCosts


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
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    for name, plugins in found.items():
        table = Table(title=name, title_justify="left", box=None, pad_edge=False, title_style="bold")
        for column in ("name", "what it is", "options"):
            table.add_column(column, overflow="fold")
        for plugin in plugins:
            table.add_row(plugin.name, escape(plugin.summary), escape(", ".join(plugin.options)))
        console.print(table)
        console.print()


def list_engines(group: str | None, path: Path, settings: list[str], *, as_json: bool) -> None:
    """Print which engines support a configuration's model, what they cost, and which one a run would use.

    Raises:
        UnsupportedError: none can be used; after what was found is printed. ConfigError, DataError: as `dpfl.engines`.
    """
    if group != "engines":
        raise ConfigError("--for CONFIG is for engines: dpfl list engines --for CONFIG.")
    from dpfl_plugin.api.engine_costs import engines
    from dpfl_plugin.api.experiment import Experiment

    found = engines(Experiment(path, tuple(settings)))
    if as_json:
        facts = {"batch_size": found.batch_size, "dimension": found.dimension, "participants": found.participants}
        print(json.dumps({**facts, "engines": [dataclasses.asdict(one) for one in found.engines]}, indent=2))
    else:
        _show(found)
    if found.refusal is not None:
        raise found.refusal


def _show(found: EngineCosts) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    table = Table(box=None, pad_edge=False)
    for column in ("engine", "estimated us", "measured us"):
        table.add_column(column, justify="left" if column == "engine" else "right", no_wrap=True)
    table.add_column("", overflow="fold")
    for one in found.engines:
        numbers = ["" if value is None else f"{value:,}" for value in (one.estimated_us, one.measured_us)]
        table.add_row(one.engine, *numbers, escape(_said(one)))
    console.print(
        f"a clipped sum over {found.batch_size} records, d = {found.dimension:,}; {found.participants} silos a round, "
        "one by one",
        style="bold",
    )
    console.print(table)
    if found.refusal is None:
        console.print("The estimate decides: a run that is resumed or repeated must make the same choice.")


def _said(one: EngineCost) -> str:
    return "chosen" if one.chosen else "" if one.supported else f"no: {one.why_not}"
