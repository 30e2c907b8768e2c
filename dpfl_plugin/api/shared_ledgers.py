"""What each run of a shared ledger spent, and all of them together."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from dpfl_plugin.api.progress import say
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.filters import planned_epsilon
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.registered import Run, adaptive_total, planned_total, plans_in, runs_in
from dpfl_plugin.privacy.views import ViewEpsilon, server_composed
from dpfl_plugin.runs.ledgers import read_shared

Row = dict[str, Any]
ERROR: Final = "above the epsilon of planned runs by what choosing them after looking may have gained"
ADAPTIVE: Final = "server, whatever decided on later runs"
PLANNED: Final = "server, runs that were planned together"
OF_A_TUNING: Final = "what the candidates of a tuning released, within a plan that was fixed before the first of them"


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

    def rows(run: Run) -> list[Row]:
        composed = functools.cache(lambda: server_composed(ledger.tally_of_run(run.name)))  # for all accountants
        return by_all_accountants(
            lambda accountant: [_row(composed().stated(accountant, run.facts["delta"]), named(accountant))]
        )

    found: dict[str, list[Row]] = {}
    for run in runs:
        known_by = run.facts.get("candidate") or run.facts["name"], run.facts.get("id"), run.name[:8]
        named_by = [*known_by, run.facts["started"]]
        label = ", ".join(filter(None, named_by))
        found[label] = rows(run)
    if not runs:
        return found
    (like,) = found[label][:1] or [{}]
    delta = runs[0].facts["delta"]
    if all("candidate" in run.facts for run in runs):
        epsilon = planned_epsilon(plans_in(ledger), delta)
        total = {"epsilon": epsilon if math.isfinite(epsilon) else None, "delta": delta}
        together = [{**like, **_values(total, PLANNED), "basis": OF_A_TUNING}]
    else:
        total = adaptive_total(ledger, delta)
        together = [{**like, **_values(total, ADAPTIVE), "error": ERROR, "accountant": "filter", "basis": total["why"]}]
        if planned := planned_total(ledger, total["delta"]):
            basis = f"the joint plan of the {planned['num_runs']} runs that were registered before the first release"
            together.append({**like, **_values(planned, PLANNED), "basis": basis})
    found[f"total at delta {total['delta']:.15g}"] = together
    return found


def _values(total: Mapping[str, Any], view: str) -> Row:
    return {"view": view, "epsilon": total["epsilon"], "delta": total["delta"]}


def say_notes(ledger: Ledger) -> None:
    """Tell what was found and mended in a ledger: a torn last line, fresh noise."""
    for note in dict.fromkeys(ledger.notes):
        say(f"note: {note}")


def _row(view: ViewEpsilon, accountant: Row) -> Row:
    return {
        "view": "server",
        "epsilon": view.epsilon if math.isfinite(view.epsilon) else None,
        "delta": view.delta,
        "neighbouring": view.neighbouring,
        **accountant,
        "basis": view.basis,
    }
