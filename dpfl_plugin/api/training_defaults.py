"""How a drafted configuration trains: rounds, step and clipping norm.

They follow from the schema and from numbers of records, silos and epsilon, which are public; and, of two classes, from
whether one is rare, which the draft saw and says.

One rule for all outcomes and tables. What it comes to on seven of them, beside the best of 200 drawn settings and with
a half and twice of each number, is measured by `python -m benchmarks.drafts` (docs/planning.md). All batches are full
and a round is one to three steps: of linear models nothing else has less noise. Then the noise in a model is in
proportion to the sum of all steps times the clipping norm: fewer and larger steps have as much of it.

Lengths are in units of B, that of a usual record as the schema encodes it, with 1 for the intercept. A gradient is B
times the derivative of the loss by the model's output, which for classes is at most sqrt(2) and for half of all records
below 1; and the loss curves in proportion to B^2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dpfl_plugin.core.outcomes import OutcomeKind
from dpfl_plugin.core.rounding import digits

CLIP: Final[Mapping[str, float]] = {"regression": 0.3, "counts": 2.0, "ordinal": 0.7}
"""Clipping norm / B; 1 of other outcomes. Squared errors are of labels between -1 and 1, counts vary more, and the
derivative of an ordinal model's score is at most 1, where that of classes is at most sqrt(2)."""
STEP: Final[Mapping[str, float]] = {"regression": 3.0, "counts": 0.75, "ordinal": 8.0}
"""Step size times B^2; 4 of other outcomes. Squares are steeper than logarithms of odds, levels have one score in place
of one for each class, and expected counts, which are exponentials, overshoot: at 1, a model of hospital stays swings to
and fro between steps."""
RARE: Final = 0.15
"""The share of the rarer of two classes below which the model begins with charged counts of both, and nothing is cut
whose derivative is at most sqrt(2): clipping would cut records of the rare class alone, and risks come out too low."""
COUNTED: Final = ("ordinal", "regression", "survival")
"""Outcomes of which the model always begins with charged counts of the label. One that begins elsewhere first learns
that every column speaks for the way from there: coefficients have the wrong sign until many rounds later."""
STEPS: Final = (20, 200)  # in all, at least and at most
PER_STEP: Final = 50.0  # records times epsilon, over the root of the silos: fewer than this leave no signal in a step
ROUNDS: Final = 67  # at most: many steps are taken two or three at a time


@dataclass(frozen=True, slots=True)
class TrainingDefaults:
    """What is drafted; count_labels: whether the model begins with charged counts of the label."""

    rounds: int
    local_steps: int
    clip_norm: float
    local_lr: float
    count_labels: bool = False
    is_rare: bool = False


def training_defaults(
    outcome: OutcomeKind,
    squared_norm: float,
    *,
    num_records: float,
    num_silos: int,
    epsilon: float,
    rarest: float | None = None,
) -> TrainingDefaults:
    """What to draft.

    Args:
        squared_norm: of a usual record, without the intercept (`squared_norm_of`).
        num_records: that all silos train on together. rarest: the share of the rarer of two classes, if it is known.
    """
    length, rare = math.sqrt(1 + squared_norm), rarest is not None and rarest < RARE
    least, most = STEPS
    steps = min(max(round(num_records * epsilon / math.sqrt(num_silos) / PER_STEP), least), most)
    local_steps = math.ceil(steps / ROUNDS)
    return TrainingDefaults(
        rounds=math.ceil(steps / local_steps),
        local_steps=local_steps,
        clip_norm=float(digits(length * (math.sqrt(2) if rare else CLIP.get(outcome, 1.0)), 2)),
        local_lr=float(digits(STEP.get(outcome, 4.0) / length**2, 2)),
        count_labels=rare or outcome in COUNTED,
        is_rare=rare,
    )


def squared_norm_of(columns: Mapping[str, Mapping[str, Any]]) -> float:
    """The squared norm of a usual record of a schema's columns: 1 of a category, of which one feature is 1; a half of
    one with two values, which is one feature of 0 and 1, and of anything else, which lies within [-1, 1]."""
    total = 0.0
    for column in columns.values():
        if column["type"] in ("ignored", "identifier"):
            continue
        values = len(column.get("values", ())) + (column.get("missing") == "category")
        total += 1.0 if column["type"] == "category" and values > 2 else 0.5
    return total
