"""What the runs of a shared ledger registered before their first releases, and what all of them come to.

A run's line in the ledger has its *slots*: what each silo may release at most, also where the run ends early, since
what decides on that may have been released. All runs together then cost no more than `dpfl_plugin.privacy.filters`
says, whatever decided on later runs. Releases beyond the slots (rounds that are released again after a crash) are plans
of their own, each registered by a line of its own before it is made. Of a run without slots, by a version that wrote
none or of a tuning, which plans for all candidates together, what was released counts.

**Early runs** were registered before the ledger held any release, as those of a sweep are. Nothing that was seen
decided on them: together they are one plan, and have a *planned total*, by the PLD.

**Unused slots.** Of a run that has ended, slots that it did not use serve later runs on the same records: a release may
take a slot that dominates it in every elementary interval and both directions (move (ii) of `filters`). A slot does if
it differs in nothing but that its noise is no larger, its rate no smaller, and its share holds the release's share.
More noise is post-processing. A larger rate dominates a smaller one, q < q':

* batches without replacement: for a >= 1 the profile is h_q(a) = q g((a - 1) / q) with g(u) = delta_G(1 + u) convex,
  decreasing and at least 0; its derivative in q is g(u) - u g'(u) >= 0 at u = (a - 1) / q. Below 1 the profile is
  1 - a + a h_q(1 / a), which grows with it.
* Poisson batches: with t = q / q', (1 - q) P_0 + q P_1 = (1 - t) P_0 + t ((1 - q') P_0 + q' P_1). H_a is jointly
  convex, so that H_a(q, P_0) <= (1 - t) H_a(P_0, P_0) + t H_a(q', P_0); and H_a(P_0, P_0) = max(0, 1 - a) is the least
  value that H_a has. The same the other way round.

What a later run takes is written in its line; nothing returns to the filter.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dpfl_plugin.core.rounding import digits, digits_down
from dpfl_plugin.errors import ConfigError, LedgerError, UnsupportedError
from dpfl_plugin.privacy.budget import Budget
from dpfl_plugin.privacy.composition import Planned
from dpfl_plugin.privacy.events import Batch, SampledGaussian
from dpfl_plugin.privacy.filters import (
    Odometer,
    PlanFilter,
    RegisteredPlan,
    RenyiFilter,
    affords,
    chosen_filter,
    epsilon_left,
    filter_of,
    kind_of,
    odometer_for,
    planned_epsilon,
    worst_compositions,
)
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.slots import SlotKind, count_kinds, from_plain, planned_of, to_plain
from dpfl_plugin.privacy.tally import Tally

SlotsBySilo = dict[int, Counter[SlotKind]]
"""For each silo, how many releases of each kind."""

Reuse = tuple[str, SlotsBySilo, SlotsBySilo]
"""(earlier run, its slots, a later run's slots that these serve)."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run in a shared ledger.

    Attributes:
        facts: as it was registered.
        slots: what each silo may release.
        early: whether it was registered before the ledger's first release.
        begun: whether it has begun, and was not only registered ahead.
        ended: whether it has ended for good, so that what is left of its slots may serve others.
        reuses: what earlier runs' slots serve of this run's.
        more: slots that it registered later, by the place of their line in the ledger.
    """

    facts: Mapping[str, Any]
    slots: SlotsBySilo
    early: bool
    begun: bool
    ended: bool
    reuses: Sequence[Reuse] = ()
    more: Mapping[int, SlotsBySilo] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """By which the ledger knows it."""
        return str(self.facts["noise"])

    @property
    def records(self) -> str:
        """Marks its records."""
        return str(self.facts["data_sha256"])


def runs_in(ledger: Ledger) -> list[Run]:
    """The runs of a shared ledger, in the order in which they were registered.

    Raises:
        LedgerError: the slots of one cannot be read.
    """
    lines: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for number, facts in enumerate(ledger.runs):
        lines[facts["noise"]][number] = facts
    return [_run(of_run) for of_run in lines.values()]


def nothing_released(ledger: Ledger) -> bool:
    """Whether no run of a shared ledger can have released anything yet. What a tuning releases is in a ledger of its
    own: once it is registered, it may have."""
    return not len(ledger) and not any(run.facts.get("tuning") for run in runs_in(ledger))


def _run(numbered: Mapping[int, dict[str, Any]]) -> Run:
    lines = list(numbered.values())
    first, begun = lines[0], [line for line in lines if "ahead" not in line and "ended" not in line]
    return Run(
        facts={**first, "started": str((begun or lines)[0].get("started", "at no known time"))},
        slots=_read(first, first.get("slots", ())),
        early=bool(first.get("early")) or 0 in numbered,
        begun=bool(begun),
        ended="ended" in lines[-1],
        reuses=[
            (str(one["run"]), _read(first, one["taken"]), _read(first, one["served"]))
            for one in first.get("reuses", ())
        ],
        more={number: _read(first, line["more"]) for number, line in numbered.items() if "more" in line},
    )


def _read(facts: Mapping[str, Any], groups: Iterable[Mapping[str, Any]]) -> SlotsBySilo:
    try:
        slots: SlotsBySilo = {}
        for group in groups:
            counts = count_kinds(from_plain(group["slots"]))
            slots.update({int(silo): counts for silo in group["silos"]})
        return slots
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerError(f"the slots of run {facts.get('name')!r} cannot be read ({error!r}).") from error


def slots_to_plain(silos: Mapping[int, Iterable[Planned]]) -> list[dict[str, Any]]:
    """Of each silo, as plain values; of silos with the same slots once."""
    alike: defaultdict[tuple[Planned, ...], list[int]] = defaultdict(list)
    for silo, planned in silos.items():
        alike[tuple(planned)].append(silo)
    return [{"silos": sorted(members), "slots": to_plain(planned)} for planned, members in alike.items()]


# Plans and totals


def plans_in(ledger: Ledger) -> list[RegisteredPlan]:
    """What a filter is asked for: the early runs, together if they are on the same records, then what was registered
    later, in this order, and last what was released without slots. What earlier runs' slots serve is no part of a plan.

    Raises:
        LedgerError: the slots of a run cannot be read.
    """
    runs = runs_in(ledger)
    early: defaultdict[str, defaultdict[int, list[Planned]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for silo, planned in _registered(run).items():
            if run.early:
                early[run.records][silo] += planned
    later = {}
    firsts = {facts["noise"]: number for number, facts in reversed(list(enumerate(ledger.runs)))}
    for run in runs:
        if not run.early:
            later[firsts[run.name]] = RegisteredPlan(run.records, _registered(run))
        later.update({number: RegisteredPlan(run.records, _planned(slots)) for number, slots in run.more.items()})
    return [
        *(RegisteredPlan(records, dict(silos)) for records, silos in early.items()),
        *(later[number] for number in sorted(later) if later[number].silos),
        *(RegisteredPlan(run.records, beyond) for run in runs if (beyond := _beyond(run, runs, ledger))),
    ]


def _registered(run: Run) -> dict[int, list[Planned]]:
    """What a run registered that no earlier run's slots serve."""
    slots = {silo: Counter(counts) for silo, counts in run.slots.items()}
    for _, _, served in run.reuses:
        for silo, counts in served.items():
            slots[silo].subtract(counts)
    return _planned(slots)


def _planned(slots: SlotsBySilo) -> dict[int, list[Planned]]:
    return {silo: planned for silo, counts in slots.items() if (planned := planned_of(counts))}


def _left(run: Run, runs: Iterable[Run], ledger: Ledger) -> SlotsBySilo:
    """How many of its slots a run did not use, less what others took of them; negative: released beyond them."""
    left: defaultdict[int, Counter[SlotKind]] = defaultdict(Counter)
    for slots in (run.slots, *run.more.values()):
        for silo, counts in slots.items():
            left[silo].update(counts)
    for other in runs:
        for name, taken, _ in other.reuses:
            for silo, counts in taken.items() if name == run.name else ():
                left[silo].subtract(counts)
    made = ledger.tally_of_run(run.name)
    for (silo, kind), count in made.totals().items():
        share, release = made.names.kinds[kind]
        left[silo][release, share] -= count
    return left


def _beyond(run: Run, runs: Iterable[Run], ledger: Ledger) -> dict[int, list[Planned]]:
    """What a run released that it has no slots for."""
    return _planned({silo: -counts for silo, counts in _left(run, runs, ledger).items()})


def planned_total(ledger: Ledger, delta: float) -> dict[str, Any] | None:
    """Epsilon of the runs that were registered before the first release, by their PLD.

    None for fewer than two, and where one of them released more than it registered.

    Raises:
        LedgerError, ConfigError, UnsupportedError: as `adaptive_total`.
    """
    runs = runs_in(ledger)
    early = [run for run in runs if run.early]
    if len(early) < 2 or any(run.more or _beyond(run, runs, ledger) for run in early):
        return None
    epsilon = planned_epsilon((RegisteredPlan(run.records, _registered(run)) for run in early), delta)
    return {"epsilon": epsilon if math.isfinite(epsilon) else None, "delta": delta, "num_runs": len(early)}


def adaptive_total(ledger: Ledger, delta: float, new: Sequence[RegisteredPlan] = ()) -> dict[str, Any]:
    """Epsilon of all that a shared ledger holds, whatever decided on its runs; None for none. And why, in words.

    Args:
        delta: of a ledger that says nothing of totals.
        new: what it would hold, too.

    Raises:
        LedgerError: the slots of a run, or the limit, cannot be read.
        ConfigError, UnsupportedError: as `Accountant.epsilon`.
    """
    plans, filter = [*plans_in(ledger), *new], limit_of(ledger)
    if filter is not None:
        known = affords(filter, plans)
        why = "its limit was passed"
        if known:
            left = digits_down(epsilon_left(filter, plans), 3)
            why = f"the limit with which the ledger was begun; one more run of about epsilon {left} would fit"
        return {"epsilon": filter.epsilon if known else None, "delta": filter.delta, "why": why}
    if not plans:
        return {"epsilon": 0.0, "delta": delta, "why": "nothing was released"}
    fixed = ledger.facts.get("odometer")
    if fixed is None:  # of an earlier version, or of a tuning
        why = "the ledger was begun without a limit or thresholds, so that no total holds whatever decided on its runs"
        return {"epsilon": None, "delta": delta, "why": why}
    odometer = Odometer(tuple(fixed["thresholds"]), fixed["delta"], tuple(fixed.get("shares", ())))
    threshold = odometer.passed(plans)
    known = math.isfinite(threshold)
    last = digits(odometer.thresholds[-1], 4)
    return {
        "epsilon": threshold if known else None,
        "delta": odometer.delta,
        "why": "the smallest of the thresholds, fixed when the ledger was begun, that its runs stay within"
        if known
        else f"the last threshold, epsilon {last}, was passed",
    }


def total_after_another(ledger: Ledger, name: str, delta: float) -> dict[str, Any]:
    """`adaptive_total` once a run that is in a shared ledger is made once more, with the same plan.

    Raises:
        LedgerError, ConfigError, UnsupportedError: as `adaptive_total`.
    """
    run = next(run for run in runs_in(ledger) if run.name == name)
    return adaptive_total(ledger, delta, [RegisteredPlan(run.records, _planned(run.slots))])


def first_line(first: RegisteredPlan, limit: float | None, delta: float, run: float | None = None) -> dict[str, Any]:
    """What the first line of a shared ledger says of totals: its limit with the filter, or else an odometer.

    Args:
        first: what its first run, or all runs of a sweep, register. run: epsilon of a run that is to follow.

    Raises:
        ConfigError, UnsupportedError: as `chosen_filter`.
    """
    if limit is not None:
        return {"limit": {"epsilon": limit, "delta": delta, "filter": kind_of(chosen_filter(limit, delta, first))}}
    odometer = odometer_for(first, delta, run)
    if not all(map(math.isfinite, odometer.thresholds)):
        return {}  # without noise, nothing can be said
    shares = {"shares": list(odometer.shares)} if odometer.shares else {}
    return {"odometer": {"thresholds": list(odometer.thresholds), "delta": odometer.delta, **shares}}


def limit_of(ledger: Ledger) -> PlanFilter | RenyiFilter | None:
    """The filter of a ledger's limit; None for none.

    Raises:
        LedgerError: it cannot be read.
    """
    limit = ledger.facts.get("limit")
    if limit is None:
        return None
    return filter_of(limit["filter"], float(limit["epsilon"]), float(limit["delta"]))


def check_protection(ledger: Ledger, name: str, records: str, release: SampledGaussian) -> None:
    """Check that one epsilon can bound a run together with the others of a shared ledger.

    Args:
        name, records: of the run; release: one of it.

    Raises:
        ConfigError: another run has another neighbouring relation or unit.
        UnsupportedError: at silo level, another run was on other records.
    """
    for run in runs_in(ledger):
        if run.name == name:
            continue
        made = (kind[1] for kind in ledger.tally_of_run(run.name).names.kinds)
        for other in {*made, *(kind[0] for counts in run.slots.values() for kind in counts)}:
            if (other.neighbouring, other.unit) != (release.neighbouring, release.unit):
                raise ConfigError(
                    f"it holds run {run.facts['name']!r}, which protects against {other.neighbouring} of a "
                    f"{other.unit}, and this run protects against {release.neighbouring} of a {release.unit}: no "
                    "single epsilon bounds both. Use a ledger for each."
                )
        if release.unit == "silo" and run.records != records:
            raise UnsupportedError(
                f"it holds run {run.facts['name']!r} on other records than this run's, and with unit: silo the data of "
                "one silo here may have been at many silos there: no bound is known. Use a ledger for each set of "
                "records."
            )


# SlotsBySilo


def unused(ledger: Ledger, records: str, slots: Mapping[int, Sequence[Planned]]) -> list[Reuse]:
    """Which unused slots of runs that ended may serve these ``slots`` on the same ``records``; see `Run.reuses`."""
    runs = runs_in(ledger)
    wanted = {silo: count_kinds(planned) for silo, planned in slots.items()}
    reuses = []
    for run in runs:
        if not run.ended or run.records != records:
            continue
        taken: SlotsBySilo = {}
        served: SlotsBySilo = {}
        left = _left(run, runs, ledger)
        for silo, counts in wanted.items():
            of_silo, for_silo = _matched(left.get(silo, Counter()), counts)
            if of_silo:
                taken[silo], served[silo] = of_silo, for_silo
                counts.subtract(for_silo)
        if taken:
            reuses.append((run.name, taken, served))
    return reuses


def _matched(left: Counter[SlotKind], wanted: Counter[SlotKind]) -> tuple[Counter[SlotKind], Counter[SlotKind]]:
    """(slots that are taken, releases that they serve): those of the same kind first, then the least above it."""
    taken = +left & +wanted
    served, left = Counter(taken), +left - taken
    for kind, count in (+wanted - served).items():
        free = [slot for slot in left if _dominates(slot, kind)]
        for slot in sorted(free, key=lambda slot: (-slot[0].noise_multiplier, slot[0].rate)):
            if some := min(count, left[slot]):
                left[slot] -= some
                taken[slot] += some
                served[kind] += some
                count -= some
    return taken, served


def _dominates(slot: SlotKind, kind: SlotKind) -> bool:
    """See the module."""
    (more, (first, last)), (less, (begin, end)) = slot, kind
    return (
        replace(more, noise_multiplier=0.0, rate=0.0) == replace(less, noise_multiplier=0.0, rate=0.0)
        and more.noise_multiplier <= less.noise_multiplier
        and more.rate >= less.rate
        and first <= begin
        and end <= last
    )


def reuses_to_plain(reuses: Iterable[Reuse]) -> list[dict[str, Any]]:
    """As plain values, for a run's line."""

    def plain(slots: SlotsBySilo) -> list[dict[str, Any]]:
        return slots_to_plain({silo: planned_of(counts) for silo, counts in slots.items()})

    return [{"run": name, "taken": plain(taken), "served": plain(served)} for name, taken, served in reuses]


def without_reused(slots: Mapping[int, Sequence[Planned]], reuses: Iterable[Reuse]) -> dict[int, list[Planned]]:
    """What is left to register of a run's slots."""
    counts = {silo: count_kinds(planned) for silo, planned in slots.items()}
    return _registered(Run({}, counts, early=False, begun=False, ended=False, reuses=list(reuses)))


class Joint:
    """The budget of a tuning, which is for all that its ledger holds: its plan was fixed before the first release.

    Only a crash, after which rounds are released again, can make it end a candidate.

    Args:
        noise: what the candidate is known by.
        project: of the tuning, in the ledger of its project; None where it is in none.
    """

    limited = True

    def __init__(self, ledger: Ledger, noise: str, budget: Budget, project: Registration | None = None) -> None:
        self._ledger, self._budget, self.project = ledger, budget, project
        self._records = next(run.records for run in runs_in(ledger) if run.name == noise)

    def take(self, made: Iterable[Batch]) -> None:
        """The ledger counts them; the project's has slots for them, or gets some."""
        if self.project is not None:
            self.project.take(made, self._ledger.tally)
            self.project.sync()

    def reserve(self, wanted: Mapping[int, Iterable[Planned]]) -> None:
        """The plan has room for them."""
        if self.project is not None:
            self.project.reserve(wanted)
            self.project.sync()

    def affords(self, wanted: Mapping[int, Iterable[Planned]]) -> bool:
        """Whether releases fit the budget, beside all that the ledger holds."""
        plan = RegisteredPlan(self._records, {silo: list(planned) for silo, planned in wanted.items()})
        fits = all(map(self._budget.fits, worst_compositions([*plans_in(self._ledger), plan])))
        return fits and (self.project is None or self.project.affords(wanted))


class Registration:
    """The slots of a run that is under way.

    Args:
        noise: what the run is known by.

    Attributes:
        ledger: the file. limited: whether it has a limit.
    """

    def __init__(self, ledger: Ledger, noise: str) -> None:
        runs = runs_in(ledger)
        run = next(run for run in runs if run.name == noise)
        self.ledger, self._filter, self._run = ledger, limit_of(ledger), run
        self.limited = self._filter is not None
        self._left = defaultdict(Counter, {silo: +counts for silo, counts in _left(run, runs, ledger).items()})

    def deduct(self, spent: Tally) -> None:
        """Count what was charged to another ledger as made in these slots; what they do not hold is registered now."""
        for (silo, kind), count in spent.totals().items():
            share, release = spent.names.kinds[kind]
            self._left[silo][release, share] -= count
        over = {silo: +Counter({kind: -left for kind, left in kinds.items()}) for silo, kinds in self._left.items()}
        if any(over.values()):
            more = {silo: planned_of(counts) for silo, counts in over.items()}
            self.ledger.begin_run({"noise": self._run.name, "more": slots_to_plain(more)})
            for silo, counts in over.items():
                self._left[silo].update(counts)
        self.sync()

    @property
    def name(self) -> str:
        """By which the ledger knows the run."""
        return self._run.name

    def sync(self) -> None:
        """Return once all that was registered is on disk."""
        self.ledger.sync()

    def take(self, made: Iterable[Batch], charged: Tally | None = None) -> None:
        """Count charges that are about to be in the ledger; what has no slots is registered before.

        Args:
            charged: what is charged already, where that is not in this ledger.
        """
        tally = self.ledger.tally if charged is None else charged
        new: defaultdict[int, Counter[SlotKind]] = defaultdict(Counter)
        for charge, silos in made:
            for silo, known in zip(silos, tally.counts(charge, silos), strict=True):
                new[silo][charge.release, charge.share] += max(0, charge.count - known)
        self.reserve({silo: planned_of(counts) for silo, counts in new.items()})
        for silo, counts in new.items():
            self._left[silo].subtract(counts)

    def reserve(self, wanted: Mapping[int, Iterable[Planned]]) -> None:
        """Register what releases that are about to be made have no slots for, all of them as one plan."""
        beyond = self._beyond(wanted)
        if any(beyond.values()):
            self.ledger.begin_run({"noise": self._run.name, "more": slots_to_plain(beyond)})
            for silo, planned in beyond.items():
                self._left[silo].update(count_kinds(planned))

    def affords(self, wanted: Mapping[int, Iterable[Planned]]) -> bool:
        """Whether releases have slots, or the limit affords those that have none."""
        beyond = self._beyond(wanted)
        if self._filter is None or not any(beyond.values()):
            return True
        return affords(self._filter, [*plans_in(self.ledger), RegisteredPlan(self._run.records, beyond)])

    def _beyond(self, wanted: Mapping[int, Iterable[Planned]]) -> dict[int, list[Planned]]:
        beyond: dict[int, list[Planned]] = {}
        for silo, planned in wanted.items():  # only the kinds that are wanted: under a schedule each round has its own
            left = self._left[silo]
            beyond[silo] = planned_of({kind: count - left[kind] for kind, count in count_kinds(planned).items()})
        return beyond
