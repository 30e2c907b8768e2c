"""Which run of a shared ledger released a name of noise first: its charges are that run's."""

from __future__ import annotations

import bisect
import itertools
from array import array

from dpfl_plugin.privacy.tally import Tally


class FirstRuns:
    """By the rows of a tally, which are in the order of charging; so no table of names is needed.

    A name is the run's that was the last to begin before the name's first row.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._begins, self._runs = array("q"), [""]  # rows from which on charges were a run's; the runs, after none
        self._without: dict[int, int] = {}  # names in lines that charge nothing -> which of the runs
        self._rows: tuple[int, int, list[array[int]]] = (0, 0, [])  # of each of the runs; see `tally_of`

    def begin(self, run: str) -> None:
        """What is charged from here on is of this run."""
        if not self._begins:
            self._tally.first_of(0)  # so that names find their rows from here on
        self._begins.append(len(self._tally))
        self._runs.append(run)

    def name(self, noise: int) -> None:
        """The last run named this noise, in a line whose charges are in the tally by now."""
        if self._tally.first_of(noise) < 0:
            self._without.setdefault(noise, len(self._begins))

    def of(self, noise: int) -> str | None:
        """The run that released under this name first: "" for one before all runs, None if nobody did."""
        place = self._place(noise)
        return None if place is None else self._runs[place]

    def _place(self, noise: int) -> int | None:
        if noise in self._without:
            return self._without[noise]
        row = self._tally.first_of(noise)
        return None if row < 0 else bisect.bisect_right(self._begins, row)

    def tally_of(self, run: str) -> Tally:
        """The charges of a run, to be looked at only."""
        if self._rows[:2] != (len(self._tally), len(self._runs)):
            self._rows = len(self._tally), len(self._runs), self._by_run()
        found = [rows for name, rows in zip(self._runs, self._rows[2], strict=True) if name == run and rows]
        return self._tally.part(found[0] if len(found) == 1 else array("I", sorted(itertools.chain(*found))))

    def _by_run(self) -> list[array[int]]:
        """In one pass for all runs, of which there may be many."""
        found = [array("I") for _ in self._runs]
        last, rows = None, found[0]
        for row, entry in enumerate(self._tally.entries()):
            if entry.noise != last:
                last, place = entry.noise, self._place(entry.noise)
                assert place is not None
                rows = found[place]
            rows.append(row)
        return found
