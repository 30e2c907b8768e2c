"""A ledger to look into: what was charged, and what it comes to."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from dpfl_plugin.errors import ConfigError, DataError, require
from dpfl_plugin.privacy import ledger as ledgers
from dpfl_plugin.privacy.accountants import named_accountant
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.shared_ledger import adaptive_total, runs_in
from dpfl_plugin.privacy.views import server_composed


class Ledger:
    """What a run's ledger, or one that runs share, holds; it is read, never written.

    Attributes:
        path: the file.
        facts: of a run's own ledger: its id, name, noise multiplier and numbers of records.
        notes: remarks for whoever reads it.
    """

    def __init__(self, path: Path, ledger: ledgers.Ledger) -> None:
        self.path, self._ledger = path, ledger
        self.facts: dict[str, Any] = dict(ledger.facts)
        self.notes: list[str] = list(ledger.notes)

    @classmethod
    def open(cls, path: str | Path) -> Ledger:
        """The ledger of a run's folder, or in a file.

        Raises:
            DataError: there is no ledger; LedgerError: it is damaged (names the line, and what is still proven).
        """
        require(isinstance(path, str | Path), "path", path, "be the path of a run's folder, or of a ledger's file")
        file = Path(path)
        file = file / "ledger.jsonl" if file.is_dir() else file
        if not file.is_file():
            raise DataError(f"{file}: there is no ledger. Give a run's folder (OUT/NAME/ID), or a ledger file.")
        return cls(file, ledgers.Ledger.open(file, append=False))

    @property
    def charges(self) -> list[Charge]:
        """Every charge: round, silo, release, count, share of the records, and the name of its noise."""
        return list(self._ledger)

    @property
    def runs(self) -> list[dict[str, Any]]:
        """The facts of the runs that share it; empty for a run's own."""
        return [dict(run.facts) for run in runs_in(self._ledger)]

    def epsilon(self, delta: float, *, accountant: str = "pld") -> float:
        """What the server learned by all that it holds, of the worst silo, at ``delta``; math.inf without noise.

        Of a ledger that runs share: whatever decided on later runs, see `dpfl account`.

        Raises:
            ConfigError: delta is outside (0, 1), or no one epsilon bounds these releases together; or a ledger that
                runs share has another delta, or another accountant than PLD is asked for.
            UnsupportedError: this accountant knows no bound for one of them.
        """
        chosen = named_accountant(accountant)
        if not self.runs:
            return server_composed(self._ledger.tally).stated(chosen, delta).epsilon
        total = adaptive_total(self._ledger, delta)
        if total["delta"] != delta or chosen.name != "PLD":
            raise ConfigError(
                f"{self.path}: the total of runs that share a ledger is for the delta of the first one, by PLD: ask "
                f"for delta={total['delta']!r} and no other accountant."
            )
        return math.inf if total["epsilon"] is None else float(total["epsilon"])

    def epsilons(self, delta: float, *, accountant: str = "pld") -> dict[int, float]:
        """As `epsilon`, of each silo by its id, in a run's own ledger.

        Raises:
            ConfigError: several runs share it, whose silos of one number need not be the same; or as `epsilon`.
        """
        if self.runs:
            raise ConfigError(f"{self.path} is shared by {len(self.runs)} runs: ask for epsilon, or open a run's own.")
        chosen = named_accountant(accountant)
        by_silo: dict[int, list[Charge]] = {}
        for charge in self._ledger:
            by_silo.setdefault(charge.silo, []).append(charge)
        return {silo: server_composed(own).stated(chosen, delta).epsilon for silo, own in sorted(by_silo.items())}

    def __len__(self) -> int:
        return len(self._ledger)

    def __repr__(self) -> str:
        of = f"{len(self.runs)} runs" if self.runs else f"run {self.facts.get('run', '?')}"
        return f"Ledger({str(self.path)!r}: {len(self)} charges of {of})"
