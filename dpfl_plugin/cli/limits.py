"""`dpfl limits`: whether a limits file is in order, and what is left of the lifetime budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpfl_plugin.api.limits import OwnerLimits, limits


def show_limits(path: Path | None, *, as_json: bool) -> None:
    """Print the limits of this machine, or of a file, each agreement, and what is left; errors as `dpfl.limits`."""
    found = limits(path)
    if as_json:
        print(json.dumps(_plain(found)))
        return
    print(found)


def _plain(found: OwnerLimits) -> dict[str, Any]:
    owner = found.limits
    return {
        "file": owner.source,
        "folder": str(owner.folder),
        "data": owner.data,
        "unit": owner.unit,
        "epsilon": owner.epsilon,
        "delta": owner.delta,
        "send": sorted(owner.send),
        "agreements": [{"name": one.name, "epsilon": one.epsilon, "delta": one.delta} for one in found.agreements],
        "total": found.epsilon_total,
        "left": {"epsilon": found.epsilon_left, "delta": found.delta_left},
    }
