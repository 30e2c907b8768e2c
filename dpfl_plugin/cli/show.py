"""How a command prints its result."""

from __future__ import annotations

from typing import Any, Protocol

from dpfl_plugin.runs.folder import to_json


class Result(Protocol):
    """What a verb returns: it displays itself, and has a JSON document."""

    def to_dict(self) -> Any:
        """What ``--json`` prints."""


def show(result: Result, as_json: bool) -> None:
    """Print a result, for people or as JSON."""
    print(to_json(result.to_dict()) if as_json else result)
