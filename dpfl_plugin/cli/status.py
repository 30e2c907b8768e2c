"""`dpfl status`."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

from rich.live import Live
from rich.text import Text

from dpfl_plugin.api.status import status
from dpfl_plugin.cli.output import show

WATCH_SECONDS = 2.0


def print_status(folder: Path | None, *, watch: bool, every: bool, as_json: bool) -> None:
    """Print how far a folder is; with ``watch`` in place in a terminal, elsewhere a line with each change, until
    nothing is left to wait for."""
    result = status(folder)
    if as_json:
        show(result, as_json)
        return
    summary: list[str] = []
    with Live(auto_refresh=False, transient=True) if sys.stdout.isatty() else contextlib.nullcontext() as live:
        while watch and result.goes_on:
            if live is not None:
                live.update(Text(result.text(every=every)), refresh=True)
            elif result.summary != summary:
                summary = result.summary
                print("; ".join(summary), flush=True)
            time.sleep(WATCH_SECONDS)
            result = status(folder)
    print(result.text(every=every))
