"""The protocol of runtimes: run one round at the silos, return the mean of what they sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.core.stopwatch import Seconds
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.federation.silo_group import SiloMetrics
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.events import Charge

Observer = Callable[[int, Sequence[int], Vectors], None]
"""(round, silo ids, their uploads (S, d)): what the honest-but-curious server sees."""


class ChargeSink(Protocol):
    """Where charges go: a ledger, or an account that keeps one."""

    def append(self, charges: Sequence[Charge], /) -> None: ...

    def sync(self) -> None:
        """Return once all charges are on disk."""
        ...


class SilosLost(Exception):
    """Silos cannot be reached any more, for good; what was asked did not happen, and the others wait for what comes.

    Attributes:
        why: for each silo, in words.
    """

    def __init__(self, why: Mapping[int, str]) -> None:
        super().__init__("; ".join(f"silo {silo}: {text}" for silo, text in sorted(why.items())))
        self.why = dict(sorted(why.items()))


class Runtime(Protocol):
    """Where silos live, and how their messages travel.

    Everything but `commit` may raise SilosLost, if the configuration says that the run goes on without silos that fail.
    Silos that were lost are left out from then on.
    """

    def run_round(self, down: Vectors, plan: RoundPlan, draw: Draw) -> Vectors:
        """The weighted mean of the participants' uploads, (d,) each.

        When it returns, what the silos released is in the ledger and on disk. Silos' states change at `commit`.
        """
        ...

    def commit(self) -> None:
        """The round counts: silos keep their new states."""
        ...

    def evaluate(self, model: Tensor, dissimilarity: bool, after: int | None = None) -> dict[int, SiloMetrics]:
        """Each silo's metrics at ``model`` (d,), by ascending id; none where they are not to come to this process.

        Args:
            after: so many rounds; None for the final model.
        """
        ...

    def measures(self, model: Tensor) -> dict[str, Any] | None:
        """All measures of the final model (d,), as `measuring.measures` gives them, or `summaries.of_ranks` where test
        records are in several processes; None where they are not to come to this one.

        Raises:
            SilosLost: silos were lost before, or meanwhile.
        """
        ...

    def states(self) -> Vectors:
        """The committed states of all silos, (M, d) each, in the order of their ids; for checkpoints.

        Rows of lost silos hold nothing of meaning.
        """
        ...

    def load_states(self, states: Vectors) -> None:
        """Back to the states of a checkpoint, (M, d) each."""
        ...

    def profiles(self) -> dict[int, Seconds]:
        """Where silo ranks spent their time, by rank, if it was taken; none where all work is in this process."""
        ...
