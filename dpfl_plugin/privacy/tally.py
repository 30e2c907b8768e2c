"""Charges, each counted once, in the rows of a table: a long run makes millions of them.

A row is what a line of a ledger says: the same charge of some silos, in some fifty bytes. What rows have in common is
kept once: releases with the shares that they read, sets of silos, and how names of noise begin
(`oracle.Draw.noise_id`), whose digits differ in every round. Rows of a round are chained, so that finding out whether a
charge is known takes as long as its round is large, however long the ledger is.
"""

from __future__ import annotations

import copy
import re
import struct
from array import array
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np

from dpfl_plugin.privacy.events import CHARGE_KINDS, Charge, ChargeKind, SampledGaussian, batches

Share = tuple[float, float]
ReleaseKind = tuple[Share, SampledGaussian]
Value = TypeVar("Value", bound=Hashable)

_COLUMNS: Final = np.dtype(
    [
        ("round", "<i8"),
        ("count", "<i8"),
        ("kind", "<u4"),
        ("silos", "<u4"),
        ("noise", "S20"),
        ("purpose", "i1"),
        ("before", "<i4"),  # the row before it of the same round and name of noise but for its digits; -1: none
    ]
)
_ROW: Final = struct.Struct("<qqII20sbi")
_WIDTH: Final = _ROW.size
_BLOCK: Final = 4096  # rows that are read at once
_PAGE: Final = 64  # rounds of the index that are kept together
_PURPOSES: Final[tuple[ChargeKind | None, ...]] = ("round", *(kind for kind in CHARGE_KINDS if kind != "round"), None)
_RANDOM: Final = re.compile(r"([^.]*\.)([0-9a-f]{32})((?:\..*)?)", re.DOTALL)


class Entry(NamedTuple):
    """A charge in numbers: ``kind`` and ``noise`` are those of the `Names` of its tally."""

    round: int
    silo: int
    kind: int
    noise: bytes
    releases: int


class _Numbers(Generic[Value]):
    """Values by number, in the order in which they came."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._numbers: dict[Value, int] = {}

    def number(self, value: Value) -> int:
        number = self._numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


class Names:
    """Numbers for kinds of releases, sets of silos and names of noise. Only grows, so that tallies share it."""

    def __init__(self) -> None:
        self._kinds, self._silos = _Numbers[ReleaseKind](), _Numbers[tuple[int, ...]]()
        self._patterns = _Numbers[tuple[str, ...]]()
        self.kinds, self.silos = self._kinds.values, self._silos.values
        self.kind_number, self.silos_number = self._kinds.number, self._silos.number

    def noise(self, noise_id: str) -> bytes:
        """BEFORE.32 HEX DIGITS (and .AFTER in ledgers of earlier versions) as the number of (BEFORE, AFTER) and the
        digits; all else as a number."""
        match = _RANDOM.fullmatch(noise_id)
        pattern = (noise_id,) if match is None else (match[1], match[3])
        digits = bytes(16) if match is None else bytes.fromhex(match[2])
        return self._patterns.number(pattern).to_bytes(4, "little") + digits

    def noise_id(self, noise: bytes) -> str:
        pattern = self._patterns.values[int.from_bytes(noise[:4], "little")]
        return pattern[0] if len(pattern) == 1 else f"{pattern[0]}{noise[4:].hex()}{pattern[1]}"


class Tally:
    """(round, silo, share, release, noise_id) -> the largest count that it was charged with, in the order of charging.

    Iterating makes a `Charge` of each anew; `entries` and `totals` are for whoever has to look at all of them.
    """

    def __init__(self, charges: Iterable[Charge] = ()) -> None:
        self.names = Names()
        self._rows = bytearray()
        self._ranges: Sequence[tuple[int, int]] | None = None  # of a part
        self._larger: dict[tuple[int, int], int] = {}  # (row, silo) -> its count, where that is larger than the row's
        self._latest: dict[tuple[bytes, int], array[int]] = {}  # (noise, page) -> of each round there, 1 + the last row
        self._asked: tuple[int, bytes] | None = None  # round and noise that were looked for last
        self._of_asked: dict[int, dict[int, int]] = {}  # their kind -> silo -> row
        self._only_rounds, self._length = True, 0
        for first, silos in batches(charges):
            self.add(first, silos)

    def add(self, first: Charge, silos: Sequence[int]) -> list[int]:
        """Count charges that differ from ``first`` in their silo only, each once with its largest count.

        Returns by how much that of each of ``silos`` grew.
        """
        known = dict(zip(silos, self.counts(first, silos), strict=True))
        kind, noise = self.names.kind_number((first.share, first.release)), self.names.noise(first.noise_id)
        self.put(first.round, tuple(sorted(known)), kind, noise, first.count, first.kind)
        return [max(first.count - known.pop(silo, first.count), 0) for silo in silos]

    def counts(self, first: Charge, silos: Sequence[int]) -> list[int]:
        """The largest counts so far of charges that differ from ``first`` in their silo only; 0 where there is none."""
        kind, noise = self.names.kind_number((first.share, first.release)), self.names.noise(first.noise_id)
        rows = self._rows_of(first.round, noise).get(kind, {})
        return [0 if silo not in rows else self._count(rows[silo], silo) for silo in silos]

    def put(
        self,
        round_: int,
        silos: tuple[int, ...],
        kind: int,
        noise: bytes,
        count: int,
        purpose: ChargeKind | None = "round",
    ) -> None:
        """`add` by numbers.

        Args:
            silos: ascending, each once. purpose: what it was for; None where that is not said.
        """
        known = self._rows_of(round_, noise).setdefault(kind, {})
        if known:
            for silo in silos:
                if silo in known and self._count(known[silo], silo) < count:
                    self._larger[known[silo], silo] = count
            silos = tuple(silo for silo in silos if silo not in known)
        if not silos:
            return
        page = self._latest.setdefault((noise[:4], round_ // _PAGE), array("i"))
        if not page:
            page.frombytes(bytes(page.itemsize * _PAGE))
        row, before = len(self._rows) // _WIDTH, page[round_ % _PAGE] - 1
        number, code = self.names.silos_number(silos), _PURPOSES.index(purpose)
        self._rows += _ROW.pack(round_, count, kind, number, noise, code, before)
        page[round_ % _PAGE] = row + 1
        known.update(dict.fromkeys(silos, row))
        self._only_rounds = self._only_rounds and purpose == "round"
        self._length += len(silos)

    def _rows_of(self, round_: int, noise: bytes) -> dict[int, dict[int, int]]:
        """ReleaseKind -> silo -> row, of what was charged in a round under a name of noise."""
        if self._asked != (round_, noise):
            self._asked, self._of_asked = (round_, noise), {}
            page = self._latest.get((noise[:4], round_ // _PAGE))
            row = page[round_ % _PAGE] - 1 if page else -1
            while row >= 0:
                at = row
                _, _, kind, number, name, _, row = _ROW.unpack_from(self._rows, at * _WIDTH)
                if name == noise:
                    self._of_asked.setdefault(kind, {}).update(dict.fromkeys(self.names.silos[number], at))
        return self._of_asked

    def _count(self, row: int, silo: int) -> int:
        own = int(_ROW.unpack_from(self._rows, row * _WIDTH)[1])
        return self._larger.get((row, silo), own) if self._larger else own

    def first_row(self, round_: int, noise_id: str) -> int | None:
        """The first row of a round with this name of noise; None if there is none."""
        rows = self._rows_of(round_, self.names.noise(noise_id)).values()
        return min((row for of_kind in rows for row in of_kind.values()), default=None)

    @property
    def num_rows(self) -> int:
        """How many rows there are, of which a row is one that is added later."""
        return len(self._rows) // _WIDTH

    # What it holds

    def _numbered(self) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Rows with their numbers; those that are added meanwhile are not among them."""
        for begin, end in self._ranges or ((0, self.num_rows),):
            for at in range(begin, end, _BLOCK):
                block = bytes(self._rows[at * _WIDTH : min(at + _BLOCK, end) * _WIDTH])
                yield from enumerate(_ROW.iter_unpack(block), at)

    def _table(self) -> Any:
        """Its columns; it cannot grow as long as somebody has them."""
        table = np.frombuffer(self._rows, _COLUMNS)
        return table if self._ranges is None else np.concatenate([table[:0], *(table[a:b] for a, b in self._ranges)])

    def entries(self) -> Iterator[Entry]:
        """All charges; those that are added meanwhile are not among them."""
        return self._entries(self._numbered())

    def _entries(self, rows: Iterable[tuple[int, tuple[Any, ...]]]) -> Iterator[Entry]:
        sets, larger = self.names.silos, self._larger
        for row, (round_, count, kind, number, noise, _, _) in rows:
            for silo in sets[number]:
                yield Entry(round_, silo, kind, noise, larger.get((row, silo), count) if larger else count)

    def of_round(self, round_: int) -> list[Entry]:
        rows = np.flatnonzero(self._table()["round"] == round_).tolist()
        return [*self._entries((row, _ROW.unpack_from(self._rows, row * _WIDTH)) for row in rows)]

    def charge(self, entry: Entry) -> Charge:
        share, release = self.names.kinds[entry.kind]
        return Charge(
            round=entry.round,
            silo=entry.silo,
            release=release,
            count=entry.releases,
            share=share,
            noise_id=self.names.noise_id(entry.noise),
            kind=self.kind(entry),
        )

    def kind(self, entry: Entry) -> ChargeKind | None:
        """What a charge was for; None if it is from a ledger that does not say, and was not settled."""
        if self._only_rounds:
            return "round"
        row = self._rows_of(entry.round, entry.noise)[entry.kind][entry.silo]
        purpose: int = _ROW.unpack_from(self._rows, row * _WIDTH)[5]
        return _PURPOSES[purpose]

    @property
    def only_rounds(self) -> bool:
        """Whether nothing was charged but rounds."""
        return self._only_rounds

    def settle(self, guess: Callable[[int, Share], ChargeKind]) -> None:
        """Say what charges were for that come from a ledger which does not say it.

        Args:
            guess: (round, share) -> the kind of such a charge.
        """
        if self._only_rounds:
            return
        table = self._table()
        for row in np.flatnonzero(table["purpose"] == _PURPOSES.index(None)):
            share, _ = self.names.kinds[table["kind"][row]]
            table["purpose"][row] = _PURPOSES.index(guess(int(table["round"][row]), share))
        self._only_rounds = not table["purpose"].any()

    def only(self, keep: Callable[[Entry], bool]) -> Tally:
        """The entries that are to be kept, as a tally of their own."""
        chosen = Tally()
        chosen.names = self.names
        for row, fields in self._numbered():
            for entry in filter(keep, self._entries([(row, fields)])):
                purpose = _PURPOSES[fields[5]]
                chosen.put(entry.round, (entry.silo,), entry.kind, entry.noise, entry.releases, purpose)
        return chosen

    def part(self, ranges: Sequence[tuple[int, int]]) -> Tally:
        """The rows of these ranges, to be looked at only."""
        chosen = copy.copy(self)
        chosen._ranges = ranges or ((0, 0),)
        return chosen

    def copy(self) -> Tally:
        """One that may grow by itself."""
        other = copy.copy(self)
        other._rows, other._larger, other._asked = self._rows[:], self._larger.copy(), None
        other._latest = {key: page[:] for key, page in self._latest.items()}
        return other

    def totals(self) -> dict[tuple[int, int], int]:
        """(silo, kind) -> how many releases in all, in the order of charging."""
        totals: dict[tuple[int, int], int] = {}
        for _, silo, kind, _, count in self.entries():
            totals[silo, kind] = totals.get((silo, kind), 0) + count
        return totals

    def several(self) -> set[int]:
        """The rounds that were charged under more than one name of noise."""
        table = self._table()
        rounds, noise, begins = table["round"], table["noise"], np.ones(len(table), dtype=bool)
        begins[1:] = (rounds[1:] != rounds[:-1]) | (noise[1:] != noise[:-1])  # most follow others of their round
        order = np.flatnonzero(begins)
        order = order[np.argsort(rounds[order], kind="stable")]
        same = np.flatnonzero(rounds[order[1:]] == rounds[order[:-1]])
        return {*rounds[order[same]][noise[order[same]] != noise[order[same + 1]]].tolist()}

    def again(self) -> dict[int, int]:
        """{round: under how many names of noise it was charged}, of those that have several; whoever took part.

        Attempts that no one silo was in together count together: which silos each of them had may be another draw.
        """
        names, several = defaultdict[int, set[bytes]](set), self.several()
        for _, (round_, _, _, _, noise, _, _) in self._numbered() if several else ():
            if round_ in several:
                names[round_].add(noise)
        return {round_: len(of_round) for round_, of_round in names.items()}

    def __iter__(self) -> Iterator[Charge]:
        return map(self.charge, self.entries())

    def __len__(self) -> int:
        return self._length if self._ranges is None else sum(1 for _ in self.entries())
