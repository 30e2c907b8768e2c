"""Differences of two lines, seed by seed: their mean, its standard error, and whether that shows anything."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit


@dataclass(frozen=True, slots=True)
class Difference:
    """How far one line is ahead of another in the mean over seeds, with its standard error."""

    mean: float
    error: float
    seeds: int

    @classmethod
    def of(cls, first: Sequence[float], second: Sequence[float]) -> Difference:
        """Pair values of the same seeds."""
        each = [a - b for a, b in zip(first, second, strict=True)]
        error = statistics.stdev(each) / math.sqrt(len(each)) if len(each) > 1 else 0.0
        return cls(statistics.fmean(each), error, len(each))

    @property
    def significant(self) -> bool:
        """Whether a two-sided 95 % interval of Student's t has no 0: with three seeds, 4.3 standard errors."""
        return self.differs_from(0.0)

    def differs_from(self, least: float) -> bool:
        return abs(self.mean - least) > float(stdtrit(self.seeds - 1, 0.975)) * self.error

    def verdict(self, least: float = 0.0) -> str:
        """Say in words whether it is above what is asked for."""
        above = self.mean > least
        if self.seeds == 1:
            words = ("does not agree", "agrees") if least else ("opposite sign", "same sign")
            return f"{words[above]}, one seed"
        if not self.differs_from(least):
            return "not told apart"
        return "agrees" if above else "does not agree" if least else "the other way"

    def points(self) -> str:
        """Of accuracy, e.g. "+1.2 ± 0.3"; with * where it is significant."""
        return f"{100 * self.mean:+.1f} ± {100 * self.error:.1f}"

    def marked(self) -> str:
        return f"{self.points()}{' *' if self.significant else ''}"
