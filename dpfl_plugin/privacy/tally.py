"""Charges, each counted once, in some fifty bytes each: a long run makes millions of them.

What many charges have in common is kept once: releases with the shares that they read, and the run in the names of
noise (`oracle.Draw.noise_id`), whose digits differ in every round. A charge is
then one integer, its fields side by side, which `tally_rows` keeps as bytes. What does not fit the fields is kept as a
tuple, which equals no integer. So two charges have one key if, and only if, they are the same release.
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from dpfl_plugin.privacy.events import Charge, ChargeKind, SampledGaussian, batches
from dpfl_plugin.privacy.tally_rows import DIGEST as _DIGEST
from dpfl_plugin.privacy.tally_rows import KIND as _KIND
from dpfl_plugin.privacy.tally_rows import NOISE as _NOISE
from dpfl_plugin.privacy.tally_rows import SILO as _SILO
from dpfl_plugin.privacy.tally_rows import Counts, Entry, Key, Part, unpacked

Share = tuple[float, float]
Kind = tuple[Share, SampledGaussian]

_SILOS: Final = 1 << _SILO
_KINDS: Final = 1 << _KIND
_NOISES: Final = 1 << _NOISE
_LONGEST: Final = 1 << 63  # of what an array of integers holds
_RANDOM: Final = re.compile(r"([^.]*\.)([0-9a-f]{32})((?:\..*)?)", re.DOTALL)


class Names:
    """Numbers for kinds of releases and for names of noise, and the way back. Only grows, so that tallies share it."""

    def __init__(self) -> None:
        self.kinds: list[Kind] = []
        self._kinds: dict[Kind, int] = {}
        self._patterns: list[tuple[Any, ...]] = []
        self._pattern_numbers: dict[tuple[Any, ...], int] = {}
        # What was asked for last, as a round's silos do one after the other: most of the work would be to hash it.
        self._last_kind: tuple[Share | None, SampledGaussian | None, int] = (None, None, 0)
        self._last_noise: tuple[str | None, int] = (None, 0)

    def kind(self, share: Share, release: SampledGaussian) -> int:
        last_share, last_release, number = self._last_kind
        if release is last_release and share == last_share:
            return number
        number = self._number(share, release)
        self._last_kind = share, release, number
        return number

    def _number(self, share: Share, release: SampledGaussian) -> int:
        kind = share, release
        number = self._kinds.get(kind)
        if number is None:
            number = self._kinds[kind] = len(self.kinds)
            self.kinds.append(kind)
        return number

    def noise(self, noise_id: str) -> int:
        """BEFORE.32 HEX DIGITS (and .AFTER in ledgers of earlier versions) as the number of (BEFORE, AFTER) and that of
        the digits; all else as a whole."""
        last, number = self._last_noise
        if noise_id == last and type(noise_id) is str:
            return number
        number = self._noise(noise_id)
        self._last_noise = noise_id, number
        return number

    def _noise(self, noise_id: str) -> int:
        found = _RANDOM.fullmatch(noise_id) if type(noise_id) is str else None
        pattern: tuple[Any, ...] = (noise_id,) if found is None else (found[1], found[3])
        number = self._pattern_numbers.get(pattern)
        if number is None:
            number = self._pattern_numbers[pattern] = len(self._patterns)
            self._patterns.append(pattern)
        return number << _DIGEST | (0 if found is None else int(found[2], 16))

    def noise_id(self, noise: int) -> str:
        pattern = self._patterns[noise >> _DIGEST]
        if len(pattern) == 1:
            return pattern[0]  # type: ignore[no-any-return]
        return f"{pattern[0]}{noise & (1 << _DIGEST) - 1:032x}{pattern[1]}"


class Tally:
    """(round, silo, share, release, noise_id) -> the largest count that it was charged with, in the order of charging.

    Iterating makes a `Charge` of each anew; `entries`, `totals` and `heads` are for whoever has to look at all of them.
    """

    def __init__(self, charges: Iterable[Charge] = ()) -> None:
        self.names = Names()
        self._counts: Counts | Part = Counts()
        self._others: dict[Key, ChargeKind | None] = {}  # of all but charges of rounds, which most are
        for first, silos in batches(charges):
            self.know_all(self.keys(first, silos), first.count, first.kind)

    def key(self, charge: Charge) -> Key:
        """What the same releases have in common, and no others."""
        names = self.names
        return packed(charge.round, charge.silo, names.kind(charge.share, charge.release), names.noise(charge.noise_id))

    def keys(self, charge: Charge, silos: Sequence[int]) -> list[Key]:
        """`key` of charges that differ from ``charge`` in their silo only: those of ``silos``."""
        names = self.names
        return keys_of(charge.round, silos, names.kind(charge.share, charge.release), names.noise(charge.noise_id))

    def know(self, key: Key, count: int, kind: ChargeKind | None = "round") -> int:
        """Count it once, with its largest count; returns by how much that grew.

        Args:
            kind: what it was for; None where that is not said.
        """
        return self.know_all((key,), count, kind)[0]

    def know_all(self, keys: Iterable[Key], count: int, kind: ChargeKind | None = "round") -> list[int]:
        """`know` of each of ``keys``, one after another."""
        counts, grown = self._growing(), []
        for key in keys:
            row, data = counts.locate(key)
            known = 0 if row < 0 else counts.at(row)
            if kind != "round" or self._others:
                self._say(key, kind, new=known == 0)
            if known < count:
                if row < 0:
                    counts.add(key, data, count)
                else:
                    counts.put(row, count)
            grown.append(max(count - known, 0))
        return grown

    def _growing(self) -> Counts:
        if isinstance(self._counts, Part):
            self._counts = self._counts.copy()
        return self._counts

    def _say(self, key: Key, kind: ChargeKind | None, *, new: bool) -> None:
        if kind != "round":
            if new or kind is not None:
                self._others[key] = kind
        elif self._others.get(key, kind) is None:
            del self._others[key]

    def kind(self, entry: Entry) -> ChargeKind | None:
        """What a charge was for; None if it is from a ledger that does not say, and was not settled."""
        if not self._others:
            return "round"
        return self._others.get(packed(entry.round, entry.silo, entry.kind, entry.noise), "round")

    @property
    def only_rounds(self) -> bool:
        """Whether nothing was charged but rounds."""
        return not self._others

    def settle(self, guess: Callable[[int, Share], ChargeKind]) -> None:
        """Say what charges were for that come from a ledger which does not say it.

        Args:
            guess: (round, share) -> the kind of such a charge.
        """
        settled: dict[Key, ChargeKind | None] = {}
        for key, known in self._others.items():
            round_, _, number, _ = unpacked(key)
            kind = guess(round_, self.names.kinds[number][0]) if known is None else known
            if kind != "round":
                settled[key] = kind
        self._others = settled

    def count(self, key: Key) -> int:
        """The largest count so far; 0 if there is none."""
        return self._counts.get(key)

    def first_of(self, noise: int) -> int:
        """Of its `entries`, which is the first with this noise; -1 if there is none."""
        return self._growing().first_of(noise)

    def entries(self) -> Iterator[Entry]:
        return self._counts.entries()

    def of_round(self, round_: int) -> list[Entry]:
        return [entry for entry in self.entries() if entry.round == round_]

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

    def only(self, keep: Callable[[Entry], bool]) -> Tally:
        """The entries that are to be kept, as a tally of their own."""
        return self.part(array("I", (row for row, entry in enumerate(self.entries()) if keep(entry))))

    def part(self, rows: array[int]) -> Tally:
        """The entries of these rows, ascending, as a tally of their own."""
        chosen = Tally()
        chosen.names, chosen._counts = self.names, Part(self._growing(), rows)
        chosen._others = {key: kind for key, kind in self._others.items() if chosen._counts.row(key) >= 0}
        return chosen

    def copy(self) -> Tally:
        """One that may grow by itself."""
        other = Tally()
        other.names, other._counts, other._others = self.names, self._counts.copy(), self._others.copy()
        return other

    def totals(self) -> dict[tuple[int, int], int]:
        """(silo, kind) -> how many releases in all, in the order of charging."""
        totals: dict[tuple[int, int], int] = {}
        for _, silo, kind, _, count in self.entries():
            totals[silo, kind] = totals.get((silo, kind), 0) + count
        return totals

    def several(self) -> set[int]:
        """The rounds that were charged under more than one name of noise.

        The charges of a round follow each other, as a rule. So names are compared with the one before, and kept of
        those rounds alone that were charged again later: a table of all would take as much as the tally itself.
        """
        found: set[int] = set()
        begun, later = array("q"), set[int]()
        last: tuple[int, int] | None = None
        for round_, _, _, noise, _ in self.entries():
            if last is None or round_ != last[0]:
                last = round_, noise
                if type(round_) is int and abs(round_) < _LONGEST:
                    begun.append(round_)
                else:
                    later.add(round_)
            elif noise != last[1]:
                found.add(round_)
        starts = np.sort(np.frombuffer(begun, dtype=np.int64))
        later.update(starts[1:][starts[1:] == starts[:-1]].tolist())
        names: dict[int, int] = {}
        for round_, _, _, noise, _ in self.entries() if later else ():
            if round_ in later and names.setdefault(round_, noise) != noise:
                found.add(round_)
        return found

    def again(self) -> dict[int, int]:
        """{round: under how many names of noise it was charged}, of those that have several; whoever took part.

        Attempts that no one silo was in together count together: which silos each of them had may be another draw.
        """
        names: defaultdict[int, set[int]] = defaultdict(set)
        several = self.several()
        for round_, _, _, noise, _ in self.entries() if several else ():
            if round_ in several:
                names[round_].add(noise)
        return {round_: len(found) for round_, found in names.items()}

    def __iter__(self) -> Iterator[Charge]:
        return map(self.charge, self.entries())

    def __len__(self) -> int:
        return len(self._counts)


def packed(round_: int, silo: int, kind: int, noise: int) -> Key:
    """The fields side by side, or as a tuple where one does not fit."""
    if type(round_) is int and 0 <= silo < _SILOS and kind < _KINDS and noise < _NOISES:
        return ((round_ << _SILO | silo) << _KIND | kind) << _NOISE | noise
    return round_, silo, kind, noise


def keys_of(round_: int, silos: Sequence[int], kind: int, noise: int) -> list[Key]:
    """`packed` of each of some silos, one at least."""
    first = packed(round_, 0, kind, noise)
    if type(first) is int and min(silos) >= 0 and max(silos) < _SILOS:
        return [first | silo << _KIND + _NOISE for silo in silos]
    return [packed(round_, silo, kind, noise) for silo in silos]


def noise_of(key: Key) -> int:
    """The noise of a key."""
    return key[3] if type(key) is tuple else key & _NOISES - 1  # type: ignore[operator]
