"""Binds the random bits of a round to what the round is asked at.

**Claim.** Two answers of a silo share batches and noise only if the download, the plan, the silo's own state and the
name of the run are equal; what a silo sends is a function of these, of its records and of the code, and the run's name
holds digests of the last two (`runs.naming`). So equal noise is around equal values only, and the difference of two
releases never shows what noise is to hide.

A name alone would not do: a checkpoint that was damaged, or a server that asks for a round a second time with another
model, makes other values under an old name. Here that is another request: it has noise of its own, another `noise_id`,
and is charged by itself. The very same request has the same bits, which are charged once.

It costs a pass over the download once a round, and one over each participant's state, if it has any.
"""

from __future__ import annotations

from dataclasses import replace

from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.core.requests import request_digest
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.oracle import Draw


def asked_at(draw: Draw, down: Vectors, plan: RoundPlan) -> Draw:
    """``draw`` for this very request, whatever it was for.

    Who takes part, and with what weight, is left out, and so is what only budgets and draws of silos are made by
    (`most_gradients`, `participation`): a silo need not know it, and does not where a platform carries its messages,
    which name the silo alone (`adapters.silo`). So an algorithm whose silos compute by it would compute something else
    there; and the same values of these come of the run's name and the round, or a new attempt is made.
    """
    smoothing = None if plan.smoothing is None else [plan.smoothing[0], float(plan.smoothing[1])]
    facts = [
        plan.task,
        plan.phase,
        int(plan.local_steps),
        float(plan.local_lr),
        int(plan.num_gradients),
        [float(part) for part in plan.share],
        smoothing,
        float(plan.silo_share),
    ]
    return replace(draw, asked=request_digest(down, facts).hex())
