"""Charges that a run which goes on is to make again bit for bit: they count when it does, or once it will not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from dpfl_plugin.privacy.events import Charge, ChargeKind
from dpfl_plugin.privacy.extra_releases import NOT_RUN


class Awaited:
    """Charges of a ledger after a checkpoint.

    Until they are made again nothing counts them, so that a resumed run takes the undisturbed one's way.
    """

    def __init__(self) -> None:
        self._by_place: defaultdict[tuple[int, ChargeKind | None], list[Charge]] = defaultdict(list)

    def settled(self, ledger: Iterable[Charge], repeats: Callable[[Charge], bool]) -> list[Charge]:
        """What of a ledger counts from the beginning; what ``repeats`` says yes to is awaited."""
        final = []
        for charge in ledger:
            if not repeats(charge):
                final.append(charge)
            elif charge.noise_id != NOT_RUN:
                self._by_place[charge.round, charge.kind].append(charge)
        return final

    def differs(self, kind: ChargeKind | None, round: int, noise_id: str) -> bool:
        """Whether something else was released in the place of a release of this name: besides it, too, by a session
        whose rounds were asked at other values."""
        return any(charge.noise_id != noise_id for charge in self._by_place.get((round, kind), ()))

    def has(self, kind: ChargeKind | None, round: int, noise_id: str) -> bool:
        """Whether a release of this name is among them."""
        return any(charge.noise_id == noise_id for charge in self._by_place.get((round, kind), ()))

    def skips(self, round: int) -> bool:
        """Whether a release of this round leaves out an earlier one, which then is not made again."""
        return any(at < round for at, _ in self._by_place)

    def repeated(self, kind: ChargeKind | None, round: int) -> None:
        """It was made again."""
        self._by_place.pop((round, kind), None)

    def clear(self) -> None:
        """Nothing is awaited any more."""
        self._by_place.clear()

    def __bool__(self) -> bool:
        return bool(self._by_place)
