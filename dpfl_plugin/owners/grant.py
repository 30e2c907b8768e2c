"""What silos may release in an agreement: their slots, and the lifetime ledger of an owner who keeps one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dpfl_plugin.errors import LedgerError
from dpfl_plugin.owners.lifetime import Lifetime
from dpfl_plugin.privacy.composition import Planned
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.slots import Lack, Slots, released


class Grant:
    """The slots of some silos, of which each release takes one.

    Used slots are the lines of ledgers, and nothing else: neither a crash, nor a restart, nor a message that comes
    again gives one back.

    Args:
        planned: the slots of each silo, whatever of them was used.
        ledgers: of this agreement; what is in any of them was released.
        lifetime: the ledger of the owner of the data, in which the plan of ``agreement`` is reserved; None for none.

    Raises:
        LedgerError: more was released than the plan has slots for.
    """

    def __init__(
        self,
        planned: Mapping[int, Iterable[Planned]],
        ledger: Ledger,
        lifetime: Lifetime | None = None,
        agreement: str = "",
    ) -> None:
        self._slots = {silo: Slots(slots) for silo, slots in planned.items()}
        self._ledger, self._lifetime, self._agreement = ledger, lifetime, agreement
        if lifetime is not None:
            heads = lifetime.head, ledger.head
            ledger.append(lifetime.of(agreement))  # a crash came between the two, or this one was lost or set back
            lifetime.append(agreement, list(ledger))  # or it was begun before there were limits
            if (lifetime.head, ledger.head) != heads:
                lifetime.sync()
                ledger.sync()
        self._take(ledger)

    def lacking(self, charges: Sequence[Charge]) -> Lack | None:
        """Why what is about to be released has no slot; None if it has. What was charged before needs none."""
        for silo, new in self._new(charges).items():
            lack = self._slots[silo].lacking(released(new))
            if lack is not None:
                return lack
        return None

    def apart(self, charges: Sequence[Charge]) -> list[Charge]:
        """``charges`` of fresh noise, each on top of what is charged under its name.

        The name is the server's, and an answer that is computed again is another release, whatever it is called.
        """
        counts: Counter[Charge] = Counter()
        for charge in charges:
            counts[replace(charge, count=1)] += charge.count
        return [replace(charge, count=count + self._ledger.known(charge)) for charge, count in counts.items()]

    def named_elsewhere(self, charges: Iterable[Charge]) -> bool:
        """Whether noise of ``charges`` has a name of another agreement: it would be charged there, and not here."""
        lifetime, names = self._lifetime, {(charge.round, charge.noise_id) for charge in charges}
        return lifetime is not None and any(lifetime.is_of_another(self._agreement, *name) for name in names)

    def append(self, charges: Sequence[Charge]) -> None:
        """Take the slots of what silos are about to send, and charge it to the owner's ledger; safe after `sync`.

        Raises:
            LedgerError: something has no slot: nothing of it may leave.
        """
        for silo, new in self._new(charges).items():
            self._slots[silo].take(released(new))
        if self._lifetime is not None:
            self._lifetime.append(self._agreement, charges)

    def sync(self) -> None:
        if self._lifetime is not None:
            self._lifetime.sync()

    def _new(self, charges: Iterable[Charge]) -> dict[int, list[Charge]]:
        """What the ledger does not know yet, by silo."""
        new: defaultdict[int, list[Charge]] = defaultdict(list)
        for charge in charges:
            more = charge.count - self._ledger.known(charge)
            if more > 0:
                new[charge.silo].append(replace(charge, count=more))
        return new

    def _take(self, charges: Iterable[Charge]) -> None:
        of_silo: defaultdict[int, list[Charge]] = defaultdict(list)
        for charge in charges:
            of_silo[charge.silo].append(charge)
        for silo, releases in of_silo.items():
            if silo not in self._slots:
                raise LedgerError(f"{self._ledger.path}: holds releases of silo {silo}, of which no plan is known.")
            self._slots[silo].take(released(releases))
