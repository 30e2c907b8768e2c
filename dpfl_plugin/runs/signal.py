"""How far a run can move a model, against the noise that moves it as well: known before anything is released."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from dpfl_plugin.algorithms.base import Setting
from dpfl_plugin.core.outcomes import OutcomeKind
from dpfl_plugin.core.rounding import digits
from dpfl_plugin.privacy.rules import PrivacyRules

if TYPE_CHECKING:
    from dpfl_plugin.runs.build import Parts

LEAST: Final[Mapping[OutcomeKind, float]] = {"regression": 10.0, "counts": 10.0, "survival": 25.0}
"""Ratios below which a model's loss is hardly ever below that of a baseline without features; 3 of other outcomes,
which have no mean or hazards to find. `python -m benchmarks.drafts --weak` measures it (docs/planning.md)."""


def signal_to_noise(
    rules: PrivacyRules, setting: Setting, num_records: Sequence[int], dimension: int, num_steps: int
) -> float | None:
    """The most that a model can move by the sum of so many clipped mean gradients, over the noise in that sum.

    A mean gradient is of norm C at most, so that K of them move the model by K C if all of them agree; the noise in
    their sum has the norm std sqrt(K d). None without noise, without a bound C, where silos' updates are clipped, and
    where silos have noise of their own.
    """
    std = rules.clip_norm * rules.noise_multiplier * rules.sampler.sensitivity
    if rules.unit == "silo" or rules.silos or not 0 < std < math.inf or not num_steps or not dimension:
        return None
    weights = setting.weights or (1 / setting.num_silos,) * setting.num_silos
    counts = zip(weights, num_records, strict=True)
    mean = math.fsum((weight / rules.sampler.divisor(count)) ** 2 for weight, count in counts)
    mean *= setting.num_silos / setting.num_participants
    return rules.clip_norm * math.sqrt(num_steps) / (std * math.sqrt(mean * dimension))


def weak_signal(
    rules: PrivacyRules,
    setting: Setting,
    num_records: Sequence[int],
    dimension: int,
    num_steps: int,
    outcome: OutcomeKind,
) -> str:
    """Why a run is hardly worth its budget, or ""; see `signal_to_noise`."""
    ratio = signal_to_noise(rules, setting, num_records, dimension, num_steps)
    least = LEAST.get(outcome, 3.0)
    if ratio is None or ratio >= least:
        return ""
    return (
        f"all gradients together can move the model by {digits(ratio, 2)} times what the noise moves it by, and below "
        f"{least:g} its predictions are hardly ever better than a baseline's: {sum(num_records):,} training records "
        f"are too few for {dimension:,} parameters at this epsilon. Fewer columns, fewer silos or a larger epsilon help"
    )


def weak_signal_of(parts: Parts) -> str:
    """`weak_signal` of a run whose noise was solved for all of its rounds; "" of others."""
    steps = 0 if parts.planned is None else sum(cost.num_releases * count for cost, count in parts.planned.items())
    outcome, dimension = parts.outcome.kind, parts.layout.dimension
    return weak_signal(parts.rules, parts.setting, parts.num_records, dimension, steps, outcome)
