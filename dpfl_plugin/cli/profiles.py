"""Where the time of runs went: what `dpfl run --profile` prints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from dpfl_plugin.api.running import Result
from dpfl_plugin.api.runs import Run
from dpfl_plugin.core.stopwatch import PARTS

NOT_IN_TABLE: Final = (
    'The "seconds" of a run are those from its first round to its last: without the start, and without the evaluation '
    "and the files that follow. Loading Python's libraries comes before all of it, and is not counted."
)


def show(results: dict[str, Result], *, as_json: bool) -> None:
    """Where the time went; to stderr where stdout is JSON alone."""
    console = Console(highlight=False, stderr=as_json, width=200, force_terminal=False)
    for label, result in results.items():
        found = Run(Path(result["folder"]), result).profile
        if found is None:
            again = "to take them, run it once more, with --out another folder or seed=N"
            console.print(f"{label}: finished before, without --profile: no times were taken; {again}.", markup=False)
            continue
        console.print(table(label, found))
        console.print(NOT_IN_TABLE, soft_wrap=True, markup=False)


def table(label: str, found: Mapping[str, Any]) -> Table:
    """Seconds and shares by part, a column for the server or the process, and one for all silo ranks together."""
    ranks = list(found.get("silo_ranks", {}).values())
    columns = {"this process": found["process"]} if "process" in found else {"server": found["server"]}
    if ranks:
        columns[f"mean of {len(ranks)} silo ranks"] = {
            part: sum(one.get(part, 0.0) for one in ranks) / len(ranks) for part in PARTS
        }
    made = Table(title=f"{label}: where the time of {found['rounds']} rounds went", title_justify="left")
    made.add_column("part")
    for name in columns:
        made.add_column(f"{name}\nseconds", justify="right")
        made.add_column("\nshare", justify="right")
    for part, what in PARTS.items():
        cells = []
        for seconds in columns.values():
            total = math.fsum(seconds.values()) or 1.0
            cells += [f"{seconds[part]:.3f}", f"{seconds[part] / total:.1%}"] if seconds.get(part) else ["-", "-"]
        made.add_row(f"{part}: {what}", *cells)
    made.add_section()
    made.add_row("all", *(cell for seconds in columns.values() for cell in (f"{math.fsum(seconds.values()):.3f}", "")))
    return made
