"""`dpfl list`."""

from __future__ import annotations

import inspect
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dpfl_plugin import own_folders, registry
from dpfl_plugin.config.load import base_of, load
from dpfl_plugin.errors import ConfigError, DataError, PluginError
from dpfl_plugin.gradients.base import Engine
from dpfl_plugin.training.engines import Engines, engines_for


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


def list_engines(group: str | None, path: Path, settings: list[str], *, as_json: bool) -> None:
    """Print which engines support a configuration's model, what they cost, and which one a run would use."""
    if group != "engines":
        raise ConfigError("--for CONFIG is for engines: dpfl list engines --for CONFIG.")
    own_folders.look_in(base_of(path))
    config = load(path, settings).variants[0].config
    try:
        torch.set_num_threads(config.runtime.threads)
        found = engines_for(config, base_of(path))
    except (ConfigError, DataError) as error:
        raise type(error)(f"{path}: {error}") from error
    lines = [
        {
            "engine": one.name,
            "supported": one.engine is not None,
            "why_not": one.reason or None,
            "estimated_us": None if one.engine is None or one.microseconds is None else round(one.microseconds),
            "measured_us": None if one.engine is None else round(_measured(one.engine, found), 1),
            "chosen": one.name == found.chosen,
        }
        for one in found.candidates
    ]
    facts = {"batch_size": len(found.batch), "dimension": found.parameters.numel(), "participants": found.num_silos}
    if as_json:
        print(json.dumps({**facts, "engines": lines}, indent=2))
        _refuse(path, found)
        return
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    title = "a clipped sum over {batch_size} records, d = {dimension:,}; {participants} silos a round, one by one"
    table = Table(box=None, pad_edge=False)
    for column in ("engine", "estimated us", "measured us"):
        table.add_column(column, justify="left" if column == "engine" else "right", no_wrap=True)
    table.add_column("", overflow="fold")
    for line in lines:
        told = "chosen" if line["chosen"] else "" if line["supported"] else f"no: {line['why_not']}"
        numbers = ["" if line[key] is None else f"{line[key]:,}" for key in ("estimated_us", "measured_us")]
        table.add_row(str(line["engine"]), *numbers, escape(told))
    console.print(title.format(**facts), style="bold")
    console.print(table)
    _refuse(path, found)
    console.print("The estimate decides: a run that is resumed or repeated must make the same choice.")


def _refuse(path: Path, found: Engines) -> None:
    """Raise what a run would, where it could not begin."""
    if found.refusal is not None:
        raise type(found.refusal)(f"{path}: {found.refusal}")


def _measured(engine: Engine, found: Engines) -> float:
    """Microseconds of a clipped sum over made-up records, the median of those that fit into a fraction of a second."""
    out = torch.empty_like(found.parameters, dtype=torch.float64)
    times: list[float] = []
    with torch.no_grad():
        batch, began = engine.prepare(found.batch), time.perf_counter()
        while len(times) < 3 or (time.perf_counter() - began < 0.3 and len(times) < 100):
            start = time.perf_counter()
            engine.clipped_sum(found.parameters, batch, 1.0, out)
            float(out[0])  # a GPU works on while Python does
            times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


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
