"""The ledger: every charge on disk before anything that it covers leaves.

One JSON object a line. The first line holds the facts of the ledger, each further line the same charge of some silos,
a note, or, in a ledger that several runs share, the facts of the run whose charges follow. How lines are kept, and what
damage shows: `dpfl_plugin.privacy.ledger_file`.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from dpfl_plugin.errors import LedgerError
from dpfl_plugin.privacy.events import CHARGE_KINDS, Batch, Charge, ChargeKind, SampledGaussian, batches
from dpfl_plugin.privacy.first_runs import FirstRuns
from dpfl_plugin.privacy.ledger_file import DamagedLineError, LedgerFile
from dpfl_plugin.privacy.tally import Tally, keys_of, noise_of
from dpfl_plugin.privacy.tally_rows import Key

SCHEMA: Final = 1
_scan: Final = json.scanner.make_scanner(json.JSONDecoder())  # type: ignore[attr-defined]


_Groups = dict[tuple[int, int, int, ChargeKind | None], tuple[Charge, dict[str, set[int]]]]
"""(round, kind, count, what for) -> (one of the charges, the silos by the names of their noise): each a line."""


class Ledger:
    """An append-only list of charges, in memory or in a file.

    ``append``, then ``sync``, and only then may values leave. The same (round, silo, share, release, noise_id) is the
    same release and counts once, with the largest ``count`` it was charged with; another noise_id counts again.

    Attributes:
        facts: what the caller wrote into the first line.
        notes: what was found and mended, in words.
        runs: the facts of the runs that share it, in the order in which they began or went on.
        tally: its charges, to be looked at only.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """A new ledger; None keeps it in memory.

        Args:

        Raises:
            LedgerError: the file exists already (see `open`) or cannot be written.
        """
        self.path = None if path is None else Path(path)
        self.facts: dict[str, Any] = dict(facts or {})
        self.notes: list[str] = []
        self.runs: list[dict[str, Any]] = []
        self.tally = Tally()
        self._first = FirstRuns(self.tally)
        self._kinds: dict[tuple[Any, ...], int] = {}  # of lines that were read
        self._lines = LedgerFile(self.path)
        if self.path is not None:
            self._lines.create({"ledger": SCHEMA, "facts": self.facts})

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, append: bool = True, check: Callable[[Ledger], None] | None = None
    ) -> Ledger:
        """Read and verify a ledger; with ``append``, go on with it.

        Args:
            check: gets what was read, before anything of the file is changed; what it raises leaves all as it is.

        Raises:
            LedgerError: it is missing, or a line is damaged; names the line, and what is still proven.
        """
        self = cls()
        self.path = Path(path)
        self._lines = LedgerFile(self.path)
        number = 0
        try:
            for number, body in self._lines.read():
                self._read(body, number)
        except DamagedLineError as error:
            raise self._damaged(error.number, str(error)) from error
        if not number:
            raise LedgerError(
                f"{self.path} holds no complete first line, so nothing was charged or left yet: move it away and "
                "start again."
            )
        if check is not None:
            check(self)
        if not append:
            self.notes += filter(None, [self._lines.leave()])
        elif torn := self._lines.go_on():
            self.note(torn)
            self.sync()
        return self

    def append(self, charges: Iterable[Charge]) -> None:
        """Add charges; they are safe after the next `sync`. What is known already is not written again.

        Raises:
            LedgerError: a charge makes no sense (then none is added), or the file cannot be written.
        """
        self.append_all(batches(charges))

    def append_all(self, made: Iterable[Batch]) -> None:
        """`append` of charges that are in batches already."""
        self._lines.require_usable()
        groups: _Groups = {}
        new: dict[Key, int] = {}
        added: list[tuple[list[Key], Charge]] = []
        names, known = self.tally.names, self.tally.count
        for charge, silos in made:
            _check_charges(charge, silos)
            kind, count, keys, members = names.kind(charge.share, charge.release), charge.count, list[Key](), set[int]()
            for silo, key in zip(silos, keys_of(charge.round, silos, kind, names.noise(charge.noise_id)), strict=True):
                if known(key) < count and new.get(key, 0) < count:
                    new[key] = count
                    keys.append(key)
                    members.add(silo)
            if keys:
                added.append((keys, charge))
                group = groups.setdefault((charge.round, kind, count, charge.kind), (charge, {}))[1]
                group.setdefault(charge.noise_id, set()).update(members)
        if self._lines.is_written:
            self._write_charges(groups)
        for keys, charge in added:
            self.tally.know_all(keys, charge.count, charge.kind)
            self._name(noise_of(keys[0]))

    def _write_charges(self, groups: _Groups) -> None:
        for first, silos in groups.values():
            named: dict[tuple[int, ...], list[str]] = {}
            for noise_id, members in silos.items():
                named.setdefault(tuple(sorted(members)), []).append(noise_id)
            noise = [[ranges, ids] for ranges, ids in ((_to_ranges(m), sorted(i)) for m, i in named.items())]
            release = first.release
            self._lines.write(
                ({} if first.kind is None else {"kind": first.kind})
                | {
                    "round": first.round,
                    "share": list(first.share),
                    "release": {
                        "noise_multiplier": release.noise_multiplier,
                        "sampler": release.sampler,
                        "rate": release.rate,
                        "neighbouring": release.neighbouring,
                        "unit": release.unit,
                    },
                    "count": first.count,
                    "silos": noise,
                }
            )

    def in_memory(self) -> Ledger:
        """Its charges and facts, as a ledger without a file that may grow by itself."""
        other = Ledger(facts=self.facts)
        other.tally = self.tally.copy()
        other._first = FirstRuns(other.tally)
        return other

    def begin_run(self, facts: Mapping[str, Any]) -> None:
        """Name the run whose charges follow; ``facts["noise"]`` is what it is known by."""
        self._lines.require_usable()
        self._lines.write({"run": dict(facts)})
        self._begin_run(dict(facts))

    def of_run(self, noise: str) -> list[Charge]:
        """The charges of the run that is known by ``noise``."""
        return list(self.tally_of_run(noise))

    def tally_of_run(self, noise: str) -> Tally:
        """The charges of the run that is known by ``noise``; to be looked at only."""
        if not self.runs:
            return Tally() if noise else self.tally
        return self._first.tally_of(noise)

    def run_of(self, noise_id: str) -> str | None:
        """What the run is known by that released under this name first; None if nobody did."""
        noise = self.tally.names.noise(noise_id)
        if not self.runs:
            return "" if any(entry.noise == noise for entry in self.tally.entries()) else None
        return self._first.of(noise)

    def known(self, charge: Charge) -> int:
        """How many of a charge's releases are charged already: the same bits, of which none is new."""
        return self.tally.count(self.tally.key(charge))

    def note(self, text: str) -> None:
        """Add a remark for whoever reads the ledger later."""
        self._lines.require_usable()
        self._lines.write({"note": text})
        self.notes.append(text)

    def sync(self) -> None:
        """Return once everything appended is on disk.

        Raises:
            LedgerError: it is not; nothing that was appended since the last sync may leave.
        """
        self._lines.sync()

    def close(self) -> None:
        """Sync and close; the charges stay readable."""
        self._lines.close()

    @property
    def head(self) -> str:
        """The last line's checksum. Noted elsewhere, it shows later whether whole lines are missing at the end."""
        return self._lines.head

    def holds(self, head: str) -> bool:
        """Whether some line has this checksum: whether the ledger is one that once had this `head`, and grew since."""
        return self._lines.holds(head)

    def __iter__(self) -> Iterator[Charge]:
        return iter(self.tally)

    def __len__(self) -> int:
        return len(self.tally)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _name(self, noise: int) -> None:
        """Note under which run noise was released, unless it was before."""
        if self.runs:  # a ledger of one run needs no table as long as itself
            self._first.name(noise)

    def _begin_run(self, facts: dict[str, Any]) -> None:
        self._first.begin(facts["noise"])
        self.runs.append(facts)

    def _read(self, body: bytes, number: int) -> None:
        try:
            self._take(_read_json(body.decode()), number)
        except (ValueError, KeyError, TypeError) as error:  # of another version
            raise self._damaged(number, f"it cannot be understood ({type(error).__name__}: {error})") from error

    def _take(self, content: dict[str, Any], number: int) -> None:
        if (number == 1) != ("ledger" in content):
            raise ValueError("the first line, and no other, must hold the facts of the ledger")
        if "ledger" in content:
            if content["ledger"] != SCHEMA:
                raise ValueError(f"schema version {content['ledger']!r} is not {SCHEMA}; use the version that wrote it")
            self.facts = content["facts"]
        elif "note" in content:
            self.notes.append(content["note"])
        elif "run" in content:
            self._begin_run({"noise": content["run"]["noise"], **content["run"]})
        else:
            kind, of_kind = self._kind(content), content.get("kind")  # earlier versions did not write it
            if of_kind is not None and of_kind not in CHARGE_KINDS:
                raise ValueError(f"kind {of_kind!r} is none of {', '.join(CHARGE_KINDS)}")
            for ranges, noise_ids in content["silos"]:
                silos = list(_from_ranges(ranges))
                named = [self.tally.names.noise(noise_id) for noise_id in noise_ids] if silos else []
                of_noise = [keys_of(content["round"], silos, kind, noise) for noise in named]
                keys = of_noise[0] if len(named) == 1 else itertools.chain(*zip(*of_noise, strict=True))
                self.tally.know_all(keys, content["count"], of_kind)
                for noise in named:
                    self._name(noise)

    def _kind(self, content: dict[str, Any]) -> int:
        """The number of a line's share and release; made once of all lines with these very values."""
        first, last = content["share"]
        release = content["release"]
        values = (first, last, *release.items())
        if values not in self._kinds:
            self._kinds[values] = self.tally.names.kind((first, last), SampledGaussian(**release))
        return self._kinds[values]

    def _damaged(self, number: int, what: str) -> LedgerError:
        proven = f"lines 1 to {number - 1} are intact" if number > 1 else "nothing in it is proven"
        last = max((entry.round for entry in self.tally.entries()), default=None)
        upto = "" if last is None else f" and prove {len(self)} charges up to round {last}"
        return LedgerError(
            f"{self.path}, line {number}: {what}. {proven[0].upper()}{proven[1:]}{upto}; later charges are unknown, "
            "so no epsilon can be stated. Restore the file from a copy."
        )


def _read_json(text: str) -> Any:
    """`json.loads`, without looking for blanks, which no line has that `LedgerFile` wrote."""
    try:
        content, end = _scan(text, 0)
    except StopIteration:
        end = -1
    return content if end == len(text) else json.loads(text)


def _check_charges(charge: Charge, silos: Iterable[int]) -> None:
    """Raise LedgerError unless it makes sense for each of ``silos``."""
    number, count = charge.round, charge.count
    integers = type(number) is type(count) is int and number >= 0 and count >= 1
    of_kind = charge.kind is None or charge.kind in CHARGE_KINDS
    sound = integers and _makes_sense(charge.share, charge.release) and charge.noise_id and of_kind
    for silo in silos:
        if sound and type(silo) is int and silo >= 0:
            continue
        raise LedgerError(
            f"{replace(charge, silo=silo)} makes no sense: numbers must be finite, a share a part of [0, 1), and kind "
            f"one of {', '.join(CHARGE_KINDS)}."
        )


def _makes_sense(share: tuple[float, float], release: SampledGaussian) -> bool:
    """Whether a charge's share and release do."""
    first, last = share
    numbers = (release.noise_multiplier, release.rate, first, last)
    return all(math.isfinite(x) for x in numbers) and 0 <= first < last <= 1


def _to_ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Ascending distinct numbers as [first, last] pairs."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges


def _from_ranges(ranges: Iterable[list[int]]) -> Iterator[int]:
    for first, last in ranges:
        yield from range(first, last + 1)
