"""Validation scores by outcome: a mean of each record's loss, cut at a public bound.

A record adds 1 - min(loss, B) / B to a sum, where B is public: a number in [0, 1] whatever the record is and whatever
a model says of it, and 0 where that is no number or the record cannot be used. So replacing a record, or letting it
count as zero, moves the sum by 1 at most. Over the public number of records it is a share m, from which B (1 - m)
follows: the mean loss in its own unit. `CLIPPED_SHARE` is no loss: a record adds 1 where its gradient is clipped, or is
not finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from dpfl_plugin.core.outcomes import Outcome, OutcomeKind, higher_is_better

UNLIKELY: Final = 50.0
"""A log loss counts a probability below 1 / UNLIKELY of an even guess as that."""
MOST_DEVIANCE: Final = 10.0
"""Of a count: where the Poisson model holds, one record in 600 has more."""
NORMAL_95: Final = 1.959964
CLIPPED_SHARE: Final = "clipped_share"
WORDS: Final = {
    "accuracy": "accuracy",
    "auc": "AUC",
    "log_loss": "mean log loss",
    "mae": "mean absolute error",
    "deviance": "mean deviance",
    "brier": "mean Brier score",
    CLIPPED_SHARE: "share of clipped gradients",
}

Bound = Callable[[Outcome, int], float]


def _one(outcome: Outcome, num_classes: int) -> float:
    return 1.0


def _log_loss(outcome: Outcome, num_classes: int) -> float:
    return math.log(UNLIKELY * num_classes)


MEASURES: Final[Mapping[OutcomeKind, Mapping[str, Bound]]] = {
    "classes": {"accuracy": _one, "log_loss": _log_loss, "auc": _one},
    "ordinal": {"mae": lambda outcome, num_classes: num_classes - 1.0, "accuracy": _one},
    "regression": {"mae": lambda outcome, num_classes: outcome.half_range},
    "counts": {"deviance": lambda outcome, num_classes: MOST_DEVIANCE},
    "multi_label": {"brier": _one},
    "survival": {"deviance": lambda outcome, num_classes: 2 * _log_loss(outcome, len(outcome.edges) + 1)},
}
"""{kind of outcome: {measure: the bound of a record's loss, given the number of classes}}; the first by default. Of
every outcome there is `CLIPPED_SHARE`, too."""


@dataclass(frozen=True, slots=True)
class ValidationScore:
    """What a score is the mean of.

    Attributes:
        bound: of a record's loss. bins: of a histogram of each of two classes, which is released in place of a sum.
    """

    measure: str = "accuracy"
    bound: float = 1.0
    bins: int = 0

    @classmethod
    def of(
        cls, outcome: Outcome, num_classes: int, measure: str | None = None, bound: float | None = None, bins: int = 0
    ) -> ValidationScore:
        """The score of an outcome: the measure that is named, or the first of `MEASURES`.

        Raises:
            ValueError: there is no such measure of this outcome, or its bound cannot be chosen.
        """
        known = {**MEASURES[outcome.kind], CLIPPED_SHARE: _one}
        measure = next(iter(known)) if measure is None else measure
        if measure not in known:
            raise ValueError(
                f"measure={measure!r} is not a score of an outcome of {outcome.kind}. Use {' or '.join(known)}."
            )
        if measure == "auc" and num_classes != 2:
            raise ValueError(f"measure='auc' is of two classes, and there are {num_classes}. Use accuracy or log_loss.")
        score = cls(measure, known[measure](outcome, num_classes) if bound is None else bound, bins)
        if bound is not None and score.is_count:
            raise ValueError(f"bound={bound:g} is for losses, and measure is {measure}. Leave bound out.")
        return score

    @property
    def is_count(self) -> bool:
        """Whether a record adds 0 or 1, and the score is the share of those that add 1; not of a loss."""
        return self.measure in ("accuracy", "auc", CLIPPED_SHARE)

    @property
    def higher_is_better(self) -> bool:
        return higher_is_better(self.measure)

    @property
    def words(self) -> str:
        """For people, after "a" or "the"."""
        return WORDS[self.measure] + ("" if self.is_count else f" (a record's is cut at {self.bound:.4g})")

    def of_share(self, share: float) -> float:
        """The score that follows from the mean of what records add."""
        return share if self.is_count else self.bound * (1 - share)

    def gain(self, score: float, over: float) -> float:
        """By how much a score is better than another; negative where it is worse."""
        return score - over if self.higher_is_better else over - score

    def text(self, number: float, places: int = 4) -> str:
        """A score, or a difference of two, with so many decimal places of its bound."""
        return f"{number:.{max(0, places - math.floor(math.log10(self.bound)))}f}"

    def interval(self, score: float, noise_std: float, most_weight: float) -> tuple[float, float]:
        """95 % confidence limits of the score on all records like those that were scored: noise and chance.

        Let m be the mean of what records add, in [0, 1], so that the variance of what one adds is at most m (1 - m).
        With weights w_i / n_i of the n_i records of silo i, that of the estimate is at most s^2 + v m (1 - m), v =
        max w_i / n_i. As Wilson's interval, all m with (estimate - m)^2 <= z^2 (s^2 + v m (1 - m)).

        Args:
            noise_std: of the noise in the score. most_weight: v, the largest weight of a record.
        """
        share, std = (score if self.is_count else 1 - score / self.bound), noise_std / self.bound
        z2 = NORMAL_95**2
        a, b, c = 1 + z2 * most_weight, share + z2 * most_weight / 2, share**2 - z2 * std**2
        root = math.sqrt(max(0.0, b * b - a * c))
        limits = (min(1.0, max(0.0, (b + sign * root) / a)) for sign in (-1, 1))
        low, high = sorted(self.of_share(limit) for limit in limits)
        return low, high


DEFAULT_SCORE: Final = ValidationScore()
