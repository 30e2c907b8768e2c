"""`dpfl account FILE`: what each run of a shared ledger spent, and all of them together."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpfl_plugin.errors import ConfigError
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.prior import prior_of, runs_in
from dpfl_plugin.privacy.views import ViewEpsilon, server_view
from dpfl_plugin.training.ledgers import read_shared

Row = dict[str, Any]


def is_ledger(path: Path) -> bool:
    """Whether a file is a ledger, intact or not, and no configuration."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return path.suffix == ".jsonl" or file.read(9) == b'{"facts":'


def ledger_rows(
    path: Path,
    settings: list[str],
    by_all_accountants: Callable[[Callable[[Accountant], list[Row]]], list[Row]],
    named: Callable[[Accountant], Row],
) -> dict[str, list[Row]]:
    """The server's view of each run and of all together, by every accountant that knows the mechanisms.

    Raises:
        ConfigError: it is one run's own ledger, or there are ``settings``.
        LedgerError: it is damaged; names the line, and what is still proven.
    """
    if settings:
        raise ConfigError("--set has no meaning for a ledger: what was released was released.")
    ledger = read_shared(path)
    tell_notes(ledger)
    runs = runs_in(ledger)

    def rows(view: Callable[[Accountant], ViewEpsilon]) -> list[Row]:
        return by_all_accountants(lambda accountant: [_row(view(accountant), named(accountant))])

    found = {}
    for facts in runs:
        label = f"{facts['name']}, {facts['noise']}, {facts['started']}"
        found[label] = rows(functools.partial(server_view, ledger.of_run(facts["noise"]), delta=facts["delta"]))
    for delta in sorted({facts["delta"] for facts in runs}):
        found[f"total at delta {delta:g}"] = rows(functools.partial(_total, ledger, delta=delta))
    return found


def tell_notes(ledger: Ledger) -> None:
    """What was found and mended in a ledger, on stderr: a torn last line, fresh noise."""
    for note in dict.fromkeys(ledger.notes):
        print(f"dpfl: note: {note}", file=sys.stderr)


def _total(ledger: Ledger, accountant: Accountant, delta: float) -> ViewEpsilon:
    """All runs together: the best of what holds for every record, seen from each set of records that runs were on.

    Seen from one set, its runs add up silo by silo and all others count by their envelopes (`privacy.prior`). That
    bounds what any record lost, also one that was not among these: it lost nothing in its runs.
    """
    charges = list(ledger)
    views = []
    for records, num_silos in {run["data_sha256"]: run["num_silos"] for run in runs_in(ledger)}.items():
        if charges:
            prior = prior_of(ledger, noise="", data_sha256=records, num_silos=num_silos, release=charges[0].release)
            views.append(server_view((), accountant, delta, earlier=prior.realised))
        else:
            views.append(server_view((), accountant, delta))
    return min(views, key=lambda view: view.epsilon)


def _row(view: ViewEpsilon, accountant: Row) -> Row:
    return {
        "view": "server",
        "epsilon": view.epsilon if math.isfinite(view.epsilon) else None,
        "delta": view.delta,
        "neighbouring": view.neighbouring,
        **accountant,
        "basis": view.basis,
    }
