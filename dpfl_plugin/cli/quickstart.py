"""`dpfl quickstart`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from dpfl_plugin.api import quickstart as api
from dpfl_plugin.cli.output import show
from dpfl_plugin.interrupts import INTERRUPTED, stopping


def quickstart(settings: list[str], out: Path | None, seeds: int | None, *, as_json: bool) -> int:
    """Run both examples and print what they show; returns the exit code."""
    with stopping(exits=True) as stop:
        try:
            found = api.quickstart(settings, out=out or Path("runs"), seeds=seeds, tell=_say, stop=stop)
        except KeyboardInterrupt:
            _say("dpfl: interrupted; what is done is saved. Run the same command again to continue.")
            return INTERRUPTED
    show(found, as_json)
    return 0


def copy_to(folder: Path) -> None:
    """Copy the configurations of both examples."""
    files = api.copy_configurations(folder)
    print("\n".join(map(str, files)) + f"\nNext: dpfl run {shlex.quote(str(files[0]))}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
