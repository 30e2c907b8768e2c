"""The first round of a run whose records are scaled, or whose model starts, by private statistics.

Each silo releases a noisy sum; the server adds them up and sends the sum to all, who scale their records by what
follows from it. The sum, and the model that starts by it, are in a checkpoint before anything else happens: a
run that goes on scales by the same.
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
        begin: (released sums) -> the server's first vectors, where classes were counted; None: they stay.
        done: whether silos' records are as they are to be for the rounds; they are again in every session.
    """

    planner: Planner
    account: PrivacyAccount
    num_records: tuple[int, ...]
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
            down = {"model": progress.server["model"]}
            plan = self.planner.of_all("statistics", lost=progress.lost)
            plan = replace(plan, weights=(1.0,) * len(plan.participants))  # a sum, and no mean
            named = draw(progress, 0, "statistics")
            if not self.account.affords_extra("statistics", 0, named.noise_id):
                return False
            sums = send(progress, down, plan, named)["sums"]
            of = sum(self.num_records[silo] for silo in plan.participants), len(plan.participants)
            progress.statistics = torch.cat([torch.tensor(of, dtype=sums.dtype, device=sums.device), sums])
            if self.begin is not None:
                progress.server = self.begin(progress.statistics)
            save(progress)
        plan, down = self.planner.of_all("scale", lost=progress.lost), {"sums": progress.statistics}
        send(progress, down, plan, draw(progress, 0, "statistics"))
        self.done = True
        return True
