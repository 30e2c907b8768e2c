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
    price = _of_ledger(runs, also) or _sum(private, also)
    return f"What all {len(private)} private runs released {costs} {price} {CHOICE}"


def _sum(private: Sequence[Guarantee], also: str) -> str:
    """The sum of their epsilons, as runs compose that share no ledger."""
    advice = "Runs that share a ledger (dpfl sweep --ledger FILE, with fresh noise) have a smaller total."
    if len({(guarantee.unit, guarantee.neighbouring) for guarantee in private}) > 1:
        return f"more than the largest epsilon: how much is not known, as they protect different things.{also}"
    epsilon = epsilon_text(math.fsum(guarantee.server for guarantee in private))
    delta = f"{math.fsum(guarantee.delta for guarantee in private):.4g}"
    price = f"at most epsilon {epsilon} at delta {delta}, the sums of theirs, if they read the same records"
    return f"{price}. {advice}{also}"


def _of_ledger(runs: Sequence[Run], also: str) -> str:
    """The total of the ledger that all private runs share, "" where there is no such ledger or no total of it."""
    shared = [run for run in runs if run.guarantee is not None and math.isfinite(run.guarantee.server)]
    if len({run.ledger for run in shared}) > 1 or not shared[0].ledger:
        return ""
    latest = max(shared, key=lambda run: run.finished).guarantee
    assert latest is not None
    planned, adaptive = latest.planned, latest.adaptive
    if planned and planned["epsilon"] is not None:
        epsilon, delta = epsilon_text(planned["epsilon"]), f"{planned['delta']:g}"
        return f"epsilon {epsilon} at delta {delta}, the total of the plan that was registered before the first run."
    if adaptive and adaptive["epsilon"] is not None:
        return f"epsilon {epsilon_text(adaptive['epsilon'])} at delta {adaptive['delta']:g}, by their ledger.{also}"
    return ""


def _unspent(groups: Sequence[Group]) -> list[str]:
    """Of budgets that were not spent, since noise is solved for a silo in every round, what a cap would have given."""
    capped: dict[tuple[float, float], list[Guarantee]] = {}
    for group in groups:
        for guarantee in _private(group.complete):
            if group.asked is not None and guarantee.capped and guarantee.server < UNSPENT * group.asked:
                cap = guarantee.capped["max_participations"]
                capped.setdefault((group.asked, cap), []).append(guarantee)
    sentences = []
    for (asked, cap), guarantees in sorted(capped.items()):
        spent = epsilon_text(max(guarantee.server for guarantee in guarantees))
        noise = max(guarantee.noise_multiplier for guarantee in guarantees)
        less = max(guarantee.capped["noise_multiplier"] for guarantee in guarantees if guarantee.capped)
        sentences.append(
            f"Of epsilon {asked:g} asked, {spent} was spent: noise is solved for a silo in every round. "
            f"max_participations={cap:g} would take noise_multiplier {less:.4g} instead of {noise:.4g}."
        )
    return sentences
