"""What rows of epsilons leave open: simulations, budgets that were not spent, and what all runs cost together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from dpfl_plugin.core.text import counted
from dpfl_plugin.experiments.reports.groups import Group, epsilon_text
from dpfl_plugin.experiments.reports.runs import Guarantee, Run

CHOICE: Final = "No epsilon covers a choice by the test measures of this report."
UNSPENT: Final = 0.95  # of the budget: above it there is nothing to say


def privacy_notes(groups: Sequence[Group]) -> tuple[str, ...]:
    """Sentences on the runs of these groups, those that apply."""
    runs = [run for group in groups for run in group.runs]
    return tuple(filter(None, [_simulated(runs), _together(runs), *_unspent(groups)]))


def _private(runs: Sequence[Run]) -> list[Guarantee]:
    return [run.guarantee for run in runs if run.guarantee is not None and math.isfinite(run.guarantee.server)]


def _simulated(runs: Sequence[Run]) -> str:
    private = _private(runs)
    simulated = sum(guarantee.simulated for guarantee in private)
    if not simulated:
        return ""
    which = "these runs" if simulated == len(private) else f"{simulated} of {len(private)} private runs"
    return (
        f"The noise of {which} follows from a seed: they are reproducible simulations and protect nobody. Their "
        "epsilon is what the same settings would cost with privacy.randomness=fresh."
    )


def _together(runs: Sequence[Run]) -> str:
    """What all runs released together, which a choice by raw measures goes beyond."""
    private = _private(runs)
    if len(private) < 2:
        return ""
    unknown = sum(run.guarantee is None for run in runs)
    also = f" {counted(unknown, 'unfinished run')} not counted." if unknown else ""
    costs = "would cost" if all(guarantee.simulated for guarantee in private) else "costs"
    return (
        f"What all {len(private)} private runs released {costs} {_price(runs, unfinished=unknown > 0)}{also} {CHOICE}"
    )


def _price(runs: Sequence[Run], *, unfinished: bool) -> str:
    """The total of the ledger that they share; else the sum over ledgers, and over runs that share none."""
    by_ledger: dict[str, list[Guarantee]] = {}
    for run in runs:
        for guarantee in _private([run]):
            by_ledger.setdefault(run.ledger, []).append(guarantee)
    alone = by_ledger.pop("", [])
    totals = [_of_ledger(guarantees, unfinished=unfinished) for guarantees in by_ledger.values()]
    if len(totals) == 1 and totals[0] is not None and not alone:
        epsilon, delta, source = totals[0]
        return f"epsilon {epsilon_text(epsilon)} at delta {delta:g}, {source}."
    parts = [(guarantee.server, guarantee.delta) for guarantee in alone]
    for total, guarantees in zip(totals, by_ledger.values(), strict=True):
        parts += [(each.server, each.delta) for each in guarantees] if total is None else [total[:2]]
    if len({(guarantee.unit, guarantee.neighbouring) for guarantee in _private(runs)}) > 1:
        return "more than the largest epsilon: how much is not known, as they protect different things."
    epsilon, delta = (math.fsum(numbers) for numbers in zip(*parts, strict=True))
    advice = " Runs that share a ledger (dpfl sweep --ledger FILE, with fresh noise) have a smaller total."
    return (
        f"at most epsilon {epsilon_text(epsilon)} at delta {delta:.4g}, the sums of theirs, if they read the same "
        f"records.{advice * bool(alone)}"
    )


def _of_ledger(guarantees: Sequence[Guarantee], *, unfinished: bool) -> tuple[float, float, str] | None:
    """(epsilon, delta, where it is from) of all runs of one ledger; None where it has no total.

    The plan counts if all of them were registered before the first release; of an unfinished run that is not known.
    """
    plans = [guarantee.planned for guarantee in guarantees]
    if not unfinished and all(plan and plan["epsilon"] is not None for plan in plans):
        plan = max((plan for plan in plans if plan is not None), key=lambda plan: plan["epsilon"])
        return plan["epsilon"], plan["delta"], "the total of the plan that was registered before the first run"
    totals = [guarantee.adaptive for guarantee in guarantees]
    known = [total for total in totals if total is not None and total["epsilon"] is not None]
    if len(known) < len(totals):
        return None
    latest = max(known, key=lambda total: total["epsilon"])  # it only grows
    return latest["epsilon"], latest["delta"], "by their ledger"


def _unspent(groups: Sequence[Group]) -> list[str]:
    """Of budgets that were not spent, since noise is solved for a silo in every round, what a cap would have given."""
    capped: dict[tuple[float, float, float, float], float] = {}
    for group in groups:
        for guarantee in _private(group.complete):
            if group.asked is not None and guarantee.capped and guarantee.server < UNSPENT * group.asked:
                cap, less = guarantee.capped["max_participations"], guarantee.capped["noise_multiplier"]
                key = group.asked, cap, guarantee.noise_multiplier, less
                capped[key] = max(guarantee.server, capped.get(key, 0.0))
    sentences = [
        f"Of epsilon {asked:g} asked, {epsilon_text(spent)} was spent: noise is solved for a silo in every round. "
        f"max_participations={cap:g} would take noise_multiplier {less:.4g} instead of {noise:.4g}."
        for (asked, cap, noise, less), spent in sorted(capped.items())
    ]
    return sentences
