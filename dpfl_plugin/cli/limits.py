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
    owner = found.limits
    print(f"{owner.source}: in order")
    print(f"  folder {owner.folder}, data {owner.data!r}, each {owner.unit} is protected")
    print(f"  besides private releases may be sent: {', '.join(sorted(owner.send)) or 'nothing'}")
    if owner.repeatable:
        print("  repeatable: noise may be computed from a seed by anyone who knows it: for made-up data only")
    for one in found.agreements:
        print(f"  agreed: epsilon {one.epsilon:g} at delta {one.delta:g}: {one.name}")
    left = f"{found.epsilon_left:.6g} at {found.delta_left:.6g}"
    print(f"  of epsilon {owner.epsilon:g} at delta {owner.delta:g} there is left: {left}")
    if found.exceeded:
        print("  more is agreed than these limits now allow: agreements that are under way stop")


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
        "repeatable": owner.repeatable,
        "agreements": [{"name": one.name, "epsilon": one.epsilon, "delta": one.delta} for one in found.agreements],
        "left": {"epsilon": found.epsilon_left, "delta": found.delta_left},
    }
