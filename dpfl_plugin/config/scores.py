"""Which scores of its models a run releases, on records that are set apart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from dpfl_plugin.config.blocks import Strict

BINS_OF_AUC: Final = 10
SumMeasure = Literal["accuracy", "log_loss", "mae", "deviance", "brier"]
MEASURE: Final = (
    "what a score is the mean of; left out: accuracy of classes, mae of levels and numbers, deviance of counts and "
    "survival, brier of several labels"
)
BOUND: Final = "of a record's loss, which is cut there; left out: what the outcome says (docs/evaluation.md)"
YOUNG: Final = frozenset({"measure", "bound", "at"})
"""Keys that are left out of the names of runs where they are None."""


class ScoresConfig(Strict):
    """Noisy validation scores, on records set apart."""

    bound: float | None = Field(default=None, gt=0, lt=math.inf, description=BOUND)
    share: float = Field(
        default=0.1, gt=0, lt=1, description="of a silo's training records, scored and never trained on"
    )
    every: int | None = Field(
        default=None, ge=1, description="rounds between scores; left out: one, after the last round"
    )
    noise_multiplier: float | None = Field(
        default=None,
        ge=0,
        lt=math.inf,
        description="noise std / sensitivity of a silo's sum; left out: the least for which all scores fit epsilon",
    )

    @model_serializer(mode="wrap")
    def _as_given(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without keys that are younger than the names of runs, where they say nothing."""
        values: dict[str, Any] = dump(self)
        return {key: value for key, value in values.items() if value is not None or key not in YOUNG}


class PrivateEvaluationConfig(ScoresConfig):
    """Noisy sums on records set apart: of how well each is predicted, or counts of two classes by the model's score."""

    at: list[Annotated[int, Field(ge=1)]] | None = Field(
        default=None, min_length=1, description="in place of every: the rounds after which scores are made, ascending"
    )
    measure: Literal["accuracy", "log_loss", "mae", "deviance", "brier", "auc", "clipped_share"] | None = Field(
        default=None,
        description=f"{MEASURE}; auc, of two classes: by histograms, from which accuracy follows, too; clipped_share: "
        "of the records, those whose gradients are clipped",
    )
    bins: int | None = Field(
        default=None,
        ge=2,
        le=1000,
        description=f"of measure: auc, of the second class's probability, an even number; default: {BINS_OF_AUC}",
    )

    @property
    def histogram_bins(self) -> int:
        """0 where no histogram is released."""
        return (self.bins or BINS_OF_AUC) if self.measure == "auc" else 0

    @model_serializer(mode="wrap")
    def _as_given(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """As of `ScoresConfig`; ``bins`` of histograms are always said."""
        values: dict[str, Any] = dump(self)
        silent = YOUNG if self.histogram_bins else {*YOUNG, "bins"}
        return {key: value for key, value in values.items() if value is not None or key not in silent}

    @model_validator(mode="after")
    def _ascending(self) -> PrivateEvaluationConfig:
        if self.at is None:
            return self
        if self.at != sorted(set(self.at)):
            raise ValueError(f"at={self.at} must name each round once, ascending")
        return self

    @model_validator(mode="after")
    def _bins_of_auc(self) -> PrivateEvaluationConfig:
        if self.histogram_bins % 2:
            raise ValueError(f"bins={self.bins} must be even, so that an edge is where the prediction changes")
        return self


class EarlyStoppingConfig(ScoresConfig):
    """Noisy validation scores, on records set apart, and when they end the run."""

    measure: SumMeasure | None = Field(default=None, description=MEASURE)
    every: int = Field(default=10, ge=1, description="rounds between scores")
    patience: int = Field(
        default=3, ge=1, description="scores in a row that are no better than the best, which end the run"
    )
    min_gain: float = Field(
        default=0.0, ge=0, lt=math.inf, description="by how much a score has to beat the best to be better"
    )
    keep: Literal["best", "last"] = Field(
        default="best", description="the model that is the result: of the best score, or the last"
    )


@dataclass(frozen=True, slots=True)
class Scoring:
    """Validation scores that a run plans, by which ``key`` of its configuration.

    Attributes:
        every: rounds between scores; None where the number of rounds is not known, which is refused.
        bins: of histograms; 0 for none.
        at: the rounds after which scores are made, in place of ``every``; () for none.
        measure, bound: of a score; None where the outcome says.
    """

    key: str
    share: float
    every: int | None
    noise_multiplier: float | None
    bins: int = 0
    at: tuple[int, ...] = ()
    measure: str | None = None
    bound: float | None = None

    def number(self, rounds: int) -> int:
        """How many scores so many rounds make."""
        assert self.every is not None
        return sum(after <= rounds for after in self.at) if self.at else rounds // self.every
