"""The ledger: every charge on disk before anything that it covers leaves.

One JSON object a line. The first line holds the facts of the ledger, each further line the same charge of some silos,
a note, or, in a ledger that several runs share, the facts of the run whose charges follow. How lines are kept, and what
damage shows: `dpfl_plugin.privacy.ledger_file`.
"""

from __future__ import annotations

import bisect
import itertools
import json
import math
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from dpfl_plugin.errors import LedgerError
from dpfl_plugin.privacy.events import CHARGE_KINDS, Batch, Charge, SampledGaussian, batches
from dpfl_plugin.privacy.ledger_file import DamagedLineError, LedgerFile
from dpfl_plugin.privacy.tally import Tally

SCHEMA: Final = 1
_LARGEST: Final = (1 << 63) - 1  # that a column holds
_DECODER: Final = json.JSONDecoder()


class Ledger:
    """An append-only list of charges, in memory or in a file.

    ``append``, then ``sync``, and only then may values leave. The same (round, silo, share, release, noise_id) is the
    same release and counts once, with the largest ``count`` it was charged with; another noise_id counts again.

    Attributes:
        facts: what the caller wrote into the first line.
        notes: remarks for whoever reads it.
        runs: the facts of the runs that share it, in the order in which they began or went on.
        tally: its charges, to be looked at only.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, facts: Mapping[str, Any] | None = None) -> None:
        """A new ledger; without ``path``, in memory.

        Raises:
            LedgerError: the file exists already (see `open`) or cannot be written.
        """
        self.path = None if path is None else Path(path)
        self.facts: dict[str, Any] = dict(facts or {})
        self.notes: list[str] = []
        self.runs: list[dict[str, Any]] = []
        self.tally = Tally()
        self._begins = [("", 0)]  # each run, or the time before all of them, and its first row in the tally
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
        made = list(made)
        for charge, silos in made:
            _check_charges(charge, silos)
        lines: dict[tuple[Any, ...], dict[str, set[int]]] = {}
        for charge, silos in made:
            grown = zip(silos, self.tally.add(charge, silos), strict=True)
            if new := {silo for silo, more in grown if more}:
                line = charge.round, charge.kind, charge.count, charge.share, charge.release
                lines.setdefault(line, {}).setdefault(charge.noise_id, set()).update(new)
        for (number, kind, count, share, release), silos_of in lines.items():
            named: dict[tuple[int, ...], list[str]] = {}
            for noise_id, members in silos_of.items():
                named.setdefault(tuple(sorted(members)), []).append(noise_id)
            content = {"round": number, "share": share, "release": asdict(release), "count": count}
            content["silos"] = [[_to_ranges(members), sorted(noise_ids)] for members, noise_ids in named.items()]
            self._lines.write(content if kind is None else {"kind": kind, **content})

    def in_memory(self) -> Ledger:
        """Its charges and facts, as a ledger without a file that may grow by itself."""
        other = Ledger(facts=self.facts)
        other.tally = self.tally.copy()
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
        ends = [*(begin for _, begin in self._begins[1:]), self.tally.num_rows]
        sections = zip(self._begins, ends, strict=True)
        return self.tally.part([(begin, end) for (run, begin), end in sections if run == noise and begin < end])

    def run_of(self, round: int, noise_id: str) -> str | None:
        """What the run is known by that first released under this name in a round; None if nobody did."""
        row = self.tally.first_row(round, noise_id)
        return None if row is None else self._begins[bisect.bisect_right(self._begins, row, key=itemgetter(1)) - 1][0]

    def known(self, charge: Charge) -> int:
        """How many of a charge's releases are charged already: the same bits, of which none is new."""
        return self.tally.counts(charge, [charge.silo])[0]

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

    def check_holds(self, head: str, knower: str) -> None:
        """Check that some line has the checksum that ``knower``, a file, noted as the last one.

        Raises:
            LedgerError: none has: lines are missing at the end.
        """
        if not self.holds(head):
            raise LedgerError(
                f"{self.path} does not hold the line {head} that {knower} knows of: its end is missing, and with it "
                "what was released. Restore the file from a copy."
            )

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

    def _begin_run(self, facts: dict[str, Any]) -> None:
        self._begins.append((facts["noise"], self.tally.num_rows))
        self.runs.append(facts)

    def _read(self, body: bytes, number: int) -> None:
        try:
            self._take(_DECODER.raw_decode(body.decode())[0], number)
        except (ValueError, KeyError, TypeError, struct.error) as error:  # of another version
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
            kind, purpose = self._kind(content), content.get("kind")  # earlier versions did not write the latter
            if purpose is not None and purpose not in CHARGE_KINDS:
                raise ValueError(f"kind {purpose!r} is none of {', '.join(CHARGE_KINDS)}")
            for ranges, noise_ids in content["silos"]:
                silos = tuple(itertools.chain(*(range(first, last + 1) for first, last in ranges)))
                for noise_id in noise_ids:
                    noise = self.tally.names.noise(noise_id)
                    self.tally.put(content["round"], silos, kind, noise, content["count"], purpose)

    def _kind(self, content: dict[str, Any]) -> int:
        """The number of a line's share and release; made once of all lines with these very values."""
        first, last = content["share"]
        release = content["release"]
        values = (first, last, *release.items())
        if values not in self._kinds:
            self._kinds[values] = self.tally.names.kind_number(((first, last), SampledGaussian(**release)))
        return self._kinds[values]

    def _damaged(self, number: int, what: str) -> LedgerError:
        proven = f"lines 1 to {number - 1} are intact" if number > 1 else "nothing in it is proven"
        last = max((entry.round for entry in self.tally.entries()), default=None)
        upto = "" if last is None else f" and prove {len(self)} charges up to round {last}"
        return LedgerError(
            f"{self.path}, line {number}: {what}. {proven[0].upper()}{proven[1:]}{upto}; later charges are unknown, "
            "so no epsilon can be stated. Restore the file from a copy."
        )


def _check_charges(charge: Charge, silos: Iterable[int]) -> None:
    """Raise LedgerError unless a charge makes sense for each of ``silos``."""
    number, count, release, (first, last) = charge.round, charge.count, charge.release, charge.share
    sound = (
        type(number) is type(count) is int
        and 0 <= number <= _LARGEST
        and 1 <= count <= _LARGEST
        and math.isfinite(release.noise_multiplier)
        and math.isfinite(release.rate)
        and 0 <= first < last <= 1
        and charge.noise_id
        and (charge.kind is None or charge.kind in CHARGE_KINDS)
    )
    for silo in silos:
        if not (sound and type(silo) is int and silo >= 0):
            raise LedgerError(
                f"{replace(charge, silo=silo)} makes no sense: numbers must be finite, a share a part of [0, 1), and "
                f"kind one of {', '.join(CHARGE_KINDS)}."
            )


def _to_ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Ascending distinct numbers as [first, last] pairs."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges
