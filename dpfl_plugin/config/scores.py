"""Which scores of its models a run releases, on records that are set apart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from dpfl_plugin.config.blocks import Strict

BINS_OF_AUC: Final = 10


class ScoresConfig(Strict):
    """Noisy validation scores, on records set apart."""

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
        description="noise std of a count; left out: the least for which all scores fit epsilon",
    )


class PrivateEvaluationConfig(ScoresConfig):
    """Noisy counts on records set apart: of right answers, or of two classes by the model's score."""

    at: list[Annotated[int, Field(ge=1)]] | None = Field(
        default=None, min_length=1, description="in place of every: the rounds after which scores are made, ascending"
    )
    measure: Literal["accuracy", "auc"] = Field(
        default="accuracy",
        description="what is released; auc, of two classes: histograms, from which accuracy follows, too",
    )
    bins: int | None = Field(
        default=None,
        ge=2,
        le=1000,
        description=f"of measure: auc, of the second class's probability, an even number; default: {BINS_OF_AUC}",
    )

    @property
    def histogram_bins(self) -> int:
        """0 where right answers are counted."""
        return (self.bins or BINS_OF_AUC) if self.measure == "auc" else 0

    @model_serializer(mode="wrap")
    def _as_given(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Runs that count right answers have the names that they always had."""
        values: dict[str, Any] = dump(self)
        silent = set() if self.histogram_bins else {"measure", "bins"}
        silent |= {"at"} if self.at is None else set()
        return {key: value for key, value in values.items() if key not in silent}

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

    every: int = Field(default=10, ge=1, description="rounds between scores")
    patience: int = Field(
        default=3, ge=1, description="scores in a row that are no better than the best, which end the run"
    )
    min_gain: float = Field(
        default=0.0, ge=0, lt=1, description="by how much a score has to beat the best to be better"
    )
    keep: Literal["best", "last"] = Field(
        default="best", description="the model that is the result: of the best score, or the last"
    )


@dataclass(frozen=True, slots=True)
class Scoring:
    """Validation scores that a run plans, by which ``key`` of its configuration.

    Attributes:
        every: rounds between scores; None where the number of rounds is not known, which is refused.
        bins: of histograms; 0 where right answers are counted.
        at: the rounds after which scores are made, in place of ``every``; () for none.
    """

    key: str
    share: float
    every: int | None
    noise_multiplier: float | None
    bins: int = 0
    at: tuple[int, ...] = ()

    def number(self, rounds: int) -> int:
        """How many scores so many rounds make."""
        assert self.every is not None
        return sum(after <= rounds for after in self.at) if self.at else rounds // self.every
