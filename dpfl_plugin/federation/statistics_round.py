"""The first round of a run whose records are scaled, or whose model starts, by private statistics.

Each silo releases a noisy sum; the server adds them up and sends the sum to all, who scale their records by what
follows from it. The sum, and the model that starts by it, are in a checkpoint before anything else happens: a
run that goes on scales by the same. Candidates of a tuning share one sum, which the first of them released.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.federation.planning import Planner
from dpfl_plugin.federation.progress import Progress
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.account import PrivacyAccount


@dataclass(slots=True)
class StatisticsRound:
    """Statistics of columns, and the scaling by them.

    Attributes:
        num_records: of each silo, that statistics read.
        released: what another candidate of the run's tuning released, for all of them; None: this run releases it.
        begin: (released sums) -> the server's first vectors, where classes were counted; None: they stay.
        done: whether silos' records are as they are to be for the rounds; they are again in every session.
    """

    planner: Planner
    account: PrivacyAccount
    num_records: tuple[int, ...]
    released: Tensor | None = None
    begin: Callable[[Tensor], Vectors] | None = None
    done: bool = False

    def run(
        self,
        progress: Progress,
        *,
        draw: Callable[[Progress, int, str], Draw],
        send: Callable[[Progress, Vectors, RoundPlan, Draw], Vectors],
        save: Callable[[Progress], None],
    ) -> bool:
        """Whether records are scaled now; False where the budget has no room for statistics: after a crash.

        Args:
            draw, send: see `RoundLoop`; save: writes a checkpoint.
        """
        if self.done:
            return True
        if progress.statistics is None:
            progress.statistics = self._release(progress, draw, send) if self.released is None else self.released
            if progress.statistics is None:
                return False
            if self.begin is not None:
                progress.server = self.begin(progress.statistics)
            save(progress)
        plan, down = self.planner.of_all("scale", lost=progress.lost), {"sums": progress.statistics}
        send(progress, down, plan, draw(progress, 0, "statistics"))
        self.done = True
        return True

    def _release(
        self,
        progress: Progress,
        draw: Callable[[Progress, int, str], Draw],
        send: Callable[[Progress, Vectors, RoundPlan, Draw], Vectors],
    ) -> Tensor | None:
        """(2 + D,): of how many records and silos, and their noisy sum; None where the budget has no room for it."""
        plan = self.planner.of_all("statistics", lost=progress.lost)
        plan = replace(plan, weights=(1.0,) * len(plan.participants))  # a sum, and no mean
        named = draw(progress, 0, "statistics")
        if not self.account.affords_extra("statistics", 0, named.noise_id):
            return None
        sums = send(progress, {"model": progress.server["model"]}, plan, named)["sums"]
        of = sum(self.num_records[silo] for silo in plan.participants), len(plan.participants)
        return torch.cat([torch.tensor(of, dtype=sums.dtype, device=sums.device), sums])
