"""The rows of a tally: what a dictionary from keys to counts holds, in some fifty bytes a key instead of a hundred.

A key is an integer in which the fields of a charge lie side by side (`tally.packed`); all keys are one long string of
bytes, 36 for each, in the order in which they came. A hash table of row numbers says which key is where. A key that is
longer, or a tuple, is kept as it is, with its place among the others.
"""

from __future__ import annotations

import bisect
import itertools
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

Key = int | tuple[Any, int, int, int]

SILO, KIND, PATTERN, DIGEST = 32, 32, 32, 128  # bits of the fields; the round is above them and has no end
NOISE: Final = PATTERN + DIGEST
NOISE_BYTES: Final = NOISE // 8  # of a row, its first
ROW: Final = np.dtype(
    [("low", "<u8"), ("high", "<u8"), ("pattern", "<u4"), ("kind", "<u4"), ("silo", "<u4"), ("round", "<i8")]
)
_WIDTH: Final = ROW.itemsize
_CHUNK: Final = 4096  # rows that are made Python's at once
_MOST: Final = (1 << 31) - 1  # of a count in its column


class Entry(NamedTuple):
    """A charge in numbers: ``kind`` and ``noise`` are those of the tally that it is from."""

    round: int
    silo: int
    kind: int
    noise: int
    releases: int


def unpacked(key: Key) -> tuple[int, int, int, int]:
    """(round, silo, kind, noise) of a key."""
    if type(key) is tuple:
        return key
    assert isinstance(key, int)
    head = key >> NOISE
    return (
        head >> SILO + KIND,
        head >> KIND & (1 << SILO) - 1,
        head & (1 << KIND) - 1,
        key & (1 << NOISE) - 1,
    )


def _data(key: Key) -> bytes | None:
    """A key as a row has it; None if it does not fit."""
    try:
        return key.to_bytes(_WIDTH, "little", signed=True) if type(key) is int else None
    except OverflowError:
        return None


class Index:
    """From the first ``prefix`` bytes of rows to the first row that begins with them: a hash table of row numbers."""

    def __init__(self, rows: bytearray, prefix: int) -> None:
        self._rows, self._prefix = rows, prefix
        self._slots, self._used = array("i", bytes(4 * 16)), 0  # row + 1, or 0; never full

    def find(self, beginning: bytes) -> int:
        """-1 if there is none."""
        slots, rows, prefix = self._slots, self._rows, self._prefix
        mask = len(slots) - 1
        slot = hash(beginning) & mask
        while row := slots[slot]:
            at = (row - 1) * _WIDTH
            if rows[at : at + prefix] == beginning:
                return row - 1
            slot = slot + 1 & mask
        return -1

    def add(self, beginning: bytes, row: int) -> None:
        """Let `find` know it, which did not know such a row before."""
        if 3 * self._used >= 2 * len(self._slots):
            self._grow()
        self._used += 1
        _put(self._slots, beginning, row + 1)

    def copy(self, rows: bytearray) -> Index:
        """Of a copy of its rows."""
        other = Index(rows, self._prefix)
        other._slots, other._used = self._slots[:], self._used
        return other

    def _grow(self) -> None:
        rows, prefix, slots = self._rows, self._prefix, array("i", bytes(8 * len(self._slots)))
        for row in self._slots:
            if row:
                at = (row - 1) * _WIDTH
                _put(slots, bytes(rows[at : at + prefix]), row)
        self._slots = slots


def _put(slots: array[int], beginning: bytes, row: int) -> None:
    mask = len(slots) - 1
    slot = hash(beginning) & mask
    while slots[slot]:
        slot = slot + 1 & mask
    slots[slot] = row


class Counts:
    """Key -> count, above 0, in the order in which keys came."""

    def __init__(self) -> None:
        self._rows = bytearray()
        self._index = Index(self._rows, _WIDTH)
        self._by_noise: Index | None = None
        self._odd: dict[Key, int] = {}
        self._odd_at: dict[int, Key] = {}
        self._counts = array("i")  # 0: in `_other`
        self._other: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def get(self, key: Key) -> int:
        """0 if there is none."""
        row = self.row(key)
        return 0 if row < 0 else self.at(row)

    def row(self, key: Key) -> int:
        """Which row a key has; -1 if there is none."""
        return self.locate(key)[0]

    def locate(self, key: Key) -> tuple[int, bytes | None]:
        """(`row`, what a row of the key holds; None if it does not fit)."""
        data = _data(key)
        return (self._odd.get(key, -1) if data is None else self._index.find(data)), data

    def at(self, row: int) -> int:
        """The count of a row."""
        return self._counts[row] or self._other[row]

    def put(self, row: int, count: int) -> None:
        """Change the count of a row."""
        if type(count) is int and count <= _MOST:
            self._counts[row] = count
            self._other.pop(row, None)
        else:
            self._counts[row], self._other[row] = 0, count

    def add(self, key: Key, data: bytes | None, count: int) -> None:
        """A key that is not here yet, as `locate` found."""
        row = len(self._counts)
        if data is None:
            self._odd[key], self._odd_at[row] = row, key
            self._rows += unpacked(key)[3].to_bytes(NOISE_BYTES, "little") + bytes(_WIDTH - NOISE_BYTES)
        else:
            self._rows += data
        if type(count) is int and count <= _MOST:
            self._counts.append(count)
        else:
            self._counts.append(0)
            self._other[row] = count
        if data is not None:
            self._index.add(data, row)
        if self._by_noise is not None:
            self._note_first(row)

    def first_of(self, noise: int) -> int:
        """The first row with this noise; -1 if there is none."""
        if self._by_noise is None:
            self._by_noise = Index(self._rows, NOISE_BYTES)
            for row in range(len(self)):
                self._note_first(row)
        return self._by_noise.find(noise.to_bytes(NOISE_BYTES, "little"))

    def _note_first(self, row: int) -> None:
        assert self._by_noise is not None
        noise = bytes(self._rows[row * _WIDTH : row * _WIDTH + NOISE_BYTES])
        if self._by_noise.find(noise) < 0:
            self._by_noise.add(noise, row)

    def key(self, row: int) -> Key:
        """Of a row."""
        if row in self._odd_at:
            return self._odd_at[row]
        return int.from_bytes(self._rows[row * _WIDTH : (row + 1) * _WIDTH], "little", signed=True)

    def keys(self) -> Iterator[Key]:
        """As they were added."""
        return map(self.key, range(len(self)))

    def entries(self) -> Iterator[Entry]:
        """All rows; those that are added meanwhile are not among them."""
        for begin in range(0, len(self), _CHUNK):
            rows = range(begin, min(begin + _CHUNK, len(self)))
            counts = self._counts[begin : rows.stop]
            yield from self.entries_at(rows, slice(begin, rows.stop), counts, self._other)

    def entries_at(
        self, rows: Sequence[int], chosen: Any, counts: Sequence[int], other: Mapping[int, int]
    ) -> Iterator[Entry]:
        """Some rows, given one by one and as the index of an array, with counts that may be other ones by now."""
        table = np.frombuffer(self._rows, ROW)[chosen]
        noise = [
            pattern << DIGEST | high << 64 | low
            for pattern, high, low in zip(*(table[name].tolist() for name in ("pattern", "high", "low")), strict=True)
        ]
        fields = zip(*(table[name].tolist() for name in ("round", "silo", "kind")), noise, counts, strict=True)
        found = map(tuple.__new__, itertools.repeat(Entry), fields)
        return self._mended(rows, found, other) if self._odd or other else found

    def _mended(self, rows: Iterable[int], found: Iterable[Entry], other: Mapping[int, int]) -> Iterator[Entry]:
        """With what did not fit into the columns."""
        for row, entry in zip(rows, found, strict=True):
            key = self._odd_at.get(row)
            count = entry.releases or other[row]
            yield entry._replace(releases=count) if key is None else Entry(*unpacked(key), count)

    def copy(self) -> Counts:
        """One that may grow by itself."""
        copy = Counts()
        copy._rows = bytearray(self._rows)
        copy._index = self._index.copy(copy._rows)
        copy._odd, copy._odd_at = self._odd.copy(), self._odd_at.copy()
        copy._counts, copy._other = self._counts[:], self._other.copy()
        return copy


class Part:
    """Some rows of counts, ascending, as they were when it was made: keys do not change, and it has its own counts."""

    def __init__(self, of: Counts, rows: array[int]) -> None:
        self._of, self._chosen = of, rows
        self._counts, self._other = array("i"), dict[int, int]()
        for row in rows:
            count = of.at(row)
            plain = type(count) is int and count <= _MOST
            self._counts.append(count if plain else 0)
            if not plain:
                self._other[row] = count

    def __len__(self) -> int:
        return len(self._chosen)

    def row(self, key: Key) -> int:
        """As `Counts.row`, of its own rows."""
        row = self._of.row(key)
        place = bisect.bisect_left(self._chosen, row)
        return place if row >= 0 and self._chosen[place : place + 1] == array("I", [row]) else -1

    def at(self, row: int) -> int:
        """The count of its own row."""
        return self._counts[row] or self._other[self._chosen[row]]

    def get(self, key: Key) -> int:
        """0 if there is none."""
        row = self.row(key)
        return 0 if row < 0 else self.at(row)

    def key(self, row: int) -> Key:
        """Of its own row."""
        return self._of.key(self._chosen[row])

    def keys(self) -> Iterator[Key]:
        """As they were added."""
        return map(self._of.key, self._chosen)

    def entries(self) -> Iterator[Entry]:
        """All its rows."""
        for begin in range(0, len(self), _CHUNK):
            rows = self._chosen[begin : begin + _CHUNK]
            counts = self._counts[begin : begin + _CHUNK]
            yield from self._of.entries_at(rows, np.frombuffer(rows, np.uint32), counts, self._other)

    def copy(self) -> Counts:
        """What may grow."""
        copy = Counts()
        for row, key in enumerate(self.keys()):
            copy.add(key, copy.locate(key)[1], self.at(row))
        return copy
