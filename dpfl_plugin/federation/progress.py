"""What a run has come to: what goes on from one round to the next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from dpfl_plugin.core.validation_scores import ValidationScore
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.federation.outcome import RunOutcome
from dpfl_plugin.federation.silo_group import SiloMetrics
from dpfl_plugin.federation.stopping import Score
from dpfl_plugin.measures.histogram import accuracy


@dataclass(slots=True)
class Progress:
    """What goes on from one round to the next, and into a checkpoint.

    Attributes:
        scores: released so far; best: the model (d,) with the best of them, where that is the one to keep.
        histograms: of each score what it was made of, where it is a histogram (`dpfl_plugin.measures.histogram`).
        losses: {"silo", "after_round", "why", "back"}: a silo that was lost after so many rounds, and after how many it
            came back by a resume; None while it is out.
        measured: the last evaluation of this session, after how many rounds; not in checkpoints.
        by_silo: what silos measured in it, without gradients.
        begun: rounds that were begun, as far as checkpoints know; those that were made again more than once.
        stopped: how a callback stopped the run, after which it is not asked again.
        statistics: released ones, as `private_statistics.scaling_of` takes them.
    """

    server: Vectors
    rounds: int = 0
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    scores: list[Score] = field(default_factory=list)
    best: Tensor | None = None
    measured: tuple[int, dict[int, SiloMetrics]] | None = None
    losses: list[dict[str, Any]] = field(default_factory=list)
    by_silo: dict[int, SiloMetrics] = field(default_factory=dict)
    begun: int = 0
    stopped: RunOutcome | None = None
    statistics: Tensor | None = None
    histograms: list[list[float]] = field(default_factory=list)

    def scored(self, released: list[float], score: ValidationScore) -> None:
        """A score of the global model was released: a noisy mean, or a histogram from which an accuracy follows."""
        if score.bins:
            self.histograms.append(released)
        self.scores.append((self.rounds, accuracy(released) if score.bins else score.of_share(released[0])))

    @property
    def lost(self) -> set[int]:
        """The silos that are out."""
        return {loss["silo"] for loss in self.losses if loss["back"] is None}
