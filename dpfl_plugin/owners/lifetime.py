"""What was released of an owner's data over their lifetime: one ledger for all agreements.

The ledger is in the owner's folder, `NAME.lifetime.jsonl`, in the format of all ledgers (`dpfl_plugin.privacy.ledger`).
Before the first release of an agreement its whole plan is registered there; and each release is in it, and on disk,
before anything leaves. So a silo whose own folder was lost, or set back, does not get its slots back.

**Claim.** What everybody who saw all of it has learned is within the limits' epsilon and delta, though each agreement,
and whether there is one, may be chosen by all that was seen before, as long as the limits were fixed in advance.

**Proof.** The filter is fixed with the first agreement, before its first release (`dpfl_plugin.privacy.filters`, also
for agreements that are under way at the same time), and each further plan is registered only if the filter affords it.
It counts an agreement as on records of its own, since those of the owner may be at another silo of the next one. []

Versions before filters added up epsilons and deltas. Of a ledger that holds such agreements, their sums (e, d) stay
spent, and the filter is for (epsilon - e, delta - d): both parts together are within (epsilon, delta), as follows
(Rogers, Roth, Ullman, Vadhan 2016, sec. 3). Let the first part show o, by densities p or q. For an event S of all that
is seen, P(S | o) <= exp(epsilon - e) Q(S | o) + delta - d. With f(o) = min(1, exp(epsilon - e) Q(S | o)), in [0, 1],

    P(S) <= E_p[f] + delta - d <= exp(e) E_q[f] + d + delta - d <= exp(epsilon) Q(S) + delta.  []

**What the data are.** All that is released of data of one name adds up, whatever the records are at the time. So data
that grow, or are encoded in another way, do not start over. A digest of the records, keyed by a secret of the folder,
tells the owner when they changed; it leaves this machine by no message.
"""

from __future__ import annotations

import contextlib
import copy
import hmac
import json
import logging
import math
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dpfl_plugin.core.rounding import digits, digits_down
from dpfl_plugin.core.text import Printed
from dpfl_plugin.errors import ConfigError, DataError, LedgerError, require
from dpfl_plugin.owners.limits import NONE_SET, Limits, find_limits, own_folder, read_limits
from dpfl_plugin.privacy.composition import Planned
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.filters import (
    RegisteredPlan,
    adaptive_epsilon,
    affords,
    chosen_filter,
    epsilon_left,
    filter_of,
    kind_of,
)
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.ledger_file import is_begun
from dpfl_plugin.privacy.slots import from_plain, to_plain
from dpfl_plugin.runs.agreed_plan import AgreedPlan
from dpfl_plugin.runs.folder import locked, to_json, write_atomic

SECRET: Final = "secret"
ROUNDING: Final = 1e-9  # relative: 0.1 + 0.2 is 0.3
LOG: Final = logging.getLogger("dpfl_plugin.limits")


@dataclass(frozen=True, slots=True)
class Reservation:
    """An agreement in the lifetime ledger.

    Attributes:
        epsilon, delta: what its plan comes to by itself.
        slots: the plan of each silo.
        filter: of the lifetime's budget, besides its limit; None where a version before filters wrote it.
    """

    agreement: str
    name: str
    epsilon: float
    delta: float
    neighbouring: str
    slots: Mapping[int, Sequence[Planned]] = field(default_factory=dict, repr=False)
    filter: Mapping[str, Any] | None = field(default=None, repr=False)


class Total:
    """What agreements come to, and what is left of the limits for further ones.

    Attributes:
        added: sums of (epsilon, delta) over the agreements of versions before filters.
        filter: for what these left; of a ledger without other agreements, one that affords Gaussians best.
    """

    def __init__(self, limits: Limits, reservations: Sequence[Reservation]) -> None:
        self._limits = limits
        before = [item for item in reservations if item.filter is None]
        self._plans = [RegisteredPlan(item.agreement, item.slots) for item in reservations if item.filter is not None]
        self.added = math.fsum(item.epsilon for item in before), math.fsum(item.delta for item in before)
        kind = next((item.filter for item in reservations if item.filter is not None), None)
        self.filter = filter_of(kind or {"kind": "plan"}, *self._rest)
        self._first = kind is None

    @property
    def _rest(self) -> tuple[float, float]:
        epsilon, delta = self.added
        return max(0.0, self._limits.epsilon - epsilon), max(0.0, self._limits.delta - delta)

    @property
    def epsilon(self) -> float:
        """The smallest limit on epsilon that affords all agreements; math.inf if none does at this delta."""
        if not self._plans:
            return self.added[0] if self.added[1] <= self._limits.delta else math.inf
        return self.added[0] + (adaptive_epsilon(self.filter, self._plans) if self.filter.delta > 0 else math.inf)

    @property
    def left(self) -> tuple[float, float]:
        """(epsilon, delta) of about what further agreements may come to."""
        if self.exceeded or not self.filter.delta > 0:
            return 0.0, 0.0
        return epsilon_left(self.filter, self._plans) if self._plans else self.filter.epsilon, self.filter.delta

    @property
    def exceeded(self) -> bool:
        """Whether more is agreed on than the limits allow."""
        if any(sums > (1 + ROUNDING) * most for sums, most in zip(self.added, self._limit, strict=True)):
            return True
        return bool(self._plans) and not (self.filter.delta > 0 and affords(self.filter, self._plans))

    @property
    def _limit(self) -> tuple[float, float]:
        return self._limits.epsilon, self._limits.delta

    def with_plan(self, plan: RegisteredPlan) -> Total:
        """With one more agreement; the first one chooses the filter."""
        other = copy.copy(self)
        if self._first and all(self._rest):
            other.filter = chosen_filter(*self._rest, plan)
        other._plans, other._first = [*self._plans, plan], False
        return other


@dataclass(frozen=True, slots=True)
class OwnerLimits(Printed):
    """An owner's limits that are in order, and what agreements have reserved of them.

    Attributes:
        limits: what the file says: ``folder``, ``epsilon``, ``delta``, ``unit``, ``data``, ``send``; ``source`` is the
            file.
        agreements: in the lifetime ledger of these data, each with its ``name``, ``epsilon`` and ``delta``.
        epsilon_total: the smallest limit on epsilon that affords all of these, at the limits' delta.
        epsilon_left, delta_left: about what further agreements may come to, 0 or more.
        exceeded: whether more is agreed than the file allows by now: agreements that are under way stop.
    """

    limits: Limits
    agreements: tuple[Reservation, ...]
    epsilon_total: float
    epsilon_left: float
    delta_left: float
    exceeded: bool

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        owner = self.limits
        return {
            "file": owner.source,
            "folder": str(owner.folder),
            "data": owner.data,
            "unit": owner.unit,
            "epsilon": owner.epsilon,
            "delta": owner.delta,
            "send": sorted(owner.send),
            "agreements": [
                {"name": item.name, "epsilon": item.epsilon, "delta": item.delta} for item in self.agreements
            ],
            "total": self.epsilon_total,
            "left": {"epsilon": self.epsilon_left, "delta": self.delta_left},
        }

    def __str__(self) -> str:
        owner = self.limits
        lines = [
            f"{owner.source}: in order",
            f"  folder {owner.folder}, data {owner.data!r}, each {owner.unit} is protected",
            f"  besides private releases may be sent: {', '.join(sorted(owner.send)) or 'nothing'}",
        ]
        lines += [
            f"  agreed: epsilon {digits(item.epsilon, 6)} at delta {digits(item.delta, 6)}: {item.name}"
            for item in self.agreements
        ]
        if self.agreements:
            total = f"epsilon {digits(self.epsilon_total, 6)} at delta {owner.delta:g}"
            lines.append(f"  together: {total}, whatever decided on later ones: the least limit that affords them all")
        left = f"about {digits_down(self.epsilon_left, 3)} at {digits_down(self.delta_left, 6)}"
        lines.append(f"  of epsilon {owner.epsilon:g} at delta {owner.delta:g} there is left: {left}")
        if self.exceeded:
            lines.append("  more is agreed than these limits now allow: agreements that are under way stop")
        return "\n".join(lines)


def limits(file: str | Path | None = None) -> OwnerLimits:
    """Check a limits file (docs/limits.md), and read what is left of its lifetime budget.

    Nothing is made or written, and a silo may be at work meanwhile.

    Args:
        file: None: the one that counts on this machine.

    Raises:
        ConfigError: there is no such file, it is wrong, or others can write to it or to the owner's folder.
        LimitError: the lifetime ledger of the data counts for another unit.
        LedgerError: that ledger is damaged, or it is missing or was set back: what was released is not known.
    """
    require(file is None or isinstance(file, str | Path), "file", file, "be the path of a limits file")
    owner = find_limits() if file is None else read_limits(Path(file).expanduser().absolute())
    if owner is None:
        raise ConfigError(f"{NONE_SET}.")
    agreements = tuple(read_lifetime(owner))
    total = Total(owner, agreements)
    return OwnerLimits(owner, agreements, total.epsilon, *total.left, total.exceeded)


class Lifetime:
    """The lifetime ledger of the data that ``limits`` name; to be had by `opened`."""

    def __init__(self, limits: Limits, ledger: Ledger, marker: Path, secret: bytes, marked: str | None = None) -> None:
        self.limits, self._ledger, self._marker, self._secret = limits, ledger, marker, secret
        self._marked = marked  # the checksum that the marker holds

    @property
    def reservations(self) -> list[Reservation]:
        """Each agreement once."""
        return list(_reservations(self._ledger).values())

    @property
    def total(self) -> Total:
        """What all agreements come to."""
        return Total(self.limits, self.reservations)

    def begin(
        self,
        agreement: str,
        name: str,
        plans: Mapping[int, AgreedPlan],
        records: str,
        neighbouring: str,
    ) -> dict[int, list[Planned]]:
        """Reserve an agreement's plan, unless that was done before; the slots of each silo, whatever of them was used.

        Of several silos that this owner's data are at in one agreement each record is at one, so that the largest
        epsilon of theirs is that of all. On disk when it returns.

        Args:
            agreement: what tells it from all others; name: for people.
            plans: of each silo.
            records: a digest of the records, which is kept as one that is keyed by a secret.
            neighbouring: the relation of all its releases.

        Raises:
            LimitError: nothing, or not enough, is left.
        """
        known = next((facts for facts in self._ledger.runs if facts["noise"] == agreement), None)
        epsilon, delta = max(plan.epsilon for plan in plans.values()), max(plan.delta for plan in plans.values())
        plan = RegisteredPlan(agreement, {silo: agreed.planned for silo, agreed in plans.items()})
        total = self.total if known is not None else self.total.with_plan(plan)
        self._check(epsilon, delta, total, neighbouring)  # also of a known one: the owner may have lowered the limits
        keyed = hmac.new(self._secret, records.encode(), "sha256").hexdigest()[:32]
        self._tell_of_other_records(keyed)
        if self._ledger.runs and self._ledger.runs[-1]["noise"] == agreement:
            return _slots(known or {})
        facts = known or {
            "noise": agreement,
            "name": name,
            "epsilon": epsilon,
            "delta": delta,
            "neighbouring": neighbouring,
            "records": keyed,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "slots": {str(silo): to_plain(plan.planned) for silo, plan in plans.items()},
            "filter": kind_of(total.filter),
        }
        self._ledger.begin_run(facts)
        self.sync()
        return _slots(facts)

    def _tell_of_other_records(self, keyed: str) -> None:
        last = next((facts.get("records") for facts in reversed(self._ledger.runs)), keyed)
        if last != keyed:
            LOG.warning(
                "%s: the records differ from those of the last agreement. They count as the same data, %r, which grew "
                "or were encoded differently; data of other people need another name (data:) in %s.",
                self._ledger.path,
                self.limits.data,
                self.limits.source,
            )

    def _check(self, epsilon: float, delta: float, total: Total, neighbouring: str) -> None:
        limits = self.limits
        others = {item.neighbouring for item in self.reservations} - {neighbouring}
        if others:
            limits.refuse(
                f"the agreement protects against {neighbouring} of a {limits.unit}, and earlier ones on these data "
                f"against {', '.join(sorted(others))}: no single epsilon bounds both",
                "agree on the same sampler and neighbouring relation as before",
            )
        if total.exceeded:
            left, _ = self.total.left
            limits.refuse(
                f"the agreement's plan comes to epsilon {digits(epsilon, 6)} at delta {digits(delta, 6)}; with all "
                f"others it would take a limit of epsilon {digits(total.epsilon, 6)} at delta {limits.delta:.6g}, and "
                f"the owner allows {limits.epsilon:.6g} over the data's lifetime, of which about "
                f"{digits_down(left, 3)} is left"
            )

    def of(self, agreement: str) -> list[Charge]:
        """What an agreement has released."""
        return self._ledger.of_run(agreement)

    def is_of_another(self, agreement: str, round: int, noise_id: str) -> bool:
        """Whether a round's noise was named so in another agreement, which then has what is charged under that name."""
        return self._ledger.run_of(round, noise_id) not in (None, agreement)

    @property
    def head(self) -> str:
        """The checksum of the ledger's last line."""
        return self._ledger.head

    def append(self, agreement: str, charges: Sequence[Charge]) -> None:
        """Charge what is about to leave; safe after `sync`."""
        assert self._ledger.runs and self._ledger.runs[-1]["noise"] == agreement, "begin it first"
        self._ledger.append(charges)

    def sync(self) -> None:
        """Return once everything appended is on disk."""
        self._ledger.sync()
        if self._marked != self._ledger.head:
            write_atomic(self._marker, to_json({"head": self._ledger.head}))
            self._marked = self._ledger.head

    def line(self, epsilon: float, delta: float, folder: Path) -> str:
        """What a run begins with in the log of its silo."""
        left, spare = self.total.left
        return (
            f"agreed epsilon {digits(epsilon, 6)} at delta {digits(delta, 6)}; folder {folder}; of the lifetime budget "
            f"of {self.limits.data!r}, epsilon {self.limits.epsilon:.6g} at delta {self.limits.delta:.6g}, there is "
            f"left for further agreements: about epsilon {digits_down(left, 3)} at delta {digits_down(spare, 6)}"
        )


@contextlib.contextmanager
def opened(limits: Limits) -> Iterator[Lifetime]:
    """The lifetime ledger of the data that ``limits`` name, which no other process can open meanwhile.

    Raises:
        ConfigError: the folder is not the owner's alone; BusyError: another process has the ledger.
        LedgerError: it is damaged, or it is missing, or set back, though it was there.
    """
    own_folder(limits.folder, limits.source)
    path, marker = _files(limits)
    taken = f"{path}: another process ({{holder}}) is at work with these data. Wait for it, or end it."
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(limits.folder / f".{limits.data}.lock", taken))
        head, begun = _head(marker), is_begun(path)
        _check_there(path, marker, head, begun)
        ledger = Ledger.open(path) if begun else Ledger(path, {"lifetime": limits.data, "unit": limits.unit})
        stack.enter_context(ledger)
        _check_whole(ledger, marker, head, limits)
        lifetime = Lifetime(limits, ledger, marker, secret_of(limits), head)
        if head != ledger.head:
            lifetime.sync()
        yield lifetime


def read_lifetime(limits: Limits) -> list[Reservation]:
    """The agreements on the data that ``limits`` name: read while a silo may be at work, and nothing made or written.

    Raises:
        ConfigError: the folder is not the owner's alone; LimitError: the ledger counts for another unit.
        LedgerError: it is damaged, or it is missing, or set back, though it was there.
    """
    path, marker = _files(limits)
    if not limits.folder.exists():
        return []
    own_folder(limits.folder, limits.source)
    head, begun = _head(marker), is_begun(path)  # in this order: the ledger is on disk before the marker is
    _check_there(path, marker, head, begun)
    if not begun:
        return []
    ledger = Ledger.open(path, append=False)
    _check_whole(ledger, marker, head, limits)
    return list(_reservations(ledger).values())


def read_reservations(path: Path) -> list[Reservation]:
    """The agreements in a lifetime ledger, for reading.

    Raises:
        LedgerError: it is damaged.
    """
    return list(_reservations(Ledger.open(path, append=False)).values())


def _files(limits: Limits) -> tuple[Path, Path]:
    """(the ledger, the file that knows its last line)."""
    return limits.folder / f"{limits.data}.lifetime.jsonl", limits.folder / f"{limits.data}.lifetime.json"


def _check_there(path: Path, marker: Path, head: str | None, begun: bool) -> None:
    """Raise LedgerError where a ledger is missing that there was."""
    if head is not None and not begun:
        raise LedgerError(
            f"{path} is missing, though {marker.name} beside it says that it was there: what was released of these "
            "data is not known, so nothing more may be. Restore it from a copy."
        )


def _check_whole(ledger: Ledger, marker: Path, head: str | None, limits: Limits) -> None:
    """Raise LedgerError where a ledger was set back, and LimitError where it is not of these data and this unit."""
    if head:
        ledger.check_holds(head, marker.name)
    unit = ledger.facts.get("unit")
    if ledger.facts.get("lifetime") != limits.data or unit != limits.unit:
        limits.refuse(
            f"unit: {limits.unit} contradicts the lifetime ledger of these data, which counts for unit: {unit}",
            f"set unit: {unit}, or name other data",
        )


def _reservations(ledger: Ledger) -> dict[str, Reservation]:
    reservations: dict[str, Reservation] = {}
    for facts in ledger.runs:
        try:
            reservation = Reservation(
                *(facts["noise"], facts["name"], float(facts["epsilon"]), float(facts["delta"]), facts["neighbouring"]),
                slots=_slots(facts),
                filter=facts.get("filter"),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerError(
                f"{ledger.path}: an agreement in it cannot be read ({error!r}). Restore a copy."
            ) from error
        reservations.setdefault(reservation.agreement, reservation)
    return reservations


def _slots(facts: dict[str, Any]) -> dict[int, list[Planned]]:
    return {int(silo): from_plain(slots) for silo, slots in facts.get("slots", {}).items()}


def _head(marker: Path) -> str | None:
    """The last checksum that is known of the ledger; None if there never was one."""
    if not marker.exists():
        return None
    try:
        return str(json.loads(marker.read_text())["head"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{marker} cannot be read ({error}). Restore it from a copy.") from error


def order_secret_of(limits: Limits) -> bytes:
    """By which an owner's records are ordered (`dpfl_plugin.data.record_order`), in all runs; as `secret_of`."""
    return hmac.digest(secret_of(limits), b"order", "sha256")


def secret_of(limits: Limits) -> bytes:
    """32 bytes that nobody but the owner knows, drawn once; its folder has to be there."""
    path = limits.folder / SECRET
    if not path.exists():
        temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # of other data in the same folder
            os.link(temporary, path)
        temporary.unlink()
    return path.read_bytes()
