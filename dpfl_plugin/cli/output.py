"""What commands print: a result as it displays itself, or as JSON."""

from __future__ import annotations

import sys
from typing import Any, Protocol

from dpfl_plugin.core.text import Page
from dpfl_plugin.runs.folder import to_json


class Result(Protocol):
    """What a public function returns."""

    def to_dict(self) -> Any:
        """All of it as plain values."""
        ...


def show(result: Result, as_json: bool = False) -> None:
    """Print a result; a page in a terminal as it will be read."""
    if as_json:
        print(to_json(result.to_dict()))
    elif isinstance(result, Page) and sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown  # here: it takes 50 ms, and most results are no pages

        Console().print(Markdown(str(result)))
    else:
        print(str(result).rstrip("\n"))
