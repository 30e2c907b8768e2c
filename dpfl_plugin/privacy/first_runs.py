"""Which run of a shared ledger released a name of noise first: its charges are that run's."""

from __future__ import annotations

import bisect
from array import array

from dpfl_plugin.privacy.tally import Tally


class FirstRuns:
    """By the rows of a tally, which are in the order of charging; so no table of names is needed.

    A name is the run's that was the last to begin before the name's first row.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._begins, self._runs = array("q"), list[str]()  # rows from which on charges were a run's, and the runs
        self._without: dict[int, str] = {}  # names in lines that charge nothing
        self._rows: tuple[int, int, dict[str, array[int]]] = (0, 0, {})  # see `tally_of`

    def begin(self, run: str) -> None:
        """What is charged from here on is of this run."""
        if not self._runs:
            self._tally.first_of(0)  # so that names find their rows from here on
        self._begins.append(len(self._tally))
        self._runs.append(run)

    def name(self, noise: int) -> None:
        """The last run named this noise, in a line whose charges are in the tally by now."""
        if self._tally.first_of(noise) < 0:
            self._without.setdefault(noise, self._runs[-1])

    def of(self, noise: int) -> str | None:
        """The run that released under this name first: "" for one before all runs, None if nobody did."""
        if noise in self._without:
            return self._without[noise]
        row = self._tally.first_of(noise)
        return None if row < 0 else self._at(row)

    def _at(self, row: int) -> str:
        place = bisect.bisect_right(self._begins, row)
        return self._runs[place - 1] if place else ""

    def tally_of(self, run: str) -> Tally:
        """The charges of a run, to be looked at only."""
        if self._rows[:2] != (len(self._tally), len(self._runs)):
            self._rows = len(self._tally), len(self._runs), self._by_run()
        return self._tally.part(self._rows[2].get(run, array("I")))

    def _by_run(self) -> dict[str, array[int]]:
        """In one pass for all runs, of which there may be many."""
        found: dict[str, array[int]] = {}
        last, rows = None, array("I")
        for row, entry in enumerate(self._tally.entries()):
            if entry.noise != last:
                last, run = entry.noise, self.of(entry.noise)
                assert run is not None
                rows = found.setdefault(run, array("I"))
            rows.append(row)
        return found
