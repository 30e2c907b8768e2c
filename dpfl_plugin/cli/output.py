"""What commands print: a result as it displays itself, or as JSON."""

from __future__ import annotations

from typing import Any, Protocol

from dpfl_plugin.runs.folder import to_json


class Result(Protocol):
    """What a public function returns."""

    def to_dict(self) -> Any:
        """All of it as plain values."""
        ...


def show(result: Result, as_json: bool) -> None:
    """Print a result."""
    print(to_json(result.to_dict()) if as_json else result)
