"""When to stop early, as a function of released scores alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpfl_plugin.core.validation_scores import DEFAULT_SCORE, ValidationScore

Score = tuple[int, float]
"""(rounds that were done, noisy score of the model: a mean over silos)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """Every ``every`` rounds, or after each of ``at``, a score; no more rounds once ``patience`` scores in a row were
    no better than the best.

    Attributes:
        patience: None: scores are made, and end nothing.
        min_gain: by how much a score has to be better than the best one to count as better.
        keep_best: whether the model with the best score is the result, not the last one.
        score: what scores are the mean of.
    """

    every: int
    patience: int | None = None
    min_gain: float = 0.0
    keep_best: bool = False
    at: tuple[int, ...] = ()
    score: ValidationScore = DEFAULT_SCORE

    def planned(self, rounds: int) -> int:
        """How many scores are planned in so many rounds."""
        return sum(after <= rounds for after in self.at) if self.at else rounds // self.every

    def due(self, rounds: int, scores: Sequence[Score]) -> bool:
        """Whether a score is to be made after so many rounds, and was not made yet."""
        falls_due = rounds in self.at if self.at else rounds > 0 and rounds % self.every == 0
        return falls_due and len(scores) < self.planned(rounds)

    def best(self, scores: Sequence[Score]) -> int | None:
        """Which score is the best: the last that was better than the best before it; None if there is none."""
        best = None
        for index, (_, score) in enumerate(scores):
            if best is None or self.score.gain(score, scores[best][1]) > self.min_gain:
                best = index
        return best

    def stops(self, scores: Sequence[Score]) -> bool:
        best = self.best(scores)
        return self.patience is not None and best is not None and len(scores) - 1 - best >= self.patience

    def why(self, scores: Sequence[Score], rounds: int, planned: int) -> str:
        """In words, why a run of ``planned`` rounds stopped after ``rounds``."""
        best = self.best(scores)
        assert best is not None
        after, score = scores[best]
        return (
            f"stopped early after round {rounds} of {planned}: the best score, {self.score.text(score)}, is that after "
            f"round {after}; all {planned} rounds are charged"
        )
