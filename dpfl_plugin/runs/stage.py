"""A part of a run, where it is a candidate of a tuning: how far it goes now, and what it is a part of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpfl_plugin.privacy.composition import Terms


@dataclass(frozen=True, slots=True)
class Stage:
    """How far a candidate is trained now.

    Attributes:
        until: after how many rounds it is paused; None: it goes on to its end.
        measured: whether its model is evaluated meanwhile, without noise. Not before the choice is made.
        planned: compositions of everything that the tuning releases, at the silos that it costs most: they fit the
            budget, and so do all their parts.
        tuning: the guarantee of all candidates together, which is that of each of them; kept in the run's ledger.
        seen: what decided meanwhile, beside scores, in words: caveats of the run's statement.
    """

    until: int | None
    measured: bool
    planned: tuple[Terms, ...]
    tuning: Mapping[str, Any]
    seen: tuple[str, ...] = ()
