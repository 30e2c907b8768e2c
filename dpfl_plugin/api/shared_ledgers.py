"""What each run of a shared ledger spent, and all of them together."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from dpfl_plugin.api.progress import say
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.prior import prior_of, runs_in
from dpfl_plugin.privacy.registered import adaptive_total
from dpfl_plugin.privacy.views import Composed, ViewEpsilon, server_composed
from dpfl_plugin.runs.ledgers import read_shared

Row = dict[str, Any]
ERROR: Final = "above the epsilon of planned runs by what choosing them after looking may have gained"
ADAPTIVE: Final = "server, whatever decided on later runs"


def is_ledger(path: Path) -> bool:
    """Whether a file is a ledger, intact or not, and no configuration."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return path.suffix == ".jsonl" or file.read(9) == b'{"facts":'


def shared_rows(
    path: Path,
    by_all_accountants: Callable[[Callable[[Accountant], list[Row]]], list[Row]],
    named: Callable[[Accountant], Row],
) -> dict[str, list[Row]]:
    """The server's view of each run and of all together, by every accountant that knows the mechanisms.

    Raises:
        ConfigError: it is one run's own ledger.
        LedgerError: it is damaged; names the line, and what is still proven.
    """
    ledger = read_shared(path)
    say_notes(ledger)
    runs = runs_in(ledger)

    def rows(composed: Callable[[], Sequence[Composed]], delta: float) -> list[Row]:
        once = functools.cache(composed)  # a pass over the ledger, for all accountants

        def view(accountant: Accountant) -> ViewEpsilon:
            return min((one.stated(accountant, delta) for one in once()), key=lambda view: view.epsilon)

        return by_all_accountants(lambda accountant: [_row(view(accountant), named(accountant))])

    found = {}
    for facts in runs:
        named_by = [facts.get("candidate") or facts["name"], facts["noise"], facts["started"]]  # what differs, first
        label = ", ".join(named_by)
        found[label] = rows(functools.partial(_of_run, ledger, facts["noise"]), facts["delta"])
    total = functools.cache(functools.partial(_total, ledger))
    for delta in sorted({facts["delta"] for facts in runs}):
        found[f"total at delta {delta:.15g}"] = [
            {**row, "basis": f"{row['basis']}; if nothing that was seen of a run decided on later ones"}
            for row in rows(total, delta)
        ]
    if runs:
        adaptive = adaptive_total(ledger, runs[0]["delta"])
        same = found.setdefault(f"total at delta {adaptive['delta']:.15g}", [])
        values = {"view": ADAPTIVE, "epsilon": adaptive["epsilon"], "delta": adaptive["delta"]}
        same.append({**(same or [{}])[0], **values, "accountant": "filter", "error": ERROR, "basis": adaptive["why"]})
    return found


def say_notes(ledger: Ledger) -> None:
    """Tell what was found and mended in a ledger: a torn last line, fresh noise."""
    for note in dict.fromkeys(ledger.notes):
        say(f"note: {note}")


def _of_run(ledger: Ledger, noise: str) -> list[Composed]:
    return [server_composed(ledger.tally_of_run(noise))]


def _total(ledger: Ledger) -> list[Composed]:
    """All runs together: what holds for every record, seen from each set of records that runs were on. So the best
    does.

    Seen from one set, its runs add up silo by silo and all others count by their envelopes (`privacy.prior`). That
    bounds what any record lost, also one that was not among these: it lost nothing in its runs.
    """
    first = next(iter(ledger), None)
    found = []
    for records, num_silos in {run["data_sha256"]: run["num_silos"] for run in runs_in(ledger)}.items():
        if first is not None:
            prior = prior_of(ledger, noise="", data_sha256=records, num_silos=num_silos, release=first.release)
            found.append(server_composed((), earlier=prior.realised))
        else:
            found.append(server_composed(()))
    return found


def _row(view: ViewEpsilon, accountant: Row) -> Row:
    return {
        "view": "server",
        "epsilon": view.epsilon if math.isfinite(view.epsilon) else None,
        "delta": view.delta,
        "neighbouring": view.neighbouring,
        **accountant,
        "basis": view.basis,
    }
