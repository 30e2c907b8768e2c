"""`dpfl limits`: whether a limits file is in order, and what is left of the lifetime budget."""

from __future__ import annotations

import json
from pathlib import Path

from dpfl_plugin.errors import ConfigError
from dpfl_plugin.training.lifetime import read_reservations
from dpfl_plugin.training.limits import NONE_SET, find_limits, read_limits


def show_limits(path: Path | None, *, as_json: bool) -> None:
    """Print the limits of this machine, or of a file, each agreement, and what is left.

    Raises:
        ConfigError: there are none, or the file is not in order; LedgerError: the lifetime ledger is damaged.
    """
    limits = find_limits() if path is None else read_limits(path.expanduser().absolute())
    if limits is None:
        raise ConfigError(f"{NONE_SET}.")
    ledger = limits.folder / f"{limits.data}.lifetime.jsonl"
    found = read_reservations(ledger) if ledger.exists() else []
    left = limits.epsilon - sum(one.epsilon for one in found), limits.delta - sum(one.delta for one in found)
    if as_json:
        agreements = [{"name": one.name, "epsilon": one.epsilon, "delta": one.delta} for one in found]
        said: dict[str, object] = {"file": limits.source, "folder": str(limits.folder), "data": limits.data}
        said |= {"unit": limits.unit, "epsilon": limits.epsilon, "delta": limits.delta, "send": sorted(limits.send)}
        print(json.dumps({**said, "agreements": agreements, "left": {"epsilon": left[0], "delta": left[1]}}))
        return
    print(f"{limits.source}: in order")
    print(f"  folder {limits.folder}, data {limits.data!r}, each {limits.unit} is protected")
    print(f"  besides private releases may be sent: {', '.join(sorted(limits.send)) or 'nothing'}")
    for one in found:
        print(f"  agreed: epsilon {one.epsilon:g} at delta {one.delta:g}: {one.name}")
    print(f"  of epsilon {limits.epsilon:g} at delta {limits.delta:g} there is left: {left[0]:.6g} at {left[1]:.6g}")
