"""What commands print of a result."""

from __future__ import annotations

import sys
from typing import Any, Protocol

from dpfl_plugin.core.text import Page


class Result(Protocol):
    """What a verb returns: it displays itself, and gives its values."""

    def to_dict(self) -> dict[str, Any]: ...


def show(result: Result, as_json: bool = False) -> None:
    """Print a result: its values as JSON; or as it displays itself, a page in a terminal as it will be read."""
    if as_json:
        from dpfl_plugin.runs.folder import to_json

        print(to_json(result.to_dict()))
    elif isinstance(result, Page) and sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(str(result)))
    else:
        print(str(result).rstrip("\n"))
