"""What the runs of a shared ledger registered before their first releases, and what all of them come to.

A run's line in the ledger has its *slots*: what each silo may release at most, also where the run ends early, since
what decides on that may have been released. All runs together then cost no more than `dpfl_plugin.privacy.filters`
says, whatever decided on later runs. Releases beyond the slots (rounds that were released again after a crash) are a
plan of their own, registered after the run's. Of a run without slots, by a version that wrote none or of a tuning,
which plans for all candidates together, what was released counts.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dpfl_plugin.core.rounding import digits
from dpfl_plugin.errors import LedgerError
from dpfl_plugin.privacy.composition import Planned
from dpfl_plugin.privacy.events import Batch
from dpfl_plugin.privacy.filters import (
    Odometer,
    Plan,
    PlanFilter,
    RenyiFilter,
    affords,
    chosen_filter,
    filter_of,
    kind_of,
    odometer_for,
)
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.prior import runs_in
from dpfl_plugin.privacy.slots import Kind, from_plain, to_plain


def slots_to_plain(silos: Mapping[int, Sequence[Planned]]) -> list[dict[str, Any]]:
    """Of each silo, as plain values; of silos with the same slots once."""
    alike: defaultdict[tuple[Planned, ...], list[int]] = defaultdict(list)
    for silo, planned in silos.items():
        alike[tuple(planned)].append(silo)
    return [{"silos": sorted(members), "slots": to_plain(planned)} for planned, members in alike.items()]


def _slots(facts: Mapping[str, Any]) -> dict[int, list[Planned]]:
    try:
        found = {}
        for group in facts.get("slots", ()):
            planned = from_plain(group["slots"])
            found.update(dict.fromkeys(map(int, group["silos"]), planned))
        return found
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerError(f"the slots of run {facts.get('name')!r} cannot be read ({error!r}).") from error


def plans_in(ledger: Ledger) -> list[Plan]:
    """What the runs of a shared ledger registered, in this order, each followed by what it released beyond that.

    Raises:
        LedgerError: the slots of a run cannot be read.
    """
    plans = []
    for facts in runs_in(ledger):
        slots, records = _slots(facts), str(facts["data_sha256"])
        if slots:
            plans.append(Plan(records, slots))
        if beyond := _beyond(slots, ledger, facts["noise"]):
            plans.append(Plan(records, beyond))
    return plans


def _beyond(slots: Mapping[int, Sequence[Planned]], ledger: Ledger, noise: str) -> dict[int, list[Planned]]:
    """What a run released that it has no slots for."""
    charges = ledger.tally_of_run(noise)
    made: defaultdict[int, Counter[Kind]] = defaultdict(Counter)
    for (silo, kind), count in charges.totals().items():
        share, release = charges.names.kinds[kind]
        made[silo][release, share] += count
    for silo, planned in slots.items():
        for one in planned:
            if silo in made:
                made[silo][one.release, one.share] -= one.count
    return {
        silo: [Planned(release, count, share) for (release, share), count in over.items()]
        for silo, counts in made.items()
        if (over := +counts)
    }


def first_line(first: Plan, limit: float | None, delta: float) -> dict[str, Any]:
    """What the first line of a shared ledger says of totals: its limit with the filter, or else an odometer.

    Args:
        first: what its first run registers.

    Raises:
        ConfigError, UnsupportedError: as `chosen_filter`.
    """
    if limit is not None:
        return {"limit": {"epsilon": limit, "delta": delta, "filter": kind_of(chosen_filter(limit, delta, first))}}
    odometer = odometer_for(first, delta)
    if not all(map(math.isfinite, odometer.thresholds)):
        return {}  # without noise, nothing can be said
    return {"odometer": {"thresholds": list(odometer.thresholds), "delta": odometer.delta}}


def limit_of(ledger: Ledger) -> PlanFilter | RenyiFilter | None:
    """The filter of a ledger's limit; None for none.

    Raises:
        LedgerError: it cannot be read.
    """
    limit = ledger.facts.get("limit")
    if limit is None:
        return None
    return filter_of(limit["filter"], float(limit["epsilon"]), float(limit["delta"]))


def adaptive_total(ledger: Ledger, delta: float) -> dict[str, Any]:
    """Epsilon of all that a shared ledger holds, whatever decided on its runs; None for none. And why, in words.

    Args:
        delta: of a ledger that says nothing of totals.

    Raises:
        LedgerError: the slots of a run, or the limit, cannot be read.
        ConfigError, UnsupportedError: as `Accountant.epsilon`.
    """
    plans, filter = plans_in(ledger), limit_of(ledger)
    if filter is not None:
        known = affords(filter, plans)
        why = "the limit with which the ledger was begun, which a filter keeps" if known else "its limit was passed"
        return {"epsilon": filter.epsilon if known else None, "delta": filter.delta, "why": why}
    if not plans:
        return {"epsilon": 0.0, "delta": delta, "why": "nothing was released"}
    said = ledger.facts.get("odometer")
    odometer = odometer_for(plans[0], delta) if said is None else Odometer(tuple(said["thresholds"]), said["delta"])
    threshold = odometer.said(plans)
    known = math.isfinite(threshold)
    why = "the smallest threshold, of those fixed with the ledger's first run, that all runs do not pass"
    last = digits(odometer.thresholds[-1], 4)
    return {
        "epsilon": threshold if known else None,
        "delta": odometer.delta,
        "why": why if known else f"the last threshold, epsilon {last}, was passed",
    }


class Registration:
    """The slots of a run that is under way, in a ledger with a limit.

    Args:
        noise: what the run is known by.
    """

    def __init__(self, ledger: Ledger, noise: str) -> None:
        facts = next(facts for facts in runs_in(ledger) if facts["noise"] == noise)
        self._ledger, self._filter, self._records = ledger, limit_of(ledger), str(facts["data_sha256"])
        self._left: defaultdict[int, Counter[Kind]] = defaultdict(Counter)
        for silo, planned in _slots(facts).items():
            for one in planned:
                self._left[silo][one.release, one.share] += one.count
        made = ledger.tally_of_run(noise)
        for (silo, kind), count in made.totals().items():
            share, release = made.names.kinds[kind]
            self._left[silo][release, share] -= count

    def take(self, made: Iterable[Batch]) -> None:
        """Count charges that are in the ledger."""
        for charge, silos in made:
            for silo in silos:
                self._left[silo][charge.release, charge.share] -= charge.count

    def affords(self, wanted: Mapping[int, Iterable[Planned]]) -> bool:
        """Whether releases have slots, or the limit affords those that have none."""
        beyond = {
            silo: [
                replace(one, count=one.count - free)
                for one in planned
                if one.count > (free := max(0, self._left[silo][one.release, one.share]))
            ]
            for silo, planned in wanted.items()
        }
        if self._filter is None or not any(beyond.values()):
            return True
        return affords(self._filter, [*plans_in(self._ledger), Plan(self._records, beyond)])
